package app

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// derivedDataplanes is the Pods of a cluster as the Dataplanes that global lists: there are no
// objects of them in the cluster. Only List and Watch of that kind are possible.
type derivedDataplanes struct {
	resource.Client
	tables *catalog.Catalog
}

// List implements resource.Client.
func (c derivedDataplanes) List(ctx context.Context, _ *resource.Descriptor, opts resource.ListOptions) ([]resource.Object, string, error) {
	pods, version, err := c.Client.List(ctx, kind.Pod, opts)
	var out []resource.Object
	for _, obj := range pods {
		if d := c.derive(obj.(*corev1.Pod)); d != nil {
			out = append(out, d)
		}
	}
	return out, version, err
}

// Watch implements resource.Client.
func (c derivedDataplanes) Watch(ctx context.Context, d *resource.Descriptor, opts resource.WatchOptions) (watch.Interface, error) {
	w, err := c.Client.Watch(ctx, kind.Pod, opts)
	if err != nil {
		return nil, err
	}
	return resource.MapWatch(w, func(event watch.Event) (watch.Event, bool) {
		pod, ok := event.Object.(*corev1.Pod)
		switch {
		case !ok || event.Type == watch.Error:
			return event, true
		case event.Type == watch.Bookmark:
			event.Object = &meshv1alpha1.Dataplane{ObjectMeta: *pod.ObjectMeta.DeepCopy()}
			return event, true
		}
		// One that has ended, or has no address yet, is none: removing what was never sent is
		// no message.
		if made := c.derive(pod); made != nil {
			event.Object = made
		} else {
			event.Type, event.Object = watch.Deleted, &meshv1alpha1.Dataplane{ObjectMeta: *pod.ObjectMeta.DeepCopy()}
		}
		return event, true
	}), nil
}

// derive a Dataplane of a Pod; nil: there is none.
func (c derivedDataplanes) derive(p *corev1.Pod) *meshv1alpha1.Dataplane {
	namespace, _ := c.tables.Snapshot().Namespaces.Get(resource.Key{Name: p.Namespace})
	d := podDataplane(p, namespace)
	if d == nil {
		return nil
	}
	d.ResourceVersion, d.UID, d.DeletionTimestamp = p.ResourceVersion, p.UID, p.DeletionTimestamp
	for _, is := range p.Status.Conditions {
		if is.Type != corev1.PodReady {
			continue
		}
		ready := metav1.Condition{
			Type: meshv1alpha1.DataplaneReady, Status: metav1.ConditionStatus(is.Status), Reason: "Pod", LastTransitionTime: is.LastTransitionTime,
		}
		if ready.LastTransitionTime.IsZero() {
			ready.LastTransitionTime = p.CreationTimestamp
		}
		d.Status.Conditions = []metav1.Condition{ready}
	}
	return d
}

// follow calls again when the mesh of a namespace has changed, which no event of its Pods tells, until
// ctx ends. What was derived before of an older table is derived anew then.
func (c derivedDataplanes) follow(ctx context.Context, again func()) {
	sub := c.tables.Subscribe(catalog.Namespaces)
	defer sub.Close()
	for first := true; ; first = false {
		delta, err := sub.Next(ctx)
		if err != nil {
			return
		}
		if first || slices.ContainsFunc(delta.Namespaces, func(n catalog.Change[*corev1.Namespace]) bool {
			return namespaceMesh(n.Old) != namespaceMesh(n.New)
		}) {
			again()
		}
	}
}

// Get implements resource.Client.
func (c derivedDataplanes) Get(_ context.Context, d *resource.Descriptor, key resource.Key) (resource.Object, error) {
	return nil, apierrors.NewMethodNotSupported(d.GroupResource(), "get")
}
