package build

import (
	"fmt"
	"slices"
	"testing"
	"time"

	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpoint "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/delta"
	identity "github.com/proxima-mesh/proxima/internal/identity/mesh"
	"github.com/proxima-mesh/proxima/internal/resource"
)

func ownGateway(role Role, name, address string) resource.Object {
	meta, spec := metav1.ObjectMeta{Name: name}, meshv1alpha1.ZoneGatewaySpec{Zone: "local", Address: address, Port: 8080}
	if role == Egress {
		return &meshv1alpha1.ZoneEgress{ObjectMeta: meta, Spec: spec}
	}
	return &meshv1alpha1.ZoneIngress{ObjectMeta: meta, Spec: spec}
}

// offered is the export of a Service of this site whose endpoints all have proxies.
func offered(name string, edit func(*mcs.AvailableService)) *mcs.ServiceExport {
	e := &mcs.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}}
	e.Status.Available = &mcs.AvailableService{
		Mesh: "default", Type: mcs.ClusterSetIP, Instances: 1, ExportTime: metav1.Unix(100, 0), Ports: []mcs.ServicePort{{Port: 80}}, Proxied: true,
		ServiceAccounts: []string{"web"},
	}
	if edit != nil {
		edit(e.Status.Available)
	}
	return e
}

func sniOf(t *testing.T, meshName, name string) string {
	t.Helper()
	sni, err := identity.SNI(identity.Service{Mesh: meshName, Namespace: "shop", Name: name, Port: "80"})
	if err != nil {
		t.Fatal(err)
	}
	return SNIName(sni)
}

// each object by itself: a delta may have the first of several alone.
func (w *world) each(objects ...resource.Object) {
	w.t.Helper()
	for _, o := range objects {
		w.seed(o)
	}
}

func (w *world) gateway(role Role, name string) *Connection {
	w.t.Helper()
	c, err := w.builder.ConnectGateway(role, name)
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

// TestGatewayPods: a gateway that is a Pod has the resources of the topology zone of its node.
func TestGatewayPods(t *testing.T) {
	w := newWorld(t, ownGateway(Ingress, "i1", "192.0.2.1"), ownGateway(Ingress, "n1", "192.0.2.2"),
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{corev1.LabelTopologyZone: "z1"}}},
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "gateways", Name: "i1"}, Spec: corev1.PodSpec{NodeName: "n1"}},
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "n1"}, Spec: corev1.PodSpec{NodeName: "other"}})
	w.builder.config.GatewayNamespace = "gateways"
	for _, name := range []string{"i1", "n1"} {
		c := w.gateway(Ingress, name)
		if c.Class.Zone != "z1" {
			t.Errorf("gateway %s is in zone %q", name, c.Class.Zone)
		}
		c.Close(nil)
	}
}

// resourceOf a gateway, by type and name.
func resourceOf[M proto.Message](t *testing.T, c *Connection, typ, name string, m M) M {
	t.Helper()
	u := c.gateway.fleet.layer.units[delta.Ref{Type: typ, Name: name}]
	if u == nil {
		t.Fatalf("%s: not there", name)
	}
	made, err := u.safe()
	if err != nil || made == nil {
		t.Fatalf("%s: %v %v", name, made, err)
	}
	if err := proto.Unmarshal(made.body, m); err != nil {
		t.Fatal(err)
	}
	return m
}

// TestIngressClusters: mutual TLS passes to Services of all meshes whose endpoints all have proxies, which
// any site may use, at the endpoints of this site that are no ingress.
func TestIngressClusters(t *testing.T) {
	w := newWorld(t, testService("web", "10.96.0.1"), testService("other", "10.96.0.2"), testSlice("web", "10.0.0.1"), offered("web", nil),
		ownGateway(Ingress, "i1", "10.0.0.9"),
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "i1", Labels: map[string]string{corev1.LabelTopologyZone: "z1"}}})
	if _, err := w.builder.ConnectGateway(Ingress, "i2"); err == nil {
		t.Fatal("an ingress without an object has a stream")
	}
	if _, err := w.builder.ConnectGateway(Egress, "i1"); err == nil {
		t.Fatal("an ingress has the stream of an egress")
	}
	c := w.gateway(Ingress, "i1")
	web, other := sniOf(t, "default", "web"), sniOf(t, "blue", "other")
	clusters := func(what string, want ...string) {
		t.Helper()
		slices.Sort(want)
		if got := names(c, ClusterType); !slices.Equal(got, want) {
			t.Errorf("%s: clusters %v, want %v", what, got, want)
		}
	}
	clusters("at first", web)
	m := resourceOf(t, c, ClusterType, web, &cluster.Cluster{})
	if m.TransportSocket != nil || len(m.TransportSocketMatches) > 0 || m.LrsServer != nil || m.EdsClusterConfig.ServiceName != web {
		t.Errorf("the cluster of a server name is %v", m)
	}
	endpoints := func(what, want string) {
		t.Helper()
		if got := shown(resourceOf(t, c, EndpointType, web, &endpoint.ClusterLoadAssignment{})); got != want {
			t.Errorf("%s: endpoints %s, want %s", what, got, want)
		}
	}
	endpoints("at first", "0 /local=10000(10.0.0.1*1)")
	w.each(importOf("b", nil), gatewayObject("b", "10.1.0.1"))
	endpoints("another site offers it too", "0 /local=10000(10.0.0.1*1)")
	s := testSlice("web", "10.0.0.1")
	s.Endpoints = append(s.Endpoints, testSlice("web", "10.0.0.9").Endpoints...)
	w.each(s)
	endpoints("an endpoint is the ingress itself", "0 /local=10000(10.0.0.1*1)")
	w.each(ownGateway(Ingress, "i1", "10.0.0.8"))
	endpoints("it is not any more", "0 /local=10000(10.0.0.1*1 10.0.0.9*1)")

	w.each(offered("other", func(a *mcs.AvailableService) { a.Mesh = "blue" }))
	clusters("a Service of another mesh", web, other)
	w.each(offered("other", func(a *mcs.AvailableService) { a.Mesh, a.Proxied = "blue", false }))
	clusters("an endpoint without a proxy", web)
	w.each(offered("other", func(a *mcs.AvailableService) { a.Mesh, a.ToZones = "blue", []string{"b"} }))
	clusters("for some sites", web)
	w.each(offered("other", func(a *mcs.AvailableService) { a.Mesh = "blue" }), testService("other", "10.96.0.2", corev1.ServicePort{Name: "http", Port: 80}))
	clusters("again", web, other)
	w.each(testService("other", "10.96.0.2", corev1.ServicePort{Name: "http", Port: 81}))
	clusters("its port is another one", web)

	select {
	case <-c.End.Done():
		t.Fatal("the stream ends although nothing has changed")
	default:
	}
	w.each(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "i1", Labels: map[string]string{corev1.LabelTopologyZone: "z2"}}})
	select {
	case <-c.End.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("an ingress of another topology zone keeps its stream")
	}
	c.Close(nil)
	if len(w.builder.fleets)+len(w.builder.gatewayStreams) > 0 {
		t.Error("resources of gateways that are gone stay")
	}
}

// TestEgressClusters: an egress leads to the ingresses of other sites.
func TestEgressClusters(t *testing.T) {
	s := testService("derived-web", "10.96.0.9")
	s.Labels = map[string]string{mcs.LabelServiceName: "web"}
	w := newWorld(t, s, testSlice("derived-web", "10.0.0.1"), importOf("b", nil), gatewayObject("b", "10.1.0.1"), ownGateway(Egress, "e1", "10.0.0.9"))
	c := w.gateway(Egress, "e1")
	web := sniOf(t, "default", "web")
	if got := names(c, ClusterType); !slices.Equal(got, []string{web}) {
		t.Fatalf("clusters %v", got)
	}
	endpoints := func(what, want string) {
		t.Helper()
		if got := shown(resourceOf(t, c, EndpointType, web, &endpoint.ClusterLoadAssignment{})); got != want {
			t.Errorf("%s: endpoints %s, want %s", what, got, want)
		}
	}
	endpoints("one site", "0 site:*/b=10000(10.1.0.1*2:mtls)")
	w.each(importOf("c", func(a *mcs.AvailableService) { a.Instances = 6 }), gatewayObject("c", "10.2.0.1"))
	endpoints("two sites", "0 site:*/b=2501(10.1.0.1*2:mtls) 0 site:*/c=7499(10.2.0.1*6:mtls)")

	// Two virtual addresses of one import for a time: the server name stays while there is one.
	second := testService("derived-web-2", "10.96.0.10")
	second.Labels = s.Labels
	w.each(second)
	if got := names(c, ClusterType); !slices.Equal(got, []string{web}) {
		t.Fatalf("two virtual addresses: clusters %v", got)
	}
	gone := testService("derived-web", "10.96.0.9")
	w.each(gone)
	endpoints("the first one is gone", "0 site:*/b=2501(10.1.0.1*2:mtls) 0 site:*/c=7499(10.2.0.1*6:mtls)")
	w.each(testService("derived-web-2", "10.96.0.10"))
	if got := names(c, ClusterType); len(got) != 0 {
		t.Errorf("nothing is imported: clusters %v", got)
	}

	w.each(&meshv1alpha1.BackendPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "slow"},
		Spec:       meshv1alpha1.BackendPolicySpec{Timeout: &meshv1alpha1.PolicyTimeout{Connect: new(meshv1alpha1.Duration("3s"))}},
	}, s)
	if m := resourceOf(t, c, ClusterType, web, &cluster.Cluster{}); m.ConnectTimeout.AsDuration() != 3*time.Second || len(m.HealthChecks) > 0 {
		t.Errorf("with a policy: connect timeout %s, health checks %v", m.ConnectTimeout.AsDuration(), m.HealthChecks)
	}
}

// TestGatewayAddition: one more exported Service costs its own two resources, however many there are.
func TestGatewayAddition(t *testing.T) {
	for _, n := range []int{10, 1000} {
		name := func(i int) string { return fmt.Sprintf("s%05d", i) }
		var objects []resource.Object
		for i := range n {
			objects = append(objects, testService(name(i), fmt.Sprintf("10.96.%d.%d", i/250, 1+i%250)), testSlice(name(i), "10.0.0.1"), offered(name(i), nil))
		}
		w := newWorld(t, append(objects, ownGateway(Ingress, "i1", "10.0.0.9"))...)
		c := w.gateway(Ingress, "i1")
		s := delta.NewLayered(c.Config)
		for _, r := range []delta.Request{{Type: ClusterType, Subscribe: []string{"*"}}, {Type: EndpointType, Subscribe: []string{sniOf(t, "default", "new")}}} {
			if err := s.Step(r); err != nil {
				t.Fatal(err)
			}
		}
		drained := func() (resources, bytes int) {
			for f, _ := s.Next(time.Unix(0, 0)); f != nil; f, _ = s.Next(time.Unix(0, 0)) {
				var r discovery.DeltaDiscoveryResponse
				if err := proto.Unmarshal(f.Data, &r); err != nil {
					t.Fatal(err)
				}
				resources, bytes = resources+f.Resources, bytes+len(f.Data)
				if err := s.Step(delta.Request{Type: f.Type, Nonce: r.GetNonce()}); err != nil {
					t.Fatal(err)
				}
			}
			return resources, bytes
		}
		if got, _ := drained(); got != n {
			t.Fatalf("%d of %d clusters at first", got, n)
		}
		w.each(testService("new", "10.97.0.1"), testSlice("new", "10.0.0.1"))
		before := w.builder.remade
		w.client.Seed(offered("new", nil))
		d, err := w.sub.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		w.builder.Apply(&d, nil)
		resources, bytes := drained()
		t.Logf("%d Services: the next one is %d resources of %d bytes, made and encoded in %s", n, resources, bytes, time.Since(begin))
		if resources != 2 || bytes > 1000 {
			t.Errorf("%d Services: one more is %d resources of %d bytes", n, resources, bytes)
		}
		if made := w.builder.remade - before; made > 6 {
			t.Errorf("%d Services: one more makes %d resources", n, made)
		}
		s.Close()
		c.Close(nil)
	}
}

// TestOutsideClusters: an egress has clusters of the services outside every mesh of meshes that leave by egresses,
// with the BackendPolicies of their namespaces; an ingress has none, and neither has an egress what is left to its
// engine.
func TestOutsideClusters(t *testing.T) {
	byEgress := func(yes bool) *meshv1alpha1.Mesh {
		return &meshv1alpha1.Mesh{ObjectMeta: metav1.ObjectMeta{Name: "default"}, Spec: meshv1alpha1.MeshSpec{
			Routing: &meshv1alpha1.MeshRouting{ZoneEgress: new(yes)},
		}}
	}
	w := newWorld(t, append(outsideObjects(nil), byEgress(true), ownGateway(Egress, "e1", "10.0.0.9"), ownGateway(Ingress, "i1", "10.0.0.8"))...)
	c := w.gateway(Egress, "e1")
	const pay = "ext|shop/pay:80"
	want := func(what string, clusters ...string) {
		t.Helper()
		if got := names(c, ClusterType); !slices.Equal(got, clusters) {
			t.Errorf("%s: clusters %v, want %v", what, got, clusters)
		}
	}
	want("an ExternalService", pay)
	if got := names(w.gateway(Ingress, "i1"), ClusterType); len(got) > 0 {
		t.Errorf("an ingress has %v", got)
	}
	got := resourceOf(t, c, ClusterType, pay, &cluster.Cluster{})
	if got.ConnectTimeout.AsDuration() != engineTimeout || got.LrsServer != nil || shownCluster(t, got) == "" {
		t.Errorf("without a policy: %v", got)
	}
	w.each(&meshv1alpha1.BackendPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "slow"},
		Spec:       meshv1alpha1.BackendPolicySpec{Timeout: &meshv1alpha1.PolicyTimeout{Connect: new(meshv1alpha1.Duration("700ms"))}},
	})
	if d := resourceOf(t, c, ClusterType, pay, &cluster.Cluster{}).ConnectTimeout.AsDuration(); d != 700*time.Millisecond {
		t.Errorf("with a policy: connect timeout %s", d)
	}
	for _, o := range outsideObjects(func(s *meshv1alpha1.ExternalServiceSpec) { s.Addresses = nil }) {
		w.each(o) // its host is resolved by the engine
	}
	want("found by its host")
	for _, o := range outsideObjects(nil) {
		w.each(o)
	}
	want("by its address again", pay)
	w.each(byEgress(false))
	want("the mesh does not leave by egresses")
}
