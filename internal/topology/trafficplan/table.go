package trafficplan

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/backend"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/sites"
)

// Table holds the plans of all Services together with their endpoints, as of one
// snapshot after another. The zero value is empty. Apply is for one goroutine at a time;
// the other methods are safe for concurrent use with it.
type Table struct {
	mu    sync.RWMutex
	after *catalog.Snapshot
	plans map[resource.Key]*Plan
	// warm are the Services that warm endpoints up.
	warm map[resource.Key]struct{}
	// weighted are the Dataplanes that have another weight than DefaultWeight. While there
	// are none, weights cost nothing.
	weighted map[catalog.Key]uint32
}

// Apply brings the table to the end of a delta of EndpointSlices, Plans, Dataplanes and
// Services. It returns the Services whose endpoints have other weights than before, or
// became ready at another time, where the Service warms endpoints up.
func (t *Table) Apply(d *catalog.Delta) (changed map[resource.Key]struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.after = d.After
	changed = t.warming(d)
	concerned := t.dataplanes(d)
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
				if key := ServiceOf(slice); t.plans[key] != nil || t.own(slice) != nil {
					concerned[key] = struct{}{}
				}
			}
		}
	}
	for key := range concerned {
		was, is := t.plans[key], of(d.After, key, t.own)
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

// dataplanes notes the weights of Dataplanes, and returns the Services of those that changed.
func (t *Table) dataplanes(d *catalog.Delta) map[resource.Key]struct{} {
	concerned := map[resource.Key]struct{}{}
	for _, c := range d.Dataplanes {
		was, known := t.weighted[c.Key]
		if !known {
			was = DefaultWeight
		}
		is := DefaultWeight
		if c.New != nil {
			is = backend.WeightOf(c.New)
		}
		if is == was {
			continue
		}
		if t.weighted == nil {
			t.weighted = map[catalog.Key]uint32{}
		}
		if is == DefaultWeight {
			delete(t.weighted, c.Key)
		} else {
			t.weighted[c.Key] = is
		}
		if c.New != nil { // one that is gone leaves its slices, which are concerned then
			backend.Behind(d.After, c.New, func(key resource.Key) { concerned[key] = struct{}{} })
		}
	}
	return concerned
}

// own weights of a slice's endpoints, as OwnWeights.
func (t *Table) own(slice *discoveryv1.EndpointSlice) []uint32 {
	if len(t.weighted) == 0 {
		return nil
	}
	return OwnWeights(t.after, slice)
}

// warming are the Services of a delta that warm endpoints up where that, or the time at
// which a Dataplane or Pod became ready, changed.
func (t *Table) warming(d *catalog.Delta) map[resource.Key]struct{} {
	changed := map[resource.Key]struct{}{}
	for _, c := range d.Services {
		t.noteWarming(c.Key, c.New)
		if (kind.WarmUpOf(c.Old) == 0) != (kind.WarmUpOf(c.New) == 0) {
			changed[c.Key] = struct{}{}
		}
	}
	if d.Before == nil || d.Before.Services.Len() == 0 || len(t.warm) == 0 {
		return changed
	}
	for _, c := range d.Pods {
		if c.New == nil || podSince(c.Old).Equal(podSince(c.New)) {
			continue
		}
		for key := range d.After.ServicesSelecting(c.Key.Namespace, c.New.Labels) {
			if _, warms := t.warm[key]; warms {
				changed[key] = struct{}{}
			}
		}
	}
	for _, c := range d.Dataplanes {
		if c.New == nil || dataplaneSince(c.Old).Equal(dataplaneSince(c.New)) {
			continue
		}
		backend.Behind(d.After, c.New, func(key resource.Key) {
			if service, ok := d.After.Services.Get(key); ok && kind.WarmUpOf(service) > 0 {
				changed[key] = struct{}{}
			}
		})
	}
	return changed
}

// noteWarming keeps which Services warm endpoints up; service is nil where there is none.
func (t *Table) noteWarming(key resource.Key, service *corev1.Service) {
	if kind.WarmUpOf(service) == 0 {
		delete(t.warm, key)
		return
	}
	if t.warm == nil {
		t.warm = map[resource.Key]struct{}{}
	}
	t.warm[key] = struct{}{}
}

// Own weights of a slice's endpoints, as those of the Plan of its Service.
func (t *Table) Own(slice *discoveryv1.EndpointSlice) []uint32 {
	t.mu.RLock()
	p := t.plans[ServiceOf(slice)]
	t.mu.RUnlock()
	return p.Own(slice)
}

// ReadySince is when the endpoints of a slice became ready, where its Service warms
// endpoints up; nil: it does not.
func (t *Table) ReadySince(slice *discoveryv1.EndpointSlice) []int64 {
	t.mu.RLock()
	s := t.after
	t.mu.RUnlock()
	if s == nil {
		return nil
	}
	if service, ok := s.Services.Get(ServiceOf(slice)); !ok || kind.WarmUpOf(service) == 0 {
		return nil
	}
	return ReadySince(s, slice)
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
