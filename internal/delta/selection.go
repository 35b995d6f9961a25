package delta

import (
	"slices"
	"sync"
)

// Selection names unlisted entries that the wildcard of a layered session has all the same:
// what one client, or a few, use. Safe for concurrent use.
type Selection struct {
	mu      sync.Mutex
	names   []Ref // immutable, in order
	changed chan struct{}
}

// NewSelection makes an empty selection.
func NewSelection() *Selection {
	return &Selection{changed: make(chan struct{})}
}

// CompareRefs orders by type, then by name, as Set takes them.
func CompareRefs(a, b Ref) int { return compareRefs(a, b) }

// Set the names, which are in the order of CompareRefs, each once. They are not changed any more;
// several selections may have the same.
func (s *Selection) Set(names []Ref) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.names = names
	close(s.changed)
	s.changed = make(chan struct{})
}

// Changed returns a channel that is closed by the next Set. A nil Selection never changes.
func (s *Selection) Changed() <-chan struct{} {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// load the names, which are not to be changed. generation tells two results apart.
func (s *Selection) load() (names []Ref, generation <-chan struct{}) {
	if s == nil {
		return nil, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.names, s.changed
}

// selects reports whether a name is among those of a selection.
func selects(names []Ref, ref Ref) bool {
	_, found := slices.BinarySearchFunc(names, ref, compareRefs)
	return found
}
