package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// attempts bounds how often a table that changes while it is read is read again.
const attempts = 3

// Attributes of linux/netfilter/nfnetlink_conntrack.h that netlink does not name.
const (
	ctaFilter          = 25
	ctaFilterOrigFlags = 1
	// filterProtocol is CTA_FILTER_F_CTA_PROTO_NUM of
	// net/netfilter/nf_conntrack_netlink.c.
	filterProtocol = 1 << 3
)

var protocolNumbers = map[uint8]proxy.Protocol{unix.IPPROTO_TCP: proxy.TCP, unix.IPPROTO_UDP: proxy.UDP, unix.IPPROTO_SCTP: proxy.SCTP}

// Table is the connection tracking table of one network namespace. Safe for
// concurrent use.
type Table struct {
	mu     sync.Mutex
	socket *nl.SocketHandle
	handle *netlink.Handle
}

// Open the table of the calling thread's network namespace. The table stays that
// namespace's wherever it is used later. Needs CAP_NET_ADMIN.
func Open() (*Table, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("opening the list of addresses: %w", err)
	}
	s, err := nl.Subscribe(unix.NETLINK_NETFILTER)
	if err != nil {
		h.Close()
		return nil, fmt.Errorf("opening the connection tracking table: %w", err)
	}
	return &Table{socket: &nl.SocketHandle{Socket: s}, handle: h}, nil
}

// Close the table. It must not be used any more.
func (t *Table) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.socket.Close()
	t.handle.Close()
	return nil
}

// Prune ends the flows of the named fronts that are not at one of their
// endpoints, and tells how many it were. It reads the table once per family,
// however many fronts there are, and blocks for that time (about 1 s per million
// entries). An entry that ends by itself meanwhile is no error.
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
	protocol := keep.protocol()
	var n int
	var errs []error
	for family, wanted := range map[uint8]bool{unix.AF_INET: v4, unix.AF_INET6: v6} {
		if wanted {
			ended, err := t.prune(family, protocol, x)
			n += ended
			errs = append(errs, err)
		}
	}
	return n, errors.Join(errs...)
}

// protocol of all fronts, 0 if they differ.
func (k Keep) protocol() uint8 {
	var all uint8
	for f := range k {
		for number, p := range protocolNumbers {
			if p == f.Protocol && all != 0 && all != number {
				return 0
			} else if p == f.Protocol {
				all = number
			}
		}
	}
	return all
}

func (t *Table) prune(family, protocol uint8, x *index) (n int, err error) {
	for range attempts {
		var entries [][]byte
		entries, err = t.dump(family, protocol)
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
		var failed error
		for _, e := range entries {
			tuples, f, ok := parse(e)
			if !ok || !x.stale(f) {
				continue
			}
			switch e := t.end(family, tuples); {
			case e == nil:
				n++
			case !errors.Is(e, unix.ENOENT):
				failed = e
			}
		}
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

func (t *Table) request(command, flags int, family uint8) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|command, flags)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_NETFILTER: t.socket}
	req.AddData(&nl.Nfgenmsg{NfgenFamily: family, Version: nl.NFNETLINK_V0})
	return req
}

// dump the entries of a protocol, 0: of all. Kernels before 5.8 do not know the
// filter and give all.
func (t *Table) dump(family, protocol uint8) ([][]byte, error) {
	req := t.request(nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP, family)
	if protocol != 0 {
		tuple := nl.NewRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_ORIG, nil)
		tuple.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_PROTO, nil).AddRtAttr(nl.CTA_PROTO_NUM, nl.Uint8Attr(protocol))
		filter := nl.NewRtAttr(unix.NLA_F_NESTED|ctaFilter, nil)
		filter.AddRtAttr(ctaFilterOrigFlags, nl.Uint32Attr(filterProtocol))
		req.AddData(tuple)
		req.AddData(filter)
	}
	return req.Execute(unix.NETLINK_NETFILTER, 0)
}

// end an entry by its tuples and identity, so that another that took its place
// stays.
func (t *Table) end(family uint8, identity []byte) error {
	req := t.request(nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK, family)
	req.AddRawData(identity)
	_, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	return err
}

func (t *Table) localAddrs() (map[netip.Addr]struct{}, error) {
	addrs, err := t.handle.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("listing the addresses of this machine: %w", err)
	}
	local := make(map[netip.Addr]struct{}, len(addrs))
	for _, a := range addrs {
		if ip, ok := addr(a.IP); ok {
			local[ip] = struct{}{}
		}
	}
	return local, nil
}

// parse an entry as the kernel dumps it. The first result is what names it: its
// attributes, as they came.
func parse(entry []byte) (identity []byte, f flow, ok bool) {
	if len(entry) < nl.SizeofNfgenmsg {
		return nil, flow{}, false
	}
	identity = entry[nl.SizeofNfgenmsg:]
	origin, number, ok := tuple(attribute(identity, nl.CTA_TUPLE_ORIG), nl.CTA_IP_V4_DST, nl.CTA_IP_V6_DST, nl.CTA_PROTO_DST_PORT)
	if !ok {
		return nil, flow{}, false
	}
	reply, _, ok := tuple(attribute(identity, nl.CTA_TUPLE_REPLY), nl.CTA_IP_V4_SRC, nl.CTA_IP_V6_SRC, nl.CTA_PROTO_SRC_PORT)
	return identity, flow{protocol: protocolNumbers[number], dialled: origin, answers: reply}, ok
}

// tuple reads one end of it.
func tuple(b []byte, v4, v6, port uint16) (netip.AddrPort, uint8, bool) {
	ip, proto := attribute(b, nl.CTA_TUPLE_IP), attribute(b, nl.CTA_TUPLE_PROTO)
	raw := attribute(ip, v4)
	if raw == nil {
		raw = attribute(ip, v6)
	}
	a, ok := netip.AddrFromSlice(raw)
	number, p := attribute(proto, nl.CTA_PROTO_NUM), attribute(proto, port)
	if !ok || len(number) != 1 || len(p) != 2 {
		return netip.AddrPort{}, 0, false
	}
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16(p)), number[0], true
}

// attribute finds one by its type (struct nlattr of linux/netlink.h); nil: there is
// none.
func attribute(b []byte, kind uint16) []byte {
	for len(b) >= unix.SizeofNlAttr {
		size := int(binary.NativeEndian.Uint16(b))
		if size < unix.SizeofNlAttr || size > len(b) {
			return nil
		}
		if binary.NativeEndian.Uint16(b[2:])&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER) == kind {
			return b[unix.SizeofNlAttr:size]
		}
		b = b[min((size+unix.NLA_ALIGNTO-1)&^(unix.NLA_ALIGNTO-1), len(b)):]
	}
	return nil
}

func addr(ip net.IP) (netip.Addr, bool) {
	a, ok := netip.AddrFromSlice(ip)
	return a.Unmap(), ok
}
