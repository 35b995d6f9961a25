package demand

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeWorld has the zones of nodes, and every service port but those that are gone.
type fakeWorld struct {
	asleep bool
	nodes  map[string]locality.Zone
	// proxies have the zones of their workloads' nodes.
	proxies map[string]locality.Zone
	gone    map[proxy.PortName]bool
	// dual: Services have both address families; else IPv4.
	dual bool
}

func (w *fakeWorld) Synced() bool                            { return !w.asleep }
func (w *fakeWorld) Zone(node string) (locality.Zone, bool)  { z, ok := w.nodes[node]; return z, ok }
func (w *fakeWorld) Nodes() iter.Seq2[string, locality.Zone] { return maps.All(w.nodes) }
func (w *fakeWorld) Proxy(name string) (locality.Zone, bool) {
	z, ok := w.proxies[name]
	return z, ok
}
func (w *fakeWorld) Has(port proxy.PortName) bool               { return !w.gone[port] }
func (w *fakeWorld) Family(proxy.PortName) (proxy.Family, bool) { return proxy.IPv4, w.dual }

// aggregatorTest lets nodes report and steps, on a clock of its own.
type aggregatorTest struct {
	*Aggregator
	t     *testing.T
	world *fakeWorld
	now   time.Time
	last  map[string]uint64
}

func newAggregatorTest(t *testing.T, nodes map[string]locality.Zone) *aggregatorTest {
	w := &fakeWorld{nodes: nodes, gone: map[proxy.PortName]bool{}}
	a := &aggregatorTest{Aggregator: NewAggregator(Config{World: w}), t: t, world: w, now: time.Now(), last: map[string]uint64{}}
	a.step(a.now)
	return a
}

// report of what a node counted in so many intervals.
func (a *aggregatorTest) report(node string, intervals float64, traffic ...Traffic) {
	a.t.Helper()
	a.last[node]++
	r := &Report{
		Node:     node,
		Zone:     a.world.nodes[node],
		Run:      "r-" + node,
		Sequence: a.last[node],
		Elapsed:  time.Duration(intervals * float64(Interval)),
		Traffic:  traffic,
	}
	if fresh, err := a.receive(a.now, r); err != nil || !fresh {
		a.t.Fatalf("report of %s: fresh %v, %v", node, fresh, err)
	}
}

func (a *aggregatorTest) tick() {
	a.now = a.now.Add(Interval)
	a.step(a.now)
}

// shares of x in zones a, b and c; a and c may have no nodes.
func (a *aggregatorTest) shares() []float64 {
	noNodes := []bool{true, false, true}
	for _, zone := range a.world.nodes {
		noNodes[0] = noNodes[0] && zone != "a"
		noNodes[2] = noNodes[2] && zone != "c"
	}
	return a.Shares(portNamed("x"), proxy.IPv4, locality.Zones("a", "b", "c"), nil, noNodes).Shares
}

func (a *aggregatorTest) wantShares(what string, within float64, want ...float64) {
	a.t.Helper()
	got := a.shares()
	for i := range want {
		if math.Abs(got[i]-want[i]) > within {
			a.t.Errorf("%s: shares %.3f, want %.3f within %g", what, got, want, within)
			return
		}
	}
}

var threeNodes = map[string]locality.Zone{"n-a": "a", "n-b": "b", "n-c": "c"}

func TestSharesOfZones(t *testing.T) {
	a := newAggregatorTest(t, maps.Clone(threeNodes))
	got := a.Shares(portNamed("x"), proxy.IPv4, locality.Zones("a", "b"), []float64{3, 1}, nil)
	if diff := cmp.Diff(Estimate{Shares: []float64{0.75, 0.25}}, got); diff != "" {
		t.Errorf("nothing measured (-want +got):\n%s", diff)
	}
	for range 20 {
		a.report("n-a", 1, traffic("x", 700))
		a.report("n-b", 1, traffic("x", 200))
		a.report("n-c", 1, traffic("x", 100))
		a.tick()
	}
	a.wantShares("all zones", 0.005, 0.7, 0.2, 0.1)
	if e := a.Shares(portNamed("x"), proxy.IPv4, locality.Zones("a", "b", "c"), nil, nil); math.Abs(e.Rate-100) > 1e-6 || !e.Measured {
		t.Errorf("rate %v, measured %v; want 100 a second", e.Rate, e.Measured)
	}
	if e := a.Shares(portNamed("x"), proxy.IPv4, locality.Zones("b", "c"), nil, nil); math.Abs(e.Shares[0]-2./3) > 0.005 {
		t.Errorf("of b and c alone: %v", e.Shares)
	}
	if e := a.Shares(portNamed("x"), proxy.IPv4, locality.Zones("a", "b", "c"), nil, []bool{true, false, false}); e.Shares[0] != 0 ||
		math.Abs(e.Shares[1]-2./3) > 0.005 {
		t.Errorf("a has no nodes: %v", e.Shares)
	}
	// A zone where no agent ever reported stands at its prior.
	if e := a.Shares(portNamed("x"), proxy.IPv4, locality.Zones("a", "b", "c", "d"), []float64{1, 1, 1, 1}, nil); math.Abs(e.Shares[3]-0.25) > 0.01 {
		t.Errorf("d never reported: %v", e.Shares)
	}
}

// TestUnsteadyReports: reports that come early, late, twice, or cover long, weigh as if they came on time.
func TestUnsteadyReports(t *testing.T) {
	a := newAggregatorTest(t, maps.Clone(threeNodes))
	for k := range 60 {
		a.report("n-a", 1, traffic("x", 100))
		if k%2 == 0 { // two at once, then none
			a.report("n-b", 1, traffic("x", 100))
			a.report("n-b", 1, traffic("x", 100))
		}
		if k%3 == 2 { // one for three
			a.report("n-c", 3, traffic("x", 300))
		}
		a.tick()
		if k > 10 {
			a.wantShares(fmt.Sprint("step ", k), 0.02, 1./3, 1./3, 1./3)
		}
	}
	a.report("n-a", 1, traffic("x", 100))
	a.report("n-b", 60, traffic("x", 6000)) // after an outage
	a.tick()
	a.wantShares("after an outage", 0.02, 1./3, 1./3, 1./3)
}

func TestSilentZoneHolds(t *testing.T) {
	a := newAggregatorTest(t, maps.Clone(threeNodes))
	for range 20 {
		a.report("n-a", 1, traffic("x", 800))
		a.report("n-b", 1, traffic("x", 100))
		a.report("n-c", 1, traffic("x", 100))
		a.tick()
	}
	for range 200 {
		a.report("n-b", 1, traffic("x", 100))
		a.report("n-c", 1, traffic("x", 100))
		a.tick()
	}
	a.wantShares("a is cut off for half an hour", 0.01, 0.8, 0.1, 0.1)
	for range 60 {
		a.report("n-a", 1)
		a.report("n-b", 1, traffic("x", 100))
		a.report("n-c", 1, traffic("x", 100))
		a.tick()
	}
	a.wantShares("a says that there is no traffic", 0.02, 0, 0.5, 0.5)
	for range 200 {
		a.tick()
	}
	a.wantShares("everybody is silent", 0.02, 0, 0.5, 0.5)
}

// TestLostAgentFades, while others of its zone go on.
func TestLostAgentFades(t *testing.T) {
	a := newAggregatorTest(t, map[string]locality.Zone{"n-a": "a", "n-lost": "a", "n-b": "b", "n-c": "c"})
	others := func() {
		a.report("n-a", 1, traffic("x", 100))
		a.report("n-b", 1, traffic("x", 100))
		a.report("n-c", 1, traffic("x", 100))
	}
	for range 20 {
		others()
		a.report("n-lost", 1, traffic("x", 700))
		a.tick()
	}
	for range 4 {
		others()
		a.tick()
	}
	a.wantShares("within the grace", 0.01, 0.8, 0.1, 0.1)
	previous := 0.8
	for k := range 90 {
		others()
		a.tick()
		now := a.shares()[0]
		if now > previous+0.005 {
			t.Fatalf("step %d: the share of a grew from %.3f to %.3f", k, previous, now)
		}
		if k == 8 && (now < 0.6 || now > 0.8) {
			t.Errorf("after one half-life the share of a is %.3f", now)
		}
		previous = now
	}
	a.wantShares("it is lost", 0.02, 1./3, 1./3, 1./3)
	for range 30 {
		others()
		a.report("n-lost", 1, traffic("x", 700))
		a.tick()
	}
	for range 3 {
		others()
		a.tick()
	}
	a.wantShares("it was back, and is silent again", 0.02, 0.8, 0.1, 0.1)
	for range 120 {
		others()
		a.tick()
	}
	if len(a.agents) != 4 {
		t.Error("an agent whose node is still there was forgotten")
	}
	delete(a.world.nodes, "n-lost")
	others()
	a.tick()
	if len(a.agents) != 3 {
		t.Errorf("%d agents are known, want 3", len(a.agents))
	}
}

// TestHeldIsSmooth: what stands in for a silent agent is not its last report alone.
func TestHeldIsSmooth(t *testing.T) {
	a := newAggregatorTest(t, map[string]locality.Zone{"n-a": "a", "n-busy": "a", "n-b": "b"})
	for k := range 40 {
		a.report("n-busy", 1, traffic("x", uint64(k%2)*2000))
		a.report("n-a", 1)
		a.report("n-b", 1, traffic("x", 1000))
		a.tick()
	}
	for range 3 {
		a.report("n-a", 1)
		a.report("n-b", 1, traffic("x", 1000))
		a.tick()
	}
	a.wantShares("held", 0.04, 0.5, 0.5, 0)
}

// TestPartitionFadesNone: of a zone that comes back one by one, none is missing at once.
func TestPartitionFadesNone(t *testing.T) {
	a := newAggregatorTest(t, map[string]locality.Zone{"n-a1": "a", "n-a2": "a", "n-b": "b"})
	for range 20 {
		a.report("n-a1", 1, traffic("x", 300))
		a.report("n-a2", 1, traffic("x", 300))
		a.report("n-b", 1, traffic("x", 200))
		a.tick()
	}
	for range 100 {
		a.report("n-b", 1, traffic("x", 200))
		a.tick()
	}
	a.report("n-a1", 1, traffic("x", 300))
	a.report("n-b", 1, traffic("x", 200))
	a.tick()
	a.wantShares("one of a is back", 0.01, 0.75, 0.25, 0)
}

func TestZoneOfNodeChanges(t *testing.T) {
	for name, others := range map[string]map[string]locality.Zone{
		"others stay": {"n": "a", "m": "a"}, "the zone is empty": {"n": "a"}, "a node without an agent stays": {"n": "a", "idle": "a"},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAggregatorTest(t, maps.Clone(others))
			a.world.nodes["n-b"] = "b"
			feed := func() {
				a.report("n", 1, traffic("x", 900))
				a.report("n-b", 1, traffic("x", 100))
				if others["m"] != "" {
					a.report("m", 1)
				}
				a.tick()
			}
			for range 20 {
				feed()
			}
			a.wantShares("before", 0.02, 0.9, 0.1, 0)
			a.world.nodes["n"] = "c"
			for range 30 {
				feed()
			}
			a.wantShares("after", 0.02, 0, 0.1, 0.9)
		})
	}
}

// TestNodeObjectOverrulesReport, and the report counts where the object says nothing.
func TestNodeObjectOverrulesReport(t *testing.T) {
	a := newAggregatorTest(t, map[string]locality.Zone{"labelled": "a", "bare": ""})
	for k := range 10 {
		for _, node := range []string{"labelled", "bare"} {
			n := map[string]uint64{"labelled": 1000, "bare": 3000}[node]
			r := &Report{Node: node, Zone: "b", Run: "r", Sequence: uint64(k + 1), Elapsed: Interval, Traffic: []Traffic{traffic("x", n)}}
			if _, err := a.receive(a.now, r); err != nil {
				t.Fatal(err)
			}
		}
		a.tick()
	}
	a.wantShares("zones", 0.01, 0.25, 0.75, 0)
}

func TestDuplicatesCountOnce(t *testing.T) {
	a := newAggregatorTest(t, maps.Clone(threeNodes))
	send := func(run string, sequence uint64) bool {
		t.Helper()
		fresh, err := a.receive(a.now,
			&Report{Node: "n-a", Zone: "a", Run: run, Sequence: sequence, Elapsed: Interval, Traffic: []Traffic{traffic("x", 1)}})
		if err != nil {
			t.Fatal(err)
		}
		return fresh
	}
	for _, step := range []struct {
		run      string
		sequence uint64
		fresh    bool
	}{
		{"one", 5, true}, {"one", 5, false}, {"one", 4, false}, {"one", 6, true}, {"one", 9, true},
		{"two", 1, true}, {"one", 10, true}, {"two", 1, false}, {"one", 10, false}, {"two", 2, true},
	} {
		if got := send(step.run, step.sequence); got != step.fresh {
			t.Errorf("run %s, sequence %d: fresh %v, want %v", step.run, step.sequence, got, step.fresh)
		}
	}
	s := a.Stats()
	if s.Accepted != 6 || s.Duplicate != 4 || s.Missed != 2 || s.Total.Connections != 6 {
		t.Errorf("stats %+v", s)
	}
	for i := range 100 {
		send(fmt.Sprint("run ", i), 1)
	}
	if n := len(a.agents[reporter{node: "n-a"}].runs); n != knownRuns {
		t.Errorf("%d runs are remembered, want %d", n, knownRuns)
	}
}

func TestRefused(t *testing.T) {
	good := func() *Report {
		return &Report{Node: "n-a", Zone: "a", Run: "r", Sequence: 1, Elapsed: Interval, Traffic: []Traffic{traffic("x", 1)}}
	}
	long := string(make([]byte, 300))
	for field, change := range map[string]func(*Report){
		"node": func(r *Report) { r.Node = "" }, "zone": func(r *Report) { r.Zone = locality.Zone(long) }, "run": func(r *Report) { r.Run = long },
		"sequence": func(r *Report) { r.Sequence = 0 }, "elapsed": func(r *Report) { r.Elapsed = -1 },
		"traffic": func(r *Report) { r.Traffic = make([]Traffic, MaxPorts+1) },
		"traffic[0]": func(r *Report) {
			r.Traffic[0].BytesOut = MaxCount + 1
		},
		"traffic[1]": func(r *Report) { r.Traffic = append(r.Traffic, Traffic{}) },
	} {
		a := newAggregatorTest(t, maps.Clone(threeNodes))
		r := good()
		change(r)
		_, err := a.receive(a.now, r)
		if refused := (*FieldError)(nil); !errors.As(err, &refused) || refused.Field != field {
			t.Errorf("%s: %v", field, err)
		}
		if len(a.agents)+len(a.ports) != 0 {
			t.Errorf("%s: a refused report left something behind", field)
		}
	}
	a := newAggregatorTest(t, maps.Clone(threeNodes))
	a.world.asleep = true
	if _, err := a.receive(a.now, good()); !errors.Is(err, ErrNotReady) {
		t.Errorf("before the catalog is there: %v", err)
	}
	a.world.asleep = false
	if fresh, err := a.receive(a.now, good()); !fresh || err != nil {
		t.Errorf("once it is: fresh %v, %v", fresh, err)
	}
}

// TestMemory: what has no traffic, or is no more, is not kept.
func TestMemory(t *testing.T) {
	a := newAggregatorTest(t, maps.Clone(threeNodes))
	a.world.gone[portNamed("never")] = true
	for range 10 {
		a.report("n-a", 1, traffic("x", 1000), traffic("deleted", 1000), traffic("never", 1))
		a.tick()
	}
	if len(a.ports) != 2 || a.Stats().UnknownPort != 10 {
		t.Errorf("%d ports are kept, want 2; %+v", len(a.ports), a.Stats())
	}
	a.world.gone[portNamed("deleted")] = true
	a.report("n-a", 1, traffic("x", 1000))
	a.tick()
	if len(a.ports) != 1 {
		t.Errorf("a port that is gone is kept")
	}
	before := a.shares()
	for range 60 * 6 {
		before = a.shares()
		a.report("n-a", 1)
		a.tick()
		if len(a.ports) == 0 {
			break
		}
	}
	if len(a.ports) != 0 {
		t.Error("a port without traffic for an hour is kept")
	}
	a.wantShares("forgetting it changes nothing", 0.002, before...)
	a.report("n-a", 1)
	a.tick()
	if n := len(a.agents[reporter{node: "n-a"}].held) + len(a.agents[reporter{node: "n-a"}].window); n != 0 {
		t.Errorf("the agent holds %d rates of ports that are gone", n)
	}
}

func TestSubscription(t *testing.T) {
	a := newAggregatorTest(t, maps.Clone(threeNodes))
	sub := a.Subscribe()
	quiet := func() bool {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		return len(sub.ready) == 0 && ctx.Err() != nil
	}
	next := func() []proxy.PortName {
		t.Helper()
		if quiet() {
			t.Fatal("no change was delivered")
		}
		names, err := sub.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return names
	}
	feed := func(x, y uint64) {
		a.report("n-a", 1, traffic("x", x), traffic("y", y))
		a.report("n-b", 1, traffic("x", 1000), traffic("y", 1000))
		a.tick()
	}
	feed(1000, 1000)
	if diff := cmp.Diff([]proxy.PortName{portNamed("x"), portNamed("y")}, next()); diff != "" {
		t.Errorf("new (-want +got):\n%s", diff)
	}
	for range 30 {
		feed(1000, 1000)
	}
	if !quiet() {
		t.Error("ports whose demand is the same were delivered")
	}
	feed(1500, 1000)
	if diff := cmp.Diff([]proxy.PortName{portNamed("x")}, next()); diff != "" {
		t.Errorf("changed (-want +got):\n%s", diff)
	}
	a.world.gone[portNamed("y")] = true
	a.tick()
	if diff := cmp.Diff([]proxy.PortName{portNamed("y")}, next()); diff != "" {
		t.Errorf("gone (-want +got):\n%s", diff)
	}
	late := a.Subscribe()
	defer late.Close()
	if names, err := late.Next(t.Context()); err != nil || len(names) != 1 {
		t.Errorf("a late subscriber gets %v, %v", names, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := sub.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("ctx ended: %v", err)
	}
	sub.Close()
	sub.Close()
	if _, err := sub.Next(t.Context()); !errors.Is(err, ErrClosed) || len(a.subs) != 1 {
		t.Errorf("closed: %v, %d subscriptions left", err, len(a.subs))
	}
}

// TestRun: who reports is known, and the estimate steps by itself.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &fakeWorld{nodes: maps.Clone(threeNodes)}
		a := NewAggregator(Config{World: w})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- a.Run(ctx) }()
		var sequence uint64
		report := func(nodes ...string) {
			sequence++
			for _, n := range nodes {
				if _, err := a.Receive(&Report{Node: n, Zone: w.nodes[n], Run: "r", Sequence: sequence, Elapsed: Interval, Traffic: []Traffic{traffic("x", 10)}}); err != nil {
					t.Fatal(err)
				}
			}
		}
		time.Sleep(Interval + time.Second)
		if a.Warm() {
			t.Error("warm, but no agent has reported")
		}
		report("n-a", "n-b")
		time.Sleep(Interval)
		if a.Warm() {
			t.Error("warm, but c has not reported")
		}
		report("n-a", "n-b", "n-c")
		time.Sleep(Interval)
		if !a.Warm() {
			t.Error("not warm, but all have reported")
		}
		time.Sleep(35 * time.Second)
		report("n-a")
		want := Coverage{Nodes: 3, Reporting: 1, Silent: 2, Oldest: 45 * time.Second, Warm: true, Ports: 1, SilentNodes: []AgentDemand{
			{Node: "n-b", Zone: "b", Age: 45 * time.Second, Kept: 1}, {Node: "n-c", Zone: "c", Age: 45 * time.Second, Kept: 1},
		}}
		if diff := cmp.Diff(want, a.Coverage()); diff != "" {
			t.Errorf("coverage (-want +got):\n%s", diff)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestSnapshot(t *testing.T) {
	a := newAggregatorTest(t, maps.Clone(threeNodes))
	for range 10 {
		a.report("n-a", 1, traffic("x", 100), traffic("y", 1))
		a.report("n-b", 1, traffic("x", 100))
		a.report("n-c", 1)
		a.tick()
	}
	all := a.Snapshot(nil)
	if len(all) != 2 || all[0].Name != "ns/x:http" || all[1].Name != "ns/y:http" {
		t.Fatalf("snapshot %+v", all)
	}
	x := all[0]
	if x.Total != (Total{2000, 20000, 200000}) || math.Abs(x.Connections-20) > 1e-6 || math.Abs(x.BytesOut-2000) > 1e-6 || len(x.Zones) != 3 {
		t.Errorf("x: %+v", x)
	}
	if one := a.Snapshot(&proxy.ServiceName{Namespace: "ns", Name: "y"}); len(one) != 1 || one[0].Name != "ns/y:http" {
		t.Errorf("of one Service: %+v", one)
	}
}
