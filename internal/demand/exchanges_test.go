package demand

import (
	"iter"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// row is an exchange of a port.
type row struct {
	port proxy.PortName
	proxy.Exchange
}

func rows(all ...row) iter.Seq2[proxy.PortName, proxy.Exchange] {
	return func(yield func(proxy.PortName, proxy.Exchange) bool) {
		for _, r := range all {
			if !yield(r.port, r.Exchange) {
				return
			}
		}
	}
}

func measured(covered time.Duration) proxy.Accounting {
	return proxy.Accounting{Quality: proxy.Measured, Covered: covered}
}

func TestMeterReportsExchanges(t *testing.T) {
	m := newMeterTest(t)
	x, y := portNamed("x"), portNamed("y")
	read := func(c counters, a proxy.Accounting, all ...row) {
		m.meter.Read(m.now, c.all())
		m.meter.ReadExchanges(a, rows(all...))
		m.now = m.now.Add(Interval)
	}
	check := func(covered time.Duration, want ...Traffic) {
		t.Helper()
		r := m.meter.Next("a")
		if diff := cmp.Diff(want, r.Traffic); diff != "" || r.Accounting != (Accounting{Quality: proxy.Measured, Covered: covered}) {
			t.Errorf("accounting %+v, traffic (-want +got):\n%s", r.Accounting, diff)
		}
		if err := r.Check(); err != nil {
			t.Error(err)
		}
		m.meter.Acknowledge(r.Sequence)
	}
	at := func(in, out, opened, open uint64) proxy.Exchange {
		return proxy.Exchange{Zone: "b", BytesIn: in, BytesOut: out, Opened: opened, Open: open}
	}
	one := counters{x: {Connections: 1}}
	read(one, measured(0), row{x, at(1000, 1000, 1, 1)})
	one[x] = proxy.Counts{Connections: 3}
	read(one, measured(0), row{x, at(1000, 1000, 1, 1)}) // not read again
	check(0, Traffic{Port: x, Connections: 2, BytesIn: 0, Exchanges: []proxy.Exchange{at(0, 0, 0, 1)}})
	kept := proxy.Exchange{Zone: "a", Kept: true, BytesIn: 5}
	read(one, measured(time.Minute), row{x, at(1100, 3000, 3, 2)}, row{x, kept}, row{y, at(7, 7, 1, 0)})
	check(time.Minute, Traffic{Port: x, BytesIn: 105, BytesOut: 2000, Exchanges: []proxy.Exchange{kept, at(100, 2000, 2, 2)}},
		Traffic{Port: y, BytesIn: 7, BytesOut: 7, Exchanges: []proxy.Exchange{at(7, 7, 1, 0)}})
	read(one, measured(time.Minute), row{x, at(1100, 3000, 3, 2)})
	check(0, []Traffic{}...)
	// What is open is reported with each reading, though nothing moves.
	read(one, measured(2*time.Minute), row{x, at(1100, 3000, 3, 2)}, row{y, at(7, 7, 1, 0)})
	check(time.Minute, Traffic{Port: x, Exchanges: []proxy.Exchange{at(0, 0, 0, 2)}})
	// Two readings before a report.
	read(one, measured(3*time.Minute), row{x, at(1200, 3000, 3, 2)})
	read(one, measured(4*time.Minute), row{x, at(1300, 3000, 3, 1)})
	check(2*time.Minute, Traffic{Port: x, BytesIn: 200, Exchanges: []proxy.Exchange{at(200, 0, 0, 1)}})
	// The mode's counters started over.
	read(one, measured(5*time.Minute), row{x, at(10, 10, 1, 1)})
	check(time.Minute, Traffic{Port: x, Exchanges: []proxy.Exchange{at(0, 0, 0, 1)}})
}

// plane is an aggregator in a bubble of time, with a node per zone.
type plane struct {
	*testing.T
	*Aggregator
	sequence map[string]uint64
}

func newPlane(t *testing.T, nodes map[string]locality.Zone) *plane {
	p := &plane{T: t, Aggregator: NewAggregator(Config{World: &fakeWorld{nodes: nodes}}), sequence: map[string]uint64{}}
	p.step(time.Now())
	return p
}

func (p *plane) report(node string, a Accounting, traffic ...Traffic) {
	p.Helper()
	p.sequence[node]++
	r := &Report{Node: node, Run: "r", Sequence: p.sequence[node], Elapsed: Interval, Traffic: traffic, Accounting: a}
	if _, err := p.Receive(r); err != nil {
		p.Fatal(err)
	}
}

func near(a, b, within float64) bool { return math.Abs(a-b) <= within*math.Max(1, math.Abs(b)) }

// TestVolume: rates of bytes by way, from readings once a minute, without a ripple.
func TestVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(t, map[string]locality.Zone{"n1": "a", "n2": "a", "n3": "b"})
		port := portNamed("x")
		for minute := range 12 {
			for tick := range 6 {
				time.Sleep(Interval)
				for n, node := range []string{"n1", "n2", "n3"} {
					acc := Accounting{Quality: proxy.Measured}
					tr := Traffic{Port: port, Connections: 10}
					if tick == n { // each reads the kernel at a time of its own
						acc.Covered = time.Minute
						tr.Exchanges = []proxy.Exchange{{Zone: "b", BytesIn: 600, BytesOut: 60_000, Opened: 60, Closed: 54, Open: 30}}
					}
					p.report(node, acc, tr)
				}
				p.step(time.Now())
				v := p.Volume(port, proxy.AnyFamily)
				if minute < 1 {
					continue
				}
				if v.Bytes != "Measured" || v.Error != 0 || v.Open != 90 || len(v.Ways) != 2 {
					t.Fatalf("minute %d: %+v", minute, v)
				}
				for i, agents := range []float64{2, 1} {
					if w := v.Ways[i]; !near(w.BytesIn, 10*agents, 0.02) || !near(w.BytesOut, 1000*agents, 0.02) || !near(w.Opened, agents, 0.02) {
						t.Fatalf("minute %d, %d of 6: %+v", minute, tick, w)
					}
				}
			}
		}
		// 30 open connections of which 0.9 close per second: each after 33 s.
		if v := p.Volume(port, proxy.AnyFamily); !near(v.Turnover, 0.03, 0.05) {
			t.Errorf("turnover %+v", v.Turnover)
		}
		if p.Snapshot(nil)[0].Volume.Bytes != "Measured" {
			t.Error("not in the snapshot")
		}
	})
}

// TestVolumeQuality: what is missing is said, and how much that is.
func TestVolumeQuality(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(t, map[string]locality.Zone{"new": "a", "old": "a", "off": "a"})
		port := portNamed("x")
		if v := p.Volume(port, proxy.AnyFamily); v.Bytes != "Unavailable" || v.Reason == "" {
			t.Errorf("nothing: %+v", v)
		}
		minute := Accounting{Quality: proxy.Measured, Covered: time.Minute}
		exchange := []proxy.Exchange{{Zone: "b", BytesIn: 900, Opened: 10, Estimated: 90}}
		p.report("old", Accounting{}, Traffic{Port: port, Connections: 10})
		if v := p.Volume(port, proxy.AnyFamily); v.Bytes != "Unavailable" || !strings.Contains(v.Reason, "earlier version") {
			t.Errorf("an earlier agent alone: %+v", v)
		}
		time.Sleep(time.Minute)
		p.report("new", minute, Traffic{Port: port, Connections: 80, Exchanges: exchange})
		p.report("off", Accounting{Reason: "--accounting=off"}, Traffic{Port: port, Connections: 11})
		v := p.Volume(port, proxy.AnyFamily)
		if v.Bytes != "Estimated" || !strings.Contains(v.Reason, "--accounting=off") || !near(v.Error, 1-0.9*0.8, 0.05) {
			t.Errorf("one of three: %+v", v)
		}
	})
}

// TestLongConnectionsAreDemand: where no connection is new, open ones say where demand is;
// where they end and come again, they do as soon.
func TestLongConnectionsAreDemand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(t, map[string]locality.Zone{"n1": "a", "n2": "b"})
		port, zones := portNamed("x"), []locality.Zone{"a", "b"}
		open := func(n uint64) Traffic {
			return Traffic{Port: port, Exchanges: []proxy.Exchange{{Zone: "b", BytesIn: 1000, Open: n}}}
		}
		for range 60 {
			time.Sleep(time.Minute)
			acc := Accounting{Quality: proxy.Measured, Covered: time.Minute}
			p.report("n1", acc, open(9))
			p.report("n2", acc, open(3))
			p.step(time.Now())
		}
		e := p.Shares(port, proxy.IPv4, zones, nil, nil)
		// 9 and 3 connections, and a prior of 3.
		if want := (9 + 1.5) / 15; !near(e.Shares[0], want, 0.01) || !e.Measured || !(e.Rate > 0) {
			t.Errorf("shares %v, want %.2f of a; rate %g", e.Shares, want, e.Rate)
		}
		v := p.Volume(port, proxy.AnyFamily)
		if life := 1 / v.Turnover; v.Open != 12 || life < 4000 || life > 6000 {
			t.Errorf("%v open, which last %.0f s: want 12 and about what was watched", v.Open, life)
		}
		// An agent that is gone takes its connections along.
		delete(p.world.(*fakeWorld).nodes, "n1")
		for range 60 {
			time.Sleep(time.Minute)
			p.report("n2", Accounting{Quality: proxy.Measured, Covered: time.Minute}, open(3))
			p.step(time.Now())
		}
		if v := p.Volume(port, proxy.AnyFamily); v.Open != 3 {
			t.Errorf("%v open after a node went, want 3", v.Open)
		}
	})
}

// TestOpenConnectionsThatAreNotReadAgain: what an agent has open is what it read last, but not
// for ever.
func TestOpenConnectionsThatAreNotReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(t, map[string]locality.Zone{"n1": "a"})
		port := portNamed("x")
		want := func(what string, n float64) {
			t.Helper()
			p.step(time.Now())
			if v := p.Volume(port, proxy.AnyFamily); v.Open != n {
				t.Errorf("%s: %v open, want %v", what, v.Open, n)
			}
		}
		p.report("n1", Accounting{Quality: proxy.Measured, Covered: time.Minute},
			Traffic{Port: port, Connections: 100, Exchanges: []proxy.Exchange{{Zone: "b", BytesIn: 1000, Opened: 9, Open: 9}}})
		want("read", 9)
		report := func(n int) {
			for range n {
				time.Sleep(Interval)
				p.report("n1", Accounting{Reason: "--accounting=off"}, Traffic{Port: port, Connections: 100})
			}
		}
		report(int(openUnread / Interval))
		want("not read for a while", 9)
		report(1)
		want("not read any more", 0)
	})
}

// TestShortConnectionsAreCounted: of connections that last for milliseconds a reading sees
// one now and then. That is no demand of its own: the rate is that of new connections.
func TestShortConnectionsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(t, map[string]locality.Zone{"n1": "a", "n2": "b"})
		port, zones := portNamed("x"), []locality.Zone{"a", "b"}
		for i := range 60 {
			time.Sleep(Interval)
			acc := Accounting{Quality: proxy.Measured, Covered: Interval}
			for n, node := range []string{"n1", "n2"} {
				x := proxy.Exchange{Zone: "b", BytesIn: 1000, Opened: 80, Closed: 80}
				if i%10 == 5*n {
					x.Open = 1
				}
				p.report(node, acc, Traffic{Port: port, Connections: 80, Exchanges: []proxy.Exchange{x}})
			}
			p.step(time.Now())
			if e := p.Shares(port, proxy.IPv4, zones, nil, nil); i > 0 && (!near(e.Rate, 16, 0.01) || !near(e.Shares[0], 0.5, 0.01)) {
				t.Fatalf("report %d: %+v, want halves of 16 a second", i, e)
			}
		}
	})
}

// TestKeptIsFixed: what a policy Local keeps on nodes is no demand, and is load there.
func TestKeptIsFixed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(t, map[string]locality.Zone{"n1": "a", "n2": "b"})
		port, zones := portNamed("x"), []locality.Zone{"a", "b"}
		for range 60 {
			time.Sleep(Interval)
			acc := Accounting{Quality: proxy.Measured, Covered: Interval}
			p.report("n1", acc, Traffic{Port: port, Connections: 400, Exchanges: []proxy.Exchange{
				{Zone: "a", Kept: true, Opened: 300}, {Zone: "b", Opened: 100},
			}})
			p.report("n2", acc, Traffic{Port: port, Connections: 100, Exchanges: []proxy.Exchange{{Zone: "b", Opened: 100}}})
			p.step(time.Now())
		}
		e := p.Shares(port, proxy.IPv4, zones, nil, nil)
		if !near(e.Shares[0], 0.5, 0.01) || !near(e.Rate, 20, 0.01) || len(e.Fixed) != 2 || !near(e.Fixed[0], 1.5, 0.01) || e.Fixed[1] != 0 {
			t.Errorf("%+v, want halves of 20/s, and 1.5 times that fixed in a", e)
		}
	})
}
