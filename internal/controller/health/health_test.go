package health

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

var start = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

// around is what tests have for witnesses: zones and evidence by machine.
type around struct {
	zones    map[string]locality.Zone
	evidence map[string]Evidence
}

func (a around) Zone(machine string) locality.Zone { return a.zones[machine] }

func (a around) Evidence(machine string) (Evidence, bool) {
	e, ok := a.evidence[machine]
	return e, ok
}

// simulate lets holders renew every 10 s, each at its own moment, until each
// stops; it looks every 2 s and reports when each was declared dead.
func simulate(stops []time.Duration, length time.Duration, unit func(i int) string) (dead map[int]time.Duration, held bool) {
	var tr Tracker
	dead = map[int]time.Duration{}
	renewed := make([]time.Duration, len(stops))
	key := func(i int) Key { return nodeKey(fmt.Sprint(i)) }
	for at := time.Duration(0); at <= length; at += time.Second {
		now := start.Add(at)
		for i, stop := range stops {
			_, down := dead[i]
			if at < stop && (at == 0 || at%(10*time.Second) == time.Duration(i%10)*time.Second) {
				renewed[i] = at
			}
			tr.Observe(key(i), Lease{Renewed: start.Add(renewed[i]), Machine: unit(i), Down: down}, now)
		}
		if at%(2*time.Second) != 0 {
			continue
		}
		v := tr.Advance(now, around{})
		held = held || len(v.Held) > 0
		for _, death := range v.Dead {
			var i int
			fmt.Sscan(death.Name, &i)
			dead[i] = at - renewed[i]
		}
	}
	return dead, held
}

func own(i int) string { return fmt.Sprint(i) }

func stopping(n int, at map[int]time.Duration) []time.Duration {
	out := make([]time.Duration, n)
	for i := range out {
		out[i] = time.Hour
		if stop, ok := at[i]; ok {
			out[i] = stop
		}
	}
	return out
}

func TestTracker(t *testing.T) {
	const minute = time.Minute
	all := map[int]time.Duration{}
	for i := range 20 {
		all[i] = minute
	}
	for _, tc := range []struct {
		name  string
		stops []time.Duration
		unit  func(int) string
		dead  int
		held  bool
	}{
		{"all live", stopping(20, nil), own, 0, false},
		{"one of twenty", stopping(20, map[int]time.Duration{3: minute}), own, 1, false},
		{"one of one", stopping(1, map[int]time.Duration{0: minute}), own, 1, false},
		{"one of three", stopping(3, map[int]time.Duration{0: minute}), own, 1, false},
		{"three of twenty together: 15 %", stopping(20, map[int]time.Duration{3: minute, 8: minute, 9: minute}), own, 3, false},
		{"four of twenty together", stopping(20, map[int]time.Duration{0: minute, 3: minute, 8: minute, 9: minute}), own, 4, true},
		{"four of twenty, one after the other", stopping(20, map[int]time.Duration{0: minute, 1: 2 * minute, 2: 3 * minute, 4: 4 * minute}), own, 4, false},
		{"all together", stopping(20, all), own, 20, true},
		{"a node with its workloads", stopping(8, map[int]time.Duration{0: minute, 1: minute, 2: minute, 3: minute}), func(i int) string { return fmt.Sprint(i / 4) }, 4, false},
		{"two nodes with their workloads", stopping(8, map[int]time.Duration{0: minute, 1: minute, 4: minute, 5: minute}), func(i int) string { return fmt.Sprint(i / 2) }, 4, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dead, held := simulate(tc.stops, 10*minute, tc.unit)
			if len(dead) != tc.dead || held != tc.held {
				t.Errorf("%d dead, held %v; want %d, %v", len(dead), held, tc.dead, tc.held)
			}
			for i, age := range dead {
				want := DefaultDuration
				if tc.held { // without witnesses
					want = heldFor * DefaultDuration
				}
				if age < want || age > want+2*time.Second {
					t.Errorf("%d declared dead after %s, want %s", i, age, want)
				}
			}
		})
	}
}

// Whatever happens, nothing that renews is declared dead, and a wave of more than the
// share marks nothing before twice the duration without witnesses.
func TestTrackerProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 40).Draw(t, "holders")
		wave := rapid.IntRange(0, n).Draw(t, "wave")
		at := time.Duration(rapid.IntRange(60, 90).Draw(t, "at")) * time.Second
		stops := map[int]time.Duration{}
		for i := range wave {
			stops[i] = at
		}
		dead, held := simulate(stopping(n, stops), 4*time.Minute, own)
		tooMany := wave >= 2 && float64(wave) > waveShare*float64(n)
		if held != tooMany || len(dead) != wave {
			t.Fatalf("%d of %d stop: %d dead, held %v", wave, n, len(dead), held)
		}
		for i, age := range dead {
			if i >= wave {
				t.Fatalf("%d renews and is declared dead", i)
			}
			if tooMany && age < heldFor*DefaultDuration {
				t.Fatalf("%d of %d stop: %d is marked after %s", wave, n, i, age)
			}
		}
	})
}

func TestTrackerAway(t *testing.T) {
	var tr Tracker
	tr.Observe(nodeKey("a"), Lease{Renewed: start.Add(-time.Hour)}, start)
	if v := tr.Advance(start, around{}); len(v.Dead) > 0 || v.Restarted {
		t.Fatalf("at start: %+v", v)
	}
	// Away for an hour: the clock starts at the return, not before.
	back := start.Add(time.Hour)
	if v := tr.Advance(back, around{}); len(v.Dead) > 0 || !v.Restarted {
		t.Fatalf("on return: %+v", v)
	}
	for at := 5 * time.Second; at < 40*time.Second; at += 5 * time.Second {
		if v := tr.Advance(back.Add(at), around{}); len(v.Dead) > 0 || v.Restarted {
			t.Fatalf("%s after the return: %+v", at, v)
		}
	}
	if v := tr.Advance(back.Add(40*time.Second), around{}); len(v.Dead) != 1 {
		t.Fatalf("40 s after the return: %+v", v)
	}
}

// A wave from before this control plane was away is over when it is back.
func TestTrackerAwayEndsWave(t *testing.T) {
	var tr Tracker
	others := []string{"b", "c", "d"}
	renew := func(at time.Time) {
		for _, name := range others {
			tr.Observe(nodeKey(name), Lease{Renewed: at, Machine: name}, at)
		}
	}
	tr.Observe(nodeKey("a"), Lease{Renewed: start, Machine: "a"}, start)
	renew(start)
	for at := time.Duration(0); at < DefaultDuration; at += 5 * time.Second {
		tr.Advance(start.Add(at), around{})
	}
	if v := tr.Advance(start.Add(DefaultDuration), around{}); !v.Wave || len(v.Held) != 4 {
		t.Fatalf("before: %+v, want a wave of four", v)
	}
	back := start.Add(time.Hour)
	for at := time.Duration(0); at < DefaultDuration; at += 5 * time.Second {
		renew(back.Add(at))
		if v := tr.Advance(back.Add(at), around{}); len(v.Dead)+len(v.Held) > 0 {
			t.Fatalf("%s after the return: %+v", at, v)
		}
	}
	renew(back.Add(DefaultDuration))
	v := tr.Advance(back.Add(DefaultDuration), around{})
	if len(v.Dead) != 1 || v.Dead[0].Key != nodeKey("a") || v.Dead[0].Wave {
		t.Errorf("one lease ran out alone: %+v", v)
	}
}

func newLease(name string, at time.Time) *coordinationv1.Lease {
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: LeaseNamespace, Name: name}}
	l.Spec.RenewTime, l.Spec.LeaseDurationSeconds, l.Spec.HolderIdentity = &metav1.MicroTime{Time: at}, new(int32(40)), new(name)
	return l
}

// newLeaseOf is a lease, renewed.
func newLeaseOf(o resource.Object, at time.Time) *coordinationv1.Lease {
	l := o.(*coordinationv1.Lease)
	l.Spec.RenewTime = &metav1.MicroTime{Time: at}
	return l
}

func newDataplane(name, node string, at time.Time) *meshv1alpha1.Dataplane {
	dp := &meshv1alpha1.Dataplane{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}}
	dp.Spec.Addresses, dp.Spec.NodeName = []string{"10.0.0.1"}, node
	dp.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: metav1.ConditionTrue, Reason: "Probed"}}
	dp.Status.Lease = &meshv1alpha1.DataplaneLease{RenewTime: metav1.NewMicroTime(at), DurationSeconds: 40}
	return dp
}

func newNode(name string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "AgentReady"}}
	return n
}

func TestController(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		nodes, leases, dataplanes := kind.Node, kind.Lease, kind.Dataplane
		client := resourcetest.New(nodes, leases, dataplanes)
		now := time.Now()
		for i := range 10 {
			name := fmt.Sprint("n", i)
			client.Seed(newNode(name), newLease(name, now))
		}
		eternal := newDataplane("eternal", "n2", now)
		eternal.Status.Lease = nil
		client.Seed(newDataplane("web", "n1", now), eternal, newNode("leaseless"))

		h := New(Config{Client: client, Nodes: nodes, Leases: leases, Dataplanes: dataplanes})
		done := make(chan error)
		go func() { done <- h.Run(ctx) }()

		silent := map[string]bool{}
		beat := func(d time.Duration) {
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(10 * time.Second) {
				for i := range 10 {
					name := fmt.Sprint("n", i)
					if silent[name] {
						continue
					}
					obj, err := client.Get(ctx, leases, resource.Key{Namespace: LeaseNamespace, Name: name})
					if err != nil {
						t.Fatal(err)
					}
					l := obj.(*coordinationv1.Lease)
					l.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
					if _, err := client.Update(ctx, kind.Lease, l); err != nil {
						t.Fatal(err)
					}
				}
			}
			synctest.Wait()
		}
		ready := func(name string) (corev1.ConditionStatus, string) {
			obj, err := client.Get(ctx, nodes, resource.Key{Name: name})
			if err != nil {
				t.Fatal(err)
			}
			c := obj.(*corev1.Node).Status.Conditions[0]
			return c.Status, c.Reason
		}
		dpReady := func(name string) bool {
			obj, err := client.Get(ctx, dataplanes, resource.Key{Namespace: "shop", Name: name})
			if err != nil {
				t.Fatal(err)
			}
			return meta.IsStatusConditionTrue(obj.(*meshv1alpha1.Dataplane).Status.Conditions, "Ready")
		}

		// n1 falls silent, and so does the workload on it, whose lease is not renewed.
		silent["n1"] = true
		beat(30 * time.Second)
		if s, _ := ready("n1"); s != corev1.ConditionTrue || !dpReady("web") {
			t.Fatal("marked too early")
		}
		beat(20 * time.Second)
		if s, r := ready("n1"); s != corev1.ConditionUnknown || r != ReasonLeaseExpired {
			t.Errorf("n1 is %s %s", s, r)
		}
		if dpReady("web") || !dpReady("eternal") {
			t.Error("web should be down, eternal not")
		}
		for _, name := range []string{"n0", "n2", "leaseless"} {
			if s, _ := ready(name); s != corev1.ConditionTrue {
				t.Errorf("%s is %s", name, s)
			}
		}

		// Watches break and come back at once: clocks go on.
		silent["n2"] = true
		beat(20 * time.Second)
		client.Disconnect()
		beat(30 * time.Second)
		if s, _ := ready("n2"); s != corev1.ConditionUnknown {
			t.Errorf("n2 is %s after a broken watch", s)
		}

		// All the rest fall silent together: nothing is marked for as long as their leases
		// last again, and it says so.
		for i := range 10 {
			silent[fmt.Sprint("n", i)] = true
		}
		time.Sleep(2*DefaultDuration - 15*time.Second)
		synctest.Wait()
		if s, _ := ready("n5"); s != corev1.ConditionTrue {
			t.Errorf("n5 is %s", s)
		}
		if state := h.State(); len(state.Held) != 8 || !strings.Contains(state.Reason, "8 of 8 leases") {
			t.Errorf("state %+v", state)
		}
		clear(silent)
		beat(10 * time.Second)
		if state := h.State(); len(state.Held) > 0 {
			t.Errorf("still held: %+v", state)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		synctest.Wait()
	})
}

// A lease says itself how long it lasts.
func TestDurations(t *testing.T) {
	h := New(Config{Client: resourcetest.New()})
	short, silent := newLease("short", start), newLease("silent", start)
	short.Spec.LeaseDurationSeconds, silent.Spec.LeaseDurationSeconds = new(int32(20)), nil
	dp := newDataplane("web", "", start)
	dp.Status.Lease.DurationSeconds = 30
	for _, name := range []string{"short", "silent"} {
		h.nodes[name] = newNode(name)
	}
	h.leases["short"], h.leases["silent"] = short, silent
	h.observeNode("short", start)
	h.observeNode("silent", start)
	h.observeDataplane(dp, start)
	for key, want := range map[Key]time.Duration{
		nodeKey("short"): 20 * time.Second, nodeKey("silent"): DefaultDuration,
		{Kind: dataplaneKind, Key: resource.Key{Namespace: "shop", Name: "web"}}: 30 * time.Second,
	} {
		if got := h.tracker.leases[key].Duration; got != want {
			t.Errorf("%s: %s, want %s", key, got, want)
		}
	}
}

// The watch is behind: the store knows of a renewal that the controller does not.
func TestMarkReadsNewest(t *testing.T) {
	nodes, leases, dataplanes := kind.Node, kind.Lease, kind.Dataplane
	client := resourcetest.New(nodes, leases, dataplanes)
	client.Seed(newNode("n1"), newLease("n1", start.Add(time.Minute)), newDataplane("web", "n1", start.Add(time.Minute)))
	h := New(Config{Client: client, Nodes: nodes, Leases: leases, Dataplanes: dataplanes})
	for _, key := range []Key{nodeKey("n1"), {Kind: dataplaneKind, Key: resource.Key{Namespace: "shop", Name: "web"}}} {
		h.tracker.Observe(key, Lease{Renewed: start}, start)
		if marked, err := h.mark(t.Context(), key); err != nil || marked {
			t.Errorf("%s: marked %v, %v", key, marked, err)
		}
		h.tracker.Observe(key, Lease{Renewed: start.Add(time.Minute)}, start)
		if marked, err := h.mark(t.Context(), key); err != nil || !marked {
			t.Errorf("%s: marked %v, %v", key, marked, err)
		}
		if marked, err := h.mark(t.Context(), key); err != nil || marked {
			t.Errorf("%s: marked twice %v, %v", key, marked, err)
		}
	}
	gone := nodeKey("gone")
	h.tracker.Observe(gone, Lease{Renewed: start}, start)
	if marked, err := h.mark(t.Context(), gone); err != nil || marked {
		t.Errorf("gone: marked %v, %v", marked, err)
	}
}
