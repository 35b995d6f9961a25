package admin

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/diag"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

func TestExplainLimits(t *testing.T) {
	service := &corev1.Service{Spec: corev1.ServiceSpec{
		SessionAffinity: corev1.ServiceAffinityClientIP, LoadBalancerSourceRanges: []string{"192.0.2.0/24"},
		ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal,
	}}
	for mode, want := range map[string]int{"nftables": 0, "kernelspace": 5} {
		var e diag.Service
		client := resourcetest.New(kind.All()...)
		client.Seed(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "w1", Labels: map[string]string{meshv1alpha1.LabelProxyMode: mode}}})
		c := catalog.New(catalog.Config{Client: client, Descriptors: kind.All()})
		done := make(chan struct{})
		go func() { defer close(done); _ = c.Run(t.Context()) }()
		t.Cleanup(func() { <-done })
		sub := c.Subscribe(catalog.Nodes)
		t.Cleanup(sub.Close)
		d, err := sub.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		explainLimits(&e, d.After, service)
		if len(e.Limits) != want {
			t.Errorf("mode %s: %q", mode, e.Limits)
		}
		for _, l := range e.Limits {
			if !strings.HasPrefix(l, "nodes in mode kernelspace (w1) do not do ") {
				t.Errorf("limit %q", l)
			}
		}
	}
}
