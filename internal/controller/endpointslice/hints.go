package endpointslice

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/proxima-mesh/proxima/internal/controller/changes"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// HintSlice is a slice as the hints step sees it, after packing.
type HintSlice struct {
	// New slices are not there yet. Changed ones, of which New are a part, are written
	// anyway; a different hint in another one costs a write.
	New, Changed bool
	// Ports of all Endpoints. Not to be changed.
	Ports []discoveryv1.EndpointPort
	// Endpoints with the hints they have so far. Not to be changed.
	Endpoints []discoveryv1.Endpoint
	// Hints of each of Endpoints, to be filled in; nil: none.
	Hints []*discoveryv1.EndpointHints
}

// HintFunc computes the hints of all slices of a Service and address type. It
// must come to the same result when called with its own result, or slices would
// be written without end.
type HintFunc func(service *corev1.Service, family discoveryv1.AddressType, slices []HintSlice)

// Advisor knows hints that depend on more than the Service: on nodes, demand, or
// what was hinted before.
type Advisor interface {
	// Advise returns the hints of a Service; nil: TrafficDistribution. It is called
	// once for each sync, never for the same Service at the same time. done, if it is
	// not nil, is called when the slices are in place.
	Advise(service *corev1.Service) (hints HintFunc, done func(context.Context))
	// Forget a Service that is gone.
	Forget(service resource.Key)
	// Subscribe returns the Services whose hints are to be advised again. The caller
	// closes it.
	Subscribe() *changes.Subscription[resource.Key]
}

// TrafficDistribution hints ready endpoints to their own zone, or zone and node,
// as spec.trafficDistribution asks for (KEP-4444, KEP-3015). Without it no endpoint
// is hinted. The hints of endpoints that are not ready mean nothing, so they are
// no reason to write a slice.
func TrafficDistribution(service *corev1.Service, _ discoveryv1.AddressType, all []HintSlice) {
	zone, node := false, false
	if d := service.Spec.TrafficDistribution; d != nil {
		switch *d {
		case corev1.ServiceTrafficDistributionPreferClose, corev1.ServiceTrafficDistributionPreferSameZone:
			zone = true
		case corev1.ServiceTrafficDistributionPreferSameNode:
			zone, node = true, true
		}
	}
	for _, slice := range all {
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			switch ready := e.Conditions.Ready != nil && *e.Conditions.Ready; {
			case !zone:
			case ready:
				slice.Hints[i] = ownHints(e, node)
			case !slice.Changed:
				slice.Hints[i] = e.Hints
			}
		}
	}
}

func ownHints(e *discoveryv1.Endpoint, node bool) *discoveryv1.EndpointHints {
	var h discoveryv1.EndpointHints
	if e.Zone != nil {
		h.ForZones = []discoveryv1.ForZone{{Name: *e.Zone}}
	}
	if node && e.NodeName != nil {
		h.ForNodes = []discoveryv1.ForNode{{Name: *e.NodeName}}
	}
	if h.ForZones == nil && h.ForNodes == nil {
		return nil
	}
	return &h
}

// applyHints runs the step over the drafts that stay, and edits those in which a
// hint differs.
func applyHints(hint HintFunc, service *corev1.Service, family discoveryv1.AddressType, drafts []*draft) {
	if hint == nil {
		hint = TrafficDistribution
	}
	stay := make([]*draft, 0, len(drafts))
	view := make([]HintSlice, 0, len(drafts))
	for _, d := range drafts {
		if d.deleted {
			continue
		}
		stay = append(stay, d)
		view = append(view, HintSlice{
			New: d.was == nil, Changed: d.now != nil, Ports: d.ports(), Endpoints: d.endpoints(),
			Hints: make([]*discoveryv1.EndpointHints, len(d.endpoints())),
		})
	}
	hint(service, family, view)
	for i, d := range stay {
		for j, h := range view[i].Hints {
			if sameHints(d.endpoints()[j].Hints, h) {
				continue
			}
			// The labels of an unchanged slice are right already.
			var labels map[string]string
			if d.now == nil {
				labels = d.was.Labels
			}
			d.edit(labels).Endpoints[j].Hints = h
		}
	}
}

func sameHints(a, b *discoveryv1.EndpointHints) bool {
	if a == nil || b == nil {
		return a == b
	}
	return slices.Equal(a.ForZones, b.ForZones) && slices.Equal(a.ForNodes, b.ForNodes)
}
