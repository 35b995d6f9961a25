// Package record is the transport below crypto/tls in gateways, and the buffers that
// gateways copy with.
//
// Conn is the net.Conn that a tls.Conn reads and writes. It takes what the socket has
// in one call, passes it on record by record, and collects records that are written
// into one call. It holds a buffer only while there is data. Enter at NewConn, at
// NewSocket for connections without TLS, and at Pool. The package looks at the length
// of records only; it never decrypts, checks or makes one.
package record

import (
	"sync"
	"sync/atomic"
)

// Class is a size of buffers.
type Class uint8

// The classes. Tiny is for a pool that has used up its limit.
const (
	Tiny Class = iota
	Small
	Medium
	Large

	classes
)

// overhead is what a buffer has beyond the nominal size: headers and tags of all
// records of 4 kB that fit (22 bytes each, RFC 8446, 5.2), and the header of a frame.
const overhead = 2 << 10

var nominal = [classes]int{2 << 10, 16 << 10, 64 << 10, 256 << 10}

// Size is the number of bytes of data that a buffer is meant for.
func (c Class) Size() int { return nominal[c] }

// Buffer is owned by one user between Get and Put.
type Buffer struct {
	// Bytes has the size of the class and some more, for headers.
	Bytes []byte
	class Class
}

// Class of the buffer, which may be smaller than asked for.
func (b *Buffer) Class() Class { return b.class }

// DefaultLimit is the memory of buffers in use that a Pool allows by default.
const DefaultLimit = 64 << 20

// Pool hands out buffers. Those in use take no more than the limit together, except
// that one of class Tiny is always granted: a connection may become slow, but never
// waits for another one's buffer. Safe for concurrent use.
type Pool struct {
	limit int64
	used  atomic.Int64
	taken atomic.Uint64 // bytes ever handed out
	free  [classes]sync.Pool
}

// NewPool returns a pool with a limit in bytes; 0: DefaultLimit.
func NewPool(limit int64) *Pool {
	if limit <= 0 {
		limit = DefaultLimit
	}
	p := &Pool{limit: limit}
	for c := range classes {
		p.free[c].New = func() any { return &Buffer{Bytes: make([]byte, nominal[c]+overhead), class: c} }
	}
	return p
}

// Get returns a buffer of the class, or of the largest smaller one that the limit
// allows. It does not block.
func (p *Pool) Get(c Class) *Buffer {
	for ; c > Tiny; c-- {
		size := int64(nominal[c] + overhead)
		if p.used.Add(size) <= p.limit {
			break
		}
		p.used.Add(-size)
	}
	if c == Tiny {
		p.used.Add(int64(nominal[Tiny] + overhead))
	}
	b := p.free[c].Get().(*Buffer)
	p.taken.Add(uint64(len(b.Bytes)))
	return b
}

// Put takes a buffer back. The caller must not use it any more; nil is ignored.
func (p *Pool) Put(b *Buffer) {
	if b == nil {
		return
	}
	p.used.Add(-int64(len(b.Bytes)))
	p.free[b.class].Put(b)
}

// InUse is the number of bytes of buffers that were not put back.
func (p *Pool) InUse() int64 { return p.used.Load() }

// Sizer chooses the class for one direction of a connection: it grows while reads fill
// the buffer, and shrinks after several that leave most of it empty. The zero value
// begins with Small.
type Sizer struct {
	grown Class // above Small
	short uint8
}

// shortReads in a row after which the class shrinks.
const shortReads = 8

// Class for the next read.
func (s *Sizer) Class() Class { return Small + s.grown }

// Note records a read of n bytes into the given number of bytes of a buffer.
func (s *Sizer) Note(n, space int) {
	switch {
	case n >= space:
		s.short = 0
		if s.Class() < Large {
			s.grown++
		}
	case s.grown > 0 && n < nominal[s.Class()-1]/2:
		if s.short++; s.short >= shortReads {
			s.short = 0
			s.grown--
		}
	default:
		s.short = 0
	}
}
