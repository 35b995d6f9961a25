package topology

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/endpointslice/topologycache"

	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/planner/auto"
)

// nodesOf turns API objects into what auto reads of them.
func nodesOf(nodes []*corev1.Node) []auto.Node {
	var out []auto.Node
	for _, n := range nodes {
		ready := false
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady {
				ready = c.Status == corev1.ConditionTrue
				break
			}
		}
		out = append(out, auto.Node{
			Zone:     locality.ZoneOf(n.Labels),
			Ready:    ready,
			Excluded: auto.Excluded(n.Labels),
			NanoCPU:  n.Status.Allocatable.Cpu().ScaledValue(-9),
		})
	}
	return out
}

func deref[T any](p *T) T {
	var zero T
	if p == nil {
		return zero
	}
	return *p
}

func hintsOf(h *discovery.EndpointHints) *auto.Hints {
	if h == nil {
		return nil
	}
	out := &auto.Hints{}
	for _, z := range h.ForZones {
		out.ForZones = append(out.ForZones, locality.Zone(z.Name))
	}
	for _, n := range h.ForNodes {
		out.ForNodes = append(out.ForNodes, n.Name)
	}
	return out
}

func apiHints(h *auto.Hints) *discovery.EndpointHints {
	if h == nil {
		return nil
	}
	out := &discovery.EndpointHints{}
	for _, z := range h.ForZones {
		out.ForZones = append(out.ForZones, discovery.ForZone{Name: string(z)})
	}
	for _, n := range h.ForNodes {
		out.ForNodes = append(out.ForNodes, discovery.ForNode{Name: n})
	}
	return out
}

// situation is the slices of a service before a write: those at the front are
// created, then updated, then unchanged.
type situation struct {
	slices []*discovery.EndpointSlice
	states []auto.State
}

func (s situation) request() []auto.Slice {
	var out []auto.Slice
	for i, slice := range s.slices {
		converted := auto.Slice{State: s.states[i]}
		for _, e := range slice.Endpoints {
			converted.Endpoints = append(converted.Endpoints, auto.Endpoint{
				Zone: locality.Zone(deref(e.Zone)), Node: deref(e.NodeName), Ready: deref(e.Conditions.Ready), Hints: hintsOf(e.Hints),
			})
		}
		out = append(out, converted)
	}
	return out
}

// info is the same for Kubernetes' library, in copies that it may change.
func (s situation) info(key string, family discovery.AddressType) *topologycache.SliceInfo {
	si := &topologycache.SliceInfo{ServiceKey: key, AddressType: family}
	for i, slice := range s.slices {
		slice = slice.DeepCopy()
		switch s.states[i] {
		case auto.Create:
			si.ToCreate = append(si.ToCreate, slice)
		case auto.Update:
			si.ToUpdate = append(si.ToUpdate, slice)
		default:
			si.Unchanged = append(si.Unchanged, slice)
		}
	}
	return si
}

// outcome is what there is to compare: all hints by slice and endpoint, and which
// unchanged slices are written with other hints than before.
type outcome struct {
	hints [][]*auto.Hints
	write []bool
}

// collect finds every slice again, by name, in what the library returned.
func (s situation) collect(lists ...[]*discovery.EndpointSlice) outcome {
	written := map[string]*discovery.EndpointSlice{}
	for _, list := range lists {
		for _, slice := range list {
			written[slice.Name] = slice
		}
	}
	var o outcome
	for i, before := range s.slices {
		slice, ok := written[before.Name]
		if !ok {
			slice = before
		}
		var hints []*auto.Hints
		for _, e := range slice.Endpoints {
			hints = append(hints, hintsOf(e.Hints))
		}
		o.hints = append(o.hints, hints)
		o.write = append(o.write, ok && (s.states[i] != auto.Unchanged || changed(before, hints)))
	}
	return o
}

// ours is the same of our result.
func (s situation) ours(r auto.Result) outcome {
	o := outcome{hints: r.Hints}
	for i, before := range s.slices {
		o.write = append(o.write, r.Write[i] && (s.states[i] != auto.Unchanged || changed(before, r.Hints[i])))
	}
	return o
}

func changed(before *discovery.EndpointSlice, hints []*auto.Hints) bool {
	for k, e := range before.Endpoints {
		if !sameHints(hintsOf(e.Hints), hints[k]) {
			return true
		}
	}
	return false
}

// apply makes the outcome the state that the next step starts from.
func (s situation) apply(o outcome) {
	for i, slice := range s.slices {
		for k := range slice.Endpoints {
			slice.Endpoints[k].Hints = apiHints(o.hints[i][k])
		}
	}
}

func newSlice(n int) *discovery.EndpointSlice {
	return &discovery.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "slice-" + strconv.Itoa(n)}}
}
