package policy

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	gateway "sigs.k8s.io/gateway-api/apis/v1"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// systemNamespace has the policies of whole meshes.
const systemNamespace = "proxima-system"

// Ref names an object that a policy can be for.
type Ref struct {
	// Kind: Service, ServiceImport, ExternalService, HTTPRoute, Dataplane, Pod or Mesh. A Mesh has
	// no namespace.
	Kind string
	Key  resource.Key
}

// Port of a backend or workload.
type Port struct {
	Name   string
	Number int32
}

// is reports whether a section or an item of ports means the port.
func (p Port) is(text string) bool { return text == p.Name && text != "" || text == decimal(p.Number) }

// Index holds policies, routes and what they are for. It is for one goroutine at a time. The
// objects that it is given are shared with the caller, and never changed by either.
type Index struct {
	// Zone that Pods are of, as the label kuma.io/zone of theirs; set it before the first object. Empty: they
	// have none.
	Zone string

	policies map[string]*policies // by kind
	routes   *routes
	// backends and workloads by what they are; namespaces and meshes by name.
	backends   map[Ref]*backend
	workloads  map[string]map[resource.Key]*workload // by namespace; key with the kind's prefix
	namespaces map[string]*corev1.Namespace
	meshes     map[string]*mesh.Mesh
	grants     map[resource.Key]*gateway.ReferenceGrant
}

// backend is what a BackendPolicy can be for.
type backend struct {
	labels map[string]string
	ports  []Port
	mesh   string // of an ExternalService that names one
}

// workload is a Dataplane, or a pod that is one.
type workload struct {
	ref    Ref
	object *mesh.Dataplane
}

// policies of one kind, by what they are for.
type policies struct {
	all         map[resource.Key]*entry
	byNamespace map[string]map[resource.Key]*entry
	byTarget    map[Ref]map[resource.Key]*entry
}

// entry is one policy.
type entry struct {
	source   Source
	age      age
	targets  []mesh.PolicyTargetReference
	selector labels.Selector // nil: none
	ports    []string
	fields   map[string]any
	object   resource.Object
}

// NewIndex returns an empty index.
func NewIndex() *Index {
	x := &Index{
		policies: map[string]*policies{}, routes: newRoutes(), backends: map[Ref]*backend{},
		workloads: map[string]map[resource.Key]*workload{}, namespaces: map[string]*corev1.Namespace{},
		meshes: map[string]*mesh.Mesh{}, grants: map[resource.Key]*gateway.ReferenceGrant{},
	}
	for _, k := range []string{"BackendPolicy", "WorkloadPolicy", "TrafficPermission", "ProxyPatch"} {
		x.policies[k] = &policies{
			all: map[resource.Key]*entry{}, byNamespace: map[string]map[resource.Key]*entry{}, byTarget: map[Ref]map[resource.Key]*entry{},
		}
	}
	return x
}

// Affected says whose settings may have changed.
type Affected struct {
	// All: everybody's.
	All bool
	// Namespaces whose backends and workloads are affected.
	Namespaces []string
	// Objects: backends (for all clients), and workloads.
	Objects []Ref
}

// Set adds an object or replaces it. Objects of kinds that it does not know are ignored.
func (x *Index) Set(obj resource.Object) Affected {
	key := resource.KeyOf(obj)
	switch o := obj.(type) {
	case *mesh.BackendPolicy:
		return x.setPolicy("BackendPolicy", o, o.Spec.PolicyTarget, nil, fieldsOf(o.Spec))
	case *mesh.WorkloadPolicy:
		return x.setPolicy("WorkloadPolicy", o, o.Spec.PolicyTarget, o.Spec.Ports, fieldsOf(o.Spec))
	case *mesh.TrafficPermission:
		return x.setPolicy("TrafficPermission", o, o.Spec.PolicyTarget, o.Spec.Ports, nil)
	case *mesh.ProxyPatch:
		return x.setPolicy("ProxyPatch", o, o.Spec.PolicyTarget, nil, nil)
	case *gateway.HTTPRoute, *gateway.GRPCRoute, *gateway.TCPRoute:
		return x.routes.set(obj)
	case *gateway.ReferenceGrant:
		x.grants[key] = o
		return Affected{All: true}
	case *corev1.Service:
		b := &backend{labels: o.Labels}
		for _, p := range o.Spec.Ports {
			b.ports = append(b.ports, Port{p.Name, p.Port})
		}
		return x.setBackend(Ref{"Service", key}, b)
	case *mcs.ServiceImport:
		b := &backend{labels: o.Labels}
		for _, p := range o.Spec.Ports {
			b.ports = append(b.ports, Port{p.Name, p.Port})
		}
		return x.setBackend(Ref{"ServiceImport", key}, b)
	case *mesh.ExternalService:
		b := &backend{labels: o.Labels, mesh: o.Spec.Mesh}
		for _, p := range o.Spec.Ports {
			b.ports = append(b.ports, Port{p.Name, p.Port})
		}
		return x.setBackend(Ref{"ExternalService", key}, b)
	case *mesh.Dataplane:
		return x.setWorkload(Ref{"Dataplane", key}, o)
	case *corev1.Namespace:
		x.namespaces[key.Name] = o
		return Affected{Namespaces: []string{key.Name}}
	case *mesh.Mesh:
		x.meshes[key.Name] = o
		return Affected{All: true}
	}
	return Affected{}
}

// SetPod adds a pod as the Dataplane that stands for it.
func (x *Index) SetPod(d *mesh.Dataplane) Affected {
	return x.setWorkload(Ref{"Pod", resource.KeyOf(d)}, d)
}

// Delete takes an object out; nothing happens if it is not there.
func (x *Index) Delete(ref Ref) Affected {
	switch ref.Kind {
	case "BackendPolicy", "WorkloadPolicy", "TrafficPermission", "ProxyPatch":
		return x.policies[ref.Kind].remove(ref.Key)
	case "HTTPRoute", "GRPCRoute", "TCPRoute":
		return x.routes.remove(ref)
	case "ReferenceGrant":
		delete(x.grants, ref.Key)
		return Affected{All: true}
	case "Service", "ServiceImport", "ExternalService":
		delete(x.backends, ref)
		return Affected{Objects: append(x.routes.using(ref), ref)}
	case "Dataplane", "Pod":
		delete(x.workloads[ref.Key.Namespace], workloadKey(ref))
		if len(x.workloads[ref.Key.Namespace]) == 0 {
			delete(x.workloads, ref.Key.Namespace)
		}
		return Affected{All: x.labelled(), Objects: []Ref{ref}}
	case "Namespace":
		delete(x.namespaces, ref.Key.Name)
		return Affected{Namespaces: []string{ref.Key.Name}}
	case "Mesh":
		delete(x.meshes, ref.Key.Name)
		return Affected{All: true}
	}
	return Affected{}
}

func (x *Index) setBackend(ref Ref, b *backend) Affected {
	x.backends[ref] = b
	return Affected{Objects: append(x.routes.using(ref), ref)}
}

func workloadKey(ref Ref) resource.Key {
	return resource.Key{Namespace: ref.Kind, Name: ref.Key.Name}
}

func (x *Index) setWorkload(ref Ref, d *mesh.Dataplane) Affected {
	all := x.workloads[ref.Key.Namespace]
	if all == nil {
		all = map[resource.Key]*workload{}
		x.workloads[ref.Key.Namespace] = all
	}
	before := all[workloadKey(ref)]
	all[workloadKey(ref)] = &workload{ref: ref, object: d}
	if before != nil && sameCaller(before.object, d) {
		return Affected{Objects: []Ref{ref}}
	}
	return Affected{All: x.labelled(), Objects: []Ref{ref}}
}

// sameCaller reports whether permissions that describe callers by their labels mean the same.
func sameCaller(a, b *mesh.Dataplane) bool {
	return maps.Equal(a.Labels, b.Labels) && kind.DataplaneAccount(a) == kind.DataplaneAccount(b) &&
		slices.Equal(a.Spec.Addresses, b.Spec.Addresses) && a.Spec.Mesh == b.Spec.Mesh && sameTagsOfPorts(a, b)
}

// labelled reports whether a policy describes callers by labels.
func (x *Index) labelled() bool {
	for _, e := range x.policies["TrafficPermission"].all {
		if usesLabels(e.object.(*mesh.TrafficPermission)) {
			return true
		}
	}
	for _, e := range x.policies["WorkloadPolicy"].all {
		if limitsByLabels(&e.object.(*mesh.WorkloadPolicy).Spec) {
			return true
		}
	}
	return false
}

func (x *Index) setPolicy(kind string, obj resource.Object, target mesh.PolicyTarget, ports []string, fields map[string]any) Affected {
	set := x.policies[kind]
	e := &entry{
		source: Source{kind, resource.KeyOf(obj)}, age: ageOf(obj),
		targets: target.TargetRefs, ports: ports, fields: fields, object: obj,
	}
	if target.Selector != nil {
		selector, err := metav1.LabelSelectorAsSelector(target.Selector)
		if err != nil {
			selector = labels.Nothing() // validation refuses it
		}
		e.selector = selector
	}
	was := set.remove(e.source.Key)
	set.add(e)
	return was.and(e.affected())
}

func (a Affected) and(b Affected) Affected {
	out := Affected{All: a.All, Namespaces: slices.Clone(a.Namespaces), Objects: slices.Clone(a.Objects)}
	out.add(b)
	return out
}

func (a *Affected) add(b Affected) {
	a.All = a.All || b.All
	a.Namespaces, a.Objects = append(a.Namespaces, b.Namespaces...), append(a.Objects, b.Objects...)
}

func (p *policies) add(e *entry) {
	p.all[e.source.Key] = e
	if len(e.targets) == 0 {
		insert(p.byNamespace, e.source.Key.Namespace, e)
		return
	}
	for _, t := range e.targets {
		insert(p.byTarget, e.target(t), e)
	}
}

func (p *policies) remove(key resource.Key) Affected {
	e, ok := p.all[key]
	if !ok {
		return Affected{}
	}
	delete(p.all, key)
	if len(e.targets) == 0 {
		drop(p.byNamespace, key.Namespace, key)
	}
	for _, t := range e.targets {
		drop(p.byTarget, e.target(t), key)
	}
	return e.affected()
}

func insert[K comparable](m map[K]map[resource.Key]*entry, at K, e *entry) {
	if m[at] == nil {
		m[at] = map[resource.Key]*entry{}
	}
	m[at][e.source.Key] = e
}

func drop[K comparable](m map[K]map[resource.Key]*entry, at K, key resource.Key) {
	delete(m[at], key)
	if len(m[at]) == 0 {
		delete(m, at)
	}
}

// target of a reference. An object without a namespace is in that of the policy. What a policy of
// its namespace may not name is no object (the zero Ref): validation refuses such policies, but
// Kubernetes stores them while its webhook cannot be reached.
func (e *entry) target(t mesh.PolicyTargetReference) Ref {
	switch {
	case t.Kind == "Mesh" && e.source.Key.Namespace != systemNamespace:
		return Ref{}
	case t.Kind == "Mesh":
		return Ref{"Mesh", resource.Key{Name: t.Name}}
	case (t.Kind == "Dataplane" || t.Kind == "Pod") && t.Namespace != "" && t.Namespace != e.source.Key.Namespace:
		return Ref{}
	case t.Namespace == "":
		return Ref{t.Kind, resource.Key{Namespace: e.source.Key.Namespace, Name: t.Name}}
	}
	return Ref{t.Kind, resource.Key{Namespace: t.Namespace, Name: t.Name}}
}

func (e *entry) affected() Affected {
	if len(e.targets) == 0 {
		return Affected{Namespaces: []string{e.source.Key.Namespace}}
	}
	var out Affected
	for _, t := range e.targets {
		switch ref := e.target(t); ref.Kind {
		case "Mesh", "HTTPRoute":
			out.All = true
		default:
			out.Objects = append(out.Objects, ref)
		}
	}
	return out
}

// meshOf a namespace.
func (x *Index) meshOf(namespace string) string {
	if ns, ok := x.namespaces[namespace]; ok {
		return kind.MeshOf(ns)
	}
	return mesh.DefaultMesh
}

func (x *Index) workloadMesh(w *workload) string {
	if w.object.Spec.Mesh != "" {
		return w.object.Spec.Mesh
	}
	return x.meshOf(w.ref.Key.Namespace)
}

func (x *Index) workload(ref Ref) (*workload, bool) {
	w, ok := x.workloads[ref.Key.Namespace][workloadKey(ref)]
	return w, ok
}

// sorted entries, so that nothing depends on the order of a map.
func sorted(in map[resource.Key]*entry) []*entry {
	out := slices.Collect(maps.Values(in))
	slices.SortFunc(out, func(a, b *entry) int { return strings.Compare(a.source.Key.String(), b.source.Key.String()) })
	return out
}
