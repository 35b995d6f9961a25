package modes

import (
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// InterfaceTo is the interface by which this machine reaches an address, and by which packets from
// there arrive; empty: it has none.
func InterfaceTo(a netip.Addr) string {
	routes, err := netlink.RouteGet(a.Unmap().AsSlice())
	if err != nil || len(routes) == 0 {
		return ""
	}
	link, err := net.InterfaceByIndex(routes[0].LinkIndex)
	if err != nil {
		return ""
	}
	return link.Name
}
