package ebpf

import (
	"math/bits"
	"slices"
)

// span of numbers from base on.
type span struct{ base, n uint32 }

// spans hands out spans of numbers below a size. What is given back must not be read by any program any
// more: see graces.
type spans struct {
	free []span // sorted, none touches the next
	left uint32
}

func newSpans(size uint32) *spans { return &spans{free: []span{{0, size}}, left: size} }

// take n numbers that follow one another; ok is false where there are none.
func (s *spans) take(n uint32) (base uint32, ok bool) {
	for i, f := range s.free {
		switch {
		case f.n < n:
			continue
		case f.n == n:
			s.free = slices.Delete(s.free, i, i+1)
		default:
			s.free[i] = span{f.base + n, f.n - n}
		}
		s.left -= n
		return f.base, true
	}
	return 0, false
}

// give n numbers back.
func (s *spans) give(base, n uint32) {
	if n == 0 {
		return
	}
	s.left += n
	i, _ := slices.BinarySearchFunc(s.free, base, func(f span, base uint32) int { return int(int64(f.base) - int64(base)) })
	before := i > 0 && s.free[i-1].base+s.free[i-1].n == base
	after := i < len(s.free) && base+n == s.free[i].base
	switch {
	case before && after:
		s.free[i-1].n += n + s.free[i].n
		s.free = slices.Delete(s.free, i, i+1)
	case before:
		s.free[i-1].n += n
	case after:
		s.free[i] = span{base, n + s.free[i].n}
	default:
		s.free = slices.Insert(s.free, i, span{base, n})
	}
}

// room is the size of a map for n entries: a power of two with as much again, so that all that is there
// can be replaced before the old is given back.
func room(n, least int) uint32 {
	return max(uint32(least), 1<<bits.Len(uint(2*max(n, 1)-1)))
}
