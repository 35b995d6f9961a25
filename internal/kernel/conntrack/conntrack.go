// Package conntrack reads and deletes entries of the kernel's connection tracking table.
// NAT is decided by the first packet of a flow, so a UDP client that never pauses would
// be sent to a removed endpoint for ever: the entries of such flows have to be deleted.
//
// Enter at [Open]; [Table.Prune] serves every mode whose NAT is the kernel's. The table is
// read by netlink dumps that the kernel filters by protocol, and entries are deleted many
// per system call. A [Reader] reads the bytes of translated flows, for who counts them, and can
// have the kernel count them. The package changes nothing else, and does not decide which
// endpoints are valid: that is up to the modes.
package conntrack

import (
	"net/netip"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// Frontend is a destination of clients: a virtual address, a protocol and a port. An
// unspecified address (0.0.0.0 or ::) stands for every address of this machine
// in that family, as node ports need it.
type Frontend struct {
	Protocol proxy.Protocol
	Addr     netip.AddrPort
}

// Keep lists, per frontend, the endpoints at which its flows may stay. An empty list
// ends all flows of the frontend, also those that were never translated. Flows of other
// frontends are not changed.
type Keep map[Frontend][]netip.AddrPort

// Add appends endpoints to a frontend's list.
func (k Keep) Add(f Frontend, endpoints ...netip.AddrPort) { k[f] = append(k[f], endpoints...) }

// Flow is an entry of the table.
type Flow struct {
	Protocol proxy.Protocol
	// Frontend is the destination of the client's packets, Endpoint the source of the
	// answers: they are equal unless the flow was translated.
	Frontend, Endpoint netip.AddrPort
}

// index is a Keep prepared for lookups.
type index struct {
	keep  map[Frontend]map[netip.AddrPort]struct{}
	local map[netip.Addr]struct{} // addresses of this machine
}

func newIndex(k Keep, local map[netip.Addr]struct{}) *index {
	x := &index{keep: make(map[Frontend]map[netip.AddrPort]struct{}, len(k)), local: local}
	for f, endpoints := range k {
		set := make(map[netip.AddrPort]struct{}, len(endpoints))
		for _, e := range endpoints {
			set[e] = struct{}{}
		}
		x.keep[f] = set
	}
	return x
}

// stale reports whether the flow has to end. A frontend with the flow's address takes
// precedence over a node port of the same number.
func (x *index) stale(f Flow) bool {
	endpoints, found := x.keep[Frontend{f.Protocol, f.Frontend}]
	if !found {
		if _, local := x.local[f.Frontend.Addr()]; !local {
			return false
		}
		nodePort := netip.AddrPortFrom(Unspecified(f.Frontend.Addr()), f.Frontend.Port())
		if endpoints, found = x.keep[Frontend{f.Protocol, nodePort}]; !found {
			return false
		}
	}
	_, valid := endpoints[f.Endpoint]
	return !valid
}

// families reports which of the two tables have to be read, and whether there are
// frontends at unspecified addresses.
func (k Keep) families() (v4, v6, nodePorts bool) {
	for f := range k {
		if f.Addr.Addr().Is4() {
			v4 = true
		} else {
			v6 = true
		}
		nodePorts = nodePorts || f.Addr.Addr().IsUnspecified()
	}
	return v4, v6, nodePorts
}

// protocol of all frontends; empty if they differ.
func (k Keep) protocol() proxy.Protocol {
	var all proxy.Protocol
	for f := range k {
		if all != "" && all != f.Protocol {
			return ""
		}
		all = f.Protocol
	}
	return all
}

// Unspecified is the unspecified address of the address' family.
func Unspecified(a netip.Addr) netip.Addr {
	if a.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}
