package backend

import (
	"maps"

	corev1 "k8s.io/api/core/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/servicetag"
)

// Tag is the service of a tag: a mesh and a hostname.
type Tag struct{ Mesh, Host string }

// Tagged are the workloads of the service of a tag. They are the catalog's and must not be
// changed. A pod whose tag is generated is left out while a Service selects it.
func Tagged(s *catalog.Snapshot, mesh, host string) (pods []*corev1.Pod, dataplanes []*meshv1alpha1.Dataplane) {
	for _, pod := range s.PodsTagged(host) {
		if podMesh(s, pod) == mesh && tagCounts(s, pod) {
			pods = append(pods, pod)
		}
	}
	for key, dataplane := range s.DataplanesTagged(host) {
		namespace, _ := s.Namespaces.Get(catalog.Key{Name: key.Namespace})
		if kind.DataplaneMesh(dataplane, namespace) == mesh {
			dataplanes = append(dataplanes, dataplane)
		}
	}
	return pods, dataplanes
}

func tagCounts(s *catalog.Snapshot, pod *corev1.Pod) bool {
	if _, generated := servicetag.TagOfPod(pod); generated {
		for range s.ServicesSelecting(pod.Namespace, pod.Labels) {
			return false
		}
	}
	return true
}

func podMesh(s *catalog.Snapshot, pod *corev1.Pod) string {
	n, _ := s.Namespaces.Get(catalog.Key{Name: pod.Namespace})
	return kind.PodMesh(pod, n)
}

func tagsOf(mesh string, hosts []string) []Tag {
	out := make([]Tag, 0, len(hosts))
	for _, host := range hosts {
		out = append(out, Tag{mesh, host})
	}
	return out
}

// TagsOfPod are the services that a pod is part of by its tag, before and after a change.
func TagsOfPod(d catalog.Delta, c catalog.Change[*corev1.Pod]) []Tag {
	var out []Tag
	for _, pod := range []*corev1.Pod{c.Old, c.New} {
		if pod != nil {
			out = append(out, tagsOf(podMesh(d.After, pod), servicetag.OfPod(pod))...)
		}
	}
	return out
}

// TagsOfDataplane are the services that a Dataplane is part of by its tags, before and after a
// change.
func TagsOfDataplane(d catalog.Delta, c catalog.Change[*meshv1alpha1.Dataplane]) []Tag {
	var out []Tag
	namespace, _ := d.After.Namespaces.Get(catalog.Key{Name: c.Key.Namespace})
	for _, dataplane := range []*meshv1alpha1.Dataplane{c.Old, c.New} {
		if dataplane != nil {
			out = append(out, tagsOf(kind.DataplaneMesh(dataplane, namespace), servicetag.OfDataplane(dataplane))...)
		}
	}
	return out
}

// TagsOfSelected are the services of the generated tags of pods that a Service selects before
// or after a change, if it selects others than before.
func TagsOfSelected(d catalog.Delta, c catalog.Change[*corev1.Service]) []Tag {
	if c.Old != nil && c.New != nil && maps.Equal(c.Old.Spec.Selector, c.New.Spec.Selector) {
		return nil
	}
	var out []Tag
	for _, service := range []*corev1.Service{c.Old, c.New} {
		if service == nil {
			continue
		}
		for _, pod := range d.After.PodsMatching(service.Namespace, service.Spec.Selector) {
			if _, generated := servicetag.TagOfPod(pod); generated {
				out = append(out, tagsOf(podMesh(d.After, pod), servicetag.OfPod(pod))...)
			}
		}
	}
	return out
}

// Behind calls queue for every Service that has a Dataplane among its workloads, maybe more
// than once.
func Behind(s *catalog.Snapshot, d *meshv1alpha1.Dataplane, queue func(service resource.Key)) {
	selecting(s, d.Namespace, d.Labels, d.Labels, queue)
	namespace, _ := s.Namespaces.Get(catalog.Key{Name: d.Namespace})
	ofTags(s, tagsOf(kind.DataplaneMesh(d, namespace), servicetag.OfDataplane(d)), queue)
}

// ofTags calls queue for the Services of tags that there are, and for those with the virtual
// IPs of their imports.
func ofTags(s *catalog.Snapshot, tags []Tag, queue func(resource.Key)) {
	for _, tag := range tags {
		key := resource.Key{Namespace: servicetag.Namespace(tag.Mesh), Name: servicetag.ServiceName(tag.Host)}
		for _, name := range []string{key.Name, mcs.DerivedServiceName(key.Namespace, key.Name)} {
			key.Name = name
			if _, ok := s.Services.Get(key); ok {
				queue(key)
			}
		}
	}
}
