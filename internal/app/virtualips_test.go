package app

import (
	"context"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/controller/virtualip"
	"github.com/proxima-mesh/proxima/internal/dns/meshname"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/identity/access"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/servicetag"
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

// TestTagsAreNames: along the real write path, workloads with a service tag in two namespaces
// form one service with a name of the mesh, without a Service. A credential for one namespace
// does not join the workloads of another one.
func TestTagsAreNames(t *testing.T) {
	p := startMeshPlane(t)
	names := virtualip.New(virtualip.Config{
		Client: p.cp.leader.client, Catalog: p.cp.instance.catalog, Ranges: []netip.Prefix{netip.MustParsePrefix("240.0.0.0/4")},
	})
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { done <- names.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })

	if _, err := p.client.Create(t.Context(), kind.Namespace, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}); err != nil {
		t.Fatal(err)
	}
	workload := func(namespace, address string, port int32) *meshv1alpha1.Dataplane {
		return &meshv1alpha1.Dataplane{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "w", Labels: map[string]string{meshv1alpha1.LabelKumaService: "backend"}},
			Spec:       meshv1alpha1.DataplaneSpec{Addresses: []string{address}, Ports: []meshv1alpha1.DataplanePort{{Port: port}}},
		}
	}
	for _, dp := range []*meshv1alpha1.Dataplane{workload("default", "192.0.2.1", 8080), workload("shop", "192.0.2.2", 8081)} {
		if _, err := p.client.Create(t.Context(), kind.Dataplane, dp); err != nil {
			t.Fatal(err)
		}
	}
	in := servicetag.Namespace("default")
	eventually(t, "the slices of the service", func() bool {
		objects, _, err := p.client.List(t.Context(), kind.EndpointSlice, resource.ListOptions{Namespace: in})
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]int32{}
		for _, o := range objects {
			s := o.(*discoveryv1.EndpointSlice)
			for _, e := range s.Endpoints {
				for _, port := range s.Ports {
					if *port.Name == "tcp-80" {
						found[e.Addresses[0]] = *port.Port
					}
				}
			}
		}
		return found["192.0.2.1"] == 8080 && found["192.0.2.2"] == 8081
	})
	eventually(t, "the name", func() bool {
		v := getOrNil[*meshv1alpha1.VirtualIP](p, kind.VirtualIP, resource.Key{Name: meshname.ObjectName("default", "backend")})
		return v != nil && v.Spec.Namespace == in && v.Spec.Service == "backend" && v.Spec.Port == 0 && len(v.Spec.Addresses) == 1
	})

	write := func(namespace, tag string, extra map[string][]string) error {
		dp := workload(namespace, "192.0.2.3", 8080)
		dp.Labels = nil
		dp.Spec.Ports[0].Tags = map[string]string{meshv1alpha1.LabelService: tag}
		return p.cp.api.tags.allow(access.Write{
			User:   &user.DefaultInfo{Name: "system:node:n1", Groups: []string{identity.GroupNodes}, Extra: extra},
			Object: dp,
		})
	}
	named := identity.Bounds{Labels: map[string][]string{meshv1alpha1.LabelService: {"backend"}}}.Extra()
	for _, tc := range []struct {
		tag   string
		extra map[string][]string
		ok    bool
	}{{"backend", nil, false}, {"another", nil, true}, {"backend", named, true}, {"another", named, false}} {
		if err := write("default", tc.tag, tc.extra); (err == nil) != tc.ok {
			t.Errorf("tag %s with %v: %v", tc.tag, tc.extra, err)
		}
	}
}
