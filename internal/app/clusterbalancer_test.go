package app

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// TestClusterVirtualIPs: addresses of the API server's range, and those that Services have, are no
// addresses for pools; a cluster without objects of ranges has the latter alone.
func TestClusterVirtualIPs(t *testing.T) {
	client := resourcetest.New(kind.All()...)
	tables := catalog.New(catalog.Config{Client: client, Descriptors: planeKinds()})
	go func() { _ = tables.Run(t.Context()) }()
	v := clusterVirtualIPs{catalog: tables}
	if err := v.read(t.Context(), client); err != nil || len(v.ranges) > 0 {
		t.Fatalf("without objects of ranges: %v, %v", v.ranges, err)
	}
	check := func(text string, want bool) {
		t.Helper()
		testkit.Eventually(t, text, func() bool { return v.contains(netip.MustParseAddr(text)) == want })
	}
	check("10.96.0.9", false)
	client.Seed(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: corev1.ServiceSpec{ClusterIPs: []string{"10.96.0.9", "fd00:96::9"}},
	})
	check("10.96.0.9", true)
	check("fd00:96::9", true)
	check("10.96.0.10", false)
	client.Seed(&networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/16"}}})
	if err := v.read(t.Context(), client); err != nil {
		t.Fatal(err)
	}
	check("10.96.0.10", true)
	check("10.97.0.10", false)
}
