package view

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/delta"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/view/viewtest"
	"github.com/proxima-mesh/proxima/internal/view/wire"
)

// leavingIn are the nodes that the view of a zone names as about to be removed.
func leavingIn(t *testing.T, b *Builder, zone locality.Zone) (out []string) {
	t.Helper()
	if _, err := b.Scope(zone); err != nil {
		t.Fatal(err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.everything(zone) {
		if r.Type == wire.LeavingType {
			out = append(out, r.Name)
		}
	}
	return out
}

// TestLeavingNodes: the view of a node's zone says that it is about to be removed, by the taint of
// the cluster autoscaler or by the Node's deletion, and ceases to.
func TestLeavingNodes(t *testing.T) {
	tainted := func(name, zone, taint string) *corev1.Node {
		n := viewtest.Node(name, zone)
		n.Spec.Taints = []corev1.Taint{{Key: taint, Effect: corev1.TaintEffectNoSchedule}}
		return n
	}
	deleted := viewtest.Node("n4", "a")
	deleted.DeletionTimestamp = &metav1.Time{}
	b := NewBuilder(BuilderConfig{Run: "one"})
	replace(t, b, viewtest.Delta(1, viewtest.Node("n1", "a"), tainted("n2", "b", "ToBeDeletedByClusterAutoscaler"),
		tainted("n3", "a", "example.com/other"), deleted, tainted("n5", "", "ToBeDeletedByClusterAutoscaler")))
	want := func(when string, zone locality.Zone, nodes ...string) {
		t.Helper()
		if got := leavingIn(t, b, zone); !slices.Equal(got, nodes) {
			t.Errorf("%s: the view of zone %s has %q, want %q", when, zone, got, nodes)
		}
	}
	want("at the start", "a", "n4", "n5")
	want("at the start", "b", "n2", "n5")

	s := session(t, b, "a")
	if err := s.Step(delta.Request{Type: wire.LeavingType}); err != nil {
		t.Fatal(err)
	}
	contents(t, s)
	apply := func(sequence uint64, objects ...any) []string {
		t.Helper()
		if err := b.Apply(viewtest.Delta(sequence, objects...), nil); err != nil {
			t.Fatal(err)
		}
		return contents(t, s)
	}
	if got := apply(2, tainted("n1", "a", "ToBeDeletedByClusterAutoscaler")); len(got) != 1 {
		t.Errorf("the taint is sent as %q", got)
	}
	want("after the taint", "a", "n1", "n4", "n5")
	if got := apply(3, tainted("n1", "b", "ToBeDeletedByClusterAutoscaler")); len(got) != 1 {
		t.Errorf("that the node is in another zone is sent as %q", got)
	}
	want("in another zone", "a", "n4", "n5")
	want("in another zone", "b", "n1", "n2", "n5")
	apply(4, viewtest.Node("n1", "b"), "node/n4", tainted("n5", "b", "ToBeDeletedByClusterAutoscaler"))
	want("without the taint", "a")
	want("without the taint", "b", "n2", "n5")
}
