package direct

import (
	"net/netip"
	"sync"

	corev1 "k8s.io/api/core/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// Clients knows the meshes of the workloads of a control plane, by their addresses. The zero
// value knows none. Safe for concurrent use.
type Clients struct {
	mu     sync.RWMutex
	meshes map[netip.Addr]map[catalog.Key]string
	// several meshes are there.
	several bool
}

// MeshAt is the mesh of the workload at an address. The default one, if there is none, or
// several of different meshes.
func (c *Clients) MeshAt(addr netip.Addr) string {
	c.mu.RLock()
	defer c.mu.RUnlock()
	found := ""
	for _, mesh := range c.meshes[addr.Unmap()] {
		if found != "" && found != mesh {
			return meshv1alpha1.DefaultMesh
		}
		found = mesh
	}
	if found == "" {
		return meshv1alpha1.DefaultMesh
	}
	return found
}

// apply the Dataplanes and Namespaces of a delta.
func (c *Clients) apply(d *catalog.Delta) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.meshes == nil {
		c.meshes = map[netip.Addr]map[catalog.Key]string{}
	}
	for _, change := range d.Dataplanes {
		c.set(d.After, change.Key, change.Old, change.New)
	}
	c.several = d.After.Meshes.Len() > 1
	moved := movedNamespaces(d)
	if len(moved) == 0 {
		return
	}
	for key, dp := range d.After.Dataplanes.All() {
		if moved[key.Namespace] {
			c.set(d.After, key, nil, dp)
		}
	}
}

// movedNamespaces are those that a delta makes, removes or moves to another mesh.
func movedNamespaces(d *catalog.Delta) map[string]bool {
	moved := map[string]bool{}
	for _, change := range d.Namespaces {
		if change.Old == nil || change.New == nil || meshOf(change.Old) != meshOf(change.New) {
			moved[change.Key.Name] = true
		}
	}
	return moved
}

// meshAt is the mesh of a namespace.
func meshAt(s *catalog.Snapshot, namespace string) string {
	if n, ok := s.Namespaces.Get(catalog.Key{Name: namespace}); ok {
		return meshOf(n)
	}
	return meshv1alpha1.DefaultMesh
}

// Viewer is the mesh whose Services the workload at an address sees; empty: it sees all, as
// what is no workload does, or where there is one mesh.
func (c *Clients) Viewer(addr netip.Addr) string {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if !c.several {
		return ""
	}
	found := ""
	for _, mesh := range c.meshes[addr.Unmap()] {
		if found != "" && found != mesh {
			return proxy.SeveralMeshes
		}
		found = mesh
	}
	return found
}

func meshOf(n *corev1.Namespace) string { return kind.MeshOf(n) }

func (c *Clients) set(s *catalog.Snapshot, key catalog.Key, old, now *meshv1alpha1.Dataplane) {
	for _, addr := range addressesOf(old) {
		if delete(c.meshes[addr], key); len(c.meshes[addr]) == 0 {
			delete(c.meshes, addr)
		}
	}
	for _, addr := range addressesOf(now) {
		namespace, _ := s.Namespaces.Get(catalog.Key{Name: key.Namespace})
		if c.meshes[addr] == nil {
			c.meshes[addr] = map[catalog.Key]string{}
		}
		c.meshes[addr][key] = kind.DataplaneMesh(now, namespace)
	}
}

func addressesOf(dp *meshv1alpha1.Dataplane) []netip.Addr {
	if dp == nil {
		return nil
	}
	var out []netip.Addr
	for _, text := range dp.Spec.Addresses {
		if a, err := netip.ParseAddr(text); err == nil {
			out = append(out, a.Unmap())
		}
	}
	return out
}
