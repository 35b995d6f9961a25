package etcd

import (
	"sync"

	"github.com/proxima-mesh/proxima/internal/store"
)

// entry is what the store assumes of a key. Commits compare it, so an outdated
// one costs a round trip and nothing else.
type entry struct {
	mod      int64 // etcd's revision of the last modification; 0: the key is absent
	created  store.Revision
	modified store.Revision
	known    int64 // etcd's revision at which this was true
	size     int   // of the value, as the root watch saw it
}

// index has an entry for each record, so that a commit needs one round trip. The
// root watch keeps it up to date, and answers to commits run ahead of that.
// Safe for concurrent use.
type index struct {
	mu      sync.Mutex
	entries map[string]entry
	bytes   int64 // of values, as the root watch saw them
}

func newIndex() *index { return &index{entries: make(map[string]entry)} }

// get returns the zero entry for an absent key.
func (x *index) get(name string) entry {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.entries[name]
}

// put adds a record that a scan has read.
func (x *index) put(name string, e entry, size int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	e.size = size
	x.entries[name] = e
	x.bytes += int64(size)
}

// replace takes over what a scan has read.
func (x *index) replace(by *index) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.entries, x.bytes = by.entries, by.bytes
}

// size is the number of bytes of live values.
func (x *index) size() int64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.bytes
}

// learn takes over what an answer of etcd says of a key at revision known.
func (x *index) learn(name string, now entry) {
	x.mu.Lock()
	defer x.mu.Unlock()
	was, ok := x.entries[name]
	switch {
	case now.known < was.known:
	case now.mod == 0 && !ok: // absent, as assumed
	default:
		now.size = was.size
		x.entries[name] = now // an absent key stays until the root watch gets there
	}
}

// observe takes over an event of the root watch, at etcd's revision mod. size is
// that of the new value; 0 for a deletion.
func (x *index) observe(event store.Event, mod int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	name := event.Record.Key
	e, ok := x.entries[name]
	size := len(event.Record.Value)
	x.bytes += int64(size - e.size)
	e.size = size
	switch {
	case event.Kind == store.Delete && (mod >= e.known || e.mod == 0):
		delete(x.entries, name)
		return
	case event.Kind == store.Put && (mod >= e.known || !ok):
		e.mod, e.known = mod, mod
		e.created, e.modified = event.Record.Created, event.Record.Modified
	}
	x.entries[name] = e
}
