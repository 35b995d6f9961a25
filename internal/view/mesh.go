package view

import (
	"bytes"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/policy"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/view/wire"
)

// meshViews are what agents need to keep meshes apart, encoded.
type meshViews struct {
	bodies map[string][]byte
	closed map[string]bool
	// namespaces that are not of the default mesh. moved are those that the delta in work
	// moves to another.
	namespaces map[string]string
	moved      []string
	// workloads are in the views while needed: there are several meshes, or a closed one, or nodes see to
	// permissions, or to routes and policies for clients of a namespace.
	workloads   map[string][]byte
	needed      bool
	permissions permissions
	// consumers: nodes have to know the namespaces of clients.
	consumers bool
}

func newMeshViews() meshViews {
	return meshViews{
		bodies: map[string][]byte{}, closed: map[string]bool{}, namespaces: map[string]string{}, workloads: map[string][]byte{},
	}
}

// of a namespace.
func (m *meshViews) of(namespace string) string {
	if name := m.namespaces[namespace]; name != "" {
		return name
	}
	return meshv1alpha1.DefaultMesh
}

// storeMeshes stores the meshes, namespaces and workloads of a delta, and returns the
// resources that may have changed. Its cost is that of the change, but where the views begin
// or cease to have workloads.
func (b *Builder) storeMeshes(d *catalog.Delta) []change {
	var out []change
	for _, c := range d.Meshes {
		m := &b.meshes
		delete(m.bodies, c.Key.Name)
		delete(m.closed, c.Key.Name)
		out = append(out, change{wire.MeshType, c.Key.Name})
		if c.New == nil {
			continue
		}
		is := &proxy.Mesh{Name: c.Key.Name, Closed: !kind.MeshPassthrough(c.New)}
		body, err := wire.EncodeMesh(is)
		if err != nil {
			b.config.Logger.Error("mesh is not in the views", "error", err)
			continue
		}
		m.bodies[c.Key.Name] = body
		if is.Closed {
			m.closed[c.Key.Name] = true
		}
	}
	guarded, allGuarded := b.meshes.permissions.store(d)
	if len(d.TCPRoutes)+len(d.BackendPolicies) > 0 {
		b.meshes.consumers = policy.HasConsumers(d.After)
	}
	needed := len(b.meshes.bodies) > 1 || len(b.meshes.closed) > 0 || b.meshes.permissions.index != nil || b.meshes.consumers
	if needed != b.meshes.needed {
		b.meshes.needed = needed
		for key := range b.meshes.workloads {
			out = append(out, change{wire.WorkloadType, key})
		}
	}
	moved := b.storeNamespaces(d.Namespaces)
	note := func(key catalog.Key, w *proxy.Workload) {
		if name, different := b.storeWorkload(key, w); different && b.meshes.needed {
			out = append(out, change{wire.WorkloadType, name})
		}
	}
	for _, c := range d.Dataplanes {
		note(c.Key, b.guardedDataplane(c.Key, c.New))
	}
	for _, c := range d.Pods {
		note(podKey(c.Key), b.guardedPod(c.Key, c.New))
	}
	for ref := range guarded { // of pods whose Services changed
		if p, ok := d.After.Pods.Get(ref.Key); ok && ref.Kind == "Pod" {
			note(podKey(ref.Key), b.guardedPod(ref.Key, p))
		}
	}
	if len(moved) == 0 && !allGuarded {
		return out
	}
	for key, o := range d.After.Dataplanes.All() {
		if allGuarded || slices.Contains(moved, key.Namespace) {
			note(key, b.guardedDataplane(key, o))
		}
	}
	for key, o := range d.After.Pods.All() {
		if allGuarded || slices.Contains(moved, key.Namespace) {
			note(podKey(key), b.guardedPod(key, o))
		}
	}
	return out
}

// storeNamespaces returns the namespaces that are of another mesh than before.
func (b *Builder) storeNamespaces(changes []catalog.Change[*corev1.Namespace]) []string {
	var moved []string
	for _, c := range changes {
		was, is := b.meshes.of(c.Key.Name), meshv1alpha1.DefaultMesh
		if c.New != nil {
			is = kind.MeshOf(c.New)
		}
		delete(b.meshes.namespaces, c.Key.Name)
		if is != meshv1alpha1.DefaultMesh {
			b.meshes.namespaces[c.Key.Name] = is
		}
		if was != is {
			moved = append(moved, c.Key.Name)
		}
	}
	b.meshes.moved = moved
	return moved
}

// withMoved are the Services of a delta, and those of namespaces that it moves to another
// mesh, which are encoded again.
func (b *Builder) withMoved(d *catalog.Delta) []catalog.Change[*corev1.Service] {
	if len(b.meshes.moved) == 0 || !b.filled {
		return d.Services
	}
	out := slices.Clone(d.Services)
	for key, s := range d.After.Services.All() {
		if slices.Contains(b.meshes.moved, key.Namespace) {
			out = append(out, catalog.Change[*corev1.Service]{Key: key, New: s})
		}
	}
	return out
}

// withRouted are the Services of withMoved, and those of which policies or routes say something else
// now, which are encoded again.
func (b *Builder) withRouted(d *catalog.Delta) []catalog.Change[*corev1.Service] {
	again := b.routings.Apply(d)
	changes := b.withMoved(d)
	if len(again) == 0 {
		return changes
	}
	out := slices.Clone(changes)
	for _, c := range changes {
		delete(again, c.Key)
	}
	for key := range again {
		if s, ok := d.After.Services.Get(key); ok {
			out = append(out, catalog.Change[*corev1.Service]{Key: key, New: s})
		}
	}
	return out
}

// storeWorkload stores a workload (nil: there is none), and reports whether that is different
// from before.
func (b *Builder) storeWorkload(key catalog.Key, w *proxy.Workload) (name string, different bool) {
	name = wire.ResourceName(key.Namespace, key.Name)
	was := b.meshes.workloads[name]
	delete(b.meshes.workloads, name)
	if w == nil {
		return name, was != nil
	}
	w.Name = proxy.ServiceName{Namespace: key.Namespace, Name: key.Name}
	body, err := wire.EncodeWorkload(w)
	if err != nil {
		b.config.Logger.Error("workload is not in the views", "error", err)
		return name, was != nil
	}
	b.meshes.workloads[name] = body
	return name, !bytes.Equal(was, body)
}

// podKey is the key of a pod among the workloads: a Dataplane may have its name. No name of a
// Dataplane begins so.
func podKey(key catalog.Key) catalog.Key {
	return catalog.Key{Namespace: key.Namespace, Name: "pod:" + key.Name}
}

// dataplaneWorkload of a Dataplane in a namespace of a mesh; nil: it is of no node, or has no
// address.
func dataplaneWorkload(d *meshv1alpha1.Dataplane, mesh string) *proxy.Workload {
	if d == nil || d.Spec.NodeName == "" {
		return nil
	}
	if d.Spec.Mesh != "" {
		mesh = d.Spec.Mesh
	}
	return withAddresses(&proxy.Workload{Mesh: mesh, Node: d.Spec.NodeName}, d.Spec.Addresses)
}

// podWorkload of a pod. One in its node's network is as much of the node as any process; the
// address of one that has ended may be another's.
func podWorkload(p *corev1.Pod, mesh string) *proxy.Workload {
	if p == nil || p.Spec.NodeName == "" || p.Spec.HostNetwork || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return nil
	}
	if named := kind.NamedMesh(p); named != "" {
		mesh = named
	}
	addresses := make([]string, 0, len(p.Status.PodIPs)+1)
	for _, ip := range p.Status.PodIPs {
		addresses = append(addresses, ip.IP)
	}
	if len(addresses) == 0 {
		addresses = append(addresses, p.Status.PodIP)
	}
	return withAddresses(&proxy.Workload{Mesh: mesh, Node: p.Spec.NodeName}, addresses)
}

func withAddresses(w *proxy.Workload, texts []string) *proxy.Workload {
	for _, text := range texts {
		if a, err := netip.ParseAddr(text); err == nil {
			w.Addrs = append(w.Addrs, a.Unmap().WithZone(""))
		}
	}
	if len(w.Addrs) == 0 {
		return nil
	}
	return w
}
