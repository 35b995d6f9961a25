package workload

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/clock"

	"github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

// checked is a node's Checks against an in-memory API. Probes answer what the
// test says, unless it asks for real ones.
type checked struct {
	t      *testing.T
	client *resourcetest.Client
	checks *Checks

	mu    sync.Mutex
	fails map[string]bool
	asked map[string][]time.Duration
	began time.Time
}

func newChecked(t *testing.T) *checked {
	c := &checked{t: t, client: resourcetest.New(resourcetest.Descriptors()...), fails: map[string]bool{}, asked: map[string][]time.Duration{}, began: time.Now()}
	c.checks = NewChecks(ChecksConfig{Client: c.client, Node: "node-1", Logger: slog.New(slog.DiscardHandler), Clock: clock.RealClock{}})
	c.checks.probe = func(dp *v1alpha1.Dataplane) (*prober, error) {
		p, err := newProber(dp)
		if err != nil {
			return nil, err
		}
		p.ask = func(context.Context) error {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.asked[dp.Name] = append(c.asked[dp.Name], time.Since(c.began).Round(time.Millisecond))
			if c.fails[dp.Name] {
				return errors.New("refused")
			}
			return nil
		}
		return p, nil
	}
	return c
}

func (c *checked) run() {
	ctx, cancel := context.WithCancel(c.t.Context())
	done := make(chan error)
	go func() { done <- c.checks.Run(ctx) }()
	c.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			c.t.Error(err)
		}
	})
}

func (c *checked) fail(name string, fails bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fails[name] = fails
}

func (c *checked) askedAt(name string) []time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.asked[name])
}

// ready is the Ready condition: "reason status", or "-".
func (c *checked) ready(name string) string {
	c.t.Helper()
	obj, err := c.client.Get(context.Background(), kind.Dataplane, resource.Key{Namespace: "default", Name: name})
	if err != nil {
		c.t.Fatal(err)
	}
	cond := meta.FindStatusCondition(obj.(*v1alpha1.Dataplane).Status.Conditions, v1alpha1.DataplaneReady)
	if cond == nil {
		return "-"
	}
	return cond.Reason + " " + string(cond.Status)
}

func (c *checked) expect(name, want string) {
	c.t.Helper()
	if got := c.ready(name); got != want {
		c.t.Errorf("%s: Ready is %q, want %q", name, got, want)
	}
}

func probed(name, node string, probe *v1alpha1.Probe) *v1alpha1.Dataplane {
	return &v1alpha1.Dataplane{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Generation: 1},
		Spec: v1alpha1.DataplaneSpec{NodeName: node, Addresses: []string{"192.0.2.7"}, Readiness: probe,
			Ports: []v1alpha1.DataplanePort{{Name: "http", Port: 8080}}},
	}
}

func tcpProbe() *v1alpha1.Probe {
	return &v1alpha1.Probe{TCPSocket: &v1alpha1.TCPSocketAction{Port: intstr.FromInt32(8080)},
		InitialDelaySeconds: 3, PeriodSeconds: 5, TimeoutSeconds: 1, SuccessThreshold: 2, FailureThreshold: 3}
}

func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// The timing fields mean what they mean in Kubernetes.
func TestChecksTiming(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newChecked(t)
		c.client.Seed(probed("web", "node-1", tcpProbe()))
		c.run()
		after(8*time.Second - time.Millisecond) // asked at 3 s, one success
		c.expect("web", "-")
		after(2 * time.Millisecond) // at 8 s the second one
		c.expect("web", "ProbeSucceeded True")
		c.fail("web", true) // asked at 13, 18 and 23 s
		after(15*time.Second - 2*time.Millisecond)
		c.expect("web", "ProbeSucceeded True")
		after(2 * time.Millisecond)
		c.expect("web", "ProbeFailed False")
		c.fail("web", false)
		after(10 * time.Second)
		c.expect("web", "ProbeSucceeded True")
		var want []time.Duration
		for at := 3 * time.Second; at <= 33*time.Second; at += 5 * time.Second {
			want = append(want, at)
		}
		if diff := cmp.Diff(want, c.askedAt("web")); diff != "" {
			t.Errorf("asked at: %s", diff)
		}
	})
}

// What never was ready is reported as failing, and why, once it is certain.
func TestChecksTellFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newChecked(t)
		c.fail("web", true)
		c.client.Seed(probed("web", "node-1", tcpProbe()))
		c.run()
		after(12 * time.Second)
		c.expect("web", "-")
		after(2 * time.Second)
		c.expect("web", "ProbeFailed False")
	})
}

func TestChecksWhatIsOurs(t *testing.T) {
	leased := probed("kept-by-run", "node-1", tcpProbe())
	leased.Status.Lease = &v1alpha1.DataplaneLease{Holder: "host/1", RenewTime: metav1.NowMicro(), DurationSeconds: 40}
	exec := probed("by-exec", "node-1", &v1alpha1.Probe{Exec: &v1alpha1.ExecAction{Command: []string{"true"}}})
	silent := probed("no-probe", "node-1", nil)
	synctest.Test(t, func(t *testing.T) {
		c := newChecked(t)
		c.client.Seed(leased, exec, silent, probed("elsewhere", "node-2", tcpProbe()), probed("ours", "node-1", tcpProbe()))
		c.run()
		after(time.Minute)
		c.expect("ours", "ProbeSucceeded True")
		for _, name := range []string{"kept-by-run", "by-exec", "no-probe", "elsewhere"} {
			c.expect(name, "-")
			if n := len(c.askedAt(name)); n != 0 {
				t.Errorf("%s was asked %d times", name, n)
			}
		}
	})
}

// Changes of a Dataplane while it is probed.
func TestChecksFollow(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(dp *v1alpha1.Dataplane)
		asked  bool
	}{
		{"a run takes it over", func(dp *v1alpha1.Dataplane) {
			dp.Status.Lease = &v1alpha1.DataplaneLease{Holder: "host/1", RenewTime: metav1.NowMicro(), DurationSeconds: 40}
		}, false},
		{"the probe goes", func(dp *v1alpha1.Dataplane) { dp.Spec.Readiness, dp.Generation = nil, 2 }, false},
		{"it moves to another node", func(dp *v1alpha1.Dataplane) { dp.Spec.NodeName, dp.Generation = "node-2", 2 }, false},
		{"it drains", func(dp *v1alpha1.Dataplane) { dp.DeletionTimestamp = &metav1.Time{Time: time.Now()} }, true},
		{"its probe is another one", func(dp *v1alpha1.Dataplane) { dp.Spec.Readiness.PeriodSeconds, dp.Generation = 1, 2 }, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newChecked(t)
				c.client.Seed(probed("web", "node-1", tcpProbe()))
				c.run()
				after(20 * time.Second)
				c.expect("web", "ProbeSucceeded True")
				obj, err := c.client.Get(t.Context(), kind.Dataplane, resource.Key{Namespace: "default", Name: "web"})
				if err != nil {
					t.Fatal(err)
				}
				dp := obj.(*v1alpha1.Dataplane)
				tc.change(dp)
				c.client.Seed(dp)
				synctest.Wait()
				c.fail("web", true)
				before := len(c.askedAt("web"))
				after(30 * time.Second)
				if asked := len(c.askedAt("web")) > before; asked != tc.asked {
					t.Errorf("asked on: %t, want %t", asked, tc.asked)
				}
				want := "ProbeSucceeded True"
				if tc.asked {
					want = "ProbeFailed False"
				}
				c.expect("web", want)
			})
		})
	}
}

// An agent that comes back takes readiness as it finds it, until probes say
// otherwise, and does not ask everything at one moment.
func TestChecksAfterRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newChecked(t)
		for i := range 100 {
			dp := probed(fmt.Sprintf("web-%d", i), "node-1", tcpProbe())
			dp.Status.Conditions = []metav1.Condition{condition{ready: true, reason: "ProbeSucceeded"}.asCondition(time.Now())}
			dp.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Hour))
			c.client.Seed(dp)
		}
		c.fail("web-0", true)
		c.run()
		after(10 * time.Second)
		c.expect("web-0", "ProbeSucceeded True")
		after(5 * time.Second)
		c.expect("web-0", "ProbeFailed False")
		first := map[time.Duration]bool{}
		for i := range 100 {
			first[c.askedAt(fmt.Sprintf("web-%d", i))[0]] = true
		}
		if len(first) < 50 {
			t.Errorf("100 workloads were asked at %d moments", len(first))
		}
	})
}

// While the API is away, probing goes on; what changed is written afterwards, and
// what another client wrote is corrected.
func TestChecksOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newChecked(t)
		c.client.Seed(probed("web", "node-1", tcpProbe()))
		c.run()
		after(20 * time.Second)
		var away atomic.Bool
		away.Store(true)
		c.client.Intercept(func(resourcetest.Call) error {
			if away.Load() {
				return errors.New("away")
			}
			return nil
		})
		c.client.Disconnect()
		before := len(c.askedAt("web"))
		c.fail("web", true)
		after(time.Minute)
		if n := len(c.askedAt("web")) - before; n != 12 {
			t.Errorf("asked %d times in a minute without the API, want 12", n)
		}
		away.Store(false)
		after(checkRetryMax)
		c.expect("web", "ProbeFailed False")

		obj, _ := c.client.Get(t.Context(), kind.Dataplane, resource.Key{Namespace: "default", Name: "web"})
		dp := obj.(*v1alpha1.Dataplane)
		dp.Status.Conditions = nil // restored from a backup
		c.client.Seed(dp)
		synctest.Wait()
		c.expect("web", "ProbeFailed False")
	})
}

// For real: HTTP, TCP and gRPC, on the Dataplane's own address.
func TestChecksForReal(t *testing.T) {
	client := resourcetest.New(resourcetest.Descriptors()...)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, webPort := httpServer(t, http.StatusOK)
	_, badPort := httpServer(t, http.StatusInternalServerError)
	grpcPort := grpcServer(t)
	_, closedPort := freeAddress(t)
	probes := map[string]v1alpha1.Probe{
		"http":    {HTTPGet: &v1alpha1.HTTPGetAction{Path: "/", Port: intstr.FromInt32(webPort)}},
		"http-5":  {HTTPGet: &v1alpha1.HTTPGetAction{Path: "/", Port: intstr.FromInt32(badPort)}},
		"tcp":     {TCPSocket: &v1alpha1.TCPSocketAction{Port: intstr.FromInt32(webPort)}},
		"tcp-off": {TCPSocket: &v1alpha1.TCPSocketAction{Port: intstr.FromInt32(closedPort)}},
		"grpc":    {GRPC: &v1alpha1.GRPCAction{Port: grpcPort, Service: "shop"}},
		"grpc-no": {GRPC: &v1alpha1.GRPCAction{Port: grpcPort, Service: "down"}},
	}
	want := map[string]string{"http": "True", "http-5": "False", "tcp": "True", "tcp-off": "False", "grpc": "True", "grpc-no": "False"}
	for name, probe := range probes {
		probe.FailureThreshold, probe.PeriodSeconds, probe.TimeoutSeconds = 1, 1, 5
		dp := probed(name, "node-1", &probe)
		dp.Spec.Addresses = []string{"127.0.0.1"}
		client.Seed(dp)
	}
	w, err := client.Watch(ctx, kind.Dataplane, resource.WatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	checks := NewChecks(ChecksConfig{Client: client, Node: "node-1", Logger: slog.New(slog.DiscardHandler), Clock: clock.RealClock{}})
	done := make(chan error, 1)
	go func() { done <- checks.Run(ctx) }()
	got := map[string]string{}
	timeout := time.After(2 * time.Minute)
	for len(got) < len(want) {
		select {
		case event := <-w.ResultChan():
			if dp, ok := event.Object.(*v1alpha1.Dataplane); ok {
				if c := meta.FindStatusCondition(dp.Status.Conditions, v1alpha1.DataplaneReady); c != nil {
					got[dp.Name] = string(c.Status)
				}
			}
		case <-timeout:
			t.Fatalf("verdicts so far: %v", got)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func grpcServer(t *testing.T) int32 {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv, state := grpc.NewServer(), health.NewServer()
	state.SetServingStatus("shop", grpc_health_v1.HealthCheckResponse_SERVING)
	state.SetServingStatus("down", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	grpc_health_v1.RegisterHealthServer(srv, state)
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(srv.Stop)
	return int32(l.Addr().(*net.TCPAddr).Port)
}

// A probe follows redirects on the Dataplane's address and nowhere else, and asks
// no proxy of the environment.
func TestProbesGoNowhereElse(t *testing.T) {
	var elsewhere atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	defer other.Close()
	otherPort := strconv.Itoa(other.Listener.Addr().(*net.TCPAddr).Port)
	t.Setenv("HTTP_PROXY", other.URL)
	t.Setenv("HTTPS_PROXY", other.URL)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/away":
			http.Redirect(w, r, "http://localhost:"+otherPort+"/", http.StatusFound)
		case "/here":
			http.Redirect(w, r, "/bad", http.StatusFound)
		case "/round":
			http.Redirect(w, r, "/round", http.StatusFound)
		default:
			w.WriteHeader(http.StatusTeapot)
		}
	}))
	defer srv.Close()
	port := int32(srv.Listener.Addr().(*net.TCPAddr).Port)
	for path, ready := range map[string]bool{"/away": true, "/here": false, "/round": true} {
		p, err := newProber(&v1alpha1.Dataplane{Spec: v1alpha1.DataplaneSpec{Addresses: []string{"127.0.0.1"},
			Readiness: &v1alpha1.Probe{HTTPGet: &v1alpha1.HTTPGetAction{Path: path, Port: intstr.FromInt32(port)}, TimeoutSeconds: 10}}})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.once(t.Context()); (err == nil) != ready {
			t.Errorf("%s: %v, want ready: %t", path, err, ready)
		}
	}
	if n := elsewhere.Load(); n != 0 {
		t.Errorf("another server was asked %d times", n)
	}
}
