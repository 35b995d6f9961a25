package kind_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// TestDrainRestores: undraining restores the node exactly, whatever it was before, and after
// any number of drains.
func TestDrainRestores(t *testing.T) {
	now := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	for name, before := range map[string]*corev1.Node{
		"plain":    {},
		"cordoned": {Spec: corev1.NodeSpec{Unschedulable: true}},
		"tainted": {
			ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"a": "b"}},
			Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: "gpu", Effect: corev1.TaintEffectNoSchedule}}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := before.DeepCopy()
			if !kind.StartDrain(n, "admin", false, now) {
				t.Fatal("the first drain changed nothing")
			}
			if kind.StartDrain(n, "other", false, now.Add(time.Minute)) {
				t.Error("a second drain changed the node")
			}
			d := kind.DrainOf(n)
			if d.By != "admin" || !d.Since.Equal(now) || d.State() != "Draining" || !n.Spec.Unschedulable {
				t.Errorf("drained: %+v, unschedulable %t", d, n.Spec.Unschedulable)
			}
			if !kind.StartDrain(n, "other", true, now) || !kind.DrainOf(n).Force || kind.DrainOf(n).By != "admin" {
				t.Errorf("with force: %+v", kind.DrainOf(n))
			}
			if !kind.EndDrain(n) || kind.EndDrain(n) {
				t.Error("undraining changes the node once")
			}
			if len(n.Annotations) == 0 {
				n.Annotations = nil
			}
			if diff := cmp.Diff(before, n); diff != "" {
				t.Errorf("not restored (-before +after):\n%s", diff)
			}
		})
	}
}

// TestDrainOfOthers: what others do to the node meanwhile is kept.
func TestDrainOfOthers(t *testing.T) {
	now := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	n := &corev1.Node{Spec: corev1.NodeSpec{Unschedulable: true}}
	kind.StartDrain(n, "admin", false, now)
	n.Spec.Unschedulable = false // kubectl uncordon
	if kind.EndDrain(n); n.Spec.Unschedulable {
		t.Error("undraining cordoned a node that was uncordoned meanwhile")
	}

	n = &corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "maintenance", Effect: corev1.TaintEffectNoExecute}}}}
	if d := kind.DrainOf(n); d.State() != "Draining" || d.Taint.Key != "maintenance" {
		t.Errorf("a taint of another program: %+v", d)
	}
	if kind.EndDrain(n) {
		t.Error("undraining removed a taint of another program")
	}
	kind.StartDrain(n, "admin", false, now)
	if d := kind.DrainOf(n); d.Taint.Key != mesh.TaintDrain {
		t.Errorf("with both taints: %+v", d.Taint)
	}
	kind.EndDrain(n)
	if len(n.Spec.Taints) != 1 || n.Spec.Taints[0].Key != "maintenance" {
		t.Errorf("taints after undraining: %v", n.Spec.Taints)
	}

	n.Annotations = map[string]string{mesh.AnnotationDrain: "{not JSON"}
	if d := kind.DrainOf(n); d.By != "" || d.State() != "Draining" {
		t.Errorf("with an annotation that cannot be read: %+v", d)
	}
}

// FuzzDrainRecord: whatever the annotation holds, the node can be drained and undrained.
func FuzzDrainRecord(f *testing.F) {
	f.Add(`{"since":"2026-11-25T12:00:00Z","by":"admin","cordoned":true}`, true)
	f.Add(`{"since":"x"}`, false)
	f.Add(`[]`, true)
	f.Fuzz(func(t *testing.T, text string, unschedulable bool) {
		n := &corev1.Node{Spec: corev1.NodeSpec{Unschedulable: unschedulable}}
		n.Annotations = map[string]string{mesh.AnnotationDrain: text}
		kind.StartDrain(n, "admin", false, time.Unix(1, 0))
		if d := kind.DrainOf(n); d.By != "admin" || d.Cordoned != unschedulable {
			t.Fatalf("record %+v", d.DrainRecord)
		}
		if !kind.EndDrain(n) || n.Spec.Unschedulable != unschedulable || len(n.Spec.Taints) > 0 {
			t.Fatalf("not restored: %+v", n.Spec)
		}
	})
}
