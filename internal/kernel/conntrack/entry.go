package conntrack

import (
	"encoding/binary"
	"iter"
	"net/netip"
	"time"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// Numbers of linux/netfilter/nfnetlink_conntrack.h and nf_conntrack_common.h.
const (
	ctaTupleOrig     = 1
	ctaTupleReply    = 2
	ctaStatus        = 3
	ctaProtoInfo     = 4
	ctaCountersOrig  = 9
	ctaCountersReply = 10
	ctaID            = 12
	ctaStatusMask    = 26

	ctaTupleIP    = 1
	ctaTupleProto = 2

	ctaV4Src, ctaV4Dst, ctaV6Src, ctaV6Dst = 1, 2, 3, 4

	ctaProtoNum, ctaSrcPort, ctaDstPort = 1, 2, 3

	ctaCountersBytes = 2

	ctaProtoInfoTCP  = 1
	ctaProtoInfoSCTP = 3
	ctaStateOf       = 1 // CTA_PROTOINFO_TCP_STATE, CTA_PROTOINFO_SCTP_STATE

	statusSeenReply = 1 << 1 // IPS_SEEN_REPLY
	statusDNAT      = 1 << 5 // IPS_DST_NAT

	// enum tcp_conntrack of nf_conntrack_tcp.h.
	tcpEstablished, tcpFinWait, tcpClose = 3, 4, 8
	// enum sctp_conntrack of nf_conntrack_sctp.h.
	sctpEstablished, sctpShutdownSent, sctpShutdownAckSent = 4, 5, 7

	// Protocol numbers, IANA.
	numberTCP, numberUDP, numberSCTP = 6, 17, 132
)

var protocols = map[uint8]proxy.Protocol{numberTCP: proxy.TCP, numberUDP: proxy.UDP, numberSCTP: proxy.SCTP}

// protocolNumber of a protocol; 0: it has none here.
func protocolNumber(p proxy.Protocol) uint8 {
	for number, known := range protocols {
		if known == p {
			return number
		}
	}
	return 0
}

// State of a connection, as far as it matters to who counts connections.
type State uint8

// States. UDP flows have none of their own: they are Opening before an answer, and
// Established from then on.
const (
	Opening State = iota
	Established
	Closed
)

// Entry is a flow whose destination was translated, as a dump gives it. Its memory is the
// dump's: it is valid until the function that gets it returns.
type Entry struct {
	// ID is the kernel's, and Tuple the original tuple as the kernel sends it: together
	// they identify a flow.
	ID    uint32
	Tuple []byte
	State State
	// Counted: the kernel counts the flow's bytes; it does from when
	// net.netfilter.nf_conntrack_acct was set. In came from the client, Out went to it.
	// Headers are included.
	Counted bool
	In, Out uint64

	status   uint32
	info     []byte
	reply    []byte
	protocol uint8
}

// Connectionless reports whether the flow's protocol has no connections.
func (e *Entry) Connectionless() bool { return e.protocol == numberUDP }

// Ends returns who talks to whom: the client, the address that it connected to, and the
// endpoint.
func (e *Entry) Ends() (client netip.AddrPort, to Frontend, endpoint netip.AddrPort) {
	client, dst, _, _ := parseTuple(e.Tuple)
	endpoint, _, _, _ = parseTuple(e.reply)
	return client, Frontend{protocols[e.protocol], dst}, endpoint
}

// Dump describes what a call of Dump read.
type Dump struct {
	// Flows that were passed on.
	Flows int
	// Whole: all there are; else the limit was reached.
	Whole bool
	// CPU that this process spent, in the kernel and outside.
	CPU time.Duration
}

// Parse the attributes of a dumped entry, which it keeps, without allocating. ok is false for
// what is not a translated TCP, UDP or SCTP flow, or not complete.
func (e *Entry) Parse(b []byte) (ok bool) {
	*e = Entry{}
	counters := 0
	for len(b) >= attrHeader {
		typ, v, rest := cut(b)
		if rest == nil {
			return false
		}
		switch typ {
		case ctaTupleOrig:
			e.Tuple = v
		case ctaTupleReply:
			e.reply = v
		case ctaStatus:
			e.status = number32(v)
		case ctaProtoInfo:
			e.info = v
		case ctaCountersOrig:
			e.In = bytesOf(v)
			counters++
		case ctaCountersReply:
			e.Out = bytesOf(v)
			counters++
		case ctaID:
			e.ID = number32(v)
		}
		b = rest
	}
	e.Counted = counters == 2
	if e.status&statusDNAT == 0 || len(e.reply) == 0 {
		return false
	}
	if e.protocol = protocolIn(e.Tuple); e.protocol == 0 {
		return false
	}
	e.State = e.stateNow()
	return true
}

func (e *Entry) stateNow() State {
	if e.protocol == numberUDP {
		if e.status&statusSeenReply != 0 {
			return Established
		}
		return Opening
	}
	typ, inner, rest := cut(e.info)
	if rest == nil {
		return Opening
	}
	state := -1
	for len(inner) >= attrHeader {
		t, v, rest := cut(inner)
		if rest == nil {
			break
		}
		if t == ctaStateOf && len(v) == 1 {
			state = int(v[0])
		}
		inner = rest
	}
	switch {
	case typ == ctaProtoInfoTCP && state == tcpEstablished, typ == ctaProtoInfoSCTP && state == sctpEstablished:
		return Established
	case typ == ctaProtoInfoTCP && state >= tcpFinWait && state <= tcpClose,
		typ == ctaProtoInfoSCTP && state >= sctpShutdownSent && state <= sctpShutdownAckSent:
		return Closed
	}
	return Opening
}

// protocolIn a tuple: the number of TCP, UDP or SCTP; 0: another one.
func protocolIn(tuple []byte) uint8 {
	for len(tuple) >= attrHeader {
		typ, v, rest := cut(tuple)
		if rest == nil {
			return 0
		}
		if typ == ctaTupleProto {
			// CTA_PROTO_NUM is the first that the kernel puts there.
			inner, v, rest := cut(v)
			if rest == nil || inner != ctaProtoNum || len(v) != 1 {
				return 0
			}
			switch v[0] {
			case numberTCP, numberUDP, numberSCTP:
				return v[0]
			}
			return 0
		}
		tuple = rest
	}
	return 0
}

const attrHeader = 4

// cut the first attribute off b. rest is nil if there is none that fits; at the end it is
// empty.
func cut(b []byte) (typ uint16, v, rest []byte) {
	if len(b) < attrHeader {
		return 0, nil, nil
	}
	n := int(binary.NativeEndian.Uint16(b))
	if n < attrHeader || n > len(b) {
		return 0, nil, nil
	}
	next := min((n+3)&^3, len(b))
	return binary.NativeEndian.Uint16(b[2:]) & 0x3fff, b[attrHeader:n], b[next:]
}

func number32(v []byte) uint32 {
	if len(v) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(v)
}

// bytesOf nested counters.
func bytesOf(v []byte) uint64 {
	for len(v) >= attrHeader {
		typ, n, rest := cut(v)
		if rest == nil {
			return 0
		}
		if typ == ctaCountersBytes && len(n) == 8 {
			return binary.BigEndian.Uint64(n)
		}
		v = rest
	}
	return 0
}

func parseTuple(b []byte) (src, dst netip.AddrPort, protocol uint8, ok bool) {
	var from, to netip.Addr
	var sport, dport uint16
	for typ, v := range attributes(b) {
		switch typ {
		case ctaTupleIP:
			for typ, v := range attributes(v) {
				switch typ {
				case ctaV4Src, ctaV6Src:
					from, _ = netip.AddrFromSlice(v)
				case ctaV4Dst, ctaV6Dst:
					to, _ = netip.AddrFromSlice(v)
				}
			}
		case ctaTupleProto:
			for typ, v := range attributes(v) {
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

// attributes in b, up to the first that does not fit.
func attributes(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for {
			typ, v, rest := cut(b)
			if rest == nil || !yield(typ, v) {
				return
			}
			b = rest
		}
	}
}
