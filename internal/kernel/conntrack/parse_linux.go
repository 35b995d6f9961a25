package conntrack

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/kernel/nfnl"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// Numbers of linux/netfilter/nfnetlink_conntrack.h.
const (
	ctGet    = 1 // IPCTNL_MSG_CT_GET
	ctDelete = 2 // IPCTNL_MSG_CT_DELETE

	ctaTupleOrig  = 1
	ctaTupleReply = 2
	ctaProtoInfo  = 4
	ctaID         = 12
	ctaZone       = 18
	ctaFilter     = 25

	ctaFilterOrigFlags  = 1
	ctaFilterReplyFlags = 2
	ctaFilterProto      = 1 << 3 // CTA_FILTER_F_CTA_PROTO_NUM, net/netfilter/nf_internals.h

	ctaTupleIP    = 1
	ctaTupleProto = 2

	ctaV4Src, ctaV4Dst, ctaV6Src, ctaV6Dst = 1, 2, 3, 4

	ctaProtoNum, ctaSrcPort, ctaDstPort = 1, 2, 3

	ctaProtoInfoTCP      = 1
	ctaProtoInfoTCPState = 1

	nested = unix.NLA_F_NESTED
)

// States of TCP entries, linux/netfilter/nf_conntrack_tcp.h: from the first SYN until both
// sides have closed.
const (
	tcpSynSent   = 1
	tcpCloseWait = 5
)

var protocols = map[uint8]proxy.Protocol{
	unix.IPPROTO_TCP:  proxy.TCP,
	unix.IPPROTO_UDP:  proxy.UDP,
	unix.IPPROTO_SCTP: proxy.SCTP,
}

// protocolNumber of a protocol; 0: it has none here.
func protocolNumber(p proxy.Protocol) uint8 {
	for number, known := range protocols {
		if known == p {
			return number
		}
	}
	return 0
}

// entry is an entry of the table, as the kernel dumps it. The slices are the dump's.
type entry struct {
	protocol uint8
	// to is the destination of the original direction, from the source of the reply.
	to, from        netip.AddrPort
	tuple, id, zone []byte
	// tcpState; 0: none is known.
	tcpState uint8
}

// open reports whether an entry of TCP is of a connection on which data may still flow. Those
// that wait for the last acknowledgement, or for their time to run out, are not.
func (e *entry) open() bool { return e.tcpState >= tcpSynSent && e.tcpState <= tcpCloseWait }

func (e *entry) flow() Flow {
	return Flow{Protocol: protocols[e.protocol], Frontend: e.to, Endpoint: e.from}
}

// identity is what a request to delete an entry names: its original tuple, and its ID, so
// that a later entry with the same tuple stays.
type identity struct{ tuple, id, zone string }

func (e *entry) identity() identity {
	return identity{tuple: string(e.tuple), id: string(e.id), zone: string(e.zone)}
}

func (i *identity) encode(a *nfnl.Attrs) {
	a.Data(ctaTupleOrig|nested, i.tuple)
	if i.zone != "" {
		a.Data(ctaZone, i.zone)
	}
	if i.id != "" {
		a.Data(ctaID, i.id)
	}
}

// parse the attributes of an entry. ok is false for entries of other protocols than TCP,
// UDP and SCTP, and for those that are not complete.
func parse(b []byte) (e entry, ok bool) {
	var origin, reply bool
	for typ, v := range nfnl.ParseAttrs(b) {
		switch typ {
		case ctaTupleOrig:
			_, e.to, e.protocol, origin = parseTuple(v)
			e.tuple = v
		case ctaTupleReply:
			e.from, _, _, reply = parseTuple(v)
		case ctaProtoInfo:
			e.tcpState = parseTCPState(v)
		case ctaID:
			e.id = v
		case ctaZone:
			e.zone = v
		}
	}
	_, tracked := protocols[e.protocol]
	return e, origin && reply && tracked
}

func parseTuple(b []byte) (src, dst netip.AddrPort, protocol uint8, ok bool) {
	var from, to netip.Addr
	var sport, dport uint16
	for typ, v := range nfnl.ParseAttrs(b) {
		switch typ {
		case ctaTupleIP:
			for typ, v := range nfnl.ParseAttrs(v) {
				switch typ {
				case ctaV4Src, ctaV6Src:
					from, _ = netip.AddrFromSlice(v)
				case ctaV4Dst, ctaV6Dst:
					to, _ = netip.AddrFromSlice(v)
				}
			}
		case ctaTupleProto:
			for typ, v := range nfnl.ParseAttrs(v) {
				switch {
				case typ == ctaProtoNum && len(v) == 1:
					protocol = v[0]
				case typ == ctaSrcPort && len(v) == 2:
					sport = binary.BigEndian.Uint16(v)
				case typ == ctaDstPort && len(v) == 2:
					dport = binary.BigEndian.Uint16(v)
				}
			}
		}
	}
	return netip.AddrPortFrom(from, sport), netip.AddrPortFrom(to, dport), protocol, from.IsValid() && to.IsValid()
}

func parseTCPState(b []byte) uint8 {
	for typ, v := range nfnl.ParseAttrs(b) {
		if typ != ctaProtoInfoTCP {
			continue
		}
		for typ, v := range nfnl.ParseAttrs(v) {
			if typ == ctaProtoInfoTCPState && len(v) == 1 {
				return v[0]
			}
		}
	}
	return 0
}
