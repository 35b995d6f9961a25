package demand

import (
	"maps"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

func trafficOf(family proxy.Family, n uint64) Traffic {
	t := traffic("x", n)
	t.Family = family
	return t
}

// bothFamilies is what a mode counts that tells them apart.
func bothFamilies(v4, v6 uint64) proxy.Counts {
	c := connections(v4 + v6)
	c.ByFamily, c.IPv6 = true, proxy.FamilyCounts{Connections: v6, BytesIn: 10 * v6, BytesOut: 100 * v6}
	return c
}

// TestMeterTellsFamiliesApart: each family of a port is a row of a report, with its exchanges,
// and starts over alone.
func TestMeterTellsFamiliesApart(t *testing.T) {
	m := newMeterTest(t)
	x := portNamed("x")
	m.read(counters{x: bothFamilies(100, 7)})
	m.read(counters{x: bothFamilies(103, 7), portNamed("y"): connections(2)})
	m.want(1, Interval, trafficOf(proxy.IPv4, 3), traffic("y", 2))
	m.meter.Acknowledge(1)
	m.read(counters{x: bothFamilies(105, 8), portNamed("y"): connections(2)})
	m.want(2, Interval, trafficOf(proxy.IPv4, 2), trafficOf(proxy.IPv6, 1))
	m.meter.Acknowledge(2)
	// The counters of one family begin again.
	m.read(counters{x: bothFamilies(109, 2), portNamed("y"): connections(2)})
	m.want(3, Interval, trafficOf(proxy.IPv4, 4))
	m.meter.Acknowledge(3)

	of := func(f proxy.Family, bytes uint64) row {
		return row{x, proxy.Exchange{Family: f, Zone: "b", BytesIn: bytes, Opened: 1, Open: 1}}
	}
	m.meter.ReadExchanges(measured(0), rows(of(proxy.IPv4, 0), of(proxy.IPv6, 0)))
	m.read(counters{x: bothFamilies(110, 2)})
	m.meter.ReadExchanges(measured(time.Minute), rows(of(proxy.IPv4, 50), of(proxy.IPv6, 60)))
	got := m.meter.Next("a").Traffic
	want := []Traffic{
		{Port: x, Family: proxy.IPv4, Connections: 1, BytesIn: 50, BytesOut: 100, Exchanges: []proxy.Exchange{{Zone: "b", BytesIn: 50, Open: 1}}},
		{Port: x, Family: proxy.IPv6, BytesIn: 60, Exchanges: []proxy.Exchange{{Zone: "b", BytesIn: 60, Open: 1}}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("exchanges (-want +got):\n%s", diff)
	}
}

// of a family: the estimate for zones a, b and c.
func (a *aggregatorTest) of(f proxy.Family) Estimate {
	return a.Shares(portNamed("x"), f, locality.Zones("a", "b", "c"), []float64{0, 0, 1}, nil)
}

func (a *aggregatorTest) wantFamily(what string, f proxy.Family, rate float64, shares ...float64) {
	a.t.Helper()
	e := a.of(f)
	for i := range shares {
		if math.Abs(e.Shares[i]-shares[i]) > 0.01 || math.Abs(e.Rate-rate) > 0.02*rate {
			a.t.Errorf("%s, %v: shares %.3f at %.3g/s, want %.3f at %.3g/s", what, f, e.Shares, e.Rate, shares, rate)
			return
		}
	}
}

// TestFamiliesAreEstimatedApart: the few IPv6 clients, all in another zone, have an estimate of
// their own; views of one number show the sum.
func TestFamiliesAreEstimatedApart(t *testing.T) {
	a := newAggregatorTest(t, maps.Clone(threeNodes))
	a.world.dual = true
	for range 30 {
		a.report("n-a", 1, trafficOf(proxy.IPv4, 950))
		a.report("n-b", 1, trafficOf(proxy.IPv6, 50))
		a.report("n-c", 1)
		a.tick()
	}
	a.wantFamily("apart", proxy.IPv4, 95, 1, 0, 0)
	a.wantFamily("apart", proxy.IPv6, 5, 0, 1, 0)
	a.wantFamily("together", proxy.AnyFamily, 100, 0.95, 0.05, 0)
	if e := a.of(proxy.IPv6); !near(e.Other, 95, 0.01) {
		t.Errorf("load of the other family %g, want 95", e.Other)
	}
	if rate := a.Rate(portNamed("x")); !near(rate, 100, 0.01) {
		t.Errorf("rate of both %g, want 100", rate)
	}
	d := a.Snapshot(nil)[0]
	if len(d.Families) != 2 || d.Families[1].Family != "IPv6" || !near(d.Families[1].Connections, 5, 0.01) || !near(d.Families[1].Zones[1].Share, 1, 0.05) {
		t.Errorf("by family %+v", d.Families)
	}
	if !near(d.Connections, 100, 0.01) || !near(d.Zones[0].Share, 0.95, 0.01) || d.Total.Connections != 30_000 {
		t.Errorf("the sum %+v", d)
	}
	// A family whose traffic ends is forgotten alone.
	for range 200 {
		a.report("n-a", 1, trafficOf(proxy.IPv4, 950))
		a.report("n-b", 1)
		a.report("n-c", 1)
		a.tick()
	}
	if d := a.Snapshot(nil)[0]; d.Families != nil || !near(d.Connections, 95, 0.01) {
		t.Errorf("of IPv4 alone %+v", d)
	}
	// It has the other's shares: where a Service's clients are says more than where CPUs are.
	if e := a.of(proxy.IPv6); e.Measured || e.Rate != 0 || !near(e.Other, 95, 0.01) || !near(e.Shares[0], 1, 0.01) {
		t.Errorf("IPv6 without traffic: %+v", e)
	}
}

// TestReportsWithoutFamily: agents of an earlier version, and proxies, do not tell families apart.
func TestReportsWithoutFamily(t *testing.T) {
	carry := func(a *aggregatorTest, inA, inB []Traffic) {
		for range 30 {
			a.report("n-a", 1, inA...)
			a.report("n-b", 1, inB...)
			a.report("n-c", 1)
			a.tick()
		}
	}
	old := func(n uint64) []Traffic { return []Traffic{traffic("x", n)} }

	single := newAggregatorTest(t, maps.Clone(threeNodes))
	carry(single, old(100), []Traffic{trafficOf(proxy.IPv4, 300)})
	single.wantFamily("a Service of one family", proxy.IPv4, 40, 0.25, 0.75, 0)
	if e := single.of(proxy.IPv6); e.Measured {
		t.Errorf("the family that it does not have: %+v", e)
	}

	dual := newAggregatorTest(t, maps.Clone(threeNodes))
	dual.world.dual = true
	carry(dual, old(100), old(300))
	for _, f := range []proxy.Family{proxy.IPv4, proxy.IPv6} {
		dual.wantFamily("nobody tells", f, 20, 0.25, 0.75, 0)
	}
	dual.wantFamily("nobody tells", proxy.AnyFamily, 40, 0.25, 0.75, 0)

	// The agent of b is upgraded: a fifth of what it counts is IPv6, so of a's a fifth is, too.
	mixed := newAggregatorTest(t, maps.Clone(threeNodes))
	mixed.world.dual = true
	carry(mixed, old(100), []Traffic{trafficOf(proxy.IPv4, 240), trafficOf(proxy.IPv6, 60)})
	mixed.wantFamily("one tells", proxy.IPv4, 32, 0.25, 0.75, 0)
	mixed.wantFamily("one tells", proxy.IPv6, 8, 0.25, 0.75, 0)

	// Proxies connect to endpoints of the first family, whatever others count.
	proxies := withProxies(t)
	proxies.world.dual = true
	for range 30 {
		for node := range threeNodes {
			proxies.report(node, 1)
		}
		proxies.report("n-a", 1, trafficOf(proxy.IPv6, 100))
		proxies.proxyReport("default/web-1", traffic("x", 50))
		proxies.tick()
	}
	proxies.wantFamily("proxies", proxy.IPv4, 5, 0, 1, 0)

	// A control plane of an earlier version reads both rows of a report as rows of the port.
	both := newAggregatorTest(t, maps.Clone(threeNodes))
	carry(both, append(old(40), old(60)...), old(300))
	both.wantFamily("rows add up", proxy.IPv4, 40, 0.25, 0.75, 0)
}

// TestVolumeOfFamilies: bytes and open connections are apart, too.
func TestVolumeOfFamilies(t *testing.T) {
	a := newAggregatorTest(t, maps.Clone(threeNodes))
	a.world.dual = true
	for range 30 {
		v4, v6 := trafficOf(proxy.IPv4, 10), trafficOf(proxy.IPv6, 10)
		v4.Exchanges = []proxy.Exchange{{Zone: "b", BytesIn: 1000, Opened: 10, Closed: 10, Open: 3}}
		v6.Exchanges = []proxy.Exchange{{Zone: "b", BytesIn: 200, Opened: 10, Closed: 10, Open: 1}}
		a.last["n-a"]++
		r := &Report{
			Node: "n-a", Run: "r", Sequence: a.last["n-a"], Elapsed: Interval, Traffic: []Traffic{v4, v6},
			Accounting: Accounting{Quality: proxy.Measured, Covered: Interval},
		}
		if _, err := a.receive(a.now, r); err != nil {
			t.Fatal(err)
		}
		a.tick()
	}
	p := a.ports[portNamed("x")]
	for f, want := range map[proxy.Family][2]float64{proxy.IPv4: {100, 3}, proxy.IPv6: {20, 1}, proxy.AnyFamily: {120, 4}} {
		v := a.volume(a.now, p, f)
		if len(v.Ways) != 1 || !near(v.Ways[0].BytesIn, want[0], 0.05) || v.Open != want[1] || v.Ways[0].Open != want[1] {
			t.Errorf("%v: %+v", f, v)
		}
	}
}
