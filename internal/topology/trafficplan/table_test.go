package trafficplan

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

// TestPodsLater: where a Service warms endpoints up, pods that come after its slices, or become
// ready again, change what its endpoints are.
func TestPodsLater(t *testing.T) {
	client := resourcetest.New()
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", Annotations: map[string]string{kind.AnnotationWarmUp: "30s"}},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": "web"}},
	}
	other := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "other"}, Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "web"}},
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "ns", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{
			Addresses: []string{"10.0.0.1"}, TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: "web-x"},
		}},
	}
	client.Seed(service, other, slice)
	c := catalog.New(catalog.Config{Client: client, Descriptors: resourcetest.Descriptors()})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = c.Run(t.Context())
	}()
	t.Cleanup(func() { <-done })
	sub := c.Subscribe(catalog.Services, catalog.Slices, catalog.Pods)
	defer sub.Close()
	table := &Table{}
	apply := func() map[resource.Key]struct{} {
		t.Helper()
		d, err := sub.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return table.Apply(&d)
	}
	apply()
	ready := time.Unix(1000, 0)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web-x", Labels: map[string]string{"app": "web"}},
		Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
	for i := range 2 {
		pod.Status.Conditions[0].LastTransitionTime = metav1.NewTime(ready.Add(time.Duration(i) * time.Hour))
		client.Seed(pod.DeepCopy())
		changed := apply()
		if _, ok := changed[resource.Key{Namespace: "ns", Name: "web"}]; !ok || len(changed) != 1 {
			t.Errorf("changed: %v", changed)
		}
		if got := table.ReadySince(slice); len(got) != 1 || got[0] != 1000+int64(i)*3600 {
			t.Errorf("ready since %v", got)
		}
	}
}
