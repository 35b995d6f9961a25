package delta

import (
	"fmt"
	"slices"
	"sync"
)

// Options limit what a scope keeps and sends. The zero value is good.
type Options struct {
	// Tombstones is how many removals of each type are remembered; a stream or
	// cursor that is behind more than that starts again with its versions.
	// 0: 16384, so that 10,000 Services can vanish at once and no stream of those
	// that keep up has to.
	Tombstones int
	// Few: few layered sessions read the scope. Each change wakes all of them, and nothing is kept
	// of what each of them has.
	Few bool
	// Types that the scope may have; none: any. Layered sessions look for others elsewhere.
	Types []string
	// FrameSize is the size beyond which a response is split, in bytes. 0: 1 MiB,
	// well below gRPC's default limit of 4 MiB for a message.
	FrameSize int
}

func (o *Options) may(typ string) bool { return len(o.Types) == 0 || slices.Contains(o.Types, typ) }

const (
	defaultTombstones = 16384
	defaultFrameSize  = 1 << 20
	// maxFrames bounds the responses kept for streams at different positions.
	maxFrames = 64
)

// Scope is one state that many streams follow. It is written by one party
// (Replace, then Apply) and read through sessions; all of it may be used
// concurrently, and no method blocks for long.
type Scope struct {
	options Options

	mu       sync.Mutex
	filled   bool
	position Position
	// floor is the sequence of the last Replace that changed the epoch.
	floor   uint64
	tables  map[string]*table
	none    *table // stands for every type that has no table
	changed chan struct{}
	// audience are the layered sessions that read the scope; the others wait for changed.
	audience audience
}

// NewScope makes a scope without content. Its streams wait until the first
// Replace: a state that is half read must not look like removals.
func NewScope(o Options) *Scope {
	if o.Tombstones == 0 {
		o.Tombstones = defaultTombstones
	}
	if o.FrameSize == 0 {
		o.FrameSize = defaultFrameSize
	}
	return &Scope{options: o, none: &table{index: base}, changed: make(chan struct{})}
}

// Position is up to where the scope has been written; ok is false before the
// first Replace.
func (s *Scope) Position() (p Position, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.position, s.filled
}

// Changed returns a channel that is closed when there may be something new. Ask
// for it before looking, wait on it after.
func (s *Scope) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// Replace makes the resources the whole content of the scope, of all types, and
// counts those that are new, different or gone. Streams are sent only these. The
// position must be of another epoch than the one before, or newer.
func (s *Scope) Replace(at Position, resources []Resource) (changed int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.filled && at.Epoch == s.position.Epoch && at.Sequence <= s.position.Sequence {
		return 0, fmt.Errorf("replace scope: position %s does not follow %s", at, s.position)
	}
	for i := range resources {
		if !s.options.may(resources[i].Type) {
			return 0, fmt.Errorf("replace scope: it has no resources of type %s", resources[i].Type)
		}
	}
	restart := !s.filled || at.Epoch != s.position.Epoch
	if restart {
		s.floor = at.Sequence
		for _, t := range s.tables {
			t.restamp(at.Sequence)
		}
	}
	s.evict()
	kept := make(map[*entry]bool, len(resources))
	for _, r := range resources {
		if s.set(r, at.Sequence) {
			changed++
		}
		kept[s.tables[r.Type].byName[r.Name]] = true
	}
	for _, t := range s.tables {
		for e := t.live.first; e != nil; {
			next := e.next
			if !kept[e] && s.remove(t, e.name, at.Sequence) {
				changed++
			}
			e = next
		}
	}
	if !s.filled {
		s.audience.wake()
	}
	s.advance(at, changed > 0 || !s.filled)
	return changed, nil
}

// Apply records changes that happened together, in order, and counts those that
// made a difference: setting what is there already is none. The position must be
// newer than the one before, in its epoch; changes may be empty.
func (s *Scope) Apply(at Position, changes []Change) (changed int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.filled:
		return 0, fmt.Errorf("apply to scope at %s: it has no content yet", at)
	case at.Epoch != s.position.Epoch || at.Sequence <= s.position.Sequence:
		return 0, fmt.Errorf("apply to scope: position %s does not follow %s", at, s.position)
	}
	for i := range changes {
		if !s.options.may(changes[i].Type) {
			return 0, fmt.Errorf("apply to scope: it has no resources of type %s", changes[i].Type)
		}
	}
	s.evict()
	for _, c := range changes {
		made := false
		if c.Removed {
			t := s.tables[c.Type]
			made = t != nil && s.remove(t, c.Name, at.Sequence)
		} else {
			made = s.set(c.Resource, at.Sequence)
		}
		if !made {
			continue
		}
		changed++
		if c.Trace != nil {
			c.Trace.Made = true
			s.tables[c.Type].trace(c.Name, c.Trace.Context)
		}
	}
	s.advance(at, changed > 0)
	return changed, nil
}

// evict runs before new tombstones are made, not after: streams that keep up are
// given the time until the next change to read them, however many they are.
func (s *Scope) evict() {
	for _, t := range s.tables {
		t.evict(s.options.Tombstones)
	}
}

func (s *Scope) advance(at Position, wake bool) {
	s.position, s.filled = at, true
	if wake {
		close(s.changed)
		s.changed = make(chan struct{})
	}
}

// table returns the table of a type that is being written.
func (s *Scope) table(typ string) *table {
	t := s.tables[typ]
	if t == nil {
		t = newTable(typ, s.floor)
		if s.tables == nil {
			s.tables = map[string]*table{}
		}
		s.tables[typ] = t
	}
	return t
}

// lookup returns the table of a type that is being read. A type that no caller has
// written is empty; readers must not be able to create tables.
func (s *Scope) lookup(typ string) *table {
	if t := s.tables[typ]; t != nil {
		return t
	}
	return s.none
}

// serves reports whether a client at p can be sent what changed since.
func (s *Scope) serves(t *table, p Position) bool {
	return p.Epoch == s.position.Epoch && p.Sequence <= s.position.Sequence &&
		p.Sequence >= max(s.floor, t.floor)
}

// shared returns the response that leads a stream that wants everything onwards
// from index. It is built once for all streams there.
func (s *Scope) shared(t *table, typ string, index uint64) *Frame {
	if f := t.frames[index]; f != nil {
		return f
	}
	c := content{limit: s.options.FrameSize}
	if index != fresh {
		c.traces, c.from = t.traces, index
	}
	to := index
	at := &s.position
	if t.walk(index, func(e *entry) bool {
		if !c.add(e) {
			return false
		}
		to = e.index
		return true
	}) {
		to = t.index
	} else {
		at = nil
	}
	f := c.frame(typ, to, at, 0)
	if t == s.none {
		return f
	}
	if t.frames == nil || len(t.frames) >= maxFrames {
		t.frames = map[uint64]*Frame{}
	}
	t.frames[index] = f
	return f
}
