package endpointslice

import (
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/backend"
	"github.com/proxima-mesh/proxima/internal/controller/loop"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// dispatch queues the Services that a delta concerns. Its cost is that of the
// change: every step goes through an index.
func (c *Controller) dispatch(d catalog.Delta) {
	for _, change := range d.Services {
		c.loop.Add(change.Key)
	}
	c.queuedOnce.Do(func() { close(c.queued) })
	for _, change := range d.Slices {
		c.sliceChanged(change)
	}
	backend.Changed(d, c.loop.Add)
}

// sliceChanged queues the Service of a slice that another client changed, before
// and after the change.
func (c *Controller) sliceChanged(change catalog.Change[*discoveryv1.EndpointSlice]) {
	was, wasOurs := serviceOf(change.Old)
	is, isOurs := serviceOf(change.New)
	if wasOurs && (!isOurs || was != is) && !loop.Echo(c.loop, was, change) {
		c.loop.Add(was)
	}
	if isOurs && !loop.Echo(c.loop, is, change) {
		c.loop.Add(is)
	}
}

// serviceOf is the Service of a slice that this package keeps.
func serviceOf(slice *discoveryv1.EndpointSlice) (resource.Key, bool) {
	if slice == nil || slice.Labels[discoveryv1.LabelManagedBy] != ManagedBy {
		return resource.Key{}, false
	}
	name := slice.Labels[discoveryv1.LabelServiceName]
	return resource.Key{Namespace: slice.Namespace, Name: name}, name != ""
}
