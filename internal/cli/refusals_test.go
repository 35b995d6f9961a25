package cli

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/diag/doctor"
	"github.com/proxima-mesh/proxima/internal/diag/refusal"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

// TestRefusals: a proxy that refuses something while it is looked at is named, one that did before is not,
// and proxies that are away, of other control planes, or of gateways are not asked.
func TestRefusals(t *testing.T) {
	var asked atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := r.URL.Query().Get("name")
		switch r.URL.Path {
		case admin.ProxyStatsPath:
			n := int64(7)
			if name == "now" {
				n += asked.Add(1)
			}
			if !strings.HasPrefix(name, "now") && name != "before" {
				t.Errorf("%s is asked", name)
			}
			_, _ = w.Write([]byte("envoy_permission_deny_rbac_denied{} " + string(rune('0'+n)) + "\n"))
		case admin.ProxyStatusPath:
			_ = json.NewEncoder(w).Encode(admin.ProxyState{Own: json.RawMessage(`{"refused": {"80": 1}}`)})
		default:
			http.NotFound(w, r)
		}
	}))
	defer s.Close()
	proxy := func(name string, edit func(*doctor.Proxy)) doctor.Proxy {
		p := doctor.Proxy{Name: name, Status: &meshv1alpha1.ClientInsightStatus{Online: true, Versions: &meshv1alpha1.ProxyVersions{Supervisor: "v1"}}}
		edit(&p)
		return p
	}
	same := func(*doctor.Proxy) {}
	got := controlPlane{&rest.Config{Host: s.URL}}.Refusals(t.Context(), []doctor.Proxy{
		proxy("shop/now", same), proxy("shop/before", same), proxy("*/in-1", same),
		proxy("shop/away", func(p *doctor.Proxy) { p.Status.Online = false }),
		proxy("shop/copied", func(p *doctor.Proxy) { p.Copied = true }),
		proxy("shop/direct", func(p *doctor.Proxy) { p.Status.Versions.Supervisor = "" }),
	})
	if len(got) != 1 || got[0].Workload != "shop/now" || len(got[0].Counts) != 1 || got[0].Counts[0] != (refusal.Count{Cause: refusal.Permission, Count: 1}) {
		t.Errorf("%+v", got)
	}
}

// TestAccess: peers, targets and policies are those that the objects say.
func TestAccess(t *testing.T) {
	c := resourcetest.New(kind.All()...)
	c.Seed(
		&meshv1alpha1.Mesh{ObjectMeta: metav1.ObjectMeta{Name: "default"}, Spec: meshv1alpha1.MeshSpec{
			MTLS: &meshv1alpha1.MeshMTLS{EnabledBackend: "b", Backends: []meshv1alpha1.MeshCertificateBackend{{Name: "b"}}},
		}},
		&meshv1alpha1.Dataplane{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "api-1", Labels: map[string]string{"app": "api"}},
			Spec:       meshv1alpha1.DataplaneSpec{ServiceAccount: "api", Addresses: []string{"10.0.0.1"}, Ports: []meshv1alpha1.DataplanePort{{Port: 80}}},
			Status: meshv1alpha1.DataplaneStatus{Conditions: []metav1.Condition{{
				Type: meshv1alpha1.DataplaneProxyConnected, Status: metav1.ConditionFalse, Reason: "Disconnected",
			}}},
		},
		&meshv1alpha1.TrafficPermission{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "no"}, Spec: meshv1alpha1.TrafficPermissionSpec{Deny: []meshv1alpha1.PermissionRule{{}}},
		},
	)
	c.Seed(
		&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{meshv1alpha1.LabelProxyMode: "nftables"}},
			Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Address: "10.0.0.9"}}},
		},
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "web"}}},
		&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1", Labels: map[string]string{"app": "web"}},
			Spec: corev1.PodSpec{NodeName: "n1", ServiceAccountName: "web", Containers: []corev1.Container{{
				Name: "web", Ports: []corev1.ContainerPort{{ContainerPort: 8080}},
			}}},
			Status: corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "10.1.0.7"}}},
		},
	)
	w, err := readAccess(t.Context(), c, "shop", "shop")
	if err != nil {
		t.Fatal(err)
	}
	pods := w.targets(resource.Key{Namespace: "shop", Name: "web"})
	if len(pods) != 1 {
		t.Fatalf("workloads of a Service of pods: %v", pods)
	}
	if pod, ok := w.peer(pods[0]); !ok || pod.Proxied || pod.Node.Name != "n1" || !pod.Node.ByAddress || pod.Node.Addresses[0] != "10.0.0.9" ||
		pod.Dataplane.Spec.Addresses[0] != "10.1.0.7" || pod.Identity != "spiffe://default.mesh/ns/shop/sa/web" || len(pod.Services) != 1 {
		t.Errorf("pod %+v", pod)
	}
	key := resource.Key{Namespace: "shop", Name: "api-1"}
	p, ok := w.peer(key)
	if !ok || !p.Proxied || p.Identity != "spiffe://default.mesh/ns/shop/sa/api" || p.Mesh != "default" {
		t.Errorf("peer %+v", p)
	}
	if got := w.refusers(key); len(got) != 1 || got[0] != "TrafficPermission shop/no" {
		t.Errorf("refusers %v", got)
	}
	for text, want := range map[string]int32{"shop/api-1": 0, "shop/api-1:80": 80, "api:0": -1, "api:x": -1, "api:70000": -1} {
		if _, port, err := targetPort(text); (err != nil) != (want < 0) || err == nil && port != want {
			t.Errorf("%s: %d, %v", text, port, err)
		}
	}
}
