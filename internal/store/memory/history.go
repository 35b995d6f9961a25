package memory

import (
	"context"
	"slices"
	"strings"

	"github.com/proxima-mesh/proxima/internal/store"
)

// key has the versions of one key in ascending order, at least one.
type key struct {
	name     string
	versions []version
}

// version is what a key was from a revision on.
type version struct {
	at     store.Revision
	record *store.Record // nil: deleted
}

// record is the key's state at a revision; nil: absent.
func (k *key) record(at store.Revision) *store.Record {
	i, found := slices.BinarySearchFunc(k.versions, at, func(v version, at store.Revision) int { return compare(v.at, at) })
	if !found {
		i--
	}
	if i < 0 {
		return nil
	}
	return k.versions[i].record
}

func compare(a, b store.Revision) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// newest is the current state of a key; nil: absent. The caller holds the lock.
func (s *Store) newest(name string) *store.Record {
	if k, ok := s.index.Get([]byte(name)); ok {
		return k.versions[len(k.versions)-1].record
	}
	return nil
}

// add appends a version to its key; the caller holds the lock.
func (s *Store) add(e store.Event) {
	v := version{at: e.Record.Modified}
	if e.Kind == store.Put {
		record := e.Record
		v.record = &record
	}
	k, ok := s.index.Get([]byte(e.Record.Key))
	if !ok {
		k = &key{name: e.Record.Key}
		s.index, _, _ = s.index.Insert([]byte(k.name), k)
	}
	k.versions = append(k.versions, v)
}

// boundary maps a requested revision to the one to read at. A revision inside a
// transaction becomes the transaction's last, as no reader sees a part of it.
// The caller holds the lock.
func (s *Store) boundary(at store.Revision) (store.Revision, error) {
	switch {
	case at == 0 || at == s.revision:
		return s.revision, nil
	case at > s.revision:
		return 0, store.ErrFuture
	case at < s.compacted:
		return 0, store.ErrCompacted
	}
	// The next batch contains this revision, or the revision is compacted and the
	// last of its transaction.
	if next := s.after(at - 1)[0]; next.Events[0].Record.Modified <= at {
		return next.Revision, nil
	}
	return at, nil
}

// after is the part of the log with events after a revision, which must not be
// compacted. If the log has no such event it is empty.
func (s *Store) after(revision store.Revision) []store.Batch {
	i, found := slices.BinarySearchFunc(s.log, revision, func(b store.Batch, r store.Revision) int { return compare(b.Revision, r) })
	if found {
		i++
	}
	return s.log[i:]
}

// Get implements store.Store.
func (s *Store) Get(ctx context.Context, name string, at store.Revision) (store.Record, bool, store.Revision, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if err := s.usable(ctx); err != nil {
		return store.Record{}, false, 0, err
	}
	read, err := s.boundary(at)
	if err != nil {
		return store.Record{}, false, 0, err
	}
	if k, ok := s.index.Get([]byte(name)); ok {
		if record := k.record(read); record != nil {
			return *record, true, read, nil
		}
	}
	return store.Record{}, false, read, nil
}

// List implements store.Store.
func (s *Store) List(ctx context.Context, opts store.ListOptions) (store.Page, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if err := s.usable(ctx); err != nil {
		return store.Page{}, err
	}
	read, err := s.boundary(opts.At)
	if err != nil {
		return store.Page{}, err
	}
	page := store.Page{Revision: read}
	s.scan(opts.Prefix, opts.From, read, func(record store.Record) {
		if opts.Limit > 0 && len(page.Records) == opts.Limit {
			page.More = true
			page.Remaining++
			return
		}
		if opts.KeysOnly {
			record.Value = nil
		}
		page.Records = append(page.Records, record)
	})
	return page, nil
}

// Count implements store.Store.
func (s *Store) Count(ctx context.Context, prefix string) (int64, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if err := s.usable(ctx); err != nil {
		return 0, err
	}
	var n int64
	s.scan(prefix, "", s.revision, func(store.Record) { n++ })
	return n, nil
}

// scan visits the records of a prefix from a key on; the caller holds the lock.
func (s *Store) scan(prefix, from string, at store.Revision, visit func(store.Record)) {
	it := s.index.Root().Iterator()
	it.SeekLowerBound([]byte(max(prefix, from)))
	for {
		_, k, ok := it.Next()
		if !ok || !strings.HasPrefix(k.name, prefix) {
			return
		}
		if record := k.record(at); record != nil {
			visit(*record)
		}
	}
}

// History implements watch.Source.
func (s *Store) History(_ context.Context, _ string, after, until store.Revision) ([]store.Batch, store.Revision, error) {
	// read bounds what one call hands out, not what it costs.
	const read = 256
	s.mu.RLock()
	defer s.mu.RUnlock()
	if after < s.compacted {
		return nil, 0, store.ErrCompacted
	}
	batches := s.after(after)
	batches = batches[:len(batches)-len(s.after(until))]
	if len(batches) > read {
		batches = batches[:read]
		until = batches[read-1].Revision
	}
	return slices.Clone(batches), until, nil
}

// Compact implements store.Store.
func (s *Store) Compact(ctx context.Context, upTo store.Revision) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return err
	}
	switch {
	case upTo > s.revision:
		return store.ErrFuture
	case upTo <= s.compacted:
		return nil
	}
	kept := s.after(upTo)
	for _, batch := range s.log[:len(s.log)-len(kept)] {
		for _, e := range batch.Events {
			s.trim(e.Record.Key, upTo)
		}
	}
	if n := len(kept); n > 0 {
		for _, e := range kept[0].Events { // upTo may lie inside this transaction
			if e.Record.Modified <= upTo {
				s.trim(e.Record.Key, upTo)
			}
		}
	}
	s.log = slices.Clone(kept)
	s.compacted = upTo
	return nil
}

// trim drops versions of a key that no read at or after upTo sees.
func (s *Store) trim(name string, upTo store.Revision) {
	k, ok := s.index.Get([]byte(name))
	if !ok {
		return // trimmed before, for an earlier event of the same key
	}
	first := 0
	for first+1 < len(k.versions) && k.versions[first+1].at <= upTo {
		first++
	}
	if v := k.versions[first]; v.record == nil && v.at <= upTo {
		first++
	}
	if first == len(k.versions) {
		s.index, _, _ = s.index.Delete([]byte(name))
		return
	}
	k.versions = slices.Clone(k.versions[first:])
}
