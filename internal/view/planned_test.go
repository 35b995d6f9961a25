package view

import (
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/view/viewtest"
)

// TestPlanChangesWithoutTheCatalog: a delta of the same sequence brings the views to
// the new plan, and streams that were up to date get it.
func TestPlanChangesWithoutTheCatalog(t *testing.T) {
	weight := uint32(1)
	b := NewBuilder(BuilderConfig{Weights: func(zone locality.Zone, s *discoveryv1.EndpointSlice) []uint32 {
		if zone != "a" || weight == 0 {
			return nil
		}
		return []uint32{weight}
	}})
	object := viewtest.Slice("web-1", "10.1.0.1")
	replace(t, b, viewtest.Delta(7, viewtest.Service("web", "10.0.0.1"), object))
	planned, plain := session(t, b, "a"), session(t, b, "b")
	expect(t, planned, "ns/web", "ns/web-1 10.1.0.1*1")
	expect(t, plain, "ns/web", "ns/web-1 10.1.0.1*0")
	before := b.position("a")
	weight = 5
	apply(t, b, viewtest.Delta(7), catalog.Key{Namespace: "ns", Name: "web"})
	expect(t, planned, "ns/web-1 10.1.0.1*5")
	expect(t, plain)
	if after := b.position("a"); after.Epoch != before.Epoch || after.Sequence <= before.Sequence {
		t.Errorf("position %v after %v", after, before)
	}
	weight = 0
	apply(t, b, viewtest.Delta(8, object)) // the builder is at 8 already
	expect(t, planned, "ns/web-1 10.1.0.1*0")
	apply(t, b, viewtest.Delta(20, "slice/web-1"))
	expect(t, planned, "-ns/web-1")
	if at := b.position("a").Sequence; at != 20 {
		t.Errorf("sequence %d, the catalog is at 20", at)
	}
}
