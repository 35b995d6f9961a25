package delta

import (
	"sync"
)

// Selection names unlisted entries that the wildcard of a layered session has all the same:
// what one client, or a few, use. Safe for concurrent use.
type Selection struct {
	mu      sync.Mutex
	names   map[Ref]struct{} // immutable
	changed chan struct{}
}

// NewSelection makes an empty selection.
func NewSelection() *Selection {
	return &Selection{changed: make(chan struct{})}
}

// Set the names. The map belongs to the selection, and is not changed any more.
func (s *Selection) Set(names map[Ref]struct{}) {
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

// load the names. The map is not to be changed. generation tells two results apart.
func (s *Selection) load() (names map[Ref]struct{}, generation <-chan struct{}) {
	if s == nil {
		return nil, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.names, s.changed
}
