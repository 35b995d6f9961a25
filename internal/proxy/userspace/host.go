package userspace

import (
	"net"
	"net/netip"
	"sync"
	"time"
)

// hostFresh is for how long the addresses of this host are believed. Asking
// costs a round trip to the kernel, which traffic under the policy Local would
// otherwise pay for each connection.
const hostFresh = time.Second

// host knows the addresses of this machine: a client that has one of them is a
// process of the node itself. The zero value is ready; it asks when it is used.
type host struct {
	mu    sync.Mutex
	addrs map[netip.Addr]struct{}
	asked time.Time
}

// has reports whether an address is one of this host's. An address that comes or
// goes is noticed within hostFresh. If the system does not report them, what it said
// before holds.
func (h *host) has(addr netip.Addr, now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.addrs == nil || now.Sub(h.asked) >= hostFresh {
		h.asked = now
		if all, err := net.InterfaceAddrs(); err == nil {
			h.addrs = map[netip.Addr]struct{}{}
			for _, a := range all {
				if n, ok := a.(*net.IPNet); ok {
					if ip, ok := netip.AddrFromSlice(n.IP); ok {
						h.addrs[ip.Unmap()] = struct{}{}
					}
				}
			}
		}
	}
	_, ok := h.addrs[addr.WithZone("")]
	return ok
}
