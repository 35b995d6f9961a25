package sockdiag

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// open are the states (linux/tcp_states.h) of a connection on which data may still flow to or
// from its local end: SYN_RECV, ESTABLISHED, CLOSE_WAIT (the peer has closed) and FIN_WAIT1
// (what was sent is not acknowledged).
var open = []uint8{1, 3, 4, 8}

// Connections counts the open connections of sockets whose local end is one of some
// endpoints; endpoints without any are not in the result. It blocks for one read of all
// sockets per family.
func Connections(at map[netip.AddrPort]bool) (map[netip.AddrPort]int, error) {
	out := make(map[netip.AddrPort]int)
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} { // a socket of IPv6 may carry IPv4
		sockets, err := netlink.SocketDiagTCP(family)
		if err != nil {
			return nil, fmt.Errorf("listing the TCP sockets of this machine: %w", err)
		}
		for _, s := range sockets {
			addr, ok := netip.AddrFromSlice(s.ID.Source)
			local := netip.AddrPortFrom(addr.Unmap(), s.ID.SourcePort)
			if ok && at[local] && slices.Contains(open, s.State) {
				out[local]++
			}
		}
	}
	return out, nil
}
