package app

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/identity/mesh"
	"github.com/proxima-mesh/proxima/internal/identity/workload"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// Of implements outbound.Identities: the certificate of the workload that has an address.
// A client that is no workload of this node has the identity of the node, and so has one
// whose address several workloads of different identities share. One that is, or may be, a
// workload of a mesh that may not connect has none.
func (n *nodeIdentity) Of(client netip.Addr, meshName string) (*mesh.SVID, error) {
	if err := n.Admits(client, meshName); err != nil {
		return nil, err
	}
	svids, errs := n.at(client, meshName)
	if len(svids) > 0 && !slices.ContainsFunc(svids, func(s *mesh.SVID) bool { return s.ID != svids[0].ID }) {
		return svids[0], nil
	}
	own, _, err := n.manager.Current(workload.Subject{Mesh: meshName})
	switch {
	case err == nil:
		return own, nil
	case len(svids) > 1:
		return nil, fmt.Errorf("several workloads of different identities have the address, and this node has none: %w", err)
	case len(errs) > 0:
		return nil, errs[0]
	}
	return nil, fmt.Errorf("no workload of this node has the address, and the node has no identity of mesh %s: %w", meshName, err)
}

// Admits implements outbound.Identities: it refuses clients at the address of a workload of
// this node whose mesh may not connect to a mesh. The node's own identity is not theirs.
func (n *nodeIdentity) Admits(client netip.Addr, meshName string) error {
	target, _ := n.Trust().Bundle(meshName)
	n.mu.Lock()
	defer n.mu.Unlock()
	for key, dp := range n.dataplanes {
		of := kind.DataplaneMesh(dp, n.namespaces[key.Namespace])
		if of != meshName && hasAddress(dp, client) && !slices.Contains(target.ExportedTo, of) {
			return fmt.Errorf("workload %s has the address, and is of mesh %s: services of mesh %s are not for it", key, of, meshName)
		}
	}
	return nil
}

// at are the certificates of the workloads with an address, of meshes that may connect to
// a mesh, ordered by name. errs are of those without a certificate.
func (n *nodeIdentity) at(client netip.Addr, meshName string) (svids []*mesh.SVID, errs []error) {
	trust := n.Trust()
	target, _ := trust.Bundle(meshName)
	n.mu.Lock()
	var keys []resource.Key
	for key, dp := range n.dataplanes {
		of := kind.DataplaneMesh(dp, n.namespaces[key.Namespace])
		if hasAddress(dp, client) && (of == meshName || slices.Contains(target.ExportedTo, of)) {
			keys = append(keys, key)
		}
	}
	n.mu.Unlock()
	slices.SortFunc(keys, func(a, b resource.Key) int { return cmp.Compare(a.String(), b.String()) })
	for _, key := range keys {
		svid, _, err := n.manager.Current(workload.Subject{Namespace: key.Namespace, Name: key.Name})
		if err != nil {
			errs = append(errs, err)
			continue
		}
		svids = append(svids, svid)
	}
	return svids, errs
}

// MeshAt is the mesh of a client on this node: that of the workload with its address, else
// that of all workloads of the node, else the default one. Until the workloads are known, as
// after a restart without a control plane, it is fallback.
func (n *nodeIdentity) MeshAt(client netip.Addr, fallback string) string {
	if n == nil {
		return meshv1alpha1.DefaultMesh
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.listed[kind.Dataplane] || !n.listed[kind.Namespace] {
		return fallback
	}
	at, all := map[string]bool{}, map[string]bool{}
	for key, dp := range n.dataplanes {
		mesh := kind.DataplaneMesh(dp, n.namespaces[key.Namespace])
		all[mesh] = true
		if hasAddress(dp, client.Unmap()) {
			at[mesh] = true
		}
	}
	for _, meshes := range []map[string]bool{at, all} {
		if len(meshes) == 1 {
			for mesh := range meshes {
				return mesh
			}
		}
		if len(meshes) > 1 {
			break
		}
	}
	return meshv1alpha1.DefaultMesh
}

func hasAddress(dp *meshv1alpha1.Dataplane, addr netip.Addr) bool {
	return slices.ContainsFunc(dp.Spec.Addresses, func(text string) bool {
		a, err := netip.ParseAddr(text)
		return err == nil && a.Unmap() == addr
	})
}

// Trust implements outbound.Identities.
func (n *nodeIdentity) Trust() *mesh.Trust {
	trust, _ := n.manager.Trust()
	return trust
}

// Holds implements outbound.Identities.
func (n *nodeIdentity) Holds(identity, serial string) bool { return n.manager.Holds(identity, serial) }
