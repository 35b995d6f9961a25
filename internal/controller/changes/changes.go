// Package changes lets a producer publish which rows of its output have changed, and
// lets consumers follow at their own speed.
//
// It owns the set of changed keys of each subscription. Enter at Feed: a producer
// publishes keys, a consumer subscribes and calls Next. It holds no values: a consumer
// reads them from the producer, as of the moment when it reads. A producer never waits,
// and a burst of changes to a key is one change.
//
// The catalog has subscriptions of its own, with values; this package is for what a
// controller keeps in memory only.
package changes

import (
	"context"
	"errors"
	"sync"
)

// ErrClosed is returned by Next of a closed Subscription.
var ErrClosed = errors.New("subscription is closed")

// Feed publishes changed keys to its subscriptions. The zero value is ready to use, and
// safe for concurrent use.
type Feed[K comparable] struct {
	mu   sync.Mutex
	subs map[*Subscription[K]]struct{}
}

// Publish adds keys to every subscription that is open. It never blocks.
func (f *Feed[K]) Publish(keys ...K) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for s := range f.subs {
		s.add(keys)
	}
}

// Subscribe returns what is published from now on. Close it when done.
func (f *Feed[K]) Subscribe() *Subscription[K] {
	s := &Subscription[K]{feed: f, keys: map[K]struct{}{}, ready: make(chan struct{}, 1), closed: make(chan struct{})}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.subs == nil {
		f.subs = map[*Subscription[K]]struct{}{}
	}
	f.subs[s] = struct{}{}
	return s
}

// Subscription is the changes that one consumer has not taken yet.
type Subscription[K comparable] struct {
	feed   *Feed[K]
	ready  chan struct{} // holds a token while there are keys
	closed chan struct{}
	once   sync.Once

	mu   sync.Mutex
	keys map[K]struct{}
}

func (s *Subscription[K]) add(keys []K) {
	if len(keys) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range keys {
		s.keys[key] = struct{}{}
	}
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

// Next blocks until keys have changed since the last call, and returns them, each once
// and in no order. Errors: ErrClosed, or why ctx ended. For one goroutine at a time.
func (s *Subscription[K]) Next(ctx context.Context) ([]K, error) {
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-s.closed:
		return nil, ErrClosed
	case <-s.ready:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	keys := make([]K, 0, len(s.keys))
	for key := range s.keys {
		keys = append(keys, key)
	}
	clear(s.keys)
	return keys, nil
}

// Close frees the subscription; a Next that blocks returns ErrClosed. Idempotent.
func (s *Subscription[K]) Close() {
	s.once.Do(func() {
		close(s.closed)
		s.feed.mu.Lock()
		defer s.feed.mu.Unlock()
		delete(s.feed.subs, s)
	})
}
