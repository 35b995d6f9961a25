package xds_test

import (
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/testkit/envoytest"
)

// TestRetriesLeaveThePlan: if no endpoint answers that a zone is to use, the retries of a real Envoy go to those of other zones, before
// the control plane knows of the failure; with a policy for a Service, and without one.
func TestRetriesLeaveThePlan(t *testing.T) {
	t.Run("no policy", func(t *testing.T) { retriesLeave(t) })
	t.Run("policy", func(t *testing.T) {
		retriesLeave(t, &meshv1alpha1.BackendPolicy{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "p", Generation: 1},
			Spec:       meshv1alpha1.BackendPolicySpec{Timeout: &meshv1alpha1.PolicyTimeout{Connect: new(meshv1alpha1.Duration("1s"))}},
		})
	})
}

func retriesLeave(t *testing.T, policies ...resource.Object) {
	t.Helper()
	out := freePort(t)
	client := dataplane("client-1", "127.0.0.1")
	client.Spec.Proxy.Outbound = []meshv1alpha1.DataplaneOutbound{{Port: out, Service: "web", ServicePort: 80}}
	p := newPlane(t, append(append(policies,
		endpointsOf("web", at{closed(t), "a", true}, at{closed(t), "a", true}, at{closed(t), "a", true}, at{application(t, "b"), "b", true})...),
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{corev1.LabelTopologyZone: "a"}}},
		strict("Permissive"), client, service("web", "10.96.0.10", port("main", 80, "http")))...)
	dir := envoytest.Dir(t)
	cert, key := p.identity(dir, "shop", "default")
	proxy := envoytest.Start(t, dir, bootstrap(p, dir, "default/shop/client-1", cert, key, nil))
	proxy.WaitReady()
	for i := range 10 {
		if got, _, err := get(out, "/x"); err != nil || got != "b/x" {
			_, stats, _ := proxy.Admin(http.MethodGet, "/stats?usedonly&filter=upstream_rq_retry|connect_fail")
			t.Fatalf("request %d: %q, %v; want an answer of zone b\n%s", i, got, err, stats)
		}
	}
}
