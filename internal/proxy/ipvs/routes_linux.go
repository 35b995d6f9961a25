package ipvs

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// routeProtocol marks routes of this mode (rtm_protocol, linux/rtnetlink.h). It is one beside the userspace mode's.
const routeProtocol = 113

// hostRoutes are the local routes of the calling thread's network namespace: "local PREFIX dev lo src NODE proto 113
// table local". Without src, processes of the node would ask from the virtual address itself.
type hostRoutes struct {
	h *netlink.Handle
	// primary addresses of the node; nil: its first ones.
	primary func() []netip.Addr
}

func openRoutes(primary func() []netip.Addr) (*hostRoutes, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("opening a route socket: %w", err)
	}
	return &hostRoutes{h, primary}, nil
}

func (r *hostRoutes) close() error {
	r.h.Close()
	return nil
}

// sources are the addresses of the machine, and which of them processes of the node ask from, by family.
func (r *hostRoutes) sources() (all []netip.Addr, v4, v6 netip.Addr, err error) {
	found, err := r.h.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, v4, v6, fmt.Errorf("listing the node's addresses: %w", err)
	}
	var primary []netip.Addr
	if r.primary != nil {
		primary = r.primary()
	}
	for _, f := range found {
		if a, ok := netip.AddrFromSlice(f.IP); ok {
			all = append(all, a.Unmap())
		}
	}
	for _, a := range append(primary, all...) {
		if !slices.Contains(all, a) || a.IsLoopback() || a.IsLinkLocalUnicast() {
			continue
		}
		if a.Is4() && !v4.IsValid() {
			v4 = a
		} else if a.Is6() && !v6.IsValid() {
			v6 = a
		}
	}
	return all, v4, v6, nil
}

func (r *hostRoutes) set(want []netip.Prefix) (changed int, err error) {
	own, v4, v6, err := r.sources()
	if err != nil {
		return 0, err
	}
	lo, err := r.h.LinkByName("lo")
	if err != nil {
		return 0, fmt.Errorf("the interface lo: %w", err)
	}
	have := map[netip.Prefix]netip.Addr{}
	var errs []error
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		list, err := r.h.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_LOCAL, Protocol: routeProtocol}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			return 0, fmt.Errorf("listing local routes: %w", err)
		}
		for _, route := range list {
			if p, ok := prefixOf(route.Dst); ok {
				src, _ := netip.AddrFromSlice(route.Src)
				have[p] = src.Unmap()
			}
		}
	}
	route := func(p netip.Prefix, src netip.Addr) *netlink.Route {
		out := &netlink.Route{
			LinkIndex: lo.Attrs().Index, Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Protocol: routeProtocol,
			Dst: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())},
		}
		if src.IsValid() {
			out.Src = src.AsSlice()
		}
		if p.Addr().Is4() {
			out.Scope = netlink.SCOPE_HOST
		}
		return out
	}
	wanted := map[netip.Prefix]netip.Addr{}
	for _, p := range want {
		if p.IsSingleIP() && slices.Contains(own, p.Addr()) {
			continue // it is local already
		}
		src := v4
		if p.Addr().Is6() {
			src = v6
		}
		if src.IsValid() { // else the node does not have the family
			wanted[p.Masked()] = src
		}
	}
	for p, src := range have {
		if want, ok := wanted[p]; ok && want == src {
			delete(wanted, p)
			continue
		}
		changed++
		if err := r.h.RouteDel(route(p, src)); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("removing the local route to %s: %w", p, err))
		}
	}
	for p, src := range wanted {
		changed++
		if err := r.h.RouteAdd(route(p, src)); err != nil && !errors.Is(err, unix.EEXIST) {
			errs = append(errs, fmt.Errorf("adding the local route to %s from %s: %w", p, src, err))
		}
	}
	return changed, errors.Join(errs...)
}

func prefixOf(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	a, ok := netip.AddrFromSlice(n.IP)
	ones, bits := n.Mask.Size()
	if !ok || bits == 32 {
		a = a.Unmap()
	}
	return netip.PrefixFrom(a, ones), ok
}
