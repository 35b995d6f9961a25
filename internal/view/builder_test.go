package view

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/delta"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

func service(name, ip string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec:       corev1.ServiceSpec{ClusterIP: ip, Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}}},
	}
}

func node(name, zone string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if zone != "" {
		n.Labels = map[string]string{corev1.LabelTopologyZone: zone}
	}
	return n
}

// deltaOf makes a Delta of objects; a string "service/x", "slice/x" or "node/x"
// stands for one that is gone.
func deltaOf(sequence uint64, objects ...any) Delta {
	d := Delta{Epoch: "e", Sequence: sequence, Services: map[proxy.ServiceName]*corev1.Service{},
		Slices: map[proxy.SliceName]*discoveryv1.EndpointSlice{}, Nodes: map[string]*corev1.Node{}}
	for _, o := range objects {
		switch o := o.(type) {
		case *corev1.Service:
			d.Services[proxy.ServiceName{Namespace: o.Namespace, Name: o.Name}] = o
		case *discoveryv1.EndpointSlice:
			d.Slices[proxy.SliceName{Namespace: o.Namespace, Name: o.Name}] = o
		case *corev1.Node:
			d.Nodes[o.Name] = o
		case string:
			kind, name, _ := strings.Cut(o, "/")
			switch kind {
			case "service":
				d.Services[proxy.ServiceName{Namespace: "ns", Name: name}] = nil
			case "slice":
				d.Slices[proxy.SliceName{Namespace: "ns", Name: name}] = nil
			case "node":
				d.Nodes[name] = nil
			}
		}
	}
	return d
}

func reset(d Delta) Delta {
	d.Reset = true
	return d
}

func apply(t *testing.T, b *Builder, d Delta) {
	t.Helper()
	if err := b.Apply(d); err != nil {
		t.Fatal(err)
	}
}

// contents reads a session to its end: names (with the weights of slices), and
// "-name" for removals.
func contents(t *testing.T, s *delta.Session) []string {
	t.Helper()
	var out []string
	for {
		f, err := s.Next()
		if err != nil {
			t.Fatal(err)
		}
		if f == nil {
			return out
		}
		var r discovery.DeltaDiscoveryResponse
		if err := proto.Unmarshal(f.Data, &r); err != nil {
			t.Fatal(err)
		}
		for _, res := range r.Resources {
			entry := res.Name
			if f.Type == SliceType {
				s, err := decodeSlice(res.Name, res.Resource.Value)
				if err != nil {
					t.Fatal(err)
				}
				for _, e := range s.Endpoints {
					entry += fmt.Sprintf(" %s*%d", e.Addr, e.Weight)
				}
			}
			out = append(out, entry)
		}
		for _, name := range r.RemovedResources {
			out = append(out, "-"+name)
		}
	}
}

func session(t *testing.T, b *Builder, zone string) *delta.Session {
	t.Helper()
	scope, err := b.Scope(zone)
	if err != nil {
		t.Fatal(err)
	}
	s := delta.NewSession(scope)
	for _, typ := range []string{ServiceType, SliceType} {
		if err := s.Step(delta.Request{Type: typ}); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func expect(t *testing.T, s *delta.Session, want ...string) {
	t.Helper()
	got := contents(t, s)
	slices.Sort(got) // types take turns
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestBuilder(t *testing.T) {
	b := NewBuilder(BuilderConfig{Weights: func(zone string, s *discoveryv1.EndpointSlice) []uint32 {
		if zone == "planned" {
			return []uint32{7, 8, 9}[:len(s.Endpoints)]
		}
		return nil
	}})
	early := session(t, b, "a")
	expect(t, early) // nothing, not even an empty answer
	if err := b.Apply(deltaOf(1, service("web", "10.0.0.1"))); err == nil {
		t.Error("a first delta without Reset was taken")
	}

	headless := service("headless", "None")
	apply(t, b, reset(deltaOf(1, service("web", "10.0.0.1"), headless, slice("web-1", "10.1.0.1", "bad", "10.1.0.2"))))
	expect(t, early, "ns/web", "ns/web-1 10.1.0.1*0 10.1.0.2*0")
	planned := session(t, b, "planned")
	// The endpoint that cannot be translated takes its weight with it.
	expect(t, planned, "ns/web", "ns/web-1 10.1.0.1*7 10.1.0.2*9")

	// What an agent does not see is no change; nor is a repeated sequence then.
	changed := slice("web-1", "10.1.0.1", "bad", "10.1.0.2")
	changed.ResourceVersion, changed.Annotations = "2", map[string]string{"a": "b"}
	apply(t, b, deltaOf(2, changed))
	apply(t, b, deltaOf(2, node("n1", "a")))
	expect(t, early)

	apply(t, b, deltaOf(3, "service/web", slice("web-1", "10.1.0.1"), headless, "slice/unknown"))
	expect(t, early, "-ns/web", "ns/web-1 10.1.0.1*0")
	expect(t, planned, "-ns/web", "ns/web-1 10.1.0.1*7")

	// A Service that becomes headless leaves the view, with its slices.
	apply(t, b, deltaOf(4, service("web", "10.0.0.1")))
	apply(t, b, deltaOf(5, service("web", "None")))
	expect(t, early, "-ns/web", "-ns/web-1")

	apply(t, b, reset(deltaOf(6, service("new", "10.0.0.2"))))
	expect(t, early, "ns/new")
}

func TestPositionsBelongToAView(t *testing.T) {
	b := NewBuilder(BuilderConfig{Run: "1"})
	apply(t, b, reset(deltaOf(1)))
	other := NewBuilder(BuilderConfig{Run: "2"})
	apply(t, other, reset(deltaOf(1)))
	again := b.position("a")
	if b.position("a") != again || b.position("a").Epoch == b.position("b").Epoch ||
		b.position("a").Epoch == other.position("a").Epoch {
		t.Error("a position must be of one zone and one run")
	}
}

// TestViewsAreShared: without a plan, zones share the encoded resource, and all
// streams of a zone one frame.
func TestViewsAreShared(t *testing.T) {
	b := NewBuilder(BuilderConfig{})
	apply(t, b, reset(deltaOf(1, service("web", "10.0.0.1"))))
	one, _ := session(t, b, "a").Next()
	two, _ := session(t, b, "a").Next()
	if one != two {
		t.Error("two streams of a zone got different frames")
	}
}

func TestAdmit(t *testing.T) {
	b := NewBuilder(BuilderConfig{})
	apply(t, b, reset(deltaOf(1, node("known", "a"), node("bare", ""))))
	admit := func(name, announced string) (string, <-chan struct{}) {
		t.Helper()
		a, err := b.Admit(t.Context(), &core.Node{Id: name, Locality: &core.Locality{Zone: announced}})
		if err != nil {
			t.Fatal(err)
		}
		if want, _ := b.Scope(a.Header.Get(zoneHeader)[0]); want != a.Scope {
			t.Error("header and scope differ")
		}
		return a.Header.Get(zoneHeader)[0], a.End
	}
	for _, tt := range []struct{ node, announced, want string }{
		{"known", "b", "a"}, {"bare", "b", "b"}, {"unknown", "c", "c"}, {"unknown2", "", ""},
	} {
		if got, _ := admit(tt.node, tt.announced); got != tt.want {
			t.Errorf("%s announcing %q sits in %q, want %q", tt.node, tt.announced, got, tt.want)
		}
	}

	ended := func(c <-chan struct{}) bool {
		select {
		case <-c:
			return true
		default:
			return false
		}
	}
	_, end := admit("known", "")
	_, again := admit("known", "")
	apply(t, b, deltaOf(2, node("known", "a"), node("unknown", "c")))
	if ended(end) || ended(again) {
		t.Error("streams ended though no zone changed")
	}
	apply(t, b, deltaOf(3, node("known", "z")))
	if !ended(end) || !ended(again) {
		t.Error("streams go on in the wrong zone")
	}
	if zone, end := admit("known", ""); zone != "z" || ended(end) {
		t.Errorf("after the move: zone %q", zone)
	}
	if _, err := b.Admit(t.Context(), nil); status.Code(err) != codes.InvalidArgument {
		t.Errorf("without a node: %v", err)
	}
	for i := range maxZones {
		_, _ = b.Scope(fmt.Sprint(i))
	}
	if _, err := b.Admit(t.Context(), &core.Node{Id: "x", Locality: &core.Locality{Zone: "one too many"}}); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("too many zones: %v", err)
	}
}

func TestFromCatalog(t *testing.T) {
	after := &catalog.Snapshot{Position: catalog.Position{Epoch: "e", Sequence: 9}}
	key := types.NamespacedName{Namespace: "ns", Name: "web"}
	got := fromCatalog(catalog.Delta{
		After:    after,
		Services: []catalog.Change[*corev1.Service]{{Key: key, New: service("web", "10.0.0.1")}},
		Slices:   []catalog.Change[*discoveryv1.EndpointSlice]{{Key: types.NamespacedName{Namespace: "ns", Name: "web-1"}, Old: slice("web-1")}},
		Nodes:    []catalog.Change[*corev1.Node]{{Key: types.NamespacedName{Name: "n"}, New: node("n", "a")}},
	}, true)
	if diff := cmp.Diff(reset(deltaOf(9, service("web", "10.0.0.1"), "slice/web-1", node("n", "a"))), got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
