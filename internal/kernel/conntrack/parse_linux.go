package conntrack

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/kernel/nfnl"
)

// Numbers of linux/netfilter/nfnetlink_conntrack.h.
const (
	ctGet    = 1 // IPCTNL_MSG_CT_GET
	ctDelete = 2 // IPCTNL_MSG_CT_DELETE

	ctaZone   = 18
	ctaFilter = 25

	ctaFilterOrigFlags  = 1
	ctaFilterReplyFlags = 2
	ctaFilterProto      = 1 << 3 // CTA_FILTER_F_CTA_PROTO_NUM, net/netfilter/nf_internals.h

	nested = unix.NLA_F_NESTED
)

// States of TCP entries, linux/netfilter/nf_conntrack_tcp.h: from the first SYN until both
// sides have closed.
const (
	tcpSynSent   = 1
	tcpCloseWait = 5
)

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

func parseTCPState(b []byte) uint8 {
	for typ, v := range nfnl.ParseAttrs(b) {
		if typ != ctaProtoInfoTCP {
			continue
		}
		for typ, v := range nfnl.ParseAttrs(v) {
			if typ == ctaStateOf && len(v) == 1 {
				return v[0]
			}
		}
	}
	return 0
}
