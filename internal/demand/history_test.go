package demand

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// history is a random life of agents and a control plane, next to a plain account of
// what was carried.
type history struct {
	t      *rapid.T
	now    time.Time
	world  *fakeWorld
	plane  *Aggregator
	agents []*historyAgent
	// taken is what the present control plane took.
	taken Total
	clean bool // nothing was restarted, so everything must be counted
}

type historyAgent struct {
	name     string
	counters counters
	meter    *Meter
	runs     int
	// carried since the meter's first read; acknowledged of it.
	carried, acknowledged Total
	sent                  []*Report // all that ever went out, of any run
	// delivered to the present control plane.
	delivered map[string]bool
}

var historyPorts = []string{"p", "q", "r"}

func (h *history) restartAgent(a *historyAgent, modeToo bool) {
	a.runs++
	a.meter = NewMeter(a.name, fmt.Sprint(a.name, "/", a.runs), nil)
	if modeToo {
		a.counters = counters{}
	}
	a.carried, a.acknowledged = Total{}, Total{}
	a.meter.Read(h.now, a.counters.all())
}

func (h *history) restartPlane() {
	h.plane = NewAggregator(Config{World: h.world})
	h.plane.step(h.now)
	h.taken = Total{}
	for _, a := range h.agents {
		a.delivered = map[string]bool{}
	}
}

// carry traffic. It counts for the agent if the meter will see it.
func (h *history) carry(a *historyAgent, port string, n uint64) {
	c := a.counters[portNamed(port)]
	c.Connections += n
	c.BytesIn += 3 * n
	c.BytesOut += 7 * n
	a.counters[portNamed(port)] = c
	a.carried.add(Total{n, 3 * n, 7 * n})
}

func (h *history) read(a *historyAgent) {
	h.now = h.now.Add(time.Duration(rapid.Int64Range(1, int64(20*time.Second)).Draw(h.t, "pause")))
	a.meter.Read(h.now, a.counters.all())
}

// deliver hands a report to the control plane, which must take it exactly once.
func (h *history) deliver(a *historyAgent, r *Report) {
	key := fmt.Sprint(r.Run, "#", r.Sequence)
	fresh, err := h.plane.receive(h.now, r)
	if err != nil {
		h.t.Fatal(err)
	}
	// A report that comes after a later one of its run counts as taken: its sender has
	// had the answer, or has given up.
	if fresh && a.delivered[key] {
		h.t.Fatalf("report %s was taken twice", key)
	}
	if fresh {
		a.delivered[key] = true
		h.taken.add(sum(r))
	}
}

func sum(r *Report) (t Total) {
	for _, of := range r.Traffic {
		t.add(of.total())
	}
	return t
}

// send tries to report, with something that may go wrong.
func (h *history) send(a *historyAgent, mishap string) {
	r := a.meter.Next(h.zone(a))
	if r == nil {
		return
	}
	if err := r.Check(); err != nil {
		h.t.Fatal(err)
	}
	if len(a.sent) == 0 || a.sent[len(a.sent)-1] != r {
		a.sent = append(a.sent, r)
	}
	if mishap == "request lost" {
		return
	}
	h.deliver(a, r)
	if mishap == "twice" {
		h.deliver(a, r)
	}
	if mishap == "answer lost" {
		return
	}
	if a.meter.Acknowledge(r.Sequence) {
		a.acknowledged.add(sum(r))
	}
}

func (h *history) zone(a *historyAgent) locality.Zone { return h.world.nodes[a.name] }

// check that nothing is counted twice, and nothing that is not restarted is lost.
func (h *history) check() {
	if got := h.plane.Stats().Total; got != h.taken {
		h.t.Fatalf("the control plane counts %+v, took %+v", got, h.taken)
	}
	for _, a := range h.agents {
		known := a.acknowledged
		if a.meter.hand != nil {
			known.add(sum(a.meter.hand))
		}
		for _, p := range a.meter.pending {
			known.add(p)
		}
		if known.Connections > a.carried.Connections || known.BytesIn > a.carried.BytesIn || known.BytesOut > a.carried.BytesOut {
			h.t.Fatalf("%s counts %+v of %+v", a.name, known, a.carried)
		}
	}
}

// TestHistories: whatever is lost, doubled, late or restarted, counts are never more
// than what was carried; and exactly that, if nothing was forgotten.
func TestHistories(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := &history{
			t:     t,
			now:   time.Now(),
			clean: true,
			world: &fakeWorld{nodes: map[string]locality.Zone{"n1": "a", "n2": "b"}, gone: map[proxy.PortName]bool{}},
		}
		h.restartPlane()
		for _, name := range []string{"n1", "n2"} {
			a := &historyAgent{name: name, counters: counters{}, delivered: map[string]bool{}}
			h.agents = append(h.agents, a)
			h.restartAgent(a, true)
		}
		calm := rapid.Bool().Draw(t, "calm")
		one := func() *historyAgent { return h.agents[rapid.IntRange(0, 1).Draw(t, "agent")] }
		steps := map[string]func(*rapid.T){
			"carry": func(t *rapid.T) {
				h.carry(one(), rapid.SampledFrom(historyPorts).Draw(t, "port"), rapid.Uint64Range(0, 1e6).Draw(t, "connections"))
			},
			"read": func(*rapid.T) { h.read(one()) },
			"send": func(t *rapid.T) {
				h.send(one(), rapid.SampledFrom([]string{"", "request lost", "answer lost", "twice"}).Draw(t, "mishap"))
			},
			"an old one arrives": func(t *rapid.T) {
				if a := one(); len(a.sent) > 0 {
					r := rapid.SampledFrom(a.sent).Draw(t, "report")
					if r.Run == a.meter.run || len(a.sent) < 3 { // not of a run that is long over
						h.deliver(a, r)
					}
				}
			},
			"step": func(*rapid.T) { h.now = h.now.Add(Interval); h.plane.step(h.now) },
			"node moves": func(t *rapid.T) {
				h.world.nodes["n1"] = rapid.SampledFrom(locality.Zones("a", "b", "c")).Draw(t, "zone")
			},
			"nothing readable": func(*rapid.T) { h.now = h.now.Add(Interval); one().meter.Read(h.now, counters{}.all()) },
			"":                 func(*rapid.T) { h.check() },
		}
		if !calm {
			steps["agent restarts"] = func(t *rapid.T) {
				h.clean = false
				h.restartAgent(one(), rapid.Bool().Draw(t, "mode too"))
			}
			steps["control plane restarts"] = func(*rapid.T) { h.clean = false; h.restartPlane() }
			steps["port is made again"] = func(t *rapid.T) {
				h.clean = false
				delete(one().counters, portNamed(rapid.SampledFrom(historyPorts).Draw(t, "port")))
			}
		}
		t.Repeat(steps)

		carried := Total{}
		for _, a := range h.agents {
			h.read(a)
			for range 2 {
				h.send(a, "")
			}
			carried.add(a.carried)
			if a.meter.hand != nil || len(a.meter.pending) > 0 {
				t.Fatalf("%s has something left", a.name)
			}
		}
		h.check()
		if h.clean && h.taken != carried {
			t.Fatalf("%+v was carried, %+v is counted", carried, h.taken)
		}
		for _, p := range historyPorts {
			e := h.plane.Shares(portNamed(p), proxy.IPv4, locality.Zones("a", "b", "c"), nil, nil)
			if s := e.Shares[0] + e.Shares[1] + e.Shares[2]; !(s > 1-1e-9 && s < 1+1e-9) || e.Rate < 0 {
				t.Fatalf("%s: %+v", p, e)
			}
		}
	})
}
