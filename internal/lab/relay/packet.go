package relay

import (
	"encoding/binary"
	"iter"
	"math"
	"math/rand/v2"
)

// headerSize is that of struct virtio_net_hdr (linux/virtio_net.h), which comes before each packet of a
// TUN device with IFF_VNET_HDR. Its numbers are in the machine's order.
const headerSize = 10

const (
	flagNeedsCsum = 1 // VIRTIO_NET_HDR_F_NEEDS_CSUM
	gsoNone       = 0 // VIRTIO_NET_HDR_GSO_NONE
	gsoTCP4       = 1 // VIRTIO_NET_HDR_GSO_TCPV4
	gsoTCP6       = 4 // VIRTIO_NET_HDR_GSO_TCPV6
	gsoECN        = 0x80
)

// Bits of the flags of TCP (RFC 9293, 3.1).
const (
	tcpFIN = 0x01
	tcpPSH = 0x08
	tcpCWR = 0x80
)

// packet is what one read of the device gives: a header and an IP packet. One of TCP may be
// several segments that are cut later (GSO): the network has them one by one.
type packet struct {
	raw []byte
	// tcp is where the TCP header begins, payload where its data does, size the bytes of data
	// of a segment; 0: it is a single packet.
	tcp, payload, size int
}

// parse what was read. A packet that is not understood is a single one.
func parse(raw []byte) packet {
	p := packet{raw: raw}
	if len(raw) < headerSize {
		return p
	}
	kind := raw[1] &^ gsoECN
	if kind != gsoTCP4 && kind != gsoTCP6 || raw[0]&flagNeedsCsum == 0 {
		return p
	}
	size := int(binary.NativeEndian.Uint16(raw[4:]))
	tcp := headerSize + int(binary.NativeEndian.Uint16(raw[6:]))
	ip := len(raw) > headerSize && (raw[headerSize]>>4 == 4) == (kind == gsoTCP4)
	if !ip || size == 0 || tcp < headerSize+20 || len(raw) < tcp+20 {
		return p
	}
	payload := tcp + int(raw[tcp+12]>>4)*4
	if payload < tcp+20 || payload > len(raw) {
		return p
	}
	p.tcp, p.payload, p.size = tcp, payload, size
	return p
}

// segments of the packet.
func (p packet) segments() int {
	if p.size == 0 {
		return 1
	}
	return max(1, (len(p.raw)-p.payload+p.size-1)/p.size)
}

// slice returns a packet of the segments from first to before last, in out unless these are
// all. The sum of the
// pseudo header is corrected; the kernel completes the checksum of each segment.
func (p packet) slice(out []byte, first, last int) []byte {
	if first == 0 && last == p.segments() {
		return p.raw
	}
	data := p.raw[min(p.payload+first*p.size, len(p.raw)):min(p.payload+last*p.size, len(p.raw))]
	part := append(append(out[:0], p.raw[:p.payload]...), data...)
	if last-first == 1 {
		part[1] = gsoNone
		binary.NativeEndian.PutUint16(part[4:], 0)
	}
	ip, tcp := part[headerSize:], part[p.tcp:]
	before := len(p.raw) - p.tcp
	if ip[0]>>4 == 4 {
		binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
		binary.BigEndian.PutUint16(ip[4:], binary.BigEndian.Uint16(ip[4:])+uint16(first))
		head := ip[:int(ip[0]&15)*4]
		binary.BigEndian.PutUint16(head[10:], 0)
		binary.BigEndian.PutUint16(head[10:], ^fold(sum(head)))
	} else {
		binary.BigEndian.PutUint16(ip[4:], uint16(len(ip)-40))
	}
	binary.BigEndian.PutUint32(tcp[4:], binary.BigEndian.Uint32(tcp[4:])+uint32(first*p.size))
	if last < p.segments() {
		tcp[13] &^= tcpFIN | tcpPSH
	}
	if first > 0 {
		tcp[13] &^= tcpCWR
	}
	// The length is part of the pseudo header (RFC 1624: HC' = HC + ~m + m').
	csum := uint32(binary.BigEndian.Uint16(tcp[16:])) + uint32(^uint16(before)) + uint32(uint16(len(tcp)))
	binary.BigEndian.PutUint16(tcp[16:], fold(csum))
	return part
}

// sum of the 16-bit words of a header.
func sum(b []byte) uint32 {
	var s uint32
	for i := 0; i+1 < len(b); i += 2 {
		s += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	return s
}

func fold(s uint32) uint16 {
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}

// dice decide which packets are lost.
type dice struct {
	loss float64
	rand *rand.Rand
	// left is the number of packets until the next one that is lost.
	left uint64
}

func newDice(loss float64, seed uint64) *dice {
	d := &dice{loss: loss, rand: rand.New(rand.NewPCG(seed, seed))}
	d.draw()
	return d
}

// draw how many packets pass before the next one is lost: a geometric distribution.
func (d *dice) draw() {
	switch {
	case d.loss <= 0:
		d.left = math.MaxUint64
	case d.loss >= 1:
		d.left = 0
	default:
		d.left = uint64(math.Log(1-d.rand.Float64()) / math.Log(1-d.loss))
	}
}

// runs yields what is left of so many packets: the first and the one after the last of each
// run without a loss.
func (d *dice) runs(n int) iter.Seq2[int, int] {
	return func(yield func(int, int) bool) {
		first := 0
		for first < n {
			if uint64(n-first) <= d.left {
				d.left -= uint64(n - first)
				yield(first, n)
				return
			}
			lost := first + int(d.left)
			d.draw()
			if lost > first && !yield(first, lost) {
				return
			}
			first = lost + 1
		}
	}
}
