package direct

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/dns/records"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func service(name string, edit func(*corev1.ServiceSpec)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.1", ClusterIPs: []string{"10.96.0.1"}, Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
	}
	if edit != nil {
		edit(&s.Spec)
	}
	return s
}

func slice(addresses ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}},
	}
	for _, a := range addresses {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
	}
	s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
		Addresses: []string{"192.0.2.99"}, Conditions: discoveryv1.EndpointConditions{Ready: new(false)},
	})
	return s
}

// TestFollow: a Service with a virtual IP is resolved to its ready endpoints and their ports.
func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := resourcetest.New(kind.All()...)
		client.Seed(service("web", nil), slice("192.0.2.1", "127.0.0.1"), service("out", func(s *corev1.ServiceSpec) {
			s.Type, s.ClusterIP, s.ClusterIPs, s.ExternalName = corev1.ServiceTypeExternalName, "", nil, "www.example.com"
		}))
		tables := catalog.New(catalog.Config{Client: client, Descriptors: kind.All()})
		zone, clients := records.New(), &Clients{}
		client.Seed(&meshv1alpha1.VirtualIP{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: meshv1alpha1.VirtualIPSpec{
			Mesh: "default", Hostname: "web_shop_svc_80", Addresses: []string{"240.0.0.1"}, Namespace: "shop", Service: "web", Port: 80,
		}}, &meshv1alpha1.Dataplane{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "w"},
			Spec: meshv1alpha1.DataplaneSpec{Mesh: "blue", Addresses: []string{"192.0.2.9"}}})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{}, 2)
		go func() { _ = tables.Run(ctx); done <- struct{}{} }()
		go func() { _ = Follow(ctx, tables, zone, clients); done <- struct{}{} }()
		defer func() { cancel(); <-done; <-done }()
		synctest.Wait()

		name := proxy.ServiceName{Namespace: "shop", Name: "web"}
		addresses := func(want ...string) {
			t.Helper()
			synctest.Wait()
			var all []netip.Addr
			for _, a := range want {
				all = append(all, netip.MustParseAddr(a))
			}
			e := zone.Service(name)
			if e == nil {
				t.Fatal("the Service has no name")
			}
			if diff := cmp.Diff(all, e.V4, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Error(diff)
			}
		}
		addresses("192.0.2.1")
		if ports := zone.Service(name).Ports["_http._tcp"]; len(ports) != 1 || ports[0].Number != 8080 {
			t.Errorf("ports %v", ports)
		}
		if e := zone.Service(proxy.ServiceName{Namespace: "shop", Name: "out"}); e == nil || e.Alias != "www.example.com" {
			t.Errorf("external name %+v", e)
		}
		inMesh := proxy.ServiceName{Namespace: "default", Name: "web_shop_svc_80.mesh"}
		if h := zone.Virtual(inMesh); h == nil || len(h.V4) != 1 || h.V4[0] != netip.MustParseAddr("192.0.2.1") {
			t.Errorf("name of the mesh: %+v", h)
		}
		if at, other := clients.MeshAt(netip.MustParseAddr("192.0.2.9")), clients.MeshAt(netip.MustParseAddr("192.0.2.8")); at != "blue" || other != "default" {
			t.Errorf("meshes of clients: %s and %s", at, other)
		}
		client.Seed(slice("192.0.2.1", "192.0.2.2"))
		addresses("192.0.2.1", "192.0.2.2")
		for _, d := range kind.All() {
			if d.GVK.Kind == "Service" {
				if err := client.Delete(t.Context(), d, resource.Key{Namespace: "shop", Name: "web"}, resource.Preconditions{}); err != nil {
					t.Fatal(err)
				}
			}
		}
		synctest.Wait()
		if zone.Service(name) != nil {
			t.Error("a Service that is gone has a name")
		}
	})
}
