// Package memory is a store that lives and dies with its process: for tests, for
// trying things out, and as the plainest reading of the contract.
//
// It owns all versions of all keys since the last compaction. Enter at New. It
// never touches a disk, and nothing is kept over a restart: each New begins a
// new epoch.
package memory

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"log/slog"
	"sync"

	iradix "github.com/hashicorp/go-immutable-radix/v2"
	"k8s.io/utils/clock"

	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/expiry"
	"github.com/proxima-mesh/proxima/internal/store/watch"
)

// Options of New. The zero value is usable.
type Options struct {
	// Clock for expiry; nil: the real one.
	Clock clock.Clock
	// Logger; nil: none.
	Logger *slog.Logger
}

// Store implements store.Store.
type Store struct {
	epoch   string
	clock   clock.Clock
	hub     *watch.Hub
	expiry  *expiry.Queue
	stop    context.CancelFunc
	stopped sync.WaitGroup

	mu        sync.RWMutex
	index     *iradix.Tree[*key]
	log       []store.Batch // every batch that has events after compacted
	revision  store.Revision
	compacted store.Revision
	size      int64
	closed    bool
}

var (
	_ store.Store  = (*Store)(nil)
	_ watch.Source = (*Store)(nil)
)

// New makes an empty store. Close it to end its goroutine.
func New(opts Options) *Store {
	if opts.Clock == nil {
		opts.Clock = clock.RealClock{}
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	id := make([]byte, 16)
	_, _ = rand.Read(id) // crypto/rand.Read never fails
	ctx, stop := context.WithCancel(context.Background())
	s := &Store{
		epoch:  hex.EncodeToString(id),
		clock:  opts.Clock,
		expiry: expiry.New(opts.Clock, opts.Logger),
		stop:   stop,
		index:  iradix.New[*key](),
	}
	// The log is in memory already; the hub need not keep anything twice.
	s.hub = watch.NewHub(s, 0, watch.Limits{})
	s.stopped.Go(func() { s.expiry.Run(ctx, s.Commit) })
	return s
}

// Properties implements store.Store.
func (s *Store) Properties() store.Properties { return store.Properties{} }

// Epoch implements store.Store.
func (s *Store) Epoch() string { return s.epoch }

// Commit implements store.Store. What it returned is as durable as the process.
func (s *Store) Commit(ctx context.Context, txn store.Txn) (store.Revision, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if err := txn.Validate(); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, store.ErrClosed
	}
	for _, c := range txn.Conditions {
		current := s.newest(c.Key)
		if (current == nil && c.Modified != 0) || (current != nil && c.Modified != current.Modified) {
			return 0, &store.ConflictError{Condition: c, Current: current}
		}
	}
	var batch store.Batch
	for _, op := range txn.Ops {
		if e, changed := s.apply(op); changed {
			batch.Events = append(batch.Events, e)
		}
	}
	if len(batch.Events) == 0 {
		return s.revision, nil
	}
	batch.Revision = s.revision
	s.log = append(s.log, batch)
	s.expiry.Observe(batch.Events)
	s.hub.Publish(batch)
	return s.revision, nil
}

// apply makes one change; the caller holds the lock.
func (s *Store) apply(op store.Op) (event store.Event, changed bool) {
	prev := s.newest(op.Key)
	if op.Kind == store.Delete && prev == nil {
		return store.Event{}, false
	}
	s.revision++
	event = store.Event{Kind: op.Kind, Prev: prev, Record: store.Record{Key: op.Key, Created: s.revision, Modified: s.revision}}
	if prev != nil {
		event.Record.Created = prev.Created
		s.size -= int64(len(prev.Value))
	}
	if op.Kind == store.Put {
		event.Record.Value = bytes.Clone(op.Value)
		event.Record.Expires = expiry.Deadline(s.clock.Now(), op.TTL)
		s.size += int64(len(op.Value))
	}
	s.add(event)
	return event, true
}

// Watch implements store.Store.
func (s *Store) Watch(ctx context.Context, prefix string, after store.Revision) (store.Watcher, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	switch {
	case s.closed:
		return nil, store.ErrClosed
	case after < s.compacted:
		return nil, store.ErrCompacted
	}
	return s.hub.Watch(ctx, prefix, after)
}

// Revision implements store.Store.
func (s *Store) Revision(ctx context.Context) (store.Revision, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.revision, s.usable(ctx)
}

// Compacted implements store.Store.
func (s *Store) Compacted() store.Revision {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.compacted
}

// Size implements store.Store.
func (s *Store) Size(ctx context.Context) (int64, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.size, s.usable(ctx)
}

// Ready implements store.Store: an open store is ready.
func (s *Store) Ready(ctx context.Context) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.usable(ctx)
}

// usable is checked by every read; the caller holds the lock.
func (s *Store) usable(ctx context.Context) error {
	if s.closed {
		return store.ErrClosed
	}
	return ctx.Err()
}

// Close implements store.Store.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.stop()
	s.hub.Close()
	s.stopped.Wait()
	return nil
}
