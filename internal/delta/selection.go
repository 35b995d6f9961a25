package delta

import (
	"slices"
	"sync"
)

// Selection names unlisted entries that the wildcard of a layered session has all the same:
// what one client, or a few, use. Safe for concurrent use.
type Selection struct {
	mu         sync.Mutex
	names      []*Ref // immutable, in order
	generation uint64
	// sessions that have it.
	sessions []*waker
}

// NewSelection makes an empty selection.
func NewSelection() *Selection { return &Selection{} }

// CompareRefs orders by type, then by name, as Set takes them.
func CompareRefs(a, b *Ref) int { return compareRefs(*a, *b) }

// Set the names, which are in the order of CompareRefs, each once. Neither they nor the slice are
// changed any more; several selections may have the same.
func (s *Selection) Set(names []*Ref) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.names = names
	s.generation++
	for _, w := range s.sessions {
		w.wake()
	}
}

// attach a session, until detach. A nil Selection never changes.
func (s *Selection) attach(w *waker) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions = append(s.sessions, w)
}

func (s *Selection) detach(w *waker) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions = slices.DeleteFunc(s.sessions, func(one *waker) bool { return one == w })
}

// load the names, which are not to be changed. generation tells two results apart.
func (s *Selection) load() (names []*Ref, generation uint64) {
	if s == nil {
		return nil, 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.names, s.generation
}

// selects reports whether a name is among those of a selection.
func selects(names []*Ref, ref Ref) bool {
	_, found := slices.BinarySearchFunc(names, ref, func(one *Ref, ref Ref) int { return compareRefs(*one, ref) })
	return found
}
