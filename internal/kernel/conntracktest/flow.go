// Package conntracktest builds entries of the kernel's connection tracking table, as a dump
// has them, for tests of who reads them. Enter at Flow.
package conntracktest

import (
	"encoding/binary"
	"net/netip"
)

// Numbers of linux/netfilter/nfnetlink_conntrack.h and nf_conntrack_common.h.
const (
	tupleOrig     = 1
	tupleReply    = 2
	status        = 3
	protoInfo     = 4
	countersOrig  = 9
	countersReply = 10
	id            = 12

	tupleIP, tupleProto          = 1, 2
	v4Src, v4Dst, v6Src, v6Dst   = 1, 2, 3, 4
	protoNum, srcPort, dstPort   = 1, 2, 3
	countersPackets, bytesOfFlow = 1, 2
	infoTCP, infoSCTP, stateOf   = 1, 3, 1

	// DNAT (IPS_DST_NAT): the destination was translated.
	DNAT = 1 << 5
	// SeenReply (IPS_SEEN_REPLY): there was an answer.
	SeenReply = 1 << 1

	// TCP, UDP and SCTP are protocol numbers (IANA).
	TCP, UDP, SCTP = 6, 17, 132

	nested = 1 << 15 // NLA_F_NESTED
)

// Flow is an entry of the table.
type Flow struct {
	ID       uint32
	Protocol byte
	// Status has the bits IPS_*.
	Status uint32
	// State of TCP (enum tcp_conntrack) or SCTP (enum sctp_conntrack); 0: the entry has none.
	State byte
	// Client connected to To, and is answered by Endpoint.
	Client, To, Endpoint netip.AddrPort
	// Bytes from the client and to it; nil: the kernel does not count them.
	Bytes *[2]uint64
}

// Attributes of the flow, as they follow the header of a message.
func (f Flow) Attributes() []byte {
	b := append(tuple(tupleOrig, f.Protocol, f.Client, f.To), tuple(tupleReply, f.Protocol, f.Endpoint, f.Client)...)
	b = append(b, attr(status, number(4, uint64(f.Status)))...)
	info := uint16(infoTCP)
	if f.Protocol == SCTP {
		info = infoSCTP
	}
	if f.State != 0 {
		b = append(b, attr(protoInfo, attr(info, attr(stateOf, []byte{f.State})))...)
	}
	b = append(b, attr(id, number(4, uint64(f.ID)))...)
	if f.Bytes != nil {
		b = append(b, counters(countersOrig, f.Bytes[0])...)
		b = append(b, counters(countersReply, f.Bytes[1])...)
	}
	return b
}

func tuple(typ uint16, protocol byte, from, to netip.AddrPort) []byte {
	src, dst := uint16(v4Src), uint16(v4Dst)
	if from.Addr().Is6() {
		src, dst = v6Src, v6Dst
	}
	return attr(typ|nested,
		attr(tupleIP|nested, attr(src, from.Addr().AsSlice()), attr(dst, to.Addr().AsSlice())),
		attr(tupleProto|nested, attr(protoNum, []byte{protocol}),
			attr(srcPort, number(2, uint64(from.Port()))), attr(dstPort, number(2, uint64(to.Port())))))
}

func counters(typ uint16, bytes uint64) []byte {
	return attr(typ, attr(countersPackets, number(8, 1)), attr(bytesOfFlow, number(8, bytes)))
}

// attr is an attribute as the kernel writes it, with its padding.
func attr(typ uint16, parts ...[]byte) []byte {
	var v []byte
	for _, p := range parts {
		v = append(v, p...)
	}
	b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(v)))
	b = append(binary.NativeEndian.AppendUint16(b, typ), v...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// number of n bytes, in the order of the network.
func number(n int, v uint64) []byte { return binary.BigEndian.AppendUint64(nil, v)[8-n:] }
