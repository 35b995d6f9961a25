package conntrack

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/kernel/nfnl"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// attempts bounds how often a table that changes while it is read is read again.
const attempts = 3

// Table is the connection tracking table of one network namespace. Safe for
// concurrent use.
type Table struct {
	mu    sync.Mutex
	conn  *nfnl.Conn
	route *netlink.Handle // for the machine's addresses
}

// Open the table of the network namespace of a file descriptor, or of the calling
// thread if it is 0. The table stays that namespace's wherever it is used later. Needs
// CAP_NET_ADMIN.
func Open(namespace int) (*Table, error) {
	conn, err := nfnl.Open(namespace)
	if err != nil {
		return nil, fmt.Errorf("opening the connection tracking table: %w", err)
	}
	t := &Table{conn: conn}
	err = nfnl.Inside(namespace, func() (err error) {
		t.route, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("opening the list of addresses: %w", err), conn.Close())
	}
	return t, nil
}

// Close the table. It must not be used any more.
func (t *Table) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.route.Close()
	return t.conn.Close()
}

// Prune ends the flows of the named frontends that are not at one of their
// endpoints, and returns their number. It reads the table once per family,
// however many frontends there are, and blocks for that time. An entry that ends by
// itself meanwhile is no error.
func (t *Table) Prune(keep Keep) (int, error) {
	if len(keep) == 0 {
		return 0, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	v4, v6, nodePorts := keep.families()
	var local map[netip.Addr]struct{}
	if nodePorts {
		var err error
		if local, err = t.localAddrs(); err != nil {
			return 0, err
		}
	}
	x := newIndex(keep, local)
	protocol := protocolNumber(keep.protocol())
	var n int
	var errs []error
	for family, wanted := range map[uint8]bool{unix.AF_INET: v4, unix.AF_INET6: v6} {
		if wanted {
			ended, err := t.prune(family, protocol, x.stale)
			n += ended
			errs = append(errs, err)
		}
	}
	return n, errors.Join(errs...)
}

// EndTo ends all flows of a protocol to a port, at whatever address, and returns their
// number. It blocks as Prune.
func (t *Table) EndTo(protocol proxy.Protocol, port uint16) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var n int
	var errs []error
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		ended, err := t.prune(family, protocolNumber(protocol), func(f Flow) bool {
			return f.Protocol == protocol && f.Frontend.Port() == port
		})
		n += ended
		errs = append(errs, err)
	}
	return n, errors.Join(errs...)
}

// EndUnanswered ends the flows of TCP that were translated to one of some endpoints, which has
// not answered yet, and returns their number. The client's next SYN begins a new flow, at an
// endpoint of that time; so does a new connection from the same port, which would be sent to
// the old endpoint otherwise for as long as the kernel keeps the flow (2 minutes). It blocks for
// one read of the table per family.
func (t *Table) EndUnanswered(at map[netip.AddrPort]bool) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var n int
	var errs []error
	for family := range familiesOf(at) {
		ended, err := t.pruneEntries(family, unix.IPPROTO_TCP, func(e *entry) bool {
			return e.tcpState == tcpSynSent && e.to != e.from && at[e.from]
		})
		n += ended
		errs = append(errs, err)
	}
	return n, errors.Join(errs...)
}

// familiesOf endpoints.
func familiesOf(at map[netip.AddrPort]bool) map[uint8]bool {
	families := map[uint8]bool{}
	for endpoint := range at {
		family := uint8(unix.AF_INET)
		if endpoint.Addr().Is6() {
			family = unix.AF_INET6
		}
		families[family] = true
	}
	return families
}

func (t *Table) prune(family, protocol uint8, ends func(Flow) bool) (n int, err error) {
	return t.pruneEntries(family, protocol, func(e *entry) bool { return ends(e.flow()) })
}

func (t *Table) pruneEntries(family, protocol uint8, ends func(*entry) bool) (n int, err error) {
	for range attempts {
		var stale []identity
		err = t.dump(family, protocol, func(e entry) {
			if ends(&e) {
				stale = append(stale, e.identity())
			}
		})
		if err != nil && !errors.Is(err, nfnl.ErrInterrupted) {
			break
		}
		ended, failed := t.end(family, stale)
		n += ended
		if err == nil {
			err = failed
			break
		}
	}
	if err != nil {
		return n, fmt.Errorf("ending stale flows in the connection tracking table: %w", err)
	}
	return n, nil
}

// Connections counts the open TCP connections at each of some endpoints, wherever their
// clients are; endpoints without any are not in the result. Connections to endpoints of other
// machines are in the table too, if they pass this one. It blocks for one read of the table
// per family.
func (t *Table) Connections(at map[netip.AddrPort]bool) (map[netip.AddrPort]int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	open := make(map[netip.AddrPort]int)
	for family := range familiesOf(at) {
		found, err := t.countOpen(family, at)
		if err != nil {
			return nil, fmt.Errorf("counting connections in the connection tracking table: %w", err)
		}
		maps.Copy(open, found)
	}
	return open, nil
}

// countOpen connections of a family. After the last attempt entries may be missing, or be
// counted twice, as if read a moment ago.
func (t *Table) countOpen(family uint8, at map[netip.AddrPort]bool) (open map[netip.AddrPort]int, err error) {
	for range attempts {
		open = make(map[netip.AddrPort]int)
		err = t.dump(family, unix.IPPROTO_TCP, func(e entry) {
			if at[e.from] && e.open() {
				open[e.from]++
			}
		})
		if !errors.Is(err, nfnl.ErrInterrupted) {
			return open, err
		}
	}
	return open, nil
}

// Translated reports whether the table has a TCP, UDP or SCTP flow of a family
// (AF_INET, AF_INET6) that goes to another address than the client's destination.
func (t *Table) Translated(family uint8) (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	found := false
	err := t.dump(family, 0, func(e entry) { found = found || e.to != e.from })
	if err != nil && !errors.Is(err, nfnl.ErrInterrupted) { // entries may be missing, as if read a moment ago
		return false, fmt.Errorf("reading the connection tracking table: %w", err)
	}
	return found, nil
}

// dump passes the entries of a protocol, 0: of TCP, UDP and SCTP, to each. Kernels
// before 5.8 ignore the filter and dump all.
func (t *Table) dump(family, protocol uint8, each func(entry)) error {
	var a nfnl.Attrs
	if protocol != 0 {
		a.Nest(ctaTupleOrig, func() {
			a.Nest(ctaTupleProto, func() { a.U8(ctaProtoNum, protocol) })
		})
		a.Nest(ctaFilter, func() {
			// Flags are in the host's byte order, unlike other numbers.
			a.Data(ctaFilterOrigFlags, nfnl.Host(ctaFilterProto))
			a.Data(ctaFilterReplyFlags, nfnl.Host(0))
		})
	}
	return t.conn.Dump(unix.NFNL_SUBSYS_CTNETLINK<<8|ctGet, family, a.Bytes(), func(attributes []byte) {
		if e, ok := parse(attributes); ok && (protocol == 0 || e.protocol == protocol) {
			each(e)
		}
	})
}

// end entries. One that is gone already is no error, and is not counted.
func (t *Table) end(family uint8, entries []identity) (ended int, err error) {
	var failed error
	request := func(i int, a *nfnl.Attrs) { entries[i].encode(a) }
	err = t.conn.RequestEach(unix.NFNL_SUBSYS_CTNETLINK<<8|ctDelete, family, len(entries), request, func(_ int, err error) {
		switch {
		case err == nil:
			ended++
		case !errors.Is(err, unix.ENOENT):
			failed = err
		}
	})
	return ended, errors.Join(err, failed)
}

func (t *Table) localAddrs() (map[netip.Addr]struct{}, error) {
	var addrs []netlink.Addr
	var err error
	for range attempts {
		if addrs, err = t.route.AddrList(nil, netlink.FAMILY_ALL); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("listing the addresses of this machine: %w", err)
	}
	local := make(map[netip.Addr]struct{}, len(addrs))
	for _, a := range addrs {
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			local[ip.Unmap()] = struct{}{}
		}
	}
	return local, nil
}
