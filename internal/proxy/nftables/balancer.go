package nftables

import (
	"net/netip"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// Balancer chooses among the endpoints of lists in place of the table. The table finds out which list a new
// connection is for, marks its first packet and accepts it; the balancer is behind it, at the hooks for packets of this
// machine, and translates by the mark. Lists of services with session affinity or with a source hash stay with the table.
//
// All methods are called with the mode locked, one at a time.
type Balancer interface {
	// Name for people.
	Name() string
	// Adopt reads what an earlier process left, before the first Want.
	Adopt() error
	// Want makes list the endpoints of connections whose first packet has the mark. Held are further ones at which flows stay.
	// An empty list: no new connection has the mark any more. It does no I/O.
	Want(l List)
	// Address notes that a service port has, or has no longer, a virtual address that need not be one of the machine. Calls
	// with true are balanced by such with false. It does no I/O.
	Address(a netip.Addr, there bool)
	// Before writes what the table is about to lead to, and After ends what it does not lead to any more. Either is called again after
	// an error, by the next Apply.
	Before() error
	After() error
	// Explain says how an endpoint is chosen, and the share that each has.
	Explain(family proxy.Family, mark uint32) (does string, shares []Share)
}

// List is a list of endpoints with the mark of its connections.
type List struct {
	Family   proxy.Family
	Mark     uint32
	Protocol proxy.Protocol
	Name     proxy.PortName
	Targets  []proxy.Target
	Held     []netip.AddrPort
}

// Marks of lists: which of its lists it is, and the service's number. That is in the lower half, as IPVS finds a service
// by the lowest 8 bits of its mark (ip_vs_svc_fwm_hashkey). Numbers with the bit for masquerading are not given to services, as
// other programs have rules for that bit.
const (
	markCluster uint32 = 0x0150 << 16
	markLocal   uint32 = 0x0151 << 16
	markMask    uint32 = 0xffff << 16
)

// ListMark of a service's cluster list, or its local one.
func ListMark(service uint16, local bool) uint32 {
	if local {
		return markLocal | uint32(service)
	}
	return markCluster | uint32(service)
}

// IsListMark reports whether a mark is one of a Balancer's lists.
func IsListMark(mark uint32) bool { return mark&markMask == markCluster || mark&markMask == markLocal }
