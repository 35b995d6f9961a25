package health

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/locality"
)

// network simulates agents, what they see of each other, and a Detector that they
// report to.
type network struct {
	d   Detector
	now time.Time
	// zone by machine. down: nothing gets out of it. frozen: it does not answer, but its
	// kernel does. mute: its stream is broken, and it answers probes.
	zones              map[string]locality.Zone
	down, gone, mute   map[string]bool
	pending            []report
	orders             []Probe
	suspectAt, cleared map[string]time.Time
}

type report struct {
	at time.Time
	Probe
	o Outcome
}

func newNetwork(machines ...string) *network {
	n := &network{
		now: start, zones: map[string]locality.Zone{}, down: map[string]bool{}, gone: map[string]bool{}, mute: map[string]bool{},
		suspectAt: map[string]time.Time{}, cleared: map[string]time.Time{},
	}
	for i, name := range machines {
		n.zones[name] = locality.Zone(name[:1])
		n.d.SetNode(name, locality.Zone(name[:1]))
		n.d.Attend(name, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), 10256), n.now)
	}
	return n
}

func (n *network) carry(orders []Probe) {
	for _, p := range orders {
		n.orders = append(n.orders, p)
		switch {
		case n.down[p.Witness]:
		case n.down[p.Node]:
			n.pending = append(n.pending, report{n.now.Add(ProbeTimeout), p, Silent})
		case n.gone[p.Node]:
			n.pending = append(n.pending, report{n.now.Add(time.Millisecond), p, Refused})
		default:
			n.pending = append(n.pending, report{n.now.Add(time.Millisecond), p, Answered})
		}
	}
}

// run for some time. Heartbeats come at full seconds.
func (n *network) run(d time.Duration) {
	for end := n.now.Add(d); n.now.Before(end); n.now = n.now.Add(stepEvery) {
		for name := range n.zones {
			if n.now.Sub(start)%HeartbeatInterval == 0 && !n.down[name] && !n.gone[name] && !n.mute[name] {
				n.d.Heard(name, n.now)
			}
		}
		n.pending = slices.DeleteFunc(n.pending, func(r report) bool {
			if r.at.After(n.now) {
				return false
			}
			n.d.Result("nosuch", r.ID, Answered, n.now) // not its probe
			n.d.Result(r.Witness, r.ID, r.o, n.now)
			return true
		})
		n.carry(n.d.Step(n.now))
		suspects := map[string]bool{}
		for _, s := range n.d.Suspects() {
			suspects[s.Node] = true
			if _, known := n.suspectAt[s.Node]; !known {
				n.suspectAt[s.Node] = n.now
			}
		}
		for name := range n.suspectAt {
			if !suspects[name] {
				delete(n.suspectAt, name)
				n.cleared[name] = n.now
			}
		}
	}
}

func (n *network) suspects() string {
	var out []string
	for _, s := range n.d.Suspects() {
		out = append(out, s.Node)
	}
	return strings.Join(out, " ")
}

func (n *network) want(t *testing.T, when, suspects string) {
	t.Helper()
	if got := n.suspects(); got != suspects {
		t.Errorf("%s: suspects %q, want %q", when, got, suspects)
	}
}

// stall steps until a machine whose stream is broken is probed, and returns the probes,
// which are not carried out.
func (n *network) stall(t *testing.T, name string) []Probe {
	t.Helper()
	for range int(2 * StallAfter / stepEvery) {
		for other := range n.zones {
			if other != name {
				n.d.Heard(other, n.now)
			}
		}
		if orders := n.d.Step(n.now); len(orders) > 0 && orders[0].Node == name {
			return orders
		}
		n.now = n.now.Add(stepEvery)
	}
	t.Fatalf("%s was never probed", name)
	return nil
}

// wantProbes: some, and no more, were of a machine since orders was cleared.
func (n *network) wantProbes(t *testing.T, of string, most int) {
	t.Helper()
	got := 0
	for _, p := range n.orders {
		if p.Node == of {
			got++
		}
	}
	if got == 0 || got > most {
		t.Errorf("%d probes of %s, want 1 to %d", got, of, most)
	}
}

func six() *network { return newNetwork("a-1", "a-2", "b-1", "b-2", "c-1", "c-2") }

func TestDetector(t *testing.T) {
	t.Run("a machine dies and comes back", func(t *testing.T) {
		n := six()
		n.run(10 * time.Second)
		n.orders = nil
		died := n.now.Add(100 * time.Millisecond)
		n.run(100 * time.Millisecond)
		n.down["b-1"] = true
		n.run(20 * time.Second)
		n.want(t, "dead", "b-1")
		if took := n.suspectAt["b-1"].Sub(died); took > 4*time.Second {
			t.Errorf("suspect after %s", took)
		}
		s := n.d.Suspects()[0]
		zones := n.zones[s.Witnesses[0]] + n.zones[s.Witnesses[1]]
		if len(s.Witnesses) != 2 || s.Zone != "b" || !strings.Contains(string(zones), "b") || zones == "bb" {
			t.Errorf("suspect %+v: want one witness of its zone and one of another", s)
		}
		if len(n.orders) > 10 {
			t.Errorf("%d probes in 20 s", len(n.orders))
		}
		delete(n.down, "b-1")
		n.run(1100 * time.Millisecond)
		n.want(t, "back", "")
	})
	t.Run("the stream alone is broken", func(t *testing.T) {
		n := six()
		n.run(10 * time.Second)
		n.mute["b-1"] = true
		n.orders = nil
		n.run(time.Minute)
		n.want(t, "mute", "")
		n.wantProbes(t, "b-1", 20)
		n.down["b-1"] = true // now it dies
		n.run(retryAnswering + 2*time.Second)
		n.want(t, "dead", "b-1")
		n.d.Renewed("b-1", n.now)
		n.want(t, "renewed", "")
		n.run(renewalGrace - time.Second)
		n.want(t, "within the grace", "")
		n.run(3 * time.Second)
		n.want(t, "no renewal more", "b-1")
		delete(n.down, "b-1")
		n.run(retrySilent + 2*time.Second)
		n.want(t, "its stream is broken still, and it answers", "")
	})
	t.Run("the agent is gone, the machine is not", func(t *testing.T) {
		n := six()
		n.run(10 * time.Second)
		n.gone["b-1"] = true
		n.d.Detach("b-1", false)
		n.orders = nil
		n.run(time.Minute)
		n.want(t, "gone", "")
		n.wantProbes(t, "b-1", 20)
	})
	t.Run("goodbye", func(t *testing.T) {
		n := six()
		n.run(10 * time.Second)
		n.gone["b-1"] = true
		n.d.Detach("b-1", true)
		n.orders = nil
		n.run(time.Minute)
		n.want(t, "left", "")
		if slices.ContainsFunc(n.orders, func(p Probe) bool { return p.Node == "b-1" }) {
			t.Error("an agent that left is probed")
		}
	})
	t.Run("a zone dies", func(t *testing.T) {
		n := six()
		n.run(10 * time.Second)
		n.down["b-1"], n.down["b-2"] = true, true
		n.run(6 * time.Second)
		n.want(t, "dead", "b-1 b-2")
		for _, s := range n.d.Suspects() {
			if slices.Contains(s.Witnesses, "b-1") || slices.Contains(s.Witnesses, "b-2") || len(s.Witnesses) != 2 {
				t.Errorf("witnesses of %s: %v", s.Node, s.Witnesses)
			}
		}
		n.d.ForgetNode("b-1")
		n.want(t, "its Node was deleted", "b-2")
	})
	t.Run("two machines", func(t *testing.T) {
		n := newNetwork("a-1", "a-2")
		n.run(10 * time.Second)
		n.down["a-1"] = true
		n.run(6 * time.Second)
		n.want(t, "one witness is enough where there is no other", "a-1")
	})
	t.Run("no witness", func(t *testing.T) {
		n := newNetwork("a-1")
		n.run(10 * time.Second)
		n.down["a-1"] = true
		n.run(time.Minute)
		n.want(t, "one machine", "")
		n = six()
		n.run(10 * time.Second)
		for name := range n.zones {
			n.down[name] = true
		}
		n.run(time.Minute)
		n.want(t, "all streams at once", "")
	})
	t.Run("probes do not get through", func(t *testing.T) {
		n := six()
		n.down["b-1"] = true // its probes are lost, its stream is not
		for range 120 {
			n.d.Heard("b-1", n.now)
			n.run(time.Second)
		}
		if got := n.d.Unreachable(); !slices.Equal(got, []string{"b-1"}) {
			t.Errorf("unreachable: %v", got)
		}
		n.run(time.Minute)
		n.want(t, "silence means nothing", "")
	})
	t.Run("the control plane was away", func(t *testing.T) {
		n := six()
		n.run(10 * time.Second)
		n.down["b-1"] = true
		n.run(6 * time.Second)
		n.want(t, "before", "b-1")
		// It goes on between two heartbeats: at the first step every stream was silent for
		// a minute, because nothing was received.
		n.now = n.now.Add(time.Minute + stepEvery)
		n.orders = nil
		n.run(HeartbeatInterval)
		n.want(t, "back", "b-1")
		if s := n.d.Stats(); s.Stalls != 1 {
			t.Errorf("%d stalls, want that of b-1 alone", s.Stalls)
		}
		n.wantProbes(t, "b-1", witnesses)
		// One that died meanwhile has the time to be heard of, like all others.
		n.down["c-1"] = true
		n.run(StallAfter - HeartbeatInterval)
		n.want(t, "c-1 may still be heard", "b-1")
		n.run(2 * time.Second)
		n.want(t, "c-1 was not heard", "b-1 c-1")
	})
	t.Run("the control plane was away while probes were in flight", func(t *testing.T) {
		n := six()
		n.run(10 * time.Second)
		n.down["b-1"] = true
		for len(n.pending) == 0 || n.pending[len(n.pending)-1].o != Silent {
			n.run(stepEvery)
		}
		probing := n.d.members[n.pending[0].Witness]
		if probing.inFlight == 0 {
			t.Fatalf("%s has no probe in flight", probing.name)
		}
		n.pending = nil // their results were lost
		n.now = n.now.Add(time.Minute + stepEvery)
		n.run(stepEvery)
		n.run(10 * time.Second)
		n.want(t, "probed again", "b-1")
		clear(n.down)
		n.run(resultWithin + time.Second)
		for _, m := range n.d.sorted() {
			if m.inFlight != 0 {
				t.Errorf("%s has %d probes in flight, want none", m.name, m.inFlight)
			}
		}
	})
	t.Run("no witness is left", func(t *testing.T) {
		n := six()
		n.run(10 * time.Second)
		orders := n.stall(t, "b-1")
		for name := range n.zones { // meanwhile all others left
			if name != "b-1" {
				n.d.Detach(name, true)
			}
		}
		for _, p := range orders {
			n.d.Result(p.Witness, p.ID, Failed, n.now)
		}
		n.want(t, "no probe was carried out", "")
	})
	t.Run("probes do not get through any more", func(t *testing.T) {
		n := six()
		n.run(10 * time.Second) // it has answered a probe
		n.down["b-1"] = true
		for range int((checkEvery + (checkTries+2)*checkRetry) / time.Second) {
			n.d.Heard("b-1", n.now)
			n.run(time.Second)
		}
		if got := n.d.Unreachable(); !slices.Equal(got, []string{"b-1"}) {
			t.Errorf("unreachable: %v", got)
		}
		n.run(time.Minute)
		n.want(t, "silence means nothing any more", "")
	})
	// A machine is suspect if all of its witnesses met silence, not if one did and another
	// could not probe.
	for name, tc := range map[string]struct {
		first, second Outcome
		want          string
		retry         time.Duration
	}{
		"two silent witnesses":                       {Silent, Silent, "b-1", retryFirst},
		"one silent, the other could not probe":      {Silent, Failed, "", retryFailed},
		"the first could not probe, one is silent":   {Failed, Silent, "", retryFailed},
		"neither could probe":                        {Failed, Failed, "", retryFailed},
		"one silent, the other has got an answer":    {Silent, Answered, "", retryFirst},
		"one silent, the other was refused":          {Silent, Refused, "", retryFirst},
		"one could not probe, the other was refused": {Failed, Refused, "", retryFirst},
	} {
		t.Run(name, func(t *testing.T) {
			n := six()
			n.run(10 * time.Second)
			n.mute["b-1"] = true
			orders := n.stall(t, "b-1")
			if len(orders) != witnesses {
				t.Fatalf("probes %v, want %d", orders, witnesses)
			}
			n.d.Result(orders[0].Witness, orders[0].ID, tc.first, n.now)
			n.want(t, "after one result", "")
			n.d.Result(orders[1].Witness, orders[1].ID, tc.second, n.now)
			n.want(t, "after both", tc.want)
			if got := n.d.members["b-1"].nextStall.Sub(n.now); got != tc.retry {
				t.Errorf("probed again after %s, want %s", got, tc.retry)
			}
		})
	}
	t.Run("all streams are closed and come back", func(t *testing.T) { // as at the end of certificates
		n := six()
		n.run(10*time.Second + 900*time.Millisecond) // since the last heartbeats
		for name := range n.zones {
			n.mute[name] = true
			n.d.Detach(name, false)
		}
		n.run(StallAfter - HeartbeatInterval)
		n.orders = nil
		for name := range n.zones {
			n.d.Attend(name, n.d.members[name].addr, n.now)
		}
		n.run(HeartbeatInterval / 2) // the first heartbeat on a stream comes after an interval
		clear(n.mute)
		n.run(time.Minute)
		if s := n.d.Stats(); s.Stalls+s.Suspicions != 0 || len(n.orders) > len(n.zones) {
			t.Errorf("%+v, and the probes %v", s, n.orders)
		}
	})
	t.Run("the control plane restarts", func(t *testing.T) {
		n := six()
		n.run(10 * time.Second)
		addrs := map[string]netip.AddrPort{}
		for name, m := range n.d.members {
			addrs[name], n.mute[name] = m.addr, true
		}
		n.d = Detector{}
		for name, zone := range n.zones {
			n.d.SetNode(name, zone)
		}
		n.down["b-1"] = true // meanwhile: only its lease shows it
		// The others come back one after the other, and one does not.
		for _, name := range []string{"a-1", "c-1", "a-2", "b-2"} {
			n.run(2 * time.Second)
			delete(n.mute, name)
			n.d.Attend(name, addrs[name], n.now)
		}
		n.run(time.Minute)
		n.want(t, "restarted", "")
		if s := n.d.Stats(); s.Stalls != 0 {
			t.Errorf("%d stalls of streams that never were", s.Stalls)
		}
		n.down["a-1"] = true
		n.run(5 * time.Second)
		n.want(t, "one that came back dies", "a-1")
	})
	t.Run("loopback", func(t *testing.T) {
		n := six()
		local := netip.MustParseAddrPort("127.0.0.1:10256")
		n.d.Attend("a-1", local, n.now)
		n.run(10 * time.Second)
		n.orders = nil
		n.down["a-1"] = true
		n.run(time.Minute)
		n.want(t, "no other is on its host", "")
		if len(n.orders) > 0 && slices.ContainsFunc(n.orders, func(p Probe) bool { return p.Node == "a-1" }) {
			t.Errorf("others probed their own loopback: %v", n.orders)
		}
	})
}

func TestConfirm(t *testing.T) {
	n := six()
	n.run(10 * time.Second)
	n.down["b-1"], n.gone["b-2"], n.mute["c-1"] = true, true, true
	n.run(5 * time.Second)
	n.orders = nil
	n.carry(n.d.Confirm([]string{"a-1", "b-1", "b-2", "c-1", "nosuch"}, n.now))
	n.run(2 * time.Second)
	for _, p := range n.orders {
		if p.Node == "a-1" {
			t.Error("a-1 is probed, though its stream is live")
		}
		if p.Node[0] == 'b' && p.Witness[0] == 'b' {
			t.Errorf("%s asked about its own zone's %s", p.Witness, p.Node)
		}
	}
	for name, alive := range map[string]bool{"a-1": true, "b-1": false, "b-2": false, "c-1": true} {
		e, ok := n.d.Evidence(name, n.now)
		if !ok || e.Alive != alive || len(e.Witnesses) == 0 {
			t.Errorf("%s: %+v, %v", name, e, ok)
		}
	}
	if _, ok := n.d.Evidence("nosuch", n.now); ok {
		t.Error("evidence about a machine that is not there")
	}
	n.run(evidenceKept)
	if e, ok := n.d.Evidence("b-1", n.now); ok {
		t.Errorf("old evidence: %+v", e)
	}

	n = six()
	n.run(10 * time.Second)
	n.down["b-1"] = true
	n.run(5 * time.Second)
	for range 4 { // the choice rotates
		orders := n.d.Confirm([]string{"b-1"}, n.now)
		if len(orders) != witnesses || slices.ContainsFunc(orders, func(p Probe) bool { return p.Witness == "b-2" }) {
			t.Errorf("b-2 lives and is of the same zone: %v", orders)
		}
		n.carry(orders)
		n.run(ProbeTimeout + 2*stepEvery)
	}
}

// TestLossyDay: 24 hours (30 days with PROXIMA_SOAK) of six machines on a network that
// loses every twentieth packet: heartbeats and renewals come over TCP, late or in bursts,
// probes are lost. Nothing becomes suspect, nothing is marked; not even where the streams
// of machines that live stall now and then.
func TestLossyDay(t *testing.T) {
	t.Run("loss", func(t *testing.T) { lossyDay(t, false) })
	t.Run("loss and stalls", func(t *testing.T) { lossyDay(t, true) })
}

func lossyDay(t *testing.T, stalls bool) {
	const loss = 0.05
	day := 24 * time.Hour
	if os.Getenv("PROXIMA_SOAK") != "" {
		day *= 30
	}
	dice := rand.New(rand.NewPCG(1, 2))
	lost := func() bool { return dice.Float64() < loss }
	// tcp is when something that was sent arrives: it is sent again after 200 ms, doubled
	// each time (RFC 6298, with Linux' minimum), and never before what was sent earlier.
	arrived := map[string]time.Time{}
	tcp := func(stream string, sent time.Time) time.Time {
		for pause := 200 * time.Millisecond; lost(); pause *= 2 {
			sent = sent.Add(pause)
		}
		if last := arrived[stream]; sent.Before(last) {
			sent = last
		}
		arrived[stream] = sent
		return sent
	}
	var tr Tracker
	n := six()
	var coming events
	longest := time.Duration(0)
	last := map[string]time.Time{}
	for at := time.Duration(0); at < day; at += stepEvery {
		n.now = start.Add(at)
		for i, name := range []string{"a-1", "a-2", "b-1", "b-2", "c-1", "c-2"} {
			if phase := time.Duration(i) * 100 * time.Millisecond; at%HeartbeatInterval == phase {
				// Half a minute of every ten, one machine after the other.
				if !stalls || int(at/(30*time.Second))%20 != 2*i {
					heap.Push(&coming, event{tcp(name, n.now), func() {
						n.d.Heard(name, n.now)
						longest = max(longest, n.now.Sub(last[name]))
						last[name] = n.now
					}})
				}
				if at%(10*time.Second) == phase {
					renewed := n.now
					heap.Push(&coming, event{tcp("lease of "+name, n.now), func() {
						tr.Observe(nodeKey(name), Lease{Renewed: renewed, Machine: name}, n.now)
					}})
				}
				if at < time.Second {
					last[name] = n.now
				}
			}
		}
		for len(coming) > 0 && !coming[0].at.After(n.now) {
			heap.Pop(&coming).(event).do()
		}
		for _, p := range n.d.Step(n.now) {
			o, took := Silent, ProbeTimeout
			for i := range 4 { // packets of one probe
				there := !lost()
				if there && !lost() { // and back
					o, took = Answered, time.Duration(i)*150*time.Millisecond
					break
				}
			}
			heap.Push(&coming, event{tcp(p.Witness, n.now.Add(took)), func() { n.d.Result(p.Witness, p.ID, o, n.now) }})
		}
		if s := n.suspects(); s != "" {
			t.Fatalf("after %s: suspects %s", at, s)
		}
		if at%tick == 0 {
			if v := tr.Advance(n.now, around{}); len(v.Dead)+len(v.Held) > 0 {
				t.Fatalf("after %s: %+v", at, v)
			}
		}
	}
	s := n.d.Stats()
	if stalls != (s.Stalls > 100) || s.Outcomes[Answered] == 0 || longest < 1500*time.Millisecond {
		t.Errorf("the network is too good: %+v, longest silence of a stream %s", s, longest)
	}
	t.Logf("%+v, longest silence of a stream %s", s, longest)
}

type event struct {
	at time.Time
	do func()
}

type events []event

func (e events) Len() int           { return len(e) }
func (e events) Less(i, j int) bool { return e[i].at.Before(e[j].at) }
func (e events) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)        { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	old := *e
	last := old[len(old)-1]
	*e = old[:len(old)-1]
	return last
}

func TestOutcomeNames(t *testing.T) {
	for o, want := range map[Outcome]string{Failed: "failed", Silent: "silent", Refused: "refused", Answered: "answered"} {
		if got := fmt.Sprint(o); got != want {
			t.Errorf("%d is %q", o, got)
		}
	}
}
