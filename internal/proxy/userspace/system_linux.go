package userspace

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// canDrop: a socket filter makes the kernel ignore what arrives.
const canDrop = true

// dropAll is a classic BPF program that keeps no byte of any packet: the kernel
// drops it before the socket sees it, even a SYN.
var dropAll = []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0}}

// control prepares a listening socket. Accepted connections inherit the options
// of a stream, which saves system calls for each of them.
func control(m *Mode, key frontendKey, stream bool) func(string, string, syscall.RawConn) error {
	routed := slices.ContainsFunc(m.opts.LocalRanges, func(p netip.Prefix) bool { return p.Contains(key.addr.Addr()) })
	return func(_, _ string, c syscall.RawConn) error {
		var errs []error
		err := c.Control(func(fd uintptr) {
			set := func(level, option, value int) {
				errs = append(errs, unix.SetsockoptInt(int(fd), level, option, value))
			}
			if stream {
				errs = append(errs, setStream(int(fd)))
			}
			if routed { // IPv6 takes only assigned addresses for local, whatever is routed
				set(unix.SOL_IP, unix.IP_FREEBIND, 1)
			}
			if key.silent {
				program := unix.SockFprog{Len: uint16(len(dropAll)), Filter: &dropAll[0]}
				errs = append(errs, unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program))
			}
		})
		return errors.Join(append(errs, err)...)
	}
}

func openFiles() int {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return 1024
	}
	return int(min(l.Cur, 1<<20))
}

// routeProtocol marks our routes. From 5 on values are free for programs to use
// (rtnetlink(7)); this one is not in iproute2's rt_protos.
const routeProtocol = 112

// routes are the local routes ("AnyIP") that the mode added.
type routes []netlink.Route

// add routes ranges to this host. A route that a crashed process of ours left
// behind is adopted; one of another program serves as well and is left alone.
func (r *routes) add(ranges []netip.Prefix) error {
	if len(ranges) == 0 {
		return nil
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("finding the loopback interface: %w", err)
	}
	for _, p := range ranges {
		route := netlink.Route{
			LinkIndex: lo.Attrs().Index,
			Dst:       ipNet(p),
			Type:      unix.RTN_LOCAL,
			Table:     unix.RT_TABLE_LOCAL,
			Protocol:  routeProtocol,
		}
		if p.Addr().Is4() {
			route.Scope = netlink.SCOPE_HOST
		}
		err := netlink.RouteAdd(&route)
		switch {
		case errors.Is(err, unix.EEXIST):
			ours, err := isOurs(route, p)
			if err != nil {
				return errors.Join(err, r.remove())
			}
			if !ours {
				continue
			}
		case err != nil:
			return errors.Join(fmt.Errorf("adding local route %s (needs CAP_NET_ADMIN): %w", p, err), r.remove())
		}
		*r = append(*r, route)
	}
	return nil
}

func isOurs(route netlink.Route, p netip.Prefix) (bool, error) {
	family := netlink.FAMILY_V6
	if p.Addr().Is4() {
		family = netlink.FAMILY_V4
	}
	found, err := netlink.RouteListFiltered(family, &route,
		netlink.RT_FILTER_TABLE|netlink.RT_FILTER_DST|netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		return false, fmt.Errorf("looking for local route %s: %w", p, err)
	}
	return len(found) > 0, nil
}

// change adds the ranges that are new and removes those that are not wanted any
// more. If one cannot be added, nothing has changed.
func (r *routes) change(have, want []netip.Prefix) error {
	fresh := slices.DeleteFunc(slices.Clone(want), func(p netip.Prefix) bool { return slices.Contains(have, p) })
	var added, left, stay routes
	if err := added.add(fresh); err != nil {
		return err
	}
	for _, route := range *r {
		if slices.ContainsFunc(want, func(p netip.Prefix) bool { return route.Dst.String() == ipNet(p).String() }) {
			stay = append(stay, route)
		} else {
			left = append(left, route)
		}
	}
	*r = slices.Concat(stay, added)
	return left.remove()
}

// remove removes what add added. A route that is gone already is no error.
func (r *routes) remove() error {
	var errs []error
	for i := range *r {
		if err := netlink.RouteDel(&(*r)[i]); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("removing local route %s: %w", (*r)[i].Dst, err))
		}
	}
	*r = nil
	return errors.Join(errs...)
}

// Cleanup removes the local routes that processes of this mode left in this network namespace
// when they were killed. Close the mode before. Nothing there is no error. Blocks for netlink alone.
func Cleanup() error {
	var errs []error
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		ours := netlink.Route{Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, Protocol: routeProtocol}
		left, err := netlink.RouteListFiltered(family, &ours, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_TYPE|netlink.RT_FILTER_PROTOCOL)
		if err != nil {
			errs = append(errs, fmt.Errorf("looking for local routes: %w", err))
			continue
		}
		own := routes(left)
		errs = append(errs, own.remove())
	}
	return errors.Join(errs...)
}

func ipNet(p netip.Prefix) *net.IPNet {
	p = p.Masked()
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
