package sqlite

import (
	"context"
	"sync/atomic"

	"github.com/proxima-mesh/proxima/internal/store"
)

const (
	// mostRequests and mostBytes bound what shares one sync of the disk.
	mostRequests = 512
	mostBytes    = 8 << 20
)

// request is a transaction on its way to the writer.
type request struct {
	txn   store.Txn
	taken atomic.Bool // by the writer, or by its owner who gave up
	done  chan struct{}

	// The answer; valid when done is closed.
	revision store.Revision
	err      error
	events   []store.Event
}

func (r *request) take() bool { return r.taken.CompareAndSwap(false, true) }

func (r *request) bytes() int {
	n := 0
	for _, op := range r.txn.Ops {
		n += len(op.Key) + len(op.Value)
	}
	return n
}

// Commit implements store.Store. The transaction is on the disk when it
// returns.
func (s *Store) Commit(ctx context.Context, txn store.Txn) (store.Revision, error) {
	if err := s.usable(ctx); err != nil {
		return 0, err
	}
	if err := txn.Validate(); err != nil {
		return 0, err
	}
	r := &request{txn: txn, done: make(chan struct{})}
	select {
	case s.commits <- r:
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-s.closing:
		return 0, store.ErrClosed
	}
	select {
	case <-r.done:
	case <-ctx.Done():
		if r.take() {
			return 0, ctx.Err()
		}
		<-r.done // too late to give up: the outcome is what counts
	case <-s.finished:
		if r.take() {
			return 0, store.ErrClosed
		}
		<-r.done
	}
	return r.revision, r.err
}

// task runs f between commits, on the writer's goroutine, and waits for it.
func (s *Store) task(ctx context.Context, f func()) error {
	ran := make(chan struct{})
	select {
	case s.tasks <- func() { defer close(ran); f() }:
		<-ran
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-s.closing:
		return store.ErrClosed
	}
}

// write is the one goroutine that changes the database.
func (s *Store) write() {
	defer close(s.finished)
	for {
		select {
		case <-s.closing:
			return
		default:
		}
		select {
		case r := <-s.commits:
			s.ascertain()
			s.settle(s.gather(r))
		case f := <-s.tasks:
			s.ascertain()
			f()
		case <-s.closing:
			return
		}
	}
}

// gather takes what waits already. It never waits for more: while one group is
// synced the next one assembles itself.
func (s *Store) gather(first *request) []*request {
	var group []*request
	bytes := 0
	for r := first; r != nil; {
		if r.take() {
			group = append(group, r)
			bytes += r.bytes()
		}
		if len(group) == mostRequests || bytes >= mostBytes {
			break
		}
		select {
		case r = <-s.commits:
		default:
			r = nil
		}
	}
	return group
}

// settle commits a group, publishes it and answers. Nobody is answered, not even
// with a conflict, before what the answer builds on is on the disk.
func (s *Store) settle(group []*request) {
	if len(group) == 0 {
		return
	}
	err := s.noted(s.writer.commit(group, s.clock.Now()))
	if err != nil && len(group) > 1 {
		// One of them may be the reason, say too large for what is left of the
		// disk. Each gets its own try.
		for _, r := range group {
			s.settle([]*request{r})
		}
		return
	}
	for _, r := range group {
		switch {
		case err != nil:
			r.revision, r.err = 0, s.failed(context.Background(), "commit", err)
		case len(r.events) > 0:
			s.publish(store.Batch{Events: r.events, Revision: r.revision})
		}
	}
	s.size.Store(s.writer.size)
	for _, r := range group {
		close(r.done)
	}
}

func (s *Store) publish(batch store.Batch) {
	s.expiry.Observe(batch.Events)
	s.hub.Publish(batch)
}

// ascertain takes care of the rare commit that failed for its callers, could not
// be looked up at once, and turns out to be durable: watchers get it late, but
// they get it, and no revision is given out twice.
func (s *Store) ascertain() {
	if !s.writer.unsure {
		return
	}
	missed, err := s.writer.ascertain()
	if err != nil {
		return // the next write fails, and says so
	}
	for _, batch := range missed {
		s.logger.Warn("a commit that was reported as failed is durable", "path", s.path, "revision", batch.Revision)
		s.publish(batch)
	}
	s.compacted.Store(int64(s.writer.compacted))
	s.size.Store(s.writer.size)
}
