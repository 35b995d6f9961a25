package describe

import (
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// TestDescribeServiceCIDR: how much of a range is taken, and where its static band is.
func TestDescribeServiceCIDR(t *testing.T) {
	address := func(name string) *networkingv1.IPAddress {
		return &networkingv1.IPAddress{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	w := &world{objects: []resource.Object{
		&networkingv1.ServiceCIDR{
			ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/16", "fd00:96::/124"}},
			Status: networkingv1.ServiceCIDRStatus{Conditions: []metav1.Condition{{Type: "Ready", Status: "True", Message: "usable"}}},
		},
		address("10.96.0.1"), address("10.96.7.9"), address("10.97.0.1"), address("fd00:96::3"),
	}}
	mustContain(t, describe(t, w, kind.ServiceCIDR, resource.Key{Name: "kubernetes"}),
		"10.96.0.0/16, 2 of 65534 addresses taken", "10.96.0.1 to 10.96.1.0: choose addresses here",
		"fd00:96::/124, 1 of 15 addresses taken", "Ready: True usable")
}
