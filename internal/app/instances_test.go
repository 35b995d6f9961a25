package app

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	nodev1 "github.com/proxima-mesh/proxima/api/node/v1"
	plannerv1alpha1 "github.com/proxima-mesh/proxima/api/planner/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/apiserver"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/delta"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/identity/access"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/memory"
	"github.com/proxima-mesh/proxima/internal/testkit"
	"github.com/proxima-mesh/proxima/internal/topology"
	"github.com/proxima-mesh/proxima/internal/topology/trafficplan"
	"github.com/proxima-mesh/proxima/internal/view"
	"github.com/proxima-mesh/proxima/internal/view/wire"
)

// instance is an API server with a catalog and the views of zones, on a store that it
// shares with others. It plans while lead runs.
type instance struct {
	t       *testing.T
	client  *apiserver.Client
	world   *catalog.Catalog
	builder *view.Builder
}

func startInstance(t *testing.T, s store.Store, ca *identity.Authority) *instance {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := serverCertificate(ca, listener.Addr(), ClusterDomain, nil)
	if err != nil {
		t.Fatal(err)
	}
	api, err := apiserver.New(apiserver.Config{
		Store: s, Kinds: kind.All(), Listener: listener, CertPEM: pair.Cert, KeyPEM: pair.Key, ClientCAPEM: ca.PEM(),
		Authenticator: access.NewAuthenticator(identity.NewTokens(s, ca.Pin()), ca.Pool(), access.Policy{}, orDiscard(nil)),
		Authorizer:    access.NewAuthorizer(),
		Logger:        orDiscard(nil), Version: "0.0.0", Writes: &access.WritePolicy{},
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/24")},
	})
	if err != nil {
		t.Fatal(err)
	}
	run := func(f func(context.Context) error) {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- f(ctx) }()
		t.Cleanup(func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
	run(api.Run)
	select {
	case <-api.Ready():
	case <-time.After(testkit.Patience):
		t.Fatal("the API does not become ready")
	}
	i := &instance{t: t, client: api.Client("system:test")}
	i.world = catalog.New(catalog.Config{Client: i.client, Descriptors: kind.All(), Epoch: s.Epoch()})
	plans := &trafficplan.Table{}
	i.builder = view.NewBuilder(view.BuilderConfig{Run: t.Name(), Weights: plans.Weights})
	sub := i.world.Subscribe(catalog.Services, catalog.Slices, catalog.Nodes, catalog.Plans)
	run(i.world.Run)
	run(func(ctx context.Context) error { defer sub.Close(); return view.Follow(ctx, sub, i.builder, plans) })
	return i
}

// lead runs the planner until the returned function is called.
func (i *instance) lead() (end func()) {
	c := topology.New(topology.Config{Client: i.client, Catalog: i.world})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = c.Run(ctx) }()
	return func() { cancel(); <-done }
}

// weights of endpoints in the view of a zone, by address.
func (i *instance) weights(zone string) string {
	scope, err := i.builder.Scope(zone)
	if err != nil {
		i.t.Fatal(err)
	}
	session := delta.NewSession(scope)
	if err := session.Step(delta.Request{Type: wire.SliceType}); err != nil {
		i.t.Fatal(err)
	}
	out := map[string]uint32{}
	for {
		frame, err := session.Next()
		if err != nil {
			i.t.Fatal(err)
		}
		if frame == nil {
			break
		}
		var response discovery.DeltaDiscoveryResponse
		if err := proto.Unmarshal(frame.Data, &response); err != nil {
			i.t.Fatal(err)
		}
		for _, r := range response.Resources {
			var slice nodev1.EndpointSlice
			if err := proto.Unmarshal(r.Resource.Value, &slice); err != nil {
				i.t.Fatal(err)
			}
			for _, e := range slice.Endpoints {
				out[net.IP(e.Address).String()] = e.Weight
			}
		}
	}
	var parts []string
	for _, address := range slices.Sorted(maps.Keys(out)) {
		parts = append(parts, fmt.Sprint(address, "*", out[address]))
	}
	return strings.Join(parts, " ")
}

func (i *instance) plan() *plannerv1alpha1.TrafficPlan {
	object, err := i.client.Get(i.t.Context(), kind.TrafficPlan, resource.Key{Namespace: "default", Name: "web"})
	if err != nil {
		i.t.Fatal(err)
	}
	return object.(*plannerv1alpha1.TrafficPlan)
}

// TestInstancesShareThePlansOfTheLeader: with two instances on one store, the plan that
// the leader made weighs in the views of both, survives the leader, and is kept by the
// next one. The test names the leader.
func TestInstancesShareThePlansOfTheLeader(t *testing.T) {
	ca, err := identity.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s := memory.New(memory.Options{})
	t.Cleanup(func() { s.Close() })
	first, second := startInstance(t, s, ca), startInstance(t, s, ca)
	var objects []resource.Object
	for _, zone := range []string{"a", "b"} {
		objects = append(objects, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "node-" + zone, Labels: map[string]string{corev1.LabelTopologyZone: zone}},
			Status: corev1.NodeStatus{
				Allocatable: corev1.ResourceList{corev1.ResourceCPU: apiresource.MustParse("4")},
				Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			},
		})
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}},
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"10.0.0.1"}, Zone: new("a")},
			{Addresses: []string{"10.0.0.2"}, Zone: new("b")},
			{Addresses: []string{"10.0.0.3"}, Zone: new("b")},
		},
	}
	objects = append(objects, slice, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", Annotations: map[string]string{corev1.AnnotationTopologyMode: topology.Adaptive}},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}}},
	})
	for _, o := range objects {
		k := kind.Node
		switch o.(type) {
		case *discoveryv1.EndpointSlice:
			k = kind.EndpointSlice
		case *corev1.Service:
			k = kind.Service
		}
		if _, err := first.client.Create(t.Context(), k, o); err != nil {
			t.Fatal(err)
		}
	}
	everywhere := func(what, zone, want string) {
		t.Helper()
		for name, i := range map[string]*instance{"first": first, "second": second} {
			testkit.Eventually(t, fmt.Sprintf("%s, %s instance, from %s: %s", what, name, zone, want), func() bool { return i.weights(zone) == want })
		}
	}
	everywhere("nobody leads", "a", "10.0.0.1*0 10.0.0.2*0 10.0.0.3*0")

	end := second.lead()
	everywhere("planned", "a", "10.0.0.1*2048 10.0.0.2*289 10.0.0.3*289")
	everywhere("planned", "b", "10.0.0.1*0 10.0.0.2*1 10.0.0.3*1")
	made := first.plan()
	end()

	// Without a leader, a new endpoint gets its part of the share of its zone.
	object, err := first.client.Get(t.Context(), kind.EndpointSlice, resource.KeyOf(slice))
	if err != nil {
		t.Fatal(err)
	}
	grown := object.DeepCopyObject().(*discoveryv1.EndpointSlice)
	grown.Endpoints = append(grown.Endpoints, discoveryv1.Endpoint{Addresses: []string{"10.0.0.4"}, Zone: new("b")})
	object, err = first.client.Update(t.Context(), kind.EndpointSlice, grown)
	if err != nil {
		t.Fatal(err)
	}
	everywhere("one more", "b", "10.0.0.1*0 10.0.0.2*1 10.0.0.3*1 10.0.0.4*1")
	back := object.DeepCopyObject().(*discoveryv1.EndpointSlice)
	back.Endpoints = slice.Endpoints
	if _, err = first.client.Update(t.Context(), kind.EndpointSlice, back); err != nil {
		t.Fatal(err)
	}
	everywhere("back", "b", "10.0.0.1*0 10.0.0.2*1 10.0.0.3*1")

	end = first.lead()
	defer end()
	other := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "zoo", Annotations: map[string]string{corev1.AnnotationTopologyMode: topology.Adaptive}},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}}},
	}
	if _, err := second.client.Create(t.Context(), kind.Service, other); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the next leader plans", func() bool {
		_, err := second.client.Get(t.Context(), kind.TrafficPlan, resource.KeyOf(other))
		return err == nil
	})
	if diff := cmp.Diff(made, second.plan()); diff != "" {
		t.Errorf("the next leader has changed the plan: %s", diff)
	}
	everywhere("the next leader", "a", "10.0.0.1*2048 10.0.0.2*289 10.0.0.3*289")
}
