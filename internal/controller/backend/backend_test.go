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
	d := OfDataplane(&meshv1alpha1.Dataplane{Spec: meshv1alpha1.DataplaneSpec{Addresses: []string{"FD00::A"}}}, "")
	if diff := cmp.Diff([]string{"fd00::a"}, d.Addresses); diff != "" {
		t.Error(diff)
	}
	older := &corev1.Pod{Status: corev1.PodStatus{PodIP: "10.0.0.9"}}
	if b, _ := OfPod(older, "web"); len(b.Addresses) != 1 {
		t.Errorf("status.podIP alone: %v", b.Addresses)
	}
}

// TestDataplanes: what a Dataplane's maintenance, weight and name make of it behind a Service.
func TestDataplanes(t *testing.T) {
	ready := meshv1alpha1.DataplaneStatus{Conditions: []metav1.Condition{{Type: meshv1alpha1.DataplaneReady, Status: metav1.ConditionTrue}}}
	web, peers := &corev1.Service{}, &corev1.Service{}
	web.Name, peers.Name, peers.Spec.PublishNotReadyAddresses = "web", "web", true
	for what, tt := range map[string]struct {
		spec                                 meshv1alpha1.DataplaneSpec
		terminating, toTraffic, toPublishing bool
		hostname                             string
		weight                               uint32
	}{
		"nothing is said":               {meshv1alpha1.DataplaneSpec{}, false, true, true, "", 100},
		"enabled":                       {meshv1alpha1.DataplaneSpec{Enabled: new(true)}, false, true, true, "", 100},
		"maintenance":                   {meshv1alpha1.DataplaneSpec{Enabled: new(false)}, true, false, true, "", 100},
		"a small weight":                {meshv1alpha1.DataplaneSpec{Weight: new(int32(1))}, false, true, true, "", 1},
		"no weight":                     {meshv1alpha1.DataplaneSpec{Weight: new(int32(0))}, false, false, true, "", 0},
		"a name below the Service":      {meshv1alpha1.DataplaneSpec{Hostname: "db-0", Subdomain: "web"}, false, true, true, "db-0", 100},
		"a name below another Service":  {meshv1alpha1.DataplaneSpec{Hostname: "db-0", Subdomain: "db"}, false, true, true, "", 100},
		"a name without a Service's":    {meshv1alpha1.DataplaneSpec{Hostname: "db-0"}, false, true, true, "", 100},
		"the name of a Service, no own": {meshv1alpha1.DataplaneSpec{Subdomain: "web"}, false, true, true, "", 100},
	} {
		d := &meshv1alpha1.Dataplane{Spec: tt.spec, Status: ready}
		b := OfDataplane(d, web.Name)
		if !b.Serving || b.Terminating != tt.terminating || b.Ready(web) != tt.toTraffic || b.Ready(peers) != tt.toPublishing {
			t.Errorf("%s: serving %t, terminating %t, ready %t, published %t", what, b.Serving, b.Terminating, b.Ready(web), b.Ready(peers))
		}
		if b.Hostname != tt.hostname || WeightOf(d) != tt.weight {
			t.Errorf("%s: hostname %q, weight %d", what, b.Hostname, WeightOf(d))
		}
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
