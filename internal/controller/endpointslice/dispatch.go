package endpointslice

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// dispatch queues the Services that a delta concerns. Its cost is that of the
// change: every step goes through an index.
func (c *Controller) dispatch(d catalog.Delta) {
	for key := range c.takeStale() {
		c.queue.Add(key)
	}
	for _, change := range d.Services {
		c.queue.Add(change.Key)
	}
	for _, change := range d.Slices {
		c.sliceChanged(change)
	}
	if d.Before.Services.Len() == 0 {
		return // all Services there are were just queued
	}
	for _, change := range d.Pods {
		if podMatters(change.Old, change.New) {
			c.queueSelecting(d.After, change.Key.Namespace, labelsOf(change.Old), labelsOf(change.New))
		}
	}
	for _, change := range d.Dataplanes {
		if dataplaneMatters(change.Old, change.New) {
			c.queueSelecting(d.After, change.Key.Namespace, labelsOf(change.Old), labelsOf(change.New))
		}
	}
	for _, change := range d.Nodes {
		if nodeMatters(change.Old, change.New) {
			c.nodeChanged(d.After, change.Key.Name)
		}
	}
}

func (c *Controller) takeStale() map[resource.Key]struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.stale) == 0 {
		return nil
	}
	taken := c.stale
	c.stale = make(map[resource.Key]struct{})
	return taken
}

// sliceChanged queues the Service of a slice that somebody else touched, before
// and after the change.
func (c *Controller) sliceChanged(change catalog.Change[*discoveryv1.EndpointSlice]) {
	was, wasOurs := serviceOf(change.Old)
	is, isOurs := serviceOf(change.New)
	if wasOurs && (!isOurs || was != is) && !c.echo(was, change.Old, change.New) {
		c.queue.Add(was)
	}
	if isOurs && !c.echo(is, change.Old, change.New) {
		c.queue.Add(is)
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

// queueSelecting queues the Services that select a workload, as it was or as it
// is. Services come from the newest state: one that is only in the older one was
// changed itself.
func (c *Controller) queueSelecting(s *catalog.Snapshot, namespace string, was, is map[string]string) {
	for key := range s.ServicesSelecting(namespace, is) {
		c.queue.Add(key)
	}
	if maps.Equal(was, is) {
		return
	}
	for key := range s.ServicesSelecting(namespace, was) {
		c.queue.Add(key)
	}
}

func (c *Controller) nodeChanged(s *catalog.Snapshot, node string) {
	for key, pod := range s.PodsOn(node) {
		c.queueSelecting(s, key.Namespace, pod.Labels, pod.Labels)
	}
	for key, dataplane := range s.DataplanesOn(node) {
		c.queueSelecting(s, key.Namespace, dataplane.Labels, dataplane.Labels)
	}
}

func labelsOf[T catalog.Row](obj T) map[string]string {
	var absent T
	if obj == absent {
		return nil
	}
	return obj.GetLabels()
}

// podMatters reports whether a change of a pod can change an endpoint: status
// heartbeats do not.
func podMatters(was, is *corev1.Pod) bool {
	if was == nil || is == nil {
		return true
	}
	wasReady, _ := podReady(was)
	isReady, _ := podReady(is)
	return was.UID != is.UID ||
		was.Status.Phase != is.Status.Phase ||
		wasReady != isReady ||
		(was.DeletionTimestamp == nil) != (is.DeletionTimestamp == nil) ||
		!slices.Equal(podAddresses(was), podAddresses(is)) ||
		!maps.Equal(was.Labels, is.Labels) ||
		!equality.Semantic.DeepEqual(was.Spec, is.Spec)
}

func dataplaneMatters(was, is *meshv1alpha1.Dataplane) bool {
	if was == nil || is == nil {
		return true
	}
	return was.UID != is.UID ||
		dataplaneWorkload(was).serving != dataplaneWorkload(is).serving ||
		(was.DeletionTimestamp == nil) != (is.DeletionTimestamp == nil) ||
		!maps.Equal(was.Labels, is.Labels) ||
		!equality.Semantic.DeepEqual(was.Spec, is.Spec)
}

func nodeMatters(was, is *corev1.Node) bool {
	if was == nil || is == nil {
		return true
	}
	return was.Labels[corev1.LabelTopologyZone] != is.Labels[corev1.LabelTopologyZone]
}
