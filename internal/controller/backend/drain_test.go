package backend_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/controller/backend"
)

// TestDrainedNode: the backends of a drained node are terminating, and serve as before.
func TestDrainedNode(t *testing.T) {
	taint := func(key string, effect corev1.TaintEffect) *corev1.Node {
		return &corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: key, Value: "yes", Effect: effect}}}}
	}
	tolerating := func(by ...corev1.Toleration) *corev1.Pod {
		return &corev1.Pod{
			Spec: corev1.PodSpec{Tolerations: by},
			Status: corev1.PodStatus{
				PodIP: "10.0.0.1", Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			},
		}
	}
	seconds := int64(300)
	for name, tc := range map[string]struct {
		node        *corev1.Node
		pod         *corev1.Pod // nil: a Dataplane
		terminating bool
	}{
		"no node":                      {nil, nil, false},
		"no taint":                     {&corev1.Node{}, nil, false},
		"cordoned":                     {&corev1.Node{Spec: corev1.NodeSpec{Unschedulable: true}}, nil, false},
		"drained":                      {taint(meshv1alpha1.TaintDrain, corev1.TaintEffectNoExecute), nil, true},
		"another taint":                {taint("maintenance", corev1.TaintEffectNoExecute), nil, true},
		"another effect":               {taint("maintenance", corev1.TaintEffectNoSchedule), nil, false},
		"silent, as Kubernetes has it": {taint(corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute), nil, false},
		"pod":                          {taint("maintenance", corev1.TaintEffectNoExecute), tolerating(), true},
		"pod tolerates the key": {
			taint("maintenance", corev1.TaintEffectNoExecute),
			tolerating(corev1.Toleration{Key: "maintenance", Operator: corev1.TolerationOpExists}), false,
		},
		"pod tolerates another value": {
			taint("maintenance", corev1.TaintEffectNoExecute),
			tolerating(corev1.Toleration{Key: "maintenance", Value: "no"}), true,
		},
		"pod tolerates all": {
			taint("maintenance", corev1.TaintEffectNoExecute), tolerating(corev1.Toleration{Operator: corev1.TolerationOpExists}), false,
		},
		"pod tolerates it for a time": {
			taint("maintenance", corev1.TaintEffectNoExecute),
			tolerating(corev1.Toleration{Operator: corev1.TolerationOpExists, TolerationSeconds: &seconds}), true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := backend.OfDataplane(&meshv1alpha1.Dataplane{Status: meshv1alpha1.DataplaneStatus{
				Conditions: []metav1.Condition{{Type: meshv1alpha1.DataplaneReady, Status: metav1.ConditionTrue}},
			}}, "web")
			if tc.pod != nil {
				var ok bool
				if b, ok = backend.OfPod(tc.pod, "web"); !ok {
					t.Fatal("the pod has no endpoint")
				}
			}
			b.Place(tc.node, nil)
			if b.Terminating != tc.terminating || !b.Serving {
				t.Errorf("terminating %t, serving %t; want %t, true", b.Terminating, b.Serving, tc.terminating)
			}
		})
	}
}
