package app

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/gateway/outbound"
	"github.com/proxima-mesh/proxima/internal/identity/mesh"
	"github.com/proxima-mesh/proxima/internal/identity/workload"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// client is who may be at the other end of a connection: the workload whose cgroup its socket
// was made in, else whoever has its address and no cgroup.
type client struct {
	addr     netip.Addr
	workload resource.Key // that of the cgroup; zero: it is in none
}

func (c client) String() string {
	if c.workload != (resource.Key{}) {
		return "the client is in its cgroup"
	}
	return "it has the client's address"
}

// clientOf finds the client of a connection. An error says that the client shares its address
// with a workload that has a cgroup, and that its socket is not there any more.
func (n *nodeIdentity) clientOf(c outbound.Connection) (client, error) {
	who := client{addr: c.Client.Addr().Unmap()}
	if n.cgroups == nil || len(n.cgroups.Groups()) == 0 {
		return who, nil
	}
	number, err := n.socketsOwn(c.Client, c.Destination)
	if err == nil {
		who.workload, _ = n.cgroups.WorkloadOf(number)
		return who, nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for key, dp := range n.dataplanes {
		if hasAddress(dp, who.addr) && n.cgroups.Placed(key) {
			return who, fmt.Errorf("which program at %s made the connection cannot be told any more: %w", who.addr, err)
		}
	}
	return who, nil // it is in another network namespace, as a pod is
}

// is reports whether a workload may be a client. n.mu is held.
func (n *nodeIdentity) is(who client, key resource.Key, dp *meshv1alpha1.Dataplane) bool {
	if who.workload != (resource.Key{}) {
		return who.workload == key
	}
	return hasAddress(dp, who.addr) && !n.cgroups.Placed(key)
}

// Of implements outbound.Identities: the certificate of the workload that made the connection.
// A client that is no workload of this node has the identity of the node, and so has one that
// several workloads of different identities may be. One that is, or may be, a workload of a
// mesh that may not connect has none.
func (n *nodeIdentity) Of(c outbound.Connection, meshName string) (*mesh.SVID, error) {
	who, err := n.clientOf(c)
	if err != nil {
		return nil, err
	}
	if err := n.admits(who, meshName); err != nil {
		return nil, err
	}
	svids, errs := n.at(who, meshName)
	if len(svids) > 0 && !slices.ContainsFunc(svids, func(s *mesh.SVID) bool { return s.ID != svids[0].ID }) {
		return svids[0], nil
	}
	if who.workload != (resource.Key{}) { // the node's identity is not a workload's
		return nil, cmp.Or(errors.Join(errs...), fmt.Errorf("workload %s, whose cgroup the client is in, is not registered", who.workload))
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

// Admits implements outbound.Identities: it refuses clients that are, or may be, a workload of
// this node whose mesh may not connect to a mesh. The node's own identity is not theirs.
func (n *nodeIdentity) Admits(c outbound.Connection, meshName string) error {
	who, err := n.clientOf(c)
	if err != nil {
		return err
	}
	return n.admits(who, meshName)
}

func (n *nodeIdentity) admits(who client, meshName string) error {
	target, _ := n.Trust().Bundle(meshName)
	n.mu.Lock()
	defer n.mu.Unlock()
	for key, dp := range n.dataplanes {
		of := kind.DataplaneMesh(dp, n.namespaces[key.Namespace])
		if of != meshName && n.is(who, key, dp) && !slices.Contains(target.ExportedTo, of) {
			return fmt.Errorf("workload %s (%s) is of mesh %s: services of mesh %s are not for it", key, who, of, meshName)
		}
	}
	return nil
}

// at are the certificates of the workloads that a client may be, of meshes that may connect to
// a mesh, ordered by name. errs are of those without a certificate.
func (n *nodeIdentity) at(who client, meshName string) (svids []*mesh.SVID, errs []error) {
	trust := n.Trust()
	target, _ := trust.Bundle(meshName)
	n.mu.Lock()
	var keys []resource.Key
	for key, dp := range n.dataplanes {
		of := kind.DataplaneMesh(dp, n.namespaces[key.Namespace])
		if n.is(who, key, dp) && (of == meshName || slices.Contains(target.ExportedTo, of)) {
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

// Trust implements outbound.Identities. A Service is exported to other meshes in its own zone
// alone, so no connection between sites is from a mesh to another.
func (n *nodeIdentity) Trust() *mesh.Trust {
	trust, _ := n.manager.Trust()
	return trust.Apart()
}

// Holds implements outbound.Identities.
func (n *nodeIdentity) Holds(identity, serial string) bool { return n.manager.Holds(identity, serial) }
