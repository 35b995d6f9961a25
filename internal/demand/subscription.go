package demand

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// ErrClosed is returned by Next of a closed Subscription.
var ErrClosed = errors.New("subscription is closed")

// Subscription delivers to one reader which service ports have another demand. The reader
// may be slow: what waits is a set of ports.
type Subscription struct {
	from   *Aggregator
	ready  chan struct{} // holds a token while there is a change to deliver
	closed chan struct{}
	once   sync.Once
	// changed is guarded by the aggregator's lock.
	changed map[proxy.PortName]struct{}
}

// Subscribe follows the demand. The first Next returns all service ports that have
// any. Close it when done.
func (a *Aggregator) Subscribe() *Subscription {
	s := &Subscription{from: a, ready: make(chan struct{}, 1), closed: make(chan struct{}), changed: map[proxy.PortName]struct{}{}}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.subs[s] = struct{}{}
	for name := range a.ports {
		s.note(name)
	}
	return s
}

// notify all subscribers of a port.
func (a *Aggregator) notify(name proxy.PortName) {
	for s := range a.subs {
		s.note(name)
	}
}

func (s *Subscription) note(name proxy.PortName) {
	s.changed[name] = struct{}{}
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

// Next blocks until the demand of some service ports differs noticeably from what the
// reader got last, and returns those, in order; also ports whose demand is no longer
// kept. Errors: ErrClosed, or why ctx ended. For one goroutine at a time.
func (s *Subscription) Next(ctx context.Context) ([]proxy.PortName, error) {
	select {
	case <-s.closed:
		return nil, ErrClosed
	default:
	}
	select {
	case <-ctx.Done():
		return nil, fmt.Errorf("follow demand: %w", context.Cause(ctx))
	case <-s.closed:
		return nil, ErrClosed
	case <-s.ready:
	}
	s.from.mu.Lock()
	changed := s.changed
	s.changed = map[proxy.PortName]struct{}{}
	s.from.mu.Unlock()
	names := make([]proxy.PortName, 0, len(changed))
	for name := range changed {
		names = append(names, name)
	}
	slices.SortFunc(names, comparePorts)
	return names, nil
}

// Close frees the subscription; a Next that blocks returns ErrClosed. Idempotent.
func (s *Subscription) Close() {
	s.once.Do(func() {
		close(s.closed)
		s.from.mu.Lock()
		defer s.from.mu.Unlock()
		delete(s.from.subs, s)
	})
}
