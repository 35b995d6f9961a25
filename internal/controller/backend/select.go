package backend

import (
	"maps"

	corev1 "k8s.io/api/core/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/servicetag"
)

// Selected are the workloads that a Service selects: of its own mesh, which is that of its
// namespace. Those of the Service of a tag are in all namespaces of the mesh. They are the
// catalog's and must not be changed.
func Selected(s *catalog.Snapshot, service *corev1.Service) (pods []*corev1.Pod, dataplanes []*meshv1alpha1.Dataplane) {
	if host, ok := servicetag.HostOf(service); ok {
		namespace, _ := s.Namespaces.Get(catalog.Key{Name: service.Namespace})
		return Tagged(s, meshOf(namespace), host)
	}
	namespace, _ := s.Namespaces.Get(catalog.Key{Name: service.Namespace})
	for _, pod := range s.PodsMatching(service.Namespace, service.Spec.Selector) {
		if kind.PodMesh(pod, namespace) == meshOf(namespace) {
			pods = append(pods, pod)
		}
	}
	for _, dataplane := range s.DataplanesMatching(service.Namespace, service.Spec.Selector) {
		if kind.DataplaneMesh(dataplane, namespace) == meshOf(namespace) {
			dataplanes = append(dataplanes, dataplane)
		}
	}
	return pods, dataplanes
}

func meshOf(namespace *corev1.Namespace) string {
	if namespace == nil {
		return meshv1alpha1.DefaultMesh
	}
	return kind.MeshOf(namespace)
}

// Concerned calls queue for every Service whose workloads a delta changes, maybe
// more than once. Its cost is that of the change: every step goes through an
// index, but where a namespace gets another mesh. Services that changed themselves are left out.
func Concerned(d catalog.Delta, queue func(service resource.Key)) {
	if d.Before.Services.Len() == 0 {
		return // all Services there are changed themselves
	}
	for _, change := range d.Pods {
		if PodMatters(change.Old, change.New) {
			selecting(d.After, change.Key.Namespace, labelsOf(change.Old), labelsOf(change.New), queue)
			ofTags(d.After, TagsOfPod(d, change), queue)
		}
	}
	for _, change := range d.Dataplanes {
		if DataplaneMatters(change.Old, change.New) {
			selecting(d.After, change.Key.Namespace, labelsOf(change.Old), labelsOf(change.New), queue)
			ofTags(d.After, TagsOfDataplane(d, change), queue)
		}
	}
	for _, change := range d.Services {
		ofTags(d.After, TagsOfSelected(d, change), queue)
	}
	for _, change := range d.Namespaces {
		if meshOf(change.Old) == meshOf(change.New) {
			continue
		}
		for key := range d.After.Services.All() { // a namespace seldom changes its mesh
			if key.Namespace == change.Key.Name || servicetag.InNamespace(key.Namespace) {
				queue(key)
			}
		}
	}
}

// Changed calls queue for every Service whose backends a delta changes, maybe more than once:
// by their workloads, their nodes, or zone shifts. As Concerned, it leaves out Services that
// changed themselves.
func Changed(d catalog.Delta, queue func(service resource.Key)) {
	Concerned(d, queue)
	if d.Before.Services.Len() == 0 {
		return // all Services there are changed themselves
	}
	for _, change := range d.Nodes {
		if NodeMatters(change.Old, change.New) {
			OnNode(d.After, change.Key.Name, queue)
		}
	}
	shifted(d, queue)
}

// Kinds are the tables that Changed reads.
func Kinds() []catalog.Kind {
	return []catalog.Kind{
		catalog.Services, catalog.Pods, catalog.Dataplanes, catalog.Namespaces, catalog.Nodes, catalog.ZoneShifts,
	}
}

// OnNode calls queue for every Service that selects a workload of a node.
func OnNode(s *catalog.Snapshot, node string, queue func(service resource.Key)) {
	for key, pod := range s.PodsOn(node) {
		selecting(s, key.Namespace, pod.Labels, pod.Labels, queue)
		ofTags(s, tagsOf(podMesh(s, pod), servicetag.OfPod(pod)), queue)
	}
	for _, dataplane := range s.DataplanesOn(node) {
		Behind(s, dataplane, queue)
	}
}

// selecting calls queue for the Services that select a workload, as it was or as
// it is. Services come from the newest state: one that is only in the older one
// was changed itself.
func selecting(s *catalog.Snapshot, namespace string, was, is map[string]string, queue func(resource.Key)) {
	for key := range s.ServicesSelecting(namespace, is) {
		queue(key)
	}
	if maps.Equal(was, is) {
		return
	}
	for key := range s.ServicesSelecting(namespace, was) {
		queue(key)
	}
}

func labelsOf[T catalog.Row](obj T) map[string]string {
	var absent T
	if obj == absent {
		return nil
	}
	return obj.GetLabels()
}
