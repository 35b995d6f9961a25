package app

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	nodev1 "github.com/proxima-mesh/proxima/api/node/v1"
	plannerv1alpha1 "github.com/proxima-mesh/proxima/api/planner/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/apiserver"
	"github.com/proxima-mesh/proxima/internal/delta"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/memory"
	"github.com/proxima-mesh/proxima/internal/testkit"
	"github.com/proxima-mesh/proxima/internal/topology"
	"github.com/proxima-mesh/proxima/internal/view/wire"
)

// planeOf is a control plane on a store that it shares with others. Its test says when it
// leads.
type planeOf struct {
	*ballot
	t      *testing.T
	cp     *standalone
	client *apiserver.Client
}

// shared is a store that its last user closes.
type shared struct{ store.Store }

// Close implements store.Store: it does nothing.
func (shared) Close() error { return nil }

func startInstance(t *testing.T, s store.Store) *planeOf {
	t.Helper()
	p := &planeOf{ballot: newBallot(), t: t}
	ctx, cancel := context.WithCancel(context.Background())
	var err error
	p.cp, err = newStandaloneOn(ctx, ControlPlaneConfig{
		Store: "memory", DataDir: t.TempDir(), APIAddress: "127.0.0.1:0", MachineID: t.Name(),
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/24")},
	}, func(context.Context, string, string, *slog.Logger) (store.Store, error) { return shared{s}, nil }, p.ballot)
	if err != nil {
		t.Fatal(err)
	}
	ready, done := make(chan Serving, 1), make(chan error, 1)
	go func() {
		done <- run(ctx, p.ballot, append(p.cp.components(), announce(func(s Serving) { ready <- s }, p.cp.serving())))
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		p.cp.close()
	})
	select {
	case <-ready:
	case <-time.After(testkit.Timeout):
		t.Fatal("the control plane does not become ready")
	}
	p.client = p.cp.api.server.Client("system:test")
	return p
}

// weights of endpoints in the view of a zone, by address.
func (i *planeOf) weights(zone string) string {
	scope, err := i.cp.instance.builder.Scope(locality.Zone(zone))
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

func (i *planeOf) plan() *plannerv1alpha1.TrafficPlan {
	object, err := i.client.Get(i.t.Context(), kind.TrafficPlan, resource.Key{Namespace: "default", Name: "web"})
	if err != nil {
		i.t.Fatal(err)
	}
	return object.(*plannerv1alpha1.TrafficPlan)
}

// TestInstancesShareThePlansOfTheLeader: with two instances on one store, the plan that
// the leader made weighs in the views of both, survives the leader, and is kept by the
// next one.
func TestInstancesShareThePlansOfTheLeader(t *testing.T) {
	s := memory.New(memory.Options{})
	t.Cleanup(func() { s.Close() })
	first, second := startInstance(t, s), startInstance(t, s)
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
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}},
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"10.0.0.1"}, Zone: new("a")},
			{Addresses: []string{"10.0.0.2"}, Zone: new("b")},
			{Addresses: []string{"10.0.0.3"}, Zone: new("b")},
		},
	}
	objects = append(objects, slice, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "web", Annotations: map[string]string{corev1.AnnotationTopologyMode: topology.Adaptive},
		},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}}},
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
		for name, i := range map[string]*planeOf{"first": first, "second": second} {
			testkit.Eventually(t, fmt.Sprintf("%s, %s instance, from %s: %s", what, name, zone, want), func() bool {
				return i.weights(zone) == want
			})
		}
	}
	everywhere("without a leader", "a", "10.0.0.1*0 10.0.0.2*0 10.0.0.3*0")

	end := second.win()
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

	end = first.win()
	defer end()
	other := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "zoo", Annotations: map[string]string{corev1.AnnotationTopologyMode: topology.Adaptive},
		},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}}},
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

// TestLeadershipIsLostAndRegained: what controllers of the leader keep goes with the term.
// While there is none, objects wait and the tables go on; the next term, in the same
// process, brings all up to date.
func TestLeadershipIsLostAndRegained(t *testing.T) {
	s := memory.New(memory.Options{})
	t.Cleanup(func() { s.Close() })
	p := startInstance(t, s)
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}},
		},
	}
	if _, err := p.client.Create(t.Context(), kind.Service, service); err != nil {
		t.Fatal(err)
	}
	workload := func(name, address string) {
		t.Helper()
		object, err := p.client.Create(t.Context(), kind.Dataplane, &meshv1alpha1.Dataplane{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{"app": "web"}},
			Spec: meshv1alpha1.DataplaneSpec{
				Addresses: []string{address}, Ports: []meshv1alpha1.DataplanePort{{Name: "http", Port: 80, Protocol: "TCP"}},
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		dp := object.DeepCopyObject().(*meshv1alpha1.Dataplane)
		meta.SetStatusCondition(&dp.Status.Conditions, metav1.Condition{
			Type: meshv1alpha1.DataplaneReady, Status: metav1.ConditionTrue, Reason: "Test",
		})
		if _, err := p.client.UpdateStatus(t.Context(), kind.Dataplane, dp); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, name+" is in the tables", func() bool {
			_, ok := p.cp.instance.catalog.Snapshot().Dataplanes.Get(resource.KeyOf(dp))
			return ok
		})
	}
	addresses := func() (out []string) {
		for _, slice := range p.cp.instance.catalog.Snapshot().SlicesOf(resource.KeyOf(service)) {
			for _, e := range slice.Endpoints {
				out = append(out, e.Addresses...)
			}
		}
		slices.Sort(out)
		return out
	}
	// What has run before: goroutines that the first term starts for good, such as those
	// of a package's first use, are not its own.
	p.win()()
	idle := []goleak.Option{
		goleak.IgnoreCurrent(),
		// The API server's watch cache leaves a timer of 3 s behind for each list.
		goleak.IgnoreAnyFunction("k8s.io/apiserver/pkg/storage/cacher.(*watchCache).waitUntilFreshLocked.func2"),
	}
	for term, address := range []string{"10.0.0.1", "10.0.0.2"} {
		before := addresses()
		workload(fmt.Sprint("web-", term), address)
		if got := addresses(); !slices.Equal(got, before) {
			t.Errorf("term %d: slices were written without a leader: %v", term, got)
		}
		if p.cp.leader.planner.Load() != nil || p.cp.leader.leases.Load() != nil {
			t.Errorf("term %d: controllers of an earlier term are in use", term)
		}
		lose := p.win()
		testkit.Eventually(t, "the endpoint of "+address, func() bool { return slices.Contains(addresses(), address) })
		if p.cp.leader.planner.Load() == nil {
			t.Errorf("term %d: no planner", term)
		}
		lose()
		if err := goleak.Find(idle...); err != nil {
			t.Errorf("term %d: left running: %v", term, err)
		}
	}
	if got := addresses(); !slices.Equal(got, []string{"10.0.0.1", "10.0.0.2"}) {
		t.Errorf("endpoints %v", got)
	}
}
