package kube

import (
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// nowhere is a zone hint that matches no zone: it is not a valid label value.
const nowhere = "-"

// PlannedSliceOf is SliceOf for a zone whose traffic is planned. Weights are those of
// the endpoints of the object, in its order, including endpoints that the translation
// leaves out; a missing weight is 0. The hints of the object, which are for proxies
// without weights, are replaced by hints that agree with the plan, as agents evaluate
// hints before weights: an endpoint with a weight is hinted to the zone, an endpoint
// without one to another zone.
func PlannedSliceOf(zone locality.Zone, object *discoveryv1.EndpointSlice, weights []uint32) (*proxy.Slice, bool) {
	s, ok := SliceOf(object)
	if !ok {
		return nil, false
	}
	here, elsewhere := proxy.HintsOf([]locality.Zone{zone}, nil), proxy.HintsOf([]locality.Zone{nowhere}, nil)
	next := 0
	for i := range object.Endpoints {
		if _, ok := endpointOf(&object.Endpoints[i]); !ok {
			continue
		}
		e := &s.Endpoints[next]
		next++
		e.Hints = nil
		switch {
		case !e.Ready: // neither hints nor weights are used
		case i < len(weights) && weights[i] > 0:
			e.Weight, e.Hints = weights[i], here
		case e.Zone != "" && e.Zone != zone:
			e.Hints = proxy.HintsOf([]locality.Zone{e.Zone}, nil)
		default:
			e.Hints = elsewhere
		}
	}
	return s, true
}

// SetWeights sets what the endpoints of a slice that SliceOf or PlannedSliceOf made from
// object have of their own, in the order of object's endpoints: their weights, if there is
// no plan, and when they became ready, in seconds since 1970. Either may be nil.
func SetWeights(s *proxy.Slice, object *discoveryv1.EndpointSlice, weights []uint32, readySince []int64) {
	if weights == nil && readySince == nil {
		return
	}
	next := 0
	for i := range object.Endpoints {
		if _, ok := endpointOf(&object.Endpoints[i]); !ok {
			continue
		}
		if i < len(weights) {
			s.Endpoints[next].Weight = weights[i]
		}
		if i < len(readySince) && readySince[i] > 0 && s.Endpoints[next].Ready {
			s.SetReadySince(next, readySince[i], len(s.Endpoints))
		}
		next++
	}
}
