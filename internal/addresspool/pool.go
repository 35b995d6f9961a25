// Package addresspool allocates addresses of ranges to objects, in memory.
//
// It owns which object has which address; its users keep that in their objects, and tell a
// new pool at the start (Take). Enter at New. It does no I/O and never gives an address to
// two objects.
package addresspool

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"strings"
	"sync"
)

// ErrFull: no address of the ranges is free.
var ErrFull = errors.New("no free address")

// Range is all addresses from the first to the last, of one family.
type Range struct{ First, Last netip.Addr }

// Inside a network: all of its addresses but the first one and the last one, which in IPv4
// are those of the network and of broadcasts.
func Inside(p netip.Prefix) Range {
	all := rangeOf(p)
	return Range{all.First.Next(), all.Last.Prev()}
}

// ParseRange reads a network (192.0.2.0/28: all of its addresses), two addresses
// (192.0.2.10-192.0.2.20), or one.
func ParseRange(text string) (Range, error) {
	if strings.Contains(text, "/") {
		p, err := netip.ParsePrefix(text)
		switch {
		case err != nil || p.Addr().Is4In6():
			return Range{}, fmt.Errorf("%q is no network, as in 192.0.2.0/28", text)
		case p != p.Masked():
			return Range{}, fmt.Errorf("%q is not the address of a network; %s is", text, p.Masked())
		}
		return rangeOf(p), nil
	}
	from, to, ok := strings.Cut(text, "-")
	if !ok {
		to = from
	}
	r := Range{}
	var err error
	if r.First, err = netip.ParseAddr(strings.TrimSpace(from)); err == nil {
		r.Last, err = netip.ParseAddr(strings.TrimSpace(to))
	}
	if err != nil || r.First.Zone() != "" || r.Last.Zone() != "" {
		return Range{}, fmt.Errorf("%q is no network (192.0.2.0/28), no two addresses (192.0.2.10-192.0.2.20), and no address", text)
	}
	r.First, r.Last = r.First.Unmap(), r.Last.Unmap()
	if r.First.Is4() != r.Last.Is4() || r.Last.Less(r.First) {
		return Range{}, fmt.Errorf("%q does not go from an address to a higher one of the same family", text)
	}
	return r, nil
}

// rangeOf a network: all of its addresses.
func rangeOf(p netip.Prefix) Range {
	host := p.Addr().BitLen() - p.Bits()
	b := p.Masked().Addr().As16()
	for i := 15; host > 0; i-- {
		n := min(host, 8)
		b[i] |= 1<<n - 1
		host -= n
	}
	last := netip.AddrFrom16(b)
	if p.Addr().Is4() {
		last = last.Unmap()
	}
	return Range{p.Masked().Addr(), last}
}

// Contains reports whether an address is in the range.
func (r Range) Contains(a netip.Addr) bool {
	return a.Is4() == r.First.Is4() && !a.Less(r.First) && !r.Last.Less(a)
}

// Overlaps reports whether two ranges share an address.
func (r Range) Overlaps(s Range) bool {
	return r.First.Is4() == s.First.Is4() && !r.Last.Less(s.First) && !s.Last.Less(r.First)
}

// Size is the number of addresses; 1<<64-1 stands for that or more.
func (r Range) Size() uint64 {
	high, low := halves(r.First)
	lastHigh, lastLow := halves(r.Last)
	d, borrow := bits.Sub64(lastLow, low, 0)
	if h, _ := bits.Sub64(lastHigh, high, borrow); h > 0 || d == ^uint64(0) {
		return ^uint64(0)
	}
	return d + 1
}

// at is the address at an offset from the first one.
func (r Range) at(offset uint64) netip.Addr {
	high, low := halves(r.First)
	low, carry := bits.Add64(low, offset, 0)
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], high+carry)
	binary.BigEndian.PutUint64(b[8:], low)
	a := netip.AddrFrom16(b)
	if r.First.Is4() {
		return a.Unmap()
	}
	return a
}

func halves(a netip.Addr) (high, low uint64) {
	b := a.As16()
	return binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
}

// Pool allocates addresses of ranges. Where the search for an object begins is a hash of its
// name, so that a store that is lost and filled again gives most objects the addresses that
// clients may have kept. Safe for concurrent use.
type Pool struct {
	mu     sync.Mutex
	ranges []Range
	owner  map[netip.Addr]string
}

// New makes a pool of ranges, which it keeps.
func New(ranges ...Range) *Pool { return &Pool{ranges: ranges, owner: map[netip.Addr]string{}} }

// Take notes that an object has an address. It returns false if another one has it, or it
// is in no range.
func (p *Pool) Take(addr netip.Addr, object string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if owner, taken := p.owner[addr]; taken {
		return owner == object
	}
	for _, r := range p.ranges {
		if r.Contains(addr) {
			p.owner[addr] = object
			return true
		}
	}
	return false
}

// Free an address that an object has.
func (p *Pool) Free(addr netip.Addr, object string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.owner[addr] == object {
		delete(p.owner, addr)
	}
}

// Has reports whether there is a range of a family.
func (p *Pool) Has(v4 bool) bool {
	for _, r := range p.ranges {
		if r.First.Is4() == v4 {
			return true
		}
	}
	return false
}

// Allocate an address of a family for an object: the one that it has been given before, if
// nothing else has taken it. The error is ErrFull.
func (p *Pool) Allocate(v4 bool, object string) (netip.Addr, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a, ok := Search(p.ranges, v4, object, len(p.owner), func(a netip.Addr) bool {
		owner, taken := p.owner[a]
		return !taken || owner == object
	})
	if !ok {
		return netip.Addr{}, ErrFull
	}
	p.owner[a] = object
	return a, nil
}

// Search for a free address of a family in ranges, from where an object's name says. At most
// taken addresses are not free, which bounds the search.
func Search(ranges []Range, v4 bool, object string, taken int, free func(netip.Addr) bool) (a netip.Addr, ok bool) {
	sum := sha256.Sum256([]byte(object))
	start := binary.BigEndian.Uint64(sum[:8])
	for _, r := range ranges {
		if r.First.Is4() != v4 {
			continue
		}
		size := r.Size()
		first := start % size
		for i := range min(size, uint64(taken)+1) {
			offset := first + i
			if offset >= size || offset < first {
				offset -= size
			}
			if a := r.at(offset); free(a) {
				return a, true
			}
		}
	}
	return netip.Addr{}, false
}
