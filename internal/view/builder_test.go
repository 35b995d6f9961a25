package view

import (
	"fmt"
	"slices"
	"testing"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/delta"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/view/viewtest"
	"github.com/proxima-mesh/proxima/internal/view/wire"
)

func replace(t *testing.T, b *Builder, d *catalog.Delta) {
	t.Helper()
	if err := b.Replace(d); err != nil {
		t.Fatal(err)
	}
}

func apply(t *testing.T, b *Builder, d *catalog.Delta, replanned ...catalog.Key) {
	t.Helper()
	services := map[catalog.Key]struct{}{}
	for _, key := range replanned {
		services[key] = struct{}{}
	}
	if err := b.Apply(d, services); err != nil {
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
			if f.Type == wire.SliceType {
				s, err := wire.DecodeSlice(res.Name, res.Resource.Value)
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

func session(t *testing.T, b *Builder, zone locality.Zone) *delta.Session {
	t.Helper()
	scope, err := b.Scope(zone)
	if err != nil {
		t.Fatal(err)
	}
	s := delta.NewSession(scope)
	for _, typ := range []string{wire.ServiceType, wire.SliceType} {
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
	b := NewBuilder(BuilderConfig{Weights: func(zone locality.Zone, s *discoveryv1.EndpointSlice) []uint32 {
		if zone == "planned" {
			return []uint32{7, 8, 9}[:len(s.Endpoints)]
		}
		return nil
	}})
	early := session(t, b, "a")
	expect(t, early) // nothing, not even an empty answer
	if err := b.Apply(viewtest.Delta(1, viewtest.Service("web", "10.0.0.1")), nil); err == nil {
		t.Error("Apply succeeded before Replace")
	}

	headless := viewtest.Service("headless", "None")
	replace(t, b, viewtest.Delta(1, viewtest.Service("web", "10.0.0.1"), headless, viewtest.Slice("web-1", "10.1.0.1", "bad", "10.1.0.2")))
	expect(t, early, "ns/web", "ns/web-1 10.1.0.1*0 10.1.0.2*0")
	planned := session(t, b, "planned")
	// The endpoint that cannot be translated takes its weight with it.
	expect(t, planned, "ns/web", "ns/web-1 10.1.0.1*7 10.1.0.2*9")

	// What an agent does not see is no change; nor is a repeated sequence then.
	changed := viewtest.Slice("web-1", "10.1.0.1", "bad", "10.1.0.2")
	changed.ResourceVersion, changed.Annotations = "2", map[string]string{"a": "b"}
	apply(t, b, viewtest.Delta(2, changed))
	apply(t, b, viewtest.Delta(2, viewtest.Node("n1", "a")))
	expect(t, early)

	apply(t, b, viewtest.Delta(3, "service/web", viewtest.Slice("web-1", "10.1.0.1"), headless, "slice/unknown"))
	expect(t, early, "-ns/web", "ns/web-1 10.1.0.1*0")
	expect(t, planned, "-ns/web", "ns/web-1 10.1.0.1*7")

	// A Service that becomes headless leaves the view, with its slices.
	apply(t, b, viewtest.Delta(4, viewtest.Service("web", "10.0.0.1")))
	apply(t, b, viewtest.Delta(5, viewtest.Service("web", "None")))
	expect(t, early, "-ns/web", "-ns/web-1")

	replace(t, b, viewtest.Delta(6, viewtest.Service("new", "10.0.0.2")))
	expect(t, early, "ns/new")
}

func TestPositionsBelongToAView(t *testing.T) {
	b := NewBuilder(BuilderConfig{Run: "1"})
	replace(t, b, viewtest.Delta(1))
	other := NewBuilder(BuilderConfig{Run: "2"})
	replace(t, other, viewtest.Delta(1))
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
	replace(t, b, viewtest.Delta(1, viewtest.Service("web", "10.0.0.1")))
	one, _ := session(t, b, "a").Next()
	two, _ := session(t, b, "a").Next()
	if one != two {
		t.Error("two streams of a zone got different frames")
	}
}

func TestAssign(t *testing.T) {
	b := NewBuilder(BuilderConfig{})
	replace(t, b, viewtest.Delta(1, viewtest.Node("known", "a"), viewtest.Node("bare", "")))
	assign := func(name, announced string) (string, <-chan struct{}) {
		t.Helper()
		a, err := b.Assign(t.Context(), &core.Node{Id: name, Locality: &core.Locality{Zone: announced}})
		if err != nil {
			t.Fatal(err)
		}
		if want, _ := b.Scope(locality.Zone(a.Header.Get(wire.ZoneHeader)[0])); want != a.Scope {
			t.Error("header and scope differ")
		}
		return a.Header.Get(wire.ZoneHeader)[0], a.End
	}
	for _, tt := range []struct{ node, announced, want string }{
		{"known", "b", "a"}, {"bare", "b", "b"}, {"unknown", "c", "c"}, {"unknown2", "", ""},
	} {
		if got, _ := assign(tt.node, tt.announced); got != tt.want {
			t.Errorf("%s announcing %q is assigned to %q, want %q", tt.node, tt.announced, got, tt.want)
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
	_, end := assign("known", "")
	_, again := assign("known", "")
	apply(t, b, viewtest.Delta(2, viewtest.Node("known", "a"), viewtest.Node("unknown", "c")))
	if ended(end) || ended(again) {
		t.Error("streams ended though no zone changed")
	}
	apply(t, b, viewtest.Delta(3, viewtest.Node("known", "z")))
	if !ended(end) || !ended(again) {
		t.Error("streams go on in the wrong zone")
	}
	if zone, end := assign("known", ""); zone != "z" || ended(end) {
		t.Errorf("after the move: zone %q", zone)
	}
	if _, err := b.Assign(t.Context(), nil); status.Code(err) != codes.InvalidArgument {
		t.Errorf("without a node: %v", err)
	}
	for i := range maxZones {
		_, _ = b.Scope(locality.Zone(fmt.Sprint(i)))
	}
	if _, err := b.Assign(t.Context(), &core.Node{Id: "x", Locality: &core.Locality{Zone: "one too many"}}); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("too many zones: %v", err)
	}
}
