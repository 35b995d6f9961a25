// Package faulty wraps a store so that some of its calls fail, for tests of what
// is built on stores.
//
// It owns the generator of faults. Enter at New. It keeps to the contract: a call that fails
// with an injected error did nothing, and a watcher that ends early delivered
// everything up to its last batch, so it can be resumed.
package faulty

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/proxima-mesh/proxima/internal/store"
)

// ErrInjected is the error of calls that were made to fail.
var ErrInjected = errors.New("injected fault")

// Probabilities of faults, from 0 (never) to 1 (always).
type Probabilities struct {
	// Calls that fail instead of reaching the store. Epoch, Compacted, Progress
	// and Close have no error and never fail.
	Calls float64
	// Batches at which a watcher ends instead of delivering them.
	Batches float64
}

// Store is the wrapped store.
type Store struct {
	store.Store

	mu            sync.Mutex
	rng           *rand.Rand
	probabilities Probabilities
	failed        int
}

var _ store.Store = (*Store)(nil)

// New wraps a store; closing the wrapper closes it. The seed fixes the sequence
// of outcomes, so a test whose calls come in a fixed order is repeatable.
func New(inner store.Store, seed uint64, probabilities Probabilities) *Store {
	return &Store{Store: inner, rng: rand.New(rand.NewPCG(seed, seed)), probabilities: probabilities}
}

// Set changes the probabilities from now on; the zero value heals the store.
func (s *Store) Set(probabilities Probabilities) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.probabilities = probabilities
}

// Injected counts the faults so far, so that a test can check that there were some.
func (s *Store) Injected() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// roll takes one outcome from the sequence, whatever the probabilities are.
func (s *Store) roll(of func(Probabilities) float64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	fails := s.rng.Float64() < of(s.probabilities)
	if fails {
		s.failed++
	}
	return fails
}

func (s *Store) call(op string) error {
	if s.roll(func(p Probabilities) float64 { return p.Calls }) {
		return fmt.Errorf("%s: %w", op, ErrInjected)
	}
	return nil
}

// Get implements store.Store.
func (s *Store) Get(ctx context.Context, key string, at store.Revision) (store.Record, bool, store.Revision, error) {
	if err := s.call("get"); err != nil {
		return store.Record{}, false, 0, err
	}
	return s.Store.Get(ctx, key, at)
}

// List implements store.Store.
func (s *Store) List(ctx context.Context, opts store.ListOptions) (store.Page, error) {
	if err := s.call("list"); err != nil {
		return store.Page{}, err
	}
	return s.Store.List(ctx, opts)
}

// Count implements store.Store.
func (s *Store) Count(ctx context.Context, prefix string) (int64, error) {
	if err := s.call("count"); err != nil {
		return 0, err
	}
	return s.Store.Count(ctx, prefix)
}

// Commit implements store.Store.
func (s *Store) Commit(ctx context.Context, txn store.Txn) (store.Revision, error) {
	if err := s.call("commit"); err != nil {
		return 0, err
	}
	return s.Store.Commit(ctx, txn)
}

// Revision implements store.Store.
func (s *Store) Revision(ctx context.Context) (store.Revision, error) {
	if err := s.call("revision"); err != nil {
		return 0, err
	}
	return s.Store.Revision(ctx)
}

// Compact implements store.Store.
func (s *Store) Compact(ctx context.Context, upTo store.Revision) error {
	if err := s.call("compact"); err != nil {
		return err
	}
	return s.Store.Compact(ctx, upTo)
}

// Size implements store.Store.
func (s *Store) Size(ctx context.Context) (int64, error) {
	if err := s.call("size"); err != nil {
		return 0, err
	}
	return s.Store.Size(ctx)
}

// Ready implements store.Store.
func (s *Store) Ready(ctx context.Context) error {
	if err := s.call("ready"); err != nil {
		return err
	}
	return s.Store.Ready(ctx)
}

// Watch implements store.Store.
func (s *Store) Watch(ctx context.Context, prefix string, after store.Revision) (store.Watcher, error) {
	if err := s.call("watch"); err != nil {
		return nil, err
	}
	inner, err := s.Store.Watch(ctx, prefix, after)
	if err != nil {
		return nil, err
	}
	w := &watcher{Watcher: inner, store: s, out: make(chan store.Batch), gone: make(chan struct{})}
	go w.run()
	return w, nil
}

// watcher passes batches on until a fault ends it.
type watcher struct {
	store.Watcher
	store *Store
	out   chan store.Batch
	gone  chan struct{} // Close was called
	close sync.Once

	mu  sync.Mutex
	err error
}

func (w *watcher) run() {
	defer close(w.out)
	for b := range w.Watcher.Batches() {
		if w.store.roll(func(p Probabilities) float64 { return p.Batches }) {
			w.Watcher.Close()
			w.end(fmt.Errorf("watch: %w", ErrInjected))
			return
		}
		select {
		case w.out <- b:
		case <-w.gone:
			return // Err stays nil
		}
	}
	w.end(w.Watcher.Err())
}

func (w *watcher) end(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
}

// Batches implements store.Watcher.
func (w *watcher) Batches() <-chan store.Batch { return w.out }

// Err implements store.Watcher.
func (w *watcher) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// Close implements store.Watcher.
func (w *watcher) Close() {
	w.close.Do(func() { close(w.gone) })
	w.Watcher.Close()
	for range w.out { //nolint:revive // drains until run has ended
	}
}
