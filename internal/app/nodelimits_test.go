package app

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/memory"
)

// TestLimitEvents: one Event for each thing that is said of a Service, also over a restart.
func TestLimitEvents(t *testing.T) {
	client := memory.New(kind.Service, kind.Event)
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
	if _, err := client.Create(t.Context(), kind.Service, svc); err != nil {
		t.Fatal(err)
	}
	of := func(service string, limits ...string) map[proxy.PortName][]string {
		return map[proxy.PortName][]string{{ServiceName: proxy.ServiceName{Namespace: "shop", Name: service}}: limits}
	}
	events := func() int {
		list, _, err := client.List(t.Context(), kind.Event, resource.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	for range 2 { // restarts
		r := limitReporter{client: client, node: "w1", mode: "kernelspace", told: map[proxy.ServiceName]string{}}
		for range 2 {
			if err := r.report(t.Context(), of("web", "weights", "affinity")); err != nil {
				t.Fatal(err)
			}
			if err := r.report(t.Context(), of("gone", "weights")); err != nil {
				t.Fatal(err)
			}
		}
		if n := events(); n != 1 {
			t.Fatalf("%d events, want 1", n)
		}
	}
	r := limitReporter{client: client, node: "w1", mode: "kernelspace", told: map[proxy.ServiceName]string{}}
	if err := r.report(t.Context(), of("web", "drop")); err != nil || events() != 2 {
		t.Errorf("something else: %d events, %v", events(), err)
	}
}
