package app

import (
	"fmt"
	"net/netip"
	"slices"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/identity/access"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// meshMembers keep workloads of two meshes apart on a node: agents tell them by their
// addresses. The catalog is set before the server runs.
type meshMembers struct{ catalog *catalog.Catalog }

// allow refuses a Dataplane whose address another one of its node has, in another mesh.
// It reads the tables, so of two that are written at the same moment both may pass; the
// agent then gives neither an identity.
func (m *meshMembers) allow(w access.Write) error {
	dp, ok := w.Object.(*meshv1alpha1.Dataplane)
	if !ok || dp == nil || w.Subresource != "" || dp.Spec.NodeName == "" || m.catalog == nil {
		return nil
	}
	if old, ok := w.Old.(*meshv1alpha1.Dataplane); ok && old != nil && old.Spec.Mesh == dp.Spec.Mesh && old.Spec.NodeName == dp.Spec.NodeName &&
		slices.Equal(old.Spec.Addresses, dp.Spec.Addresses) {
		return nil // it is there already
	}
	s := m.catalog.Snapshot()
	meshName := meshOf(s, resource.KeyOf(dp), dp)
	for key, other := range s.DataplanesOn(dp.Spec.NodeName) {
		of := meshOf(s, key, other)
		if key == resource.KeyOf(dp) || of == meshName || !other.DeletionTimestamp.IsZero() {
			continue
		}
		if shareAddress(dp, other) {
			return fmt.Errorf("the Dataplane %s of mesh %s has the same address on node %s: a workload of mesh %s could not be told from it; "+
				"give this one an address of its own (proxima run --address)", key, of, dp.Spec.NodeName, meshName)
		}
	}
	return nil
}

// sharing are the workloads of a mesh that have an address of their node together with one
// of another mesh, as those have that were registered before it was refused; sorted.
func sharing(s *catalog.Snapshot, meshName string) []string {
	var out []string
	for key, dp := range s.Dataplanes.All() {
		if dp.Spec.NodeName == "" || meshOf(s, key, dp) != meshName {
			continue
		}
		for other, o := range s.DataplanesOn(dp.Spec.NodeName) {
			if meshOf(s, other, o) != meshName && shareAddress(dp, o) {
				out = append(out, key.String())
				break
			}
		}
	}
	slices.Sort(out)
	return out
}

func shareAddress(a, b *meshv1alpha1.Dataplane) bool {
	return slices.ContainsFunc(a.Spec.Addresses, func(text string) bool {
		addr, err := netip.ParseAddr(text)
		return err == nil && hasAddress(b, addr.Unmap())
	})
}
