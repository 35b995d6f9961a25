package kube

import (
	"slices"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/choose"
)

// TestHintsFitThePlan: agents look at hints before weights, so in a planned view hints
// say what weights do, whatever the slice's own are.
func TestHintsFitThePlan(t *testing.T) {
	object := slice("web-1", "10.1.0.1", "bad", "10.1.0.2", "10.1.0.3", "10.1.0.4")
	object.Ports = []discoveryv1.EndpointPort{{Name: ptr("http"), Port: ptr(int32(8080))}}
	zones := []string{"a", "a", "a", "b", "b"}
	for i := range object.Endpoints {
		object.Endpoints[i].Zone = &zones[i]
		object.Endpoints[i].Hints = &discoveryv1.EndpointHints{
			ForZones: []discoveryv1.ForZone{{Name: "c"}}, ForNodes: []discoveryv1.ForNode{{Name: "n"}},
		}
	}
	object.Endpoints[4].Conditions.Ready = ptr(false)
	s, ok := PlannedSliceOf("a", object, []uint32{3, 9, 0, 1}) // the last one's is missing
	if !ok {
		t.Fatal("no slice")
	}
	want := []struct {
		weight uint32
		zones  []locality.Zone
	}{{3, locality.Zones("a")}, {0, []locality.Zone{nowhere}}, {1, locality.Zones("a")}, {0, nil}}
	for i, e := range s.Endpoints {
		hints := e.Hints
		if hints == nil {
			hints = &proxy.Hints{}
		}
		if e.Weight != want[i].weight || !slices.Equal(hints.Zones, want[i].zones) || hints.Nodes != nil {
			t.Errorf("endpoint %d: %+v, want %+v", i, e, want[i])
		}
	}
	if e := s.Endpoints[2]; e.Zone != "b" {
		t.Errorf("%+v", e)
	}
	state := choose.Slices(&proxy.Service{}, proxy.Port{Name: "http", Protocol: proxy.TCP}, []*proxy.Slice{s}, choose.Node{Name: "n", Zone: "a"})
	var got []uint32
	for _, target := range state.IPv4.Cluster {
		got = append(got, target.Weight)
	}
	if !slices.Equal(got, []uint32{3, 1}) || len(state.IPv4.Fallback) != 1 {
		t.Errorf("chosen %v, spare %v", state.IPv4.Cluster, state.IPv4.Fallback)
	}
	if object.Endpoints[0].Hints.ForZones[0].Name != "c" {
		t.Error("the object was changed")
	}
	if other, _ := PlannedSliceOf("b", object, []uint32{0, 0, 0, 5}); !slices.Equal(other.Endpoints[0].Hints.Zones, locality.Zones("a")) {
		t.Errorf("away from here is its own zone: %+v", other.Endpoints[0])
	}
}
