package kuma

import (
	"regexp"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
)

// tagService is the tag by which Kuma knows what service a workload is of.
const tagService = "kuma.io/service"

// target of a policy of ours.
type target struct {
	mesh.PolicyTarget
	namespace string
	ports     []string
}

func (o *object) wholeMesh() target {
	return target{namespace: SystemNamespace, PolicyTarget: mesh.PolicyTarget{
		TargetRefs: []mesh.PolicyTargetReference{{Group: mesh.GroupName, Kind: "Mesh", Name: o.mesh}},
	}}
}

// selected are workloads with labels.
func (o *object) selected(labels map[string]string) target {
	if len(labels) == 0 {
		return target{namespace: o.namespace}
	}
	return target{namespace: o.namespace, PolicyTarget: mesh.PolicyTarget{Selector: &metav1.LabelSelector{MatchLabels: labels}}}
}

// namespaced: the object is for one namespace of Kubernetes.
func (o *object) namespaced() bool { return !o.system && o.root.child("metadata").has("namespace") }

// wholeTarget reports whether a targetRef is that of a whole mesh, and reads it then.
func (o *object) wholeTarget(n *node) bool {
	if n == nil {
		return true
	}
	if n.text("kind") != "Mesh" {
		return false
	}
	n.proxyTypes()
	return true
}

// proxyTypes: ours are sidecars.
func (n *node) proxyTypes() {
	for _, t := range n.texts("proxyTypes") {
		if t != "Sidecar" {
			n.o.refuse(n.at("proxyTypes"), "policies are for sidecars, not for "+t+" proxies")
		}
	}
}

// workloads of a targetRef: whose proxies the policy configures.
func (o *object) workloads(n *node) target {
	if o.wholeTarget(n) {
		if !o.namespaced() {
			return o.wholeMesh()
		}
		return target{namespace: o.namespace} // of its own namespace
	}
	labels := o.described(n)
	t := o.selected(labels)
	if section := n.text("sectionName"); section != "" {
		t.ports = []string{section}
	}
	if o.system {
		o.refuse("metadata.namespace", "it selects workloads of all namespaces; the one made of it selects those of namespace "+o.namespace+
			": repeat it for others with --namespace")
	}
	return t
}

// described are the labels of workloads that a targetRef, here or in from, describes.
func (o *object) described(n *node) map[string]string {
	labels := map[string]string{}
	kind := n.text("kind")
	n.proxyTypes()
	switch kind {
	case "MeshSubset":
		labels = n.labels("tags")
	case "MeshService", "MeshServiceSubset":
		labels = n.labels("tags")
		labels[tagService] = n.text("name")
	case "Dataplane":
		labels = n.labels("labels")
		if name := n.text("name"); name != "" {
			n.o.refuse(n.at("name"), "name the Dataplane in spec.targetRefs by hand, or its labels here")
		}
	default:
		o.fail(n.at("kind"), kind+" does not describe workloads")
	}
	o.checkTags(n.path, labels)
	return labels
}

// checkTags: the names that Kuma gives Services of Kubernetes are no labels of workloads.
func (o *object) checkTags(path string, labels map[string]string) {
	if name := labels[tagService]; inKubernetes.MatchString(name) {
		o.fail(path, tagService+" "+name+" stands for a Service of Kubernetes, and pods have no such label: select them by their own labels")
	}
}

// source of a from item; all is true for everybody.
func (o *object) source(n *node) (from []mesh.PolicySource) {
	if n == nil {
		o.fail("spec.from", "an item says not whom it is for, by targetRef")
		return nil
	}
	if o.wholeTarget(n) {
		return nil
	}
	return sourceOf(o.described(n))
}

func sourceOf(labels map[string]string) []mesh.PolicySource {
	if len(labels) == 0 {
		return nil
	}
	return []mesh.PolicySource{{Labels: &metav1.LabelSelector{MatchLabels: labels}}}
}

// inKubernetes is the value of kuma.io/service that Kuma gives a Service of Kubernetes.
var inKubernetes = regexp.MustCompile(`^(.+)_([a-z0-9-]+)_svc_([0-9]+)$`)

// service that a name of Kuma's means.
func (o *object) service(name string) target {
	ref := mesh.PolicyTargetReference{Kind: "Service", Name: name}
	t := target{namespace: o.namespace}
	if m := inKubernetes.FindStringSubmatch(name); m != nil {
		ref.Name, ref.SectionName, t.namespace = m[1], m[3], m[2]
	}
	t.TargetRefs = []mesh.PolicyTargetReference{ref}
	return t
}

// backend of a to item. ok is false where it is none of ours, which is reported.
func (o *object) backend(n *node) (t target, ok bool) {
	if n == nil {
		o.fail("spec.to", "an item says not what it is for, by targetRef")
		return t, false
	}
	if o.wholeTarget(n) {
		if o.namespaced() {
			o.refuse("metadata.namespace", "a BackendPolicy of a namespace is for its backends, or for one of another namespace: name the backend, "+
				"or apply it to the whole mesh")
		}
		return o.wholeMesh(), true
	}
	kind := n.text("kind")
	switch kind {
	case "MeshService", "MeshMultiZoneService", "MeshExternalService":
	default:
		n.refuse("kind", "is no backend of Proxima")
		return t, false
	}
	t = o.service(n.text("name"))
	ref := &t.TargetRefs[0]
	switch kind {
	case "MeshMultiZoneService":
		ref.Group, ref.Kind = "multicluster.x-k8s.io", "ServiceImport"
	case "MeshExternalService":
		ref.Group, ref.Kind = mesh.GroupName, "ExternalService"
	}
	if namespace := n.text("namespace"); namespace != "" {
		t.namespace = namespace
	}
	if section := n.text("sectionName"); section != "" {
		ref.SectionName = section
	}
	return t, true
}

// eachTo calls f with the policy and the settings of each to item. Ours are for all clients of
// a backend, so the policy must be for the whole mesh.
func (o *object) eachTo(f func(spec *mesh.BackendPolicySpec, conf *node)) {
	top := o.spec.child("targetRef")
	if !o.wholeTarget(top) {
		top.refuse("kind", "a BackendPolicy is for all clients of its backend, or those of a namespace: it cannot select them")
		for _, key := range []string{"name", "tags", "labels", "namespace", "sectionName"} {
			top.raw(key)
		}
		o.spec.skip("to")
		return
	}
	for _, item := range o.spec.list("to") {
		t, ok := o.backend(item.child("targetRef"))
		conf := item.child("default")
		if ok && conf != nil {
			f(o.addBackend(t), conf)
		}
	}
}

// eachFrom calls f with the settings of each from item or rule, and whom it is for.
func (o *object) eachFrom(f func(from []mesh.PolicySource, conf *node)) {
	for _, item := range o.spec.list("from") {
		from := o.source(item.child("targetRef"))
		if conf := item.child("default"); conf != nil {
			f(from, conf)
		}
	}
	for _, item := range o.spec.list("rules") {
		var from []mesh.PolicySource
		for _, m := range item.list("matches") {
			id := m.child("spiffeID")
			if id == nil {
				o.fail(m.path, "describes callers by something else than spiffeID")
			} else {
				from = append(from, mesh.PolicySource{SPIFFE: []mesh.ValueMatch{{Type: id.text("type"), Value: id.text("value")}}})
			}
		}
		if conf := item.child("default"); conf != nil {
			f(from, conf)
		}
	}
}

// inbound is the policy of the workloads that the object is for, made when it is needed.
func (o *object) inbound() func() *mesh.WorkloadPolicySpec {
	t := o.workloads(o.spec.child("targetRef"))
	var spec *mesh.WorkloadPolicySpec
	return func() *mesh.WorkloadPolicySpec {
		if spec == nil {
			spec = o.addWorkload(t)
		}
		return spec
	}
}
