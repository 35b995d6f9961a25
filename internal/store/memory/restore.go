package memory

import (
	"bytes"
	"context"
	"iter"

	iradix "github.com/hashicorp/go-immutable-radix/v2"

	"github.com/proxima-mesh/proxima/internal/store"
)

var _ store.Restorer = (*Store)(nil)

// Restore implements store.Restorer. Other calls wait until it is done.
func (s *Store) Restore(ctx context.Context, at store.Revision, records iter.Seq2[store.Record, error]) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return err
	}
	if s.revision > 0 {
		return store.ErrNotEmpty
	}
	index := iradix.New[*key]().Txn()
	var size int64
	var events []store.Event
	for record, err := range store.CheckRestored(at, records) {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		record.Value = bytes.Clone(record.Value)
		k := &key{name: record.Key, versions: []version{{at: record.Modified, record: &record}}}
		index.Insert([]byte(k.name), k)
		size += int64(len(record.Value))
		if !record.Expires.IsZero() {
			events = append(events, store.Event{Kind: store.Put, Record: record})
		}
	}
	s.index, s.size, s.revision, s.compacted = index.Commit(), size, at, at
	s.expiry.Observe(events)
	s.hub.Skip(at)
	return nil
}
