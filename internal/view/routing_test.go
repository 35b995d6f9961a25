package view

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gateway "sigs.k8s.io/gateway-api/apis/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
	"github.com/proxima-mesh/proxima/internal/view/viewtest"
	"github.com/proxima-mesh/proxima/internal/view/wire"
)

// routingRig follows a catalog of objects.
type routingRig struct {
	t        *testing.T
	client   *resourcetest.Client
	sub      *catalog.Subscription
	routings Routings
	after    *catalog.Snapshot
	// again are the Services that the last change concerned.
	again []string
}

func newRoutingRig(t *testing.T, objects ...resource.Object) *routingRig {
	t.Helper()
	r := &routingRig{t: t, client: resourcetest.New(kind.All()...), routings: Routings{Site: "s1"}}
	r.client.Seed(objects...)
	c := catalog.New(catalog.Config{Client: r.client, Descriptors: kind.All()})
	done := make(chan struct{})
	go func() { defer close(done); _ = c.Run(t.Context()) }()
	t.Cleanup(func() { <-done })
	r.sub = c.Subscribe(Tables()...)
	t.Cleanup(r.sub.Close)
	r.next()
	return r
}

func (r *routingRig) seed(objects ...resource.Object) {
	r.t.Helper()
	r.client.Seed(objects...)
	r.next()
}

func (r *routingRig) next() {
	r.t.Helper()
	d, err := r.sub.Next(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	r.after = d.After
	again := r.routings.Apply(&d)
	for _, c := range d.Services {
		if c.New != nil {
			again = with(again, c.Key)
		}
	}
	r.again = nil
	for key := range again {
		r.again = append(r.again, key.String())
		s, _ := d.After.Services.Get(key)
		r.routings.Of(key, s)
	}
	slices.Sort(r.again)
}

func with(set map[catalog.Key]struct{}, key catalog.Key) map[catalog.Key]struct{} {
	if set == nil {
		set = map[catalog.Key]struct{}{}
	}
	set[key] = struct{}{}
	return set
}

// want what is said of Service ns/web, and which Services the last change concerned.
func (r *routingRig) want(when string, want *proxy.Routing, again ...string) {
	r.t.Helper()
	key := catalog.Key{Namespace: "ns", Name: "web"}
	s, _ := r.after.Services.Get(key)
	if diff := cmp.Diff(want, r.routings.Of(key, s)[""]); diff != "" {
		r.t.Errorf("%s: -want +got:\n%s", when, diff)
	}
	if !slices.Equal(r.again, again) {
		r.t.Errorf("%s: concerns %v, want %v", when, r.again, again)
	}
}

func tcpRoute(namespace string, weights map[string]int32) *gateway.TCPRoute {
	r := &gateway.TCPRoute{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "split"}}
	r.Spec.ParentRefs = []gateway.ParentReference{{Group: new(gateway.Group("")), Kind: new(gateway.Kind("Service")), Namespace: new(gateway.Namespace("ns")), Name: "web"}}
	rule := gateway.TCPRouteRule{}
	for _, name := range []string{"v1", "v2", "gone", "outside", "web"} {
		w, ok := weights[name]
		if !ok {
			continue
		}
		b := gateway.BackendRef{BackendObjectReference: gateway.BackendObjectReference{Name: gateway.ObjectName(name), Port: new(gateway.PortNumber(80))}, Weight: &w}
		if name == "outside" {
			b.Group, b.Kind = new(gateway.Group("mesh.proxima.dev")), new(gateway.Kind("ExternalService"))
		}
		rule.BackendRefs = append(rule.BackendRefs, b)
	}
	r.Spec.Rules = []gateway.TCPRouteRule{rule}
	return r
}

func backendPolicy(namespace string, spec meshv1alpha1.BackendPolicySpec) *meshv1alpha1.BackendPolicy {
	spec.TargetRefs = []meshv1alpha1.PolicyTargetReference{{Kind: "Service", Namespace: "ns", Name: "web"}}
	return &meshv1alpha1.BackendPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "p"}, Spec: spec}
}

func TestRoutings(t *testing.T) {
	r := newRoutingRig(t, viewtest.Service("web", "10.0.0.1"), viewtest.Service("v1", "10.0.0.2"), viewtest.Service("v2", "10.0.0.3"), viewtest.Service("other", "10.0.0.4"))
	r.want("at first", nil, "ns/other", "ns/v1", "ns/v2", "ns/web")
	if r.routings.index != nil {
		t.Error("without policies something is kept")
	}
	v1 := proxy.RouteBackend{Service: proxy.ServiceName{Namespace: "ns", Name: "v1"}, Port: 80, Weight: 90}
	v2 := proxy.RouteBackend{Service: proxy.ServiceName{Namespace: "ns", Name: "v2"}, Port: 80, Weight: 10}
	r.seed(tcpRoute("ns", map[string]int32{"v1": 90, "v2": 10}))
	r.want("a route", &proxy.Routing{Route: "ns/split", Backends: []proxy.RouteBackend{v1, v2}}, "ns/web")
	r.seed(tcpRoute("ns", map[string]int32{"v1": 90, "gone": 10}))
	r.want("to a backend that is not there", &proxy.Routing{Route: "ns/split", Backends: []proxy.RouteBackend{v1, {Weight: 10}}}, "ns/web")
	gone := viewtest.Service("gone", "10.0.0.9")
	r.seed(gone)
	v2.Service.Name = "gone"
	r.want("that comes", &proxy.Routing{Route: "ns/split", Backends: []proxy.RouteBackend{v1, v2}}, "ns/gone", "ns/web")
	r.seed(tcpRoute("ns", map[string]int32{"v1": 0}))
	r.want("without weight", &proxy.Routing{Route: "ns/split", Backends: []proxy.RouteBackend{{Weight: 1}}}, "ns/web")

	r.seed(backendPolicy("ns", meshv1alpha1.BackendPolicySpec{
		Timeout: &meshv1alpha1.PolicyTimeout{Connect: new(meshv1alpha1.Duration("2s"))}, Retry: &meshv1alpha1.BackendRetry{TCPAttempts: new(int32(4))},
		Balancer: &meshv1alpha1.BackendBalancer{Hash: []meshv1alpha1.BalancerHash{{Type: meshv1alpha1.HashSourceIP}}},
		Locality: &meshv1alpha1.BackendLocality{Mode: meshv1alpha1.LocalityStrict, Failover: []meshv1alpha1.LocalityFailover{{From: []string{"a"}, To: meshv1alpha1.FailoverOnly, Zones: []string{"b"}}}},
	}))
	all := &proxy.Routing{
		Route: "ns/split", Backends: []proxy.RouteBackend{{Weight: 1}}, Policy: "ns/p", SourceHash: true, ConnectTimeout: 2 * time.Second, TCPAttempts: 4,
		Locality: &proxy.Locality{Mode: proxy.LocalityStrict, Site: "s1", Failover: []proxy.Failover{{From: locality.Zones("a"), To: proxy.FailoverOnly, Zones: locality.Zones("b")}}},
	}
	r.want("a policy", all, "ns/web")
	r.seed(backendPolicy("ns", meshv1alpha1.BackendPolicySpec{Limits: &meshv1alpha1.PolicyLimits{Connections: new(int32(3))}}))
	r.want("a policy of what nodes do not do", &proxy.Routing{Route: "ns/split", Backends: all.Backends}, "ns/web")
	if err := r.client.Delete(t.Context(), kind.TCPRoute, catalog.Key{Namespace: "ns", Name: "split"}, resource.Preconditions{}); err != nil {
		t.Fatal(err)
	}
	r.next()
	r.want("no route", nil, "ns/web")
	if err := r.client.Delete(t.Context(), kind.BackendPolicy, catalog.Key{Namespace: "ns", Name: "p"}, resource.Preconditions{}); err != nil {
		t.Fatal(err)
	}
	r.next()
	r.want("no policy", nil, "ns/web")
	if r.routings.index != nil {
		t.Error("without policies something is kept")
	}
}

// TestConsumers: what namespaces of clients say is for their clients alone.
func TestConsumers(t *testing.T) {
	r := newRoutingRig(t, viewtest.Service("web", "10.0.0.1"), tcpRoute("theirs", map[string]int32{"web": 1}),
		backendPolicy("theirs", meshv1alpha1.BackendPolicySpec{Locality: &meshv1alpha1.BackendLocality{Mode: meshv1alpha1.LocalityOff}}))
	theirs := &proxy.Routing{
		Route: "theirs/split", Backends: []proxy.RouteBackend{{Weight: 1}}, Policy: "theirs/p", Locality: &proxy.Locality{Mode: proxy.LocalityOff},
	}
	r.want("policies of a consumer", &proxy.Routing{Consumers: map[string]*proxy.Routing{"theirs": theirs}}, "ns/web")
}

// TestRouteToAnotherSite: a route that leads to a service outside is left to sidecars.
func TestRouteToAnotherSite(t *testing.T) {
	outside := &meshv1alpha1.ExternalService{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "outside"}}
	outside.Spec.Ports = []meshv1alpha1.ExternalServicePort{{Name: "p", Port: 80}}
	r := newRoutingRig(t, viewtest.Service("web", "10.0.0.1"), viewtest.Service("v1", "10.0.0.2"), outside, tcpRoute("ns", map[string]int32{"v1": 1, "outside": 1}))
	r.want("to an ExternalService", nil, "ns/v1", "ns/web")
}

// TestRoutingOfAnImport: what is said of a ServiceImport is of the Service with its address.
func TestRoutingOfAnImport(t *testing.T) {
	derived := viewtest.Service("web", "10.0.0.1")
	derived.Labels = map[string]string{mcs.LabelServiceName: "web-import"}
	imported := &mcs.ServiceImport{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web-import"}}
	imported.Spec.Ports = []mcs.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}}
	p := backendPolicy("ns", meshv1alpha1.BackendPolicySpec{Locality: &meshv1alpha1.BackendLocality{Mode: meshv1alpha1.LocalityOff}})
	p.Spec.TargetRefs = []meshv1alpha1.PolicyTargetReference{{Kind: "ServiceImport", Name: "web-import"}}
	r := newRoutingRig(t, derived, imported)
	r.seed(p)
	r.want("a policy of the import", &proxy.Routing{Policy: "ns/p", Locality: &proxy.Locality{Mode: proxy.LocalityOff}}, "ns/web")
}

// TestViewsHaveRoutings: the Service that a route is attached to is encoded again, and no other.
func TestViewsHaveRoutings(t *testing.T) {
	client := resourcetest.New(kind.All()...)
	client.Seed(viewtest.Service("web", "10.0.0.1"), viewtest.Service("v1", "10.0.0.2"))
	c := catalog.New(catalog.Config{Client: client, Descriptors: kind.All()})
	done := make(chan struct{})
	go func() { defer close(done); _ = c.Run(t.Context()) }()
	t.Cleanup(func() { <-done })
	sub := c.Subscribe(Tables()...)
	t.Cleanup(sub.Close)
	next := func() *catalog.Delta {
		d, err := sub.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return &d
	}
	b := NewBuilder(BuilderConfig{})
	replace(t, b, next())
	s := session(t, b, "a")
	expect(t, s, "ns/v1", "ns/web")
	client.Seed(tcpRoute("ns", map[string]int32{"v1": 1}))
	apply(t, b, next())
	expect(t, s, "ns/web")
	got, err := wire.DecodeService("ns/web", b.services["ns/web"])
	if err != nil || got.Routing[""].Route != "ns/split" {
		t.Errorf("%+v, %v", got, err)
	}
}
