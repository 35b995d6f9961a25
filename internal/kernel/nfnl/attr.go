//go:build linux

package nfnl

import (
	"encoding/binary"
	"iter"
)

// Sizes of linux/netlink.h.
const (
	attrHeader    = 4
	messageHeader = 16
	familyHeader  = 4 // struct nfgenmsg
	nested        = 1 << 15
	typeMask      = 0x3fff
)

func align(n int) int { return (n + 3) &^ 3 }

// Attrs builds netlink attributes. The zero value is empty and ready.
type Attrs struct{ b []byte }

// Bytes are the attributes so far; valid until the next call.
func (a *Attrs) Bytes() []byte { return a.b }

// Reset empties it and keeps the memory.
func (a *Attrs) Reset() { a.b = a.b[:0] }

func (a *Attrs) header(typ uint16, n int) {
	a.b = binary.NativeEndian.AppendUint16(a.b, uint16(attrHeader+n))
	a.b = binary.NativeEndian.AppendUint16(a.b, typ)
}

func (a *Attrs) pad() {
	for len(a.b)&3 != 0 {
		a.b = append(a.b, 0)
	}
}

// Data adds an attribute of these bytes.
func (a *Attrs) Data(typ uint16, data string) {
	a.header(typ, len(data))
	a.b = append(a.b, data...)
	a.pad()
}

// String adds text with the terminating zero that the kernel wants.
func (a *Attrs) String(typ uint16, s string) {
	a.header(typ, len(s)+1)
	a.b = append(append(a.b, s...), 0)
	a.pad()
}

// U8 adds one byte.
func (a *Attrs) U8(typ uint16, v uint8) {
	a.header(typ, 1)
	a.b = append(a.b, v, 0, 0, 0)
}

// U16 adds a number in network order, as nfnetlink has them.
func (a *Attrs) U16(typ, v uint16) {
	a.header(typ, 2)
	a.b = append(binary.BigEndian.AppendUint16(a.b, v), 0, 0)
}

// U32 adds a number in network order.
func (a *Attrs) U32(typ uint16, v uint32) {
	a.header(typ, 4)
	a.b = binary.BigEndian.AppendUint32(a.b, v)
}

// U64 adds a number in network order.
func (a *Attrs) U64(typ uint16, v uint64) {
	a.header(typ, 8)
	a.b = binary.BigEndian.AppendUint64(a.b, v)
}

// Nest adds an attribute of what fill adds.
func (a *Attrs) Nest(typ uint16, fill func()) {
	at := a.open(typ)
	fill()
	a.close(at)
}

func (a *Attrs) open(typ uint16) int {
	at := len(a.b)
	a.header(typ|nested, 0)
	return at
}

func (a *Attrs) close(at int) {
	binary.NativeEndian.PutUint16(a.b[at:], uint16(len(a.b)-at))
}

// ParseAttrs yields the attributes in b; type flags are taken off. It stops at the
// first that does not fit.
func ParseAttrs(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= attrHeader {
			n := int(binary.NativeEndian.Uint16(b))
			if n < attrHeader || n > len(b) {
				return
			}
			if !yield(binary.NativeEndian.Uint16(b[2:])&typeMask, b[attrHeader:n]) {
				return
			}
			b = b[min(align(n), len(b)):]
		}
	}
}

func u32(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}

func u64(b []byte) uint64 {
	if len(b) < 8 {
		return 0
	}
	return binary.BigEndian.Uint64(b)
}

// text is an attribute's string without its zero.
func text(b []byte) string {
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}
