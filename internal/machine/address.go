package machine

import (
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// AddressTowards returns the source address for packets to another address, from a
// route lookup in the kernel; nothing is sent. Without a route it is the loopback address.
func AddressTowards(to netip.AddrPort) netip.Addr {
	conn, err := net.Dial("udp", to.String())
	if err != nil {
		if to.Addr().Is4() {
			return netip.AddrFrom4([4]byte{127, 0, 0, 1})
		}
		return netip.IPv6Loopback()
	}
	defer conn.Close()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap().WithZone("")
}

// defaultRoutes are addresses for documentation (RFC 5737, RFC 3849): they are reached by
// the default route.
var defaultRoutes = []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:9"), netip.MustParseAddrPort("[2001:db8::1]:9")}

// Addresses by which others reach this machine, at most one per family: the one on the
// route to the server (HOST:PORT), else the one on the default route. Loopback and
// link-local addresses are left out.
func Addresses(server string) []netip.Addr {
	targets := defaultRoutes
	if at, err := netip.ParseAddrPort(server); err == nil {
		targets = append([]netip.AddrPort{at}, defaultRoutes...)
	}
	var out []netip.Addr
	for _, to := range targets {
		a := AddressTowards(to)
		has := slices.ContainsFunc(out, func(b netip.Addr) bool { return a.Is4() == b.Is4() })
		if !has && a.IsGlobalUnicast() {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}

// Interfaces holds the addresses of this machine's interfaces for interfacesFresh. The
// zero value is ready to use; safe for concurrent use.
type Interfaces struct {
	mu        sync.Mutex
	addresses map[netip.Addr]struct{}
	read      time.Time
}

// interfacesFresh is for how long addresses are used before they are read again.
const interfacesFresh = 5 * time.Second

// Has reports whether an address is one of an interface of this machine. If the operating
// system does not answer, its last answer holds.
func (i *Interfaces) Has(a netip.Addr) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if now := time.Now(); i.addresses == nil || now.Sub(i.read) >= interfacesFresh {
		i.read = now
		if all, err := net.InterfaceAddrs(); err == nil {
			i.addresses = make(map[netip.Addr]struct{}, len(all))
			for _, one := range all {
				if p, err := netip.ParsePrefix(one.String()); err == nil {
					i.addresses[p.Addr().Unmap()] = struct{}{}
				}
			}
		}
	}
	_, ok := i.addresses[a.Unmap().WithZone("")]
	return ok
}
