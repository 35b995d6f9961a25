package ipam

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
)

// position is an address as a number: hi is 0 for IPv4, and the same for every
// address of an IPv6 range, because ranges are /64 or smaller.
type position struct{ hi, lo uint64 }

func positionOf(a netip.Addr) position {
	if a.Is4() {
		b := a.As4()
		return position{lo: uint64(binary.BigEndian.Uint32(b[:]))}
	}
	b := a.As16()
	return position{hi: binary.BigEndian.Uint64(b[:8]), lo: binary.BigEndian.Uint64(b[8:])}
}

func (p position) addr(v4 bool) netip.Addr {
	if v4 {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], uint32(p.lo))
		return netip.AddrFrom4(b)
	}
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], p.hi)
	binary.BigEndian.PutUint64(b[8:], p.lo)
	return netip.AddrFrom16(b)
}

// A chunk covers 1024 neighbouring numbers in 128 bytes: a full /12 or /108 is
// 1024 chunks (about 200 KiB with the map), an empty one is nothing.
const (
	chunkShift = 10
	chunkBits  = 1 << chunkShift
	chunkMask  = chunkBits - 1
)

type chunk struct {
	words [chunkBits / 64]uint64
	count int
}

// set is a sparse set of positions. The zero value is empty. It knows nothing
// of ranges, so overlapping ranges and ranges added later need no bookkeeping.
type set struct {
	chunks map[position]*chunk
	count  int
}

func (s *set) has(p position) bool {
	c := s.chunks[position{p.hi, p.lo >> chunkShift}]
	return c != nil && c.words[p.lo&chunkMask/64]&(1<<(p.lo%64)) != 0
}

// add is idempotent; it reports whether the set changed.
func (s *set) add(p position) bool {
	key := position{p.hi, p.lo >> chunkShift}
	c := s.chunks[key]
	if c == nil {
		if s.chunks == nil {
			s.chunks = make(map[position]*chunk)
		}
		c = new(chunk)
		s.chunks[key] = c
	}
	word, bit := &c.words[p.lo&chunkMask/64], uint64(1)<<(p.lo%64)
	if *word&bit != 0 {
		return false
	}
	*word |= bit
	c.count++
	s.count++
	return true
}

// remove is idempotent; it reports whether the set changed.
func (s *set) remove(p position) bool {
	key := position{p.hi, p.lo >> chunkShift}
	c := s.chunks[key]
	if c == nil {
		return false
	}
	word, bit := &c.words[p.lo&chunkMask/64], uint64(1)<<(p.lo%64)
	if *word&bit == 0 {
		return false
	}
	*word &^= bit
	c.count--
	s.count--
	if c.count == 0 {
		delete(s.chunks, key)
	}
	return true
}

// nextFree returns the first number in [from, to] that is not in the set. Full
// chunks cost one look-up, other words one instruction or two.
func (s *set) nextFree(hi, from, to uint64) (uint64, bool) {
	for from <= to {
		c := s.chunks[position{hi, from >> chunkShift}]
		if c == nil {
			return from, true
		}
		last := from | chunkMask // of this chunk
		if c.count < chunkBits {
			for n := from; n <= min(last, to); {
				// Bits below n count as taken.
				free := ^c.words[n&chunkMask/64] &^ (1<<(n%64) - 1)
				if free != 0 {
					n = (n &^ 63) + uint64(bits.TrailingZeros64(free))
					return n, n <= to
				}
				if n|63 == last {
					break
				}
				n = (n | 63) + 1
			}
		}
		if last == ^uint64(0) {
			break
		}
		from = last + 1
	}
	return 0, false
}

// countIn counts the members in [from, to], at the price of the chunks held.
func (s *set) countIn(hi, from, to uint64) int {
	total := 0
	for key, c := range s.chunks {
		first := key.lo << chunkShift
		last := first | chunkMask
		switch {
		case key.hi != hi || last < from || first > to:
		case first >= from && last <= to:
			total += c.count
		default:
			for w, word := range c.words {
				for word != 0 {
					n := first + uint64(w*64+bits.TrailingZeros64(word))
					if n >= from && n <= to {
						total++
					}
					word &= word - 1
				}
			}
		}
	}
	return total
}
