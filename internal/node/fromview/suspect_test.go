package fromview

import (
	"maps"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/proxima-mesh/proxima/internal/view"
	"github.com/proxima-mesh/proxima/internal/view/viewtest"
)

// suspectsOf an agent, as its updates make them.
func (a *agent) suspects() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	set := map[string]bool{}
	for _, u := range a.updates {
		if u.Reset {
			clear(set)
		}
		maps.Copy(set, u.Suspects)
	}
	maps.DeleteFunc(set, func(_ string, suspect bool) bool { return !suspect })
	return slices.Sorted(maps.Keys(set))
}

// leaving are the nodes that are about to be removed, as the updates of an agent make them.
func (a *agent) leaving() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	set := map[string]bool{}
	for _, u := range a.updates {
		for _, name := range []string{"n1", "n2"} {
			if leaves, known := u.Leaves(name); known {
				set[name] = leaves
			}
		}
	}
	maps.DeleteFunc(set, func(_ string, leaving bool) bool { return !leaving })
	return slices.Sorted(maps.Keys(set))
}

// TestLeavingTravels: that a node is about to be removed reaches agents at once, stays over an outage
// of the control plane, but not over a restart of the agent without one.
func TestLeavingTravels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := func(tainted bool) *corev1.Node {
			n := viewtest.Node("n1", "")
			if tainted {
				n.Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Effect: corev1.TaintEffectNoSchedule}}
			}
			return n
		}
		p := &plane{}
		defer p.kill()
		b := view.NewBuilder(view.BuilderConfig{Run: "one"})
		fill(t, b)
		p.start(b.Assign)
		file := filepath.Join(t.TempDir(), "view")
		a := startAgent(t, p, file)
		expect := func(when string, want ...string) {
			t.Helper()
			time.Sleep(time.Minute) // longer than the pauses between two tries to connect
			synctest.Wait()
			if got := a.leaving(); !slices.Equal(got, want) {
				t.Errorf("%s: %v, want %v", when, got, want)
			}
		}
		expect("at the start")
		apply(t, b, viewtest.Delta(2, node(true)))
		expect("with the taint", "n1")
		p.kill()
		expect("without the control plane", "n1")
		fresh := filledBuilder(t, "two")
		p.start(fresh.Assign)
		expect("with another control plane, and without the taint")
		apply(t, fresh, viewtest.Delta(2, node(true)))
		expect("with the taint again", "n1")
		p.kill()
		a.stop()
		a = startAgent(t, p, file)
		expect("started without the control plane")
		a.stop()
	})
}

// TestSuspectsTravel: from the builder to every agent at once, over an outage of the
// control plane, but not over a restart of the agent without one.
func TestSuspectsTravel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &plane{}
		defer p.kill()
		b := view.NewBuilder(view.BuilderConfig{Run: "one"})
		if err := b.SetSuspects([]string{"n8"}); err != nil { // before there is a view
			t.Fatal(err)
		}
		fill(t, b)
		p.start(b.Assign)
		file := filepath.Join(t.TempDir(), "view")
		a := startAgent(t, p, file)
		expect := func(when string, want ...string) {
			t.Helper()
			time.Sleep(time.Minute) // longer than the pauses between two tries to connect
			synctest.Wait()
			if got := a.suspects(); !slices.Equal(got, want) {
				t.Errorf("%s: %v, want %v", when, got, want)
			}
		}
		expect("at the start", "n8")
		if err := b.SetSuspects([]string{"n9", "n8"}); err != nil {
			t.Fatal(err)
		}
		expect("one more", "n8", "n9")
		apply(t, b, viewtest.Delta(2, viewtest.Service("new", "10.0.0.3"))) // the views are at 3 by now
		if err := b.SetSuspects([]string{"n9"}); err != nil {
			t.Fatal(err)
		}
		expect("one less", "n9")

		p.kill()
		expect("without the control plane", "n9")
		a.stop()
		a = startAgent(t, p, file)
		expect("started without the control plane")

		fresh := filledBuilder(t, "two")
		if err := fresh.SetSuspects([]string{"n7"}); err != nil {
			t.Fatal(err)
		}
		p.start(fresh.Assign)
		expect("with another control plane", "n7")
		a.stop()
	})
}
