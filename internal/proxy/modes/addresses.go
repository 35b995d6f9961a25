package modes

import (
	"net"
	"net/netip"
	"slices"
)

// LocalAddresses lists this machine's addresses within ranges; nil for no ranges,
// which stands for all addresses.
func LocalAddresses(ranges []netip.Prefix) []netip.Addr {
	if len(ranges) == 0 {
		return nil
	}
	out := []netip.Addr{}
	addresses, _ := net.InterfaceAddrs() // an error means none
	for _, a := range addresses {
		p, err := netip.ParsePrefix(a.String())
		if err == nil && slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(p.Addr()) }) {
			out = append(out, p.Addr())
		}
	}
	return out
}
