package demand

import (
	"errors"
	"maps"
	"math"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/locality"
)

// proxyReport of what the proxy of a workload counted in an interval.
func (a *aggregatorTest) proxyReport(name string, traffic ...Traffic) {
	a.t.Helper()
	a.last[name]++
	r := &Report{Proxy: name, Run: "r-" + name, Sequence: a.last[name], Elapsed: Interval, Traffic: traffic}
	if fresh, err := a.receive(a.now, r); err != nil || !fresh {
		a.t.Fatalf("report of %s: fresh %v, %v", name, fresh, err)
	}
}

func withProxies(t *testing.T) *aggregatorTest {
	a := newAggregatorTest(t, maps.Clone(threeNodes))
	a.world.proxies = map[string]locality.Zone{"default/web-1": "b", "default/web-2": "c"}
	return a
}

// TestProxiesAndAgents: what proxies report adds to what agents of the same zone do.
func TestProxiesAndAgents(t *testing.T) {
	a := withProxies(t)
	for range 20 {
		a.report("n-a", 1, traffic("x", 400))
		a.report("n-b", 1, traffic("x", 100))
		a.report("n-c", 1)
		a.proxyReport("default/web-1", traffic("x", 100))
		a.proxyReport("default/web-2", traffic("x", 200))
		a.tick()
	}
	a.wantShares("both", 0.005, 0.5, 0.25, 0.25)
	if c := a.cover(a.now); c.Proxies != 2 || c.SilentProxies != 0 || c.Reporting != 3 || c.Nodes != 3 {
		t.Errorf("coverage %+v", c)
	}
	// The workload moves to another node.
	a.world.proxies["default/web-2"] = "a"
	for range 60 {
		a.report("n-a", 1, traffic("x", 400))
		a.report("n-b", 1, traffic("x", 100))
		a.report("n-c", 1)
		a.proxyReport("default/web-1", traffic("x", 100))
		a.proxyReport("default/web-2", traffic("x", 200))
		a.tick()
	}
	a.wantShares("moved", 0.02, 0.75, 0.25, 0)
}

// TestSilentProxy: while its workload is there, a proxy counts as it did; once that is gone, it
// fades, and is forgotten.
func TestSilentProxy(t *testing.T) {
	a := withProxies(t)
	others := func(steps int) {
		for range steps {
			a.report("n-a", 1, traffic("x", 100))
			a.report("n-b", 1)
			a.report("n-c", 1)
			a.tick()
		}
	}
	for range 20 {
		a.proxyReport("default/web-1", traffic("x", 100))
		others(1)
	}
	a.wantShares("it reports", 0.01, 0.5, 0.5, 0)
	others(30) // 5 minutes
	a.wantShares("it is silent", 0.01, 0.5, 0.5, 0)
	if c := a.cover(a.now); c.SilentProxies != 1 || c.Silent != 0 || c.Reporting != 3 {
		t.Errorf("coverage %+v", c)
	}
	delete(a.world.proxies, "default/web-1")
	others(120)
	a.wantShares("its workload is gone", 0.01, 1, 0, 0)
	if n := len(a.agents); n != 3 {
		t.Errorf("%d reporters are kept, want 3", n)
	}
}

// TestSilentForLong: a proxy that is silent for longer than any Dataplane outlives its lease fades.
func TestSilentForLong(t *testing.T) {
	a := withProxies(t)
	for i := range 200 {
		if i < 20 {
			a.proxyReport("default/web-1", traffic("x", 100))
		}
		a.report("n-a", 1, traffic("x", 100))
		a.report("n-b", 1)
		a.report("n-c", 1)
		a.tick()
	}
	a.wantShares("after half an hour", 0.01, 1, 0, 0)
}

// TestAgentsOutlastProxies: proxies that report are no evidence that the work of a silent agent
// has gone to others.
func TestAgentsOutlastProxies(t *testing.T) {
	a := withProxies(t)
	for i := range 60 {
		a.report("n-a", 1, traffic("x", 100))
		if i < 20 {
			a.report("n-b", 1, traffic("x", 100))
		}
		a.report("n-c", 1)
		a.proxyReport("default/web-1")
		a.tick()
	}
	a.wantShares("the agent of b is silent, a proxy there is not", 0.01, 0.5, 0.5, 0)
}

func TestUnknownProxy(t *testing.T) {
	a := withProxies(t)
	r := &Report{Proxy: "default/nobody", Run: "r", Sequence: 1, Elapsed: Interval}
	if _, err := a.receive(a.now, r); !errors.Is(err, ErrUnknownProxy) {
		t.Errorf("error %v, want %v", err, ErrUnknownProxy)
	}
	if len(a.agents) != 0 {
		t.Error("it is kept")
	}
	a.world.proxies["default/nobody"] = "a"
	if fresh, err := a.receive(a.now, r); err != nil || !fresh {
		t.Errorf("now that the workload is known: fresh %v, %v", fresh, err)
	}
}

// requests of HTTP to a service port.
func requests(name string, n uint64) Traffic {
	t := traffic(name, n)
	t.Requests = n
	return t
}

// TestUnits: a port of which both connections and requests are reported is mixed, until one of
// the two is forgotten.
func TestUnits(t *testing.T) {
	a := withProxies(t)
	units := func() Units { return a.ports[portNamed("x")].units.now(a.now) }
	a.proxyReport("default/web-1", requests("x", 100))
	a.proxyReport("default/web-2", traffic("x", 100))
	if got := units(); !got.Mixed || got.Nodes != 0 || got.Requests != 0.5 || got.ProxyConnections != 0.5 {
		t.Errorf("proxies alone, HTTP and TCP: %+v", got)
	}
	b := withProxies(t)
	b.proxyReport("default/web-1", requests("x", 1000))
	if got := b.ports[portNamed("x")].units.now(b.now); got.Mixed || got.Requests != 1 {
		t.Errorf("requests alone: %+v", got)
	}
	b.report("n-a", 1, traffic("x", 1))
	if got := b.ports[portNamed("x")].units.now(b.now); got.Mixed {
		t.Errorf("a single connection: %+v", got)
	}
	b.report("n-a", 1, traffic("x", 9))
	mixed := b.ports[portNamed("x")].units.now(b.now)
	if !mixed.Mixed || math.Abs(mixed.Nodes-10./1010) > 1e-9 {
		t.Errorf("nodes count connections, too: %+v", mixed)
	}
	later := b.now.Add(12 * time.Minute) // 10 connections fade to 1.9
	if got := b.ports[portNamed("x")].units.now(later); !got.Mixed {
		t.Errorf("a while later: %+v", got)
	}
	later = b.now.Add(20 * time.Minute)
	if got := b.ports[portNamed("x")].units.now(later); got.Mixed {
		t.Errorf("long after the last connection: %+v", got)
	}
}

// TestUtilisation is the mean of what endpoints state in their responses.
func TestUtilisation(t *testing.T) {
	a := withProxies(t)
	stated := func(sum float64, n uint64) Traffic {
		x := requests("x", 100)
		x.Utilisation = Utilisation{Sum: sum, Reports: n}
		return x
	}
	of := func() float64 { return a.ports[portNamed("x")].units.utilisation(a.now) }
	a.proxyReport("default/web-1", stated(8, 19))
	if got := of(); got != 0 {
		t.Errorf("of 19 responses: %g", got)
	}
	a.proxyReport("default/web-2", stated(32, 61))
	if got := of(); math.Abs(got-0.5) > 1e-9 {
		t.Errorf("utilisation %g, want 0.5", got)
	}
	for range 60 { // ten minutes without a word: it holds
		a.now = a.now.Add(Interval)
	}
	if got := of(); math.Abs(got-0.5) > 1e-9 && got != 0 {
		t.Errorf("utilisation %g later", got)
	}
	for _, bad := range []Utilisation{{Sum: math.NaN(), Reports: 1}, {Sum: -1, Reports: 1}, {Sum: 11, Reports: 1}, {Sum: 1}, {Sum: math.Inf(1), Reports: 2}} {
		x := requests("x", 1)
		x.Utilisation = bad
		r := &Report{Proxy: "default/web-1", Run: "q", Sequence: 1, Elapsed: Interval, Traffic: []Traffic{x}}
		if err := r.Check(); err == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
	r := &Report{Proxy: "default/web-1", Run: "q", Sequence: 1, Elapsed: Interval, Traffic: []Traffic{{Port: portNamed("x"), Connections: 1, Requests: 2}}}
	if err := r.Check(); err == nil {
		t.Error("more requests than connections and requests are taken")
	}
}
