package describe

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// TestGateway: an ingress is described with what is observed of it; without that there is a note.
func TestGateway(t *testing.T) {
	in := &mesh.ZoneIngress{
		ObjectMeta: metav1.ObjectMeta{Name: "in-1"},
		Spec:       mesh.ZoneGatewaySpec{Zone: "east", Address: "192.0.2.1", Port: 10001, AdvertisedAddress: "east.example.com"},
	}
	w := &world{objects: []resource.Object{in}}
	key := resource.Key{Name: "in-1"}
	if got := describe(t, w, kind.ZoneIngress, key); !strings.Contains(got, "no connection of it has been observed") {
		t.Errorf("without an insight:\n%s", got)
	}
	ended := metav1.NewMicroTime(now.Add(-time.Minute))
	i := &mesh.ZoneIngressInsight{ObjectMeta: metav1.ObjectMeta{Name: "in-1"}}
	i.Status = mesh.ClientInsightStatus{
		Versions:   &mesh.ProxyVersions{Proxy: "envoy", Version: "1.40.0", Supervisor: "v1.2.0"},
		Conditions: []metav1.Condition{{Type: "ProxyConnected", Status: metav1.ConditionFalse, Reason: "Disconnected", Message: "gone"}},
		Subscriptions: []mesh.Subscription{{
			Instance: "cp-0", Generation: 3, ConnectTime: metav1.NewMicroTime(now.Add(-time.Hour)), DisconnectTime: &ended,
			Resources: []mesh.ResourceSync{{Type: "Cluster", Sent: 3, Acknowledged: 2, Rejected: 1}},
		}},
		Certificates: []mesh.CertificateInsight{{Mesh: "pay", Identity: "spiffe://pay.mesh/zone/east/ingress", Expiry: metav1.NewTime(now), Generations: 4}},
	}
	w.objects = append(w.objects, i)
	got := strings.Join(strings.Fields(describe(t, w, kind.ZoneIngress, key)), " ")
	for _, want := range []string{
		"Advertised: east.example.com:10001", "Engine: envoy 1.40.0", "Supervisor: v1.2.0", "ProxyConnected False Disconnected gone", "3 cp-0 60m ago 60s ago",
		"Cluster 3 2 1", "pay spiffe://pay.mesh/zone/east/ingress 2026-01-02T03:04:05Z 4",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in %s", want, got)
		}
	}
}
