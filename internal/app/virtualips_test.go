package app

import (
	"context"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/controller/virtualip"
	"github.com/proxima-mesh/proxima/internal/dns/meshname"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// TestServicesHaveNamesOfTheMesh: along the real write path, a Service's port gets a name with
// an address of the mesh's range, of which no Service gets one, and nobody else writes it.
func TestServicesHaveNamesOfTheMesh(t *testing.T) {
	p := startMeshPlane(t)
	within := netip.MustParsePrefix("240.0.0.0/4")
	names := virtualip.New(virtualip.Config{
		Client: p.cp.leader.client, Catalog: p.cp.instance.catalog, Ranges: []netip.Prefix{within},
	})
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { done <- names.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })

	service := func(name, ip string) error {
		_, err := p.client.Create(t.Context(), kind.Service, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Spec:       corev1.ServiceSpec{ClusterIP: ip, Ports: []corev1.ServicePort{{Port: 8080}}},
		})
		return err
	}
	if err := service("web", ""); err != nil {
		t.Fatal(err)
	}
	var v *meshv1alpha1.VirtualIP
	key := resource.Key{Name: meshname.ObjectName("default", "web_default_svc_8080")}
	eventually(t, "the name", func() bool {
		v = getOrNil[*meshv1alpha1.VirtualIP](p, kind.VirtualIP, key)
		return v != nil
	})
	if len(v.Spec.Addresses) != 1 || !within.Contains(netip.MustParseAddr(v.Spec.Addresses[0])) {
		t.Errorf("addresses %v", v.Spec.Addresses)
	}
	cidr := getOrNil[*networkingv1.ServiceCIDR](p, kind.ServiceCIDR, resource.Key{Name: virtualip.RangeName})
	if cidr == nil || !slices.Equal(cidr.Spec.CIDRs, []string{within.String()}) {
		t.Errorf("range %+v", cidr)
	}
	if err := service("taken", "240.0.0.9"); !apierrors.IsInvalid(err) {
		t.Errorf("a Service with an address of the range: %v", err)
	}
	v.Spec.Port = 81
	if _, err := p.client.Update(t.Context(), kind.VirtualIP, v); !apierrors.IsForbidden(err) {
		t.Errorf("update of a name: %v", err)
	}
}
