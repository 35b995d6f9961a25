package proxy

import (
	"net/netip"
	"slices"
)

// Scope is who may use a Service: its names and its cluster addresses. The zero value:
// everybody.
type Scope struct {
	// Mesh that the Service belongs to; empty: workloads of all meshes use it.
	Mesh string
	// Exported are further meshes whose workloads use it, sorted.
	Exported []string
}

// Allows reports whether workloads of a mesh use the Service. An empty mesh is that of a
// client that is no workload: everything is for it.
func (s Scope) Allows(mesh string) bool {
	return mesh == "" || s.Mesh == "" || s.Mesh == mesh || slices.Contains(s.Exported, mesh)
}

// Equal reports whether two scopes are the same.
func (s Scope) Equal(o Scope) bool { return s.Mesh == o.Mesh && slices.Equal(s.Exported, o.Exported) }

// Mesh is what an agent knows of a mesh.
type Mesh struct {
	Name string
	// Closed: its workloads reach what the mesh knows, and nothing else
	// (networking.outbound.passthrough: false).
	Closed bool
}

// Workload is a workload of a site, as far as meshes and permissions are concerned. Immutable once handed
// over.
type Workload struct {
	Name ServiceName
	Mesh string
	Node string
	// Addrs at which it is reached, and from which it connects.
	Addrs []netip.Addr
	// Sets of clients that it is in, sorted. Permissions name them.
	Sets []string
	// Ports to which its node lets only some clients connect.
	Ports []GuardedPort
}

// GuardedPort is a port of a workload to which some clients may not connect, by their addresses.
type GuardedPort struct {
	Port     uint16
	Protocol Protocol
	// Deny comes before Allow.
	Deny, Allow []Callers
	// Refuse whom Allow does not describe.
	Refuse bool
}

// Callers are clients.
type Callers struct {
	// Set that they are in; empty: anybody.
	Set string
	// Ranges, one of which has their address; nil: any address.
	Ranges []netip.Prefix
}

// SeveralMeshes is the mesh of an address that workloads of several meshes of the node have:
// nobody can tell which of them a packet is from, so only Services of all meshes are for it.
// It is no name of a Mesh.
const SeveralMeshes = "*"

// Source is what holds for connections from an address of this node.
type Source struct {
	// Mesh of the workload; never empty.
	Mesh string
	// Closed: connections to what the mesh does not know are refused.
	Closed bool
}

// Cgroup is a cgroup (version 2) of this machine. Sockets that are made in it, or below it,
// are those of one workload, whatever their address.
type Cgroup struct {
	// ID is the kernel's number of it.
	ID uint64
	// Level is how far below the root it is, 1 to 255.
	Level uint8
}

// Reach is a destination that workloads of a closed mesh may connect to, in addition to
// cluster addresses and addresses of the node.
type Reach struct {
	Mesh string
	Addr netip.Addr
}

// Isolation is a change of what keeps meshes apart on a node. With Reset it is the whole
// state, and what it does not name is gone.
type Isolation struct {
	Reset bool
	// Active: cluster addresses are refused to Sources whose mesh may not use them. Without
	// it nothing is compared, and Sources and Reach are empty.
	Active bool
	// Sources are addresses of workloads of this node; the zero value: not any more.
	Sources map[netip.Addr]Source
	// Cgroups are those of workloads of this node; the zero value: not any more. What holds
	// for a cgroup counts before what holds for an address. A mode that does not tell cgroups
	// apart gets none.
	Cgroups map[Cgroup]Source
	// Node is what holds for addresses of the node itself that are none of Sources; the zero
	// value: nothing does. Such a source is never closed, as the agent is one.
	Node Source
	// Reach of the closed meshes among the sources; false: not any more.
	Reach map[Reach]bool
}

// Isolator is a Mode that keeps meshes apart: it refuses connections from Sources to cluster
// addresses of Services whose Scope does not allow it, as it refuses those to a Service
// without endpoints. Connections that exist go on.
type Isolator interface {
	// Isolate takes a change over. It may be called at any time, also while Apply runs, and
	// is idempotent. Before the first Apply it only notes the change, which is in place when
	// that Apply returns. After an error the caller passes the same change again later.
	Isolate(Isolation) error
	// Isolates reports what the mode can refuse.
	Isolates() Isolates
}

// Isolates is what a mode can refuse, besides cluster addresses.
type Isolates struct {
	// Outside: connections of Closed sources to what their mesh does not know.
	Outside bool
	// Cgroups: connections of programs of the machine, by the cgroup that they are made in.
	Cgroups bool
}
