package backend

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
)

// Addresses are compared as text everywhere, so there is one way to write them.
func TestAddressesAreCanonical(t *testing.T) {
	pod := &corev1.Pod{Status: corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "010.0.0.01"}, {IP: "FD00:0::1"}, {IP: "no address"}}}}
	b, ok := OfPod(pod, "web")
	if diff := cmp.Diff([]string{"10.0.0.1", "fd00::1"}, b.Addresses); diff != "" || !ok {
		t.Error(diff)
	}
	d := OfDataplane(&meshv1alpha1.Dataplane{Spec: meshv1alpha1.DataplaneSpec{Addresses: []string{"FD00::A"}}})
	if diff := cmp.Diff([]string{"fd00::a"}, d.Addresses); diff != "" {
		t.Error(diff)
	}
	older := &corev1.Pod{Status: corev1.PodStatus{PodIP: "10.0.0.9"}}
	if b, _ := OfPod(older, "web"); len(b.Addresses) != 1 {
		t.Errorf("status.podIP alone: %v", b.Addresses)
	}
}

func TestWhatMatters(t *testing.T) {
	pod := func(edits ...func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{UID: "u", Labels: map[string]string{"app": "web"}},
			Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}}},
		}
		for _, edit := range edits {
			edit(p)
		}
		return p
	}
	for what, tt := range map[string]struct {
		is   *corev1.Pod
		want bool
	}{
		"nothing":     {pod(), false},
		"gone":        {nil, true},
		"another pod": {pod(func(p *corev1.Pod) { p.UID = "v" }), true},
		"phase":       {pod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), true},
		"ready": {pod(func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		}), true},
		"a heartbeat": {pod(func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled}}
			p.ResourceVersion = "9"
		}), false},
		"terminating":   {pod(func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }), true},
		"address":       {pod(func(p *corev1.Pod) { p.Status.PodIPs[0].IP = "10.0.0.2" }), true},
		"label":         {pod(func(p *corev1.Pod) { p.Labels = nil }), true},
		"node":          {pod(func(p *corev1.Pod) { p.Spec.NodeName = "n2" }), true},
		"an annotation": {pod(func(p *corev1.Pod) { p.Annotations = map[string]string{"a": "b"} }), false},
	} {
		if got := PodMatters(pod(), tt.is); got != tt.want {
			t.Errorf("%s: %v", what, got)
		}
	}
}
