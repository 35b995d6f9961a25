package trafficplan

import (
	"sync"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/sites"
)

// Table holds the plans of all Services together with their endpoints, as of one
// snapshot after another. The zero value is empty. Apply is for one goroutine at a time;
// Weights and Split are safe for concurrent use with it.
type Table struct {
	mu    sync.RWMutex
	plans map[resource.Key]*Plan
}

// Apply brings the table to the end of a delta of EndpointSlices and Plans. It returns
// the Services whose endpoints have other weights than before.
func (t *Table) Apply(d *catalog.Delta) (changed map[resource.Key]struct{}) {
	concerned := map[resource.Key]struct{}{}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range d.Plans {
		if c.Old != nil {
			concerned[resource.Key{Namespace: c.Key.Namespace, Name: c.Old.Spec.Service}] = struct{}{}
		}
		if c.New != nil {
			concerned[resource.Key{Namespace: c.Key.Namespace, Name: c.New.Spec.Service}] = struct{}{}
		}
	}
	for _, c := range d.Slices {
		for _, slice := range []*discoveryv1.EndpointSlice{c.Old, c.New} {
			if slice != nil {
				if key := ServiceOf(slice); t.plans[key] != nil {
					concerned[key] = struct{}{}
				}
			}
		}
	}
	changed = map[resource.Key]struct{}{}
	for key := range concerned {
		was, is := t.plans[key], Of(d.After, key)
		if !is.same(was) {
			changed[key] = struct{}{}
		}
		if is == nil {
			delete(t.plans, key)
			continue
		}
		if t.plans == nil {
			t.plans = map[resource.Key]*Plan{}
		}
		t.plans[key] = is
	}
	return changed
}

// Weights are those of the Plan of the slice's Service.
func (t *Table) Weights(zone locality.Zone, slice *discoveryv1.EndpointSlice) []uint32 {
	t.mu.RLock()
	p := t.plans[ServiceOf(slice)]
	t.mu.RUnlock()
	return p.Weights(zone, slice)
}

// Split is that of the Plan of a Service.
func (t *Table) Split(zone locality.Zone, service resource.Key, port string) *sites.Split {
	t.mu.RLock()
	p := t.plans[service]
	t.mu.RUnlock()
	return p.Split(zone, port)
}

// ServiceOf a slice, by its label.
func ServiceOf(slice *discoveryv1.EndpointSlice) resource.Key {
	return resource.Key{Namespace: slice.Namespace, Name: slice.Labels[discoveryv1.LabelServiceName]}
}
