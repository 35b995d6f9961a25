package topology

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// reweigh changes a Dataplane, as "kubectl patch" does.
func (r *rig) reweigh(name string, edit func(*meshv1alpha1.Dataplane)) {
	r.t.Helper()
	got, err := r.client.Get(r.t.Context(), kindOf("Dataplane"), resource.Key{Namespace: "shop", Name: name})
	if err != nil {
		r.t.Fatal(err)
	}
	d := got.DeepCopyObject().(*meshv1alpha1.Dataplane)
	edit(d)
	if _, err := r.client.Update(r.t.Context(), kindOf("Dataplane"), d); err != nil {
		r.t.Fatal(err)
	}
	r.settle()
}

func weight(w int32) func(*meshv1alpha1.Dataplane) {
	return func(d *meshv1alpha1.Dataplane) { d.Spec.Weight = ptr.To(w) }
}

// TestWeightsReachAgents: without a plan and with one, the planner included, and without a
// write of an EndpointSlice.
func TestWeightsReachAgents(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil, all(equalNodes("ab"), workloads("aab"), one(web()))...)
		r.wantPercents("all alike", "a", "a 66.7 b 33.3")
		writes := r.slicesVersion()
		r.reweigh("a2", weight(5))
		r.wantPercents("5 beside 100", "a", "a 51.2 b 48.8")
		r.reweigh("a1", weight(20))
		r.wantPercents("5 beside 20", "a", "a 20.0 b 80.0")
		if now := r.slicesVersion(); now != writes {
			t.Errorf("slices were written: %s, then %s", writes, now)
		}

		// 1.17 times the mean load is 23.4 % of all connections for a quarter of b's weight.
		r.annotate(mode, Adaptive, AnnotationHints, "none")
		r.wantPercents("a plan by weights", "a", "a 46.8 b 53.2")
		r.wantPercents("a plan by weights", "b", "b 100.0")
		r.reweigh("a1", weight(100))
		r.wantPercents("the plan follows", "a", "a 100.0")

		r.reweigh("a1", weight(0))
		r.reweigh("a2", func(d *meshv1alpha1.Dataplane) { d.Spec.Enabled = new(false) })
		r.wantPercents("out of rotation", "a", "b 100.0")
		r.reweigh("b1", func(d *meshv1alpha1.Dataplane) { d.Spec.Enabled = new(false) })
		r.wantPercents("maintenance of all but the one of weight 0", "b", "a 50.0 b 50.0")
	})
}

func (r *rig) slicesVersion() string {
	version := ""
	for _, s := range r.view("a") {
		version += s.Name.Name + s.Trigger.String()
	}
	return version
}

// TestWarmUpReachesAgents: the view has the times at which endpoints became ready while the
// Service asks for warm-up.
func TestWarmUpReachesAgents(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil, all(equalNodes("ab"), workloads("ab"), one(web()))...)
		since := func() (known int) {
			for _, s := range r.view("a") {
				for _, at := range s.ReadySince {
					if at > 0 {
						known++
					}
				}
			}
			return known
		}
		ready := func(name string) {
			got, err := r.client.Get(t.Context(), kindOf("Dataplane"), resource.Key{Namespace: "shop", Name: name})
			if err != nil {
				t.Fatal(err)
			}
			d := got.DeepCopyObject().(*meshv1alpha1.Dataplane)
			d.Status.Conditions[0].LastTransitionTime = metav1.NewTime(time.Now())
			if _, err := r.client.UpdateStatus(t.Context(), kindOf("Dataplane"), d); err != nil {
				t.Fatal(err)
			}
			r.settle()
		}
		ready("a1")
		if n := since(); n != 0 {
			t.Errorf("%d times without warm-up", n)
		}
		r.annotate(kind.AnnotationWarmUp, "30s")
		if n := since(); n != 1 {
			t.Errorf("times of %d endpoints, want 1", n)
		}
		ready("b1")
		if n := since(); n != 2 {
			t.Errorf("times of %d endpoints, want 2", n)
		}
		r.annotate(kind.AnnotationWarmUp, "")
		if n := since(); n != 0 {
			t.Errorf("%d times after the annotation was removed", n)
		}
	})
}
