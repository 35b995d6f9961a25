package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/choose"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeMode keeps what it is given. fail, if set, decides about each call.
type fakeMode struct {
	mu     sync.Mutex
	state  map[proxy.PortName]*proxy.PortState
	calls  []time.Time
	sizes  []int
	took   atomic.Int64 // nanoseconds that a call takes
	fail   func(changes []proxy.Change) error
	called chan struct{}
}

func newFake() *fakeMode { return &fakeMode{state: map[proxy.PortName]*proxy.PortState{}} }

func (f *fakeMode) Name() string                { return "fake" }
func (f *fakeMode) Close(context.Context) error { return nil }

func (f *fakeMode) Apply(_ context.Context, changes []proxy.Change) error {
	time.Sleep(time.Duration(f.took.Load())) // only ever in a synctest bubble
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, time.Now())
	f.sizes = append(f.sizes, len(changes))
	var err error
	if f.fail != nil {
		err = f.fail(changes)
	}
	var perPort *proxy.PortError
	if err == nil || errors.As(err, &perPort) {
		for _, c := range changes {
			switch {
			case perPort != nil && perPort.Failed[c.Name] != nil:
			case c.State == nil:
				delete(f.state, c.Name)
			default:
				f.state[c.Name] = c.State
			}
		}
	}
	if f.called != nil {
		f.called <- struct{}{}
	}
	return err
}

func (f *fakeMode) snapshot() map[proxy.PortName]*proxy.PortState {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.state)
}

func (f *fakeMode) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.calls)
}

func (f *fakeMode) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = nil
}

func name(i int) proxy.ServiceName {
	return proxy.ServiceName{Namespace: "default", Name: fmt.Sprint("s", i)}
}

func portName(i int) proxy.PortName { return proxy.PortName{ServiceName: name(i), Port: "http"} }

func service(i int) *proxy.Service {
	return &proxy.Service{
		Name:       name(i),
		ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{127, 96, byte(i >> 8), byte(i)})},
		Ports:      []proxy.Port{{Name: "http", Protocol: proxy.TCP, Port: 80}},
	}
}

func slice(i int, hosts ...byte) *proxy.Slice {
	s := &proxy.Slice{
		Name:    proxy.SliceName{Namespace: "default", Name: fmt.Sprint("s", i, "-a")},
		Service: name(i),
		Ports:   []proxy.SlicePort{{Name: "http", Port: 8080, Protocol: proxy.TCP}},
	}
	for _, h := range hosts {
		s.Endpoints = append(s.Endpoints, proxy.SliceEndpoint{
			Addr: netip.AddrFrom4([4]byte{10, 0, 0, h}), Node: fmt.Sprint("n", h), Zone: locality.Zone(fmt.Sprint("z", h)),
			Hints: proxy.HintsOf(locality.Zones(fmt.Sprint("z", h)), nil), Ready: true, Serving: true,
		})
	}
	return s
}

func whole(n int) proxy.Update {
	u := proxy.Update{Reset: true, Services: map[proxy.ServiceName]*proxy.Service{}, Slices: map[proxy.SliceName]*proxy.Slice{}}
	for i := range n {
		s := slice(i, 1, 2, 3)
		u.Services[name(i)], u.Slices[s.Name] = service(i), s
	}
	return u
}

func change(s *proxy.Slice) proxy.Update {
	return proxy.Update{Slices: map[proxy.SliceName]*proxy.Slice{s.Name: s}}
}

func addrs(s *proxy.PortState) string {
	if s == nil {
		return "none"
	}
	var out []string
	for _, t := range s.IPv4.Cluster {
		out = append(out, t.Addr.Addr().String())
	}
	return strings.Join(out, " ")
}

// start runs an agent until the test's end.
func start(t testing.TB, opts Options) *Agent {
	t.Helper()
	a, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return a
}

func isReady(a *Agent) bool {
	select {
	case <-a.Ready():
		return true
	default:
		return false
	}
}

func TestFollowsTheModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mode := newFake()
		a := start(t, Options{Mode: mode, Facts: Facts{Name: "n1"}})
		expect := func(what string, port int, want string) {
			t.Helper()
			time.Sleep(time.Second)
			synctest.Wait()
			if got := addrs(mode.snapshot()[portName(port)]); got != want {
				t.Errorf("%s: port %d has endpoints %q, want %q", what, port, got, want)
			}
		}

		u := whole(2)
		u.Reset = false
		a.Apply(u)
		expect("an update before the whole state", 0, "none")
		if mode.count() != 0 || isReady(a) {
			t.Errorf("mode called %d times, ready %v, before the whole state", mode.count(), isReady(a))
		}
		a.Apply(whole(2))
		expect("whole state", 0, "10.0.0.1 10.0.0.2 10.0.0.3")
		if !isReady(a) {
			t.Error("not ready after the whole state")
		}

		a.Apply(change(slice(0, 7)))
		expect("changed slice", 0, "10.0.0.7")
		expect("changed slice, other service", 1, "10.0.0.1 10.0.0.2 10.0.0.3")
		if got := mode.sizes[len(mode.sizes)-1]; got != 1 {
			t.Errorf("a change of one slice led to %d changes", got)
		}

		moved := slice(0, 7)
		moved.Service = name(1)
		a.Apply(change(moved))
		expect("slice moved to another service, old one", 0, "")
		expect("slice moved to another service, new one", 1, "10.0.0.1 10.0.0.2 10.0.0.3 10.0.0.7")

		a.Apply(change(slice(0, 7)))
		a.SetFacts(Facts{Name: "n1", Zone: "z2"})
		expect("new zone", 1, "10.0.0.2")

		calls := mode.count()
		same := whole(2)
		same.Slices[slice(0).Name] = slice(0, 7)
		a.Apply(same)
		expect("the same once more", 0, "10.0.0.7")
		if got := mode.count(); got != calls {
			t.Errorf("the same state again called the mode %d times", got-calls)
		}

		a.Apply(proxy.Update{Services: map[proxy.ServiceName]*proxy.Service{name(0): nil}})
		expect("service gone", 0, "none")
		a.Apply(proxy.Update{Reset: true})
		expect("reset to nothing", 1, "none")
		if s := a.Status(); s.Services+s.Slices+s.Ports+len(s.Pending) != 0 {
			t.Errorf("status after a reset to nothing: %+v", s)
		}
	})
}

// TestSuspectsMark: only service ports that have endpoints on a node of which something
// changed are looked at.
func TestSuspectsMark(t *testing.T) {
	m := newModel(true)
	ignore := func(proxy.PortName) {}
	u := whole(2)
	for i, node := range []string{"n1", "n2"} {
		s := slice(i, 1)
		s.Endpoints = s.Endpoints[:1]
		s.Endpoints[0].Node = node
		u.Slices[s.Name] = s
	}
	m.apply(u, ignore)
	for _, step := range []struct {
		suspects map[string]bool
		want     []proxy.PortName
	}{
		{map[string]bool{"n2": true}, []proxy.PortName{portName(1)}},
		{map[string]bool{"n2": true, "n9": true}, nil},
		{map[string]bool{"n1": true}, []proxy.PortName{portName(0)}},
		{map[string]bool{"n2": false, "n9": false}, []proxy.PortName{portName(1)}},
	} {
		var got []proxy.PortName
		m.apply(proxy.Update{Suspects: step.suspects}, func(p proxy.PortName) { got = append(got, p) })
		if !slices.Equal(got, step.want) {
			t.Errorf("%v: %v are looked at, want %v", step.suspects, got, step.want)
		}
	}
}

// A suspect node's endpoints leave the lists at once, and come back.
func TestSuspects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mode := newFake()
		a := start(t, Options{Mode: mode, Facts: Facts{Name: "n1"}})
		u := whole(2)
		on := slice(0, 1, 2)
		on.Endpoints = on.Endpoints[:2]
		on.Endpoints[0].Hints, on.Endpoints[1].Hints = nil, nil
		on.Endpoints[1].Node = "n2"
		u.Slices[on.Name] = on
		a.Apply(u)
		expect := func(when, want string, calls int) {
			t.Helper()
			synctest.Wait()
			time.Sleep(time.Second)
			synctest.Wait()
			if got := addrs(mode.snapshot()[portName(0)]); got != want || mode.count() != calls {
				t.Errorf("%s: %q after %d calls, want %q after %d", when, got, mode.count(), want, calls)
			}
		}
		expect("at first", "10.0.0.1 10.0.0.2", 1)
		a.Apply(proxy.Update{Suspects: map[string]bool{"n2": true, "n9": true}})
		expect("suspect", "10.0.0.1", 2)
		if got := a.Status().Suspects; !slices.Equal(got, []string{"n2", "n9"}) {
			t.Errorf("status names %v", got)
		}
		a.Apply(proxy.Update{Suspects: map[string]bool{"n2": true}})
		expect("once more", "10.0.0.1", 2)
		a.Apply(proxy.Update{Suspects: map[string]bool{"n9": false}})
		expect("another one trusted", "10.0.0.1", 2)
		a.Apply(proxy.Update{Suspects: map[string]bool{"n2": false}})
		expect("trusted", "10.0.0.1 10.0.0.2", 3)
		a.Apply(proxy.Update{Suspects: map[string]bool{"n2": true}})
		expect("suspect again", "10.0.0.1", 4)
		a.Apply(u) // the whole state, without suspects
		expect("reset", "10.0.0.1 10.0.0.2", 5)
	})
}

func TestEmptyWholeStateReachesTheMode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mode := newFake()
		a := start(t, Options{Mode: mode})
		a.Apply(proxy.Update{Reset: true})
		synctest.Wait()
		if mode.count() != 1 || !isReady(a) {
			t.Errorf("mode called %d times, ready %v; leftovers would stay", mode.count(), isReady(a))
		}
	})
}

func TestFirstChangeAtOnceBurstsCoalesced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mode := newFake()
		a := start(t, Options{Mode: mode})
		a.Apply(whole(1))
		time.Sleep(time.Second)
		synctest.Wait()
		mode.forget()

		begin := time.Now()
		for i := range 2000 { // a change per millisecond
			a.Apply(change(slice(0, byte(i%250+1))))
			if i == 0 {
				synctest.Wait()
				if len(mode.calls) != 1 || !mode.calls[0].Equal(begin) {
					t.Fatalf("first change: calls %v, want one at %v", mode.calls, begin)
				}
			}
			time.Sleep(time.Millisecond)
		}
		last := time.Now()
		time.Sleep(time.Second)
		synctest.Wait()
		if n := len(mode.calls); n > 30 {
			t.Errorf("2000 changes in 2 s led to %d calls, want ≤ 30", n)
		}
		if wait := mode.calls[len(mode.calls)-1].Sub(last); wait > 100*time.Millisecond {
			t.Errorf("last change waited %v, want ≤ 100ms", wait)
		}
		for i := 1; i < len(mode.calls); i++ {
			if gap := mode.calls[i].Sub(mode.calls[i-1]); gap > 101*time.Millisecond {
				t.Errorf("calls %d and %d are %v apart during the burst", i-1, i, gap)
			}
		}

		mode.forget()
		begin = time.Now()
		a.Apply(change(slice(0, 99)))
		synctest.Wait()
		if len(mode.calls) != 1 || !mode.calls[0].Equal(begin) {
			t.Errorf("change after the burst: calls %v, want one at %v", mode.calls, begin)
		}
	})
}

// TestConvergesWithFailures lets one call in ten fail, in each of two ways.
func TestConvergesWithFailures(t *testing.T) {
	for seed := range uint64(5) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 0))
			faults := rand.New(rand.NewPCG(seed, 1)) // of the mode's goroutine
			mode := newFake()
			mode.fail = func(changes []proxy.Change) error {
				switch {
				case faults.IntN(10) == 0:
					return errors.New("injected")
				case len(changes) > 0 && faults.IntN(10) == 0:
					c := changes[faults.IntN(len(changes))]
					return &proxy.PortError{Failed: map[proxy.PortName]error{c.Name: errors.New("injected for one")}}
				}
				return nil
			}
			a := start(t, Options{Mode: mode, Facts: Facts{Name: "n1"}})
			a.Apply(whole(20))
			services, lists := whole(20).Services, map[proxy.SliceName]*proxy.Slice{}
			maps.Copy(lists, whole(20).Slices)
			for range 300 {
				i := rnd.IntN(25)
				switch rnd.IntN(4) {
				case 0:
					a.Apply(proxy.Update{Services: map[proxy.ServiceName]*proxy.Service{name(i): nil}})
					delete(services, name(i))
				case 1:
					a.Apply(proxy.Update{Services: map[proxy.ServiceName]*proxy.Service{name(i): service(i)}})
					services[name(i)] = service(i)
				default:
					s := slice(i, byte(rnd.IntN(9)+1), byte(rnd.IntN(9)+11))
					a.Apply(change(s))
					lists[s.Name] = s
				}
				time.Sleep(time.Duration(rnd.IntN(50)) * time.Millisecond)
			}
			time.Sleep(5 * time.Minute) // longer than any backoff
			synctest.Wait()

			want := map[proxy.PortName]*proxy.PortState{}
			for i := range 25 {
				if svc := services[name(i)]; svc != nil {
					var of []*proxy.Slice
					if s := lists[slice(i).Name]; s != nil {
						of = append(of, s)
					}
					want[portName(i)] = choose.Slices(svc, svc.Ports[0], of, choose.Node{Name: "n1"})
				}
			}
			if diff := cmp.Diff(want, mode.snapshot(), cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{})); diff != "" {
				t.Errorf("seed %d: state after failures differs (-want +got):\n%s", seed, diff)
			}
			if s := a.Status(); len(s.Pending) != 0 {
				t.Errorf("seed %d: still pending: %+v", seed, s.Pending)
			}
		})
	}
}

type hinted struct{ error }

func (hinted) Hint() string { return "use a port of 1024 or more" }

func TestFailureOfOnePort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mode := newFake()
		var broken atomic.Bool
		broken.Store(true)
		mode.fail = func(changes []proxy.Change) error {
			if !broken.Load() || !slices.ContainsFunc(changes, func(c proxy.Change) bool { return c.Name == portName(1) }) {
				return nil
			}
			return &proxy.PortError{Failed: map[proxy.PortName]error{portName(1): fmt.Errorf("listening: %w", hinted{errors.New("denied")})}}
		}
		a := start(t, Options{Mode: mode})
		begin := time.Now()
		a.Apply(whole(3))
		synctest.Wait()
		if !isReady(a) || len(mode.snapshot()) != 2 {
			t.Fatalf("ready %v with %d ports in place, want the two others", isReady(a), len(mode.snapshot()))
		}
		want := []Pending{{
			Port: "default/s1:http", Since: begin, Attempts: 1, Error: "listening: denied",
			Hint: "use a port of 1024 or more", RetryAt: begin.Add(100 * time.Millisecond),
		}}
		s := a.Status()
		if diff := cmp.Diff(want, s.Pending); diff != "" {
			t.Errorf("pending (-want +got):\n%s", diff)
		}
		if s.LastErrorHint != "use a port of 1024 or more" {
			t.Errorf("hint of the last error is %q", s.LastErrorHint)
		}

		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if n := mode.count(); n < 20 || n > 40 {
			t.Errorf("%d calls in 10 minutes, want a retry every 30 s after the backoff", n)
		}
		for i, size := range mode.sizes[1:] {
			if size != 1 {
				t.Errorf("retry %d handed over %d changes, want the failed one", i, size)
			}
		}
		if code := get(a.HealthHandler(), "/healthz"); code != http.StatusOK {
			t.Errorf("/healthz is %d for one failed port among working ones", code)
		}
		broken.Store(false)
		time.Sleep(time.Minute)
		synctest.Wait()
		if s := a.Status(); len(s.Pending) != 0 || s.Ports != 3 {
			t.Errorf("after the repair: %+v", s)
		}
	})
}

func TestFirstCallIsRepeatedWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mode := newFake()
		failures := 2
		mode.fail = func([]proxy.Change) error {
			if failures--; failures >= 0 {
				return errors.New("no such table")
			}
			return nil
		}
		a := start(t, Options{Mode: mode})
		a.Apply(whole(5))
		synctest.Wait()
		a.Apply(change(slice(0, 9))) // must not be taken for the whole state
		time.Sleep(time.Minute)
		synctest.Wait()
		if diff := cmp.Diff([]int{5, 5, 5}, mode.sizes); diff != "" {
			t.Errorf("changes per call (-want +got):\n%s", diff)
		}
		if !isReady(a) {
			t.Error("not ready")
		}
	})
}

func get(h http.Handler, path string) int {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Code
}

func TestHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mode := newFake()
		var down atomic.Bool
		mode.fail = func([]proxy.Change) error {
			if down.Load() {
				return errors.New("netlink is gone")
			}
			return nil
		}
		reg := prometheus.NewPedanticRegistry()
		a := start(t, Options{Mode: mode, Facts: Facts{Name: "n1"}, Registerer: reg})
		check := func(when string, healthz, livez int) {
			t.Helper()
			synctest.Wait()
			if got := get(a.HealthHandler(), "/healthz"); got != healthz {
				t.Errorf("%s: /healthz is %d, want %d", when, got, healthz)
			}
			if got := get(a.HealthHandler(), "/livez"); got != livez {
				t.Errorf("%s: /livez is %d, want %d", when, got, livez)
			}
		}
		body := func(path, want string) {
			t.Helper()
			w := httptest.NewRecorder()
			a.HealthHandler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
			got := regexp.MustCompile(`"(lastUpdated|currentTime)":"[^"]*",?`).ReplaceAllString(strings.TrimSpace(w.Body.String()), "")
			if got != want {
				t.Errorf("body of %s: %s, want %s", path, got, want)
			}
		}
		time.Sleep(time.Hour)
		check("before the first state", 503, 200)
		body("/healthz", `{"nodeEligible":true,"healthy":false}`)
		a.Apply(whole(1))
		check("first state in place", 200, 200)
		body("/healthz", `{"nodeEligible":true,"healthy":true,"status":{"IPv4":{"healthy":true},"IPv6":{"healthy":true}}}`)
		body("/livez", `{"healthy":true,"status":{"IPv4":{"healthy":true},"IPv6":{"healthy":true}}}`)
		a.SetFacts(Facts{Name: "n1", Leaving: true})
		check("node leaves", 503, 200)
		body("/healthz", `{"nodeEligible":false,"healthy":true,"status":{"IPv4":{"healthy":true},"IPv6":{"healthy":true}}}`)
		a.SetFacts(Facts{Name: "n1"})
		down.Store(true)
		a.Apply(change(slice(0, 9)))
		time.Sleep(59 * time.Second)
		check("pending for less than two sync periods", 200, 200)
		time.Sleep(2 * time.Second)
		check("pending for two sync periods", 503, 503)
		body("/livez", `{"healthy":false,"status":{"IPv4":{"healthy":false},"IPv6":{"healthy":false}}}`)
		down.Store(false)
		time.Sleep(time.Minute)
		check("recovered", 200, 200)

		w := httptest.NewRecorder()
		a.MetricsHandler(reg).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		for _, want := range []string{
			"kubeproxy_sync_proxy_rules_duration_seconds_count", "proxima_node_change_applied_seconds_bucket",
			"proxima_node_pending_service_ports 0", "proxima_node_service_ports 1",
		} {
			if !strings.Contains(w.Body.String(), want) {
				t.Errorf("/metrics has no %q:\n%s", want, w.Body)
			}
		}
	})
}

// TestMetricsAreDocumented: docs/concepts/modes.md names every metric of the agent.
func TestMetricsAreDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../docs/concepts/modes.md")
	if err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	if _, err := New(Options{Mode: newFake(), Registerer: reg}); err != nil {
		t.Fatal(err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if len(families) < 10 {
		t.Errorf("%d metrics: this test tests nothing", len(families))
	}
	for _, f := range families {
		if !strings.Contains(string(doc), "`"+f.GetName()+"`") {
			t.Errorf("docs/concepts/modes.md does not name %s", f.GetName())
		}
	}
}

func TestAHungModeIsNotHealthy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mode := newFake()
		a := start(t, Options{Mode: mode})
		a.Apply(whole(1))
		synctest.Wait()
		mode.took.Store(int64(2 * time.Minute))
		a.Apply(change(slice(0, 9)))
		time.Sleep(61 * time.Second)
		if got := get(a.HealthHandler(), "/livez"); got != 503 {
			t.Errorf("/livez is %d while the mode hangs", got)
		}
		if s := a.Status(); len(s.Pending) != 1 {
			t.Errorf("pending while the mode hangs: %+v", s.Pending)
		}
	})
}

// BenchmarkOneSlice is the time from a changed slice to the call of the mode.
func BenchmarkOneSlice(b *testing.B) {
	for _, services := range []int{100, 10_000} {
		b.Run(fmt.Sprint(services), func(b *testing.B) {
			mode := newFake()
			mode.called = make(chan struct{}, 1)
			a := start(b, Options{Mode: mode, MinGap: -1, MaxGap: -1})
			a.Apply(whole(services))
			<-mode.called
			updates := []proxy.Update{change(slice(7, 1, 2, 4)), change(slice(7, 1, 2, 5))}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				a.Apply(updates[i%2])
				i++
				<-mode.called
			}
		})
	}
}

// TestProgrammingDuration counts each trigger time of a slice once, when what
// it changed is in place.
func TestProgrammingDuration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var busy atomic.Bool
		mode := newFake()
		mode.fail = func([]proxy.Change) error {
			if busy.Load() {
				return errors.New("busy")
			}
			return nil
		}
		a := start(t, Options{Mode: mode})
		counted := func(want uint64, sum time.Duration, when string) {
			t.Helper()
			time.Sleep(time.Second)
			synctest.Wait()
			a.mu.Lock()
			defer a.mu.Unlock()
			if h := a.stats.programming; h.Count() != want || h.Sum.Round(10*time.Millisecond) != sum {
				t.Errorf("%s: %d counted, %s in all; want %d, %s", when, h.Count(), h.Sum, want, sum)
			}
			if n := len(a.triggers); n > 0 {
				t.Errorf("%s: %d ports have causes that wait", when, n)
			}
		}
		caused := func(at time.Time, hosts ...byte) proxy.Update {
			s := slice(0, hosts...)
			s.Trigger = at
			return change(s)
		}
		u := whole(1)
		u.Slices[slice(0).Name].Trigger = time.Now().Add(-time.Hour)
		a.Apply(u)
		counted(0, 0, "before the agent's time")
		time.Sleep(time.Minute)
		a.Apply(caused(time.Now().Add(-2*time.Second), 1))
		counted(1, 2*time.Second, "a change")
		again := time.Now().Add(-time.Second)
		a.Apply(caused(again, 1))
		counted(2, 3*time.Second, "one that makes no difference here")
		a.Apply(caused(again, 1, 2))
		counted(2, 3*time.Second, "the same cause again")
		a.Apply(proxy.Update{Slices: map[proxy.SliceName]*proxy.Slice{slice(0).Name: nil}})
		counted(2, 3*time.Second, "a slice that goes")
		busy.Store(true)
		a.Apply(caused(time.Now(), 3))
		time.Sleep(5 * time.Second)
		busy.Store(false)
		time.Sleep(time.Minute)
		synctest.Wait()
		a.mu.Lock()
		h := a.stats.programming
		a.mu.Unlock()
		if h.Count() != 3 || h.Last < 5*time.Second || h.Last > 40*time.Second {
			t.Errorf("after a failure: %d counted, the last one %s", h.Count(), h.Last)
		}
	})
}
