package cursor

import (
	"slices"
	"sort"

	"github.com/proxima-mesh/proxima/internal/feed/seglog"
)

// add a range to ranges that are ascending and apart, and returns them.
func add(ranges []Range, r Range) []Range {
	if r.To <= r.After {
		return ranges
	}
	// Those from i up to j touch r.
	i := sort.Search(len(ranges), func(i int) bool { return ranges[i].To >= r.After })
	j := i
	for ; j < len(ranges) && ranges[j].After <= r.To; j++ {
		r.After, r.To = min(r.After, ranges[j].After), max(r.To, ranges[j].To)
	}
	return slices.Replace(ranges, i, j, r)
}

// settle moves the mark over the ranges that touch it.
func (s *State) settle() {
	n := 0
	for ; n < len(s.Acked) && s.Acked[n].After <= s.Mark; n++ {
		s.Mark = max(s.Mark, s.Acked[n].To)
	}
	s.Acked = slices.Delete(s.Acked, 0, n)
}

// acked reports whether a position is acknowledged.
func (s *State) acked(at seglog.Position) bool {
	if at <= s.Mark {
		return true
	}
	i := sort.Search(len(s.Acked), func(i int) bool { return s.Acked[i].To >= at })
	return i < len(s.Acked) && s.Acked[i].After < at
}

// merge what another instance has acknowledged, since the same seek.
func (s *State) merge(other *State) {
	s.Mark = max(s.Mark, other.Mark)
	for _, r := range other.Acked {
		s.Acked = add(s.Acked, r)
	}
	s.settle()
	if other.Active.After(s.Active) {
		s.Active = other.Active
	}
}
