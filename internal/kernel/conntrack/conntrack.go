// Package conntrack ends flows that the kernel remembers although their
// endpoint, service or node port is gone. NAT looks at the first packet of a
// flow only, so a UDP client that never pauses would otherwise be sent to a dead
// endpoint for ever.
//
// Enter at [Open]. It deletes entries of the connection tracking table and
// changes nothing else; which endpoints are right is for the kernel modes to
// say. It knows nothing of rules, so it serves every mode whose NAT is the
// kernel's.
package conntrack

import (
	"net/netip"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// Front is what clients send to: a virtual address, a protocol and a port. An
// unspecified address (0.0.0.0 or ::) stands for every address of this machine
// in that family, as node ports need it.
type Front struct {
	Protocol proxy.Protocol
	Addr     netip.AddrPort
}

// Keep says, per front, at which endpoints its flows may stay. An empty list
// ends all flows of the front, also those that were never translated. Fronts
// that are not named are not touched.
type Keep map[Front][]netip.AddrPort

// Add lists further endpoints for a front.
func (k Keep) Add(f Front, endpoints ...netip.AddrPort) { k[f] = append(k[f], endpoints...) }

// flow is what matters of an entry: where the client sent to, and who answers.
type flow struct {
	protocol         proxy.Protocol
	dialled, answers netip.AddrPort
}

// index is a Keep made ready for one pass over a table of any size.
type index struct {
	keep  map[Front]map[netip.AddrPort]struct{}
	local map[netip.Addr]struct{} // addresses of this machine
}

func newIndex(k Keep, local map[netip.Addr]struct{}) *index {
	x := &index{keep: make(map[Front]map[netip.AddrPort]struct{}, len(k)), local: local}
	for f, endpoints := range k {
		set := make(map[netip.AddrPort]struct{}, len(endpoints))
		for _, e := range endpoints {
			set[e] = struct{}{}
		}
		x.keep[f] = set
	}
	return x
}

// stale tells whether the flow has to end. A virtual address of its own goes
// before the node port that has the same number.
func (x *index) stale(f flow) bool {
	endpoints, known := x.keep[Front{f.protocol, f.dialled}]
	if !known {
		if _, ours := x.local[f.dialled.Addr()]; !ours {
			return false
		}
		if endpoints, known = x.keep[Front{f.protocol, netip.AddrPortFrom(Any(f.dialled.Addr()), f.dialled.Port())}]; !known {
			return false
		}
	}
	_, good := endpoints[f.answers]
	return !good
}

// families tells which of the two tables have to be read.
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

// Any is the unspecified address of the address' family.
func Any(a netip.Addr) netip.Addr {
	if a.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}
