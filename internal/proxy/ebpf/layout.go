package ebpf

import (
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// Sizes of keys and values of program/connect.c, in bytes. All numbers are little-endian but
// addresses and ports.
const (
	vip4Size   = 8
	vip6Size   = 20
	listSize   = 24
	slot4Size  = 16
	slot6Size  = 40
	memberSize = 32
	peer4Size  = 24
	peer6Size  = 48
	shards     = 8
)

// protoTCP is IPPROTO_TCP of linux/in.h.
const protoTCP = 6

// flagSticky of a word: clients are remembered.
const flagSticky = 1

// word of a list: where its slots are, how many, and flags. n 0: connections pass. One store of it is the
// whole change of a list.
func word(base, n uint32, flags uint8) uint64 {
	return uint64(base) | uint64(n)<<32 | uint64(flags)<<56
}

// vipKey is struct vip4 or struct vip6.
func vipKey(at netip.AddrPort) []byte {
	a := at.Addr().AsSlice()
	b := make([]byte, 0, vip6Size)
	b = append(b, a...)
	b = binary.BigEndian.AppendUint16(b, at.Port())
	return binary.LittleEndian.AppendUint16(b, protoTCP)
}

// putSlot writes struct slot4 or struct slot6; b has that size.
func putSlot(b []byte, s slot, targets []proxy.Target) {
	clear(b)
	first := targets[s.a].Addr
	n := copy(b, first.Addr().AsSlice())
	ports := b[2*n:]
	binary.BigEndian.PutUint16(ports, first.Port())
	if !s.both {
		return
	}
	second := targets[s.b].Addr
	copy(b[n:], second.Addr().AsSlice())
	binary.BigEndian.PutUint16(ports[2:], second.Port())
	binary.LittleEndian.PutUint16(ports[4:], s.cut)
}

// memberKey is struct member.
func memberKey(id uint64, at netip.AddrPort) []byte {
	b := make([]byte, memberSize)
	binary.LittleEndian.PutUint64(b, id)
	copy(b[8:], at.Addr().AsSlice())
	binary.BigEndian.PutUint16(b[24:], at.Port())
	return b
}

// timeoutOf a sticky list, in ns.
func timeoutOf(d time.Duration) uint64 { return uint64(max(0, d)) }
