//go:build linux

package nftables

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/kernel/conntrack"
	"github.com/proxima-mesh/proxima/internal/kernel/nfnl"
)

// system is what the mode needs of the machine. Tests have one in memory, with
// nfnl.Fake as its tables.
type system struct {
	kernel    kernel
	flows     flowTable
	tables    listener // changes of tables by others
	addresses listener // changes of the node's addresses
	// list lists the addresses of the node. ErrInterrupted: list them again.
	list func() ([]netip.Addr, error)
	// closers end all of the above but the listeners, which close ends first.
	closers []func() error
}

// listener is an nfnl.Listener.
type listener interface {
	Receive(func(nfnl.Message)) error
	Close() error
}

var (
	_ kernel   = (*nfnl.Conn)(nil)
	_ kernel   = (*nfnl.FakeConn)(nil)
	_ listener = (*nfnl.Listener)(nil)
	_ listener = (*nfnl.FakeListener)(nil)
)

// openSystem opens the sockets of a mode in a network namespace.
func openSystem(namespace int) (s *system, err error) {
	s = &system{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.closeListeners(), s.close())
			s = nil
		}
	}()
	conn, err := nfnl.Open(namespace)
	if err != nil {
		return s, err
	}
	s.kernel = conn
	s.closers = append(s.closers, conn.Close)
	flows, err := conntrack.Open(namespace)
	if err != nil {
		return s, err
	}
	s.flows = flows
	s.closers = append(s.closers, flows.Close)
	tables, err := nfnl.ListenTables(namespace, conn.Port())
	if err != nil {
		return s, err
	}
	s.tables = tables
	addresses, err := nfnl.ListenAddresses(namespace)
	if err != nil {
		return s, err
	}
	s.addresses = addresses
	ns := netns.None()
	if namespace != 0 {
		ns = netns.NsHandle(namespace)
	}
	route, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return s, fmt.Errorf("opening a route socket: %w", err)
	}
	s.list = func() ([]netip.Addr, error) { return listAddresses(route) }
	s.closers = append(s.closers, func() error { route.Close(); return nil })
	return s, nil
}

func (s *system) closeListeners() error {
	var errs []error
	for _, l := range []listener{s.tables, s.addresses} {
		if l != nil {
			errs = append(errs, l.Close())
		}
	}
	return errors.Join(errs...)
}

func (s *system) close() error {
	var errs []error
	for _, c := range s.closers {
		errs = append(errs, c())
	}
	return errors.Join(errs...)
}

func listAddresses(route *netlink.Handle) ([]netip.Addr, error) {
	found, err := route.AddrList(nil, netlink.FAMILY_ALL)
	if errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, nfnl.ErrInterrupted
	}
	if err != nil {
		return nil, fmt.Errorf("listing the node's addresses: %w", err)
	}
	var out []netip.Addr
	for _, a := range found {
		if addr, ok := netip.AddrFromSlice(a.IP); ok {
			out = append(out, addr.Unmap())
		}
	}
	return out, nil
}
