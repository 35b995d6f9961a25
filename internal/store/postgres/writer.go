package postgres

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/proxima-mesh/proxima/internal/store"
)

const (
	// mostRequests and mostBytes bound what shares one transaction of the
	// database.
	mostRequests = 512
	mostBytes    = 8 << 20
	// longestKey fits an index: an entry has at most 2,704 bytes (a third of a
	// page, BTMaxItemSize in PostgreSQL's nbtree.h), with the revision in it.
	longestKey = 2600
)

// request is a transaction on its way to the writer.
type request struct {
	ctx   context.Context
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

// Commit implements store.Store. What waits in this process shares one
// transaction of the database. While the database is out of reach it waits for a
// while. If the connection breaks during the database's COMMIT it finds out
// whether that happened; where it can't, the error is an *UnknownError, the only
// one after which the transaction may have been applied.
func (s *Store) Commit(ctx context.Context, txn store.Txn) (store.Revision, error) {
	if err := s.usable(ctx); err != nil {
		return 0, err
	}
	if err := validate(txn); err != nil {
		return 0, err
	}
	r := &request{ctx: ctx, txn: txn, done: make(chan struct{})}
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

func validate(txn store.Txn) error {
	if err := txn.Validate(); err != nil {
		return err
	}
	for _, op := range txn.Ops {
		if len(op.Key) > longestKey {
			return &store.InvalidError{Key: op.Key[:64] + "…", Reason: "longer than 2600 bytes"}
		}
	}
	return nil
}

// task runs f between commits, on the writer's goroutine, and waits for it.
func (s *Store) task(ctx context.Context, f func(context.Context)) error {
	ran := make(chan struct{})
	select {
	case s.tasks <- func(ctx context.Context) { defer close(ran); f(ctx) }:
		<-ran
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-s.closing:
		return store.ErrClosed
	}
}

// write is the goroutine that has the writer. It runs on the store's context
// alone: to interrupt a statement for one caller would fail its neighbours.
func (s *Store) write() {
	defer close(s.finished)
	idle := time.NewTicker(keepAlive)
	defer idle.Stop()
	for {
		select {
		case <-s.closing:
			return
		default:
		}
		select {
		case r := <-s.commits:
			s.settle(s.running, s.gather(r))
		case f := <-s.tasks:
			f(s.running)
		case <-idle.C:
			s.writer.ping(s.running)
		case <-s.closing:
			return
		}
	}
}

// gather takes what waits already. It never waits for more: while one group is
// committed the next one assembles itself.
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
// with a conflict, before what the answer builds on is durable.
func (s *Store) settle(ctx context.Context, group []*request) {
	for try := 0; len(group) > 0; try++ {
		before, err := s.writer.commit(ctx, group, s.clock.Now())
		_ = s.noted(err)
		if err == nil {
			s.writes.over()
			s.publish(ctx, before, group)
			answer(group)
			return
		}
		switch {
		case unavailable(err):
			if !s.isClosing() && s.writes.again(ctx, try) {
				// It did not happen, so those who lost interest may leave.
				group = withdraw(group)
				continue
			}
		case len(group) > 1 && refused(err):
			// One of them may be the reason, say too large for what is left of the
			// disk. Each gets its own try.
			for _, r := range group {
				s.settle(ctx, []*request{r})
			}
			return
		}
		for _, r := range group {
			r.revision, r.err = 0, s.failed(context.Background(), "commit", err)
		}
		answer(group)
		var unknown *UnknownError
		if errors.As(err, &unknown) {
			s.follower.wake() // should it have happened, watchers get it all the same
		}
		return
	}
}

func answer(group []*request) {
	for _, r := range group {
		close(r.done)
	}
}

// withdraw answers those whose context has ended and returns the others.
func withdraw(group []*request) (left []*request) {
	for _, r := range group {
		if err := r.ctx.Err(); err != nil {
			r.revision, r.err = 0, err
			close(r.done)
			continue
		}
		left = append(left, r)
	}
	return left
}

func (s *Store) isClosing() bool {
	select {
	case <-s.closing:
		return true
	default:
		return false
	}
}

// keeperPause is how long an instance that may not delete expired keys waits for
// the one that may, before it tries to take over.
const keeperPause = 250 * time.Millisecond

// expire is the commit of the expiry queue. Every instance has the queue, so that
// any can go on with it, but only the one with the lock commits: the others would
// merely produce conflicts.
//
// The lock belongs to the writer's session. To wait for it in the database would
// keep a snapshot there and so hold up VACUUM; trying now and then does not.
func (s *Store) expire(ctx context.Context, txn store.Txn) (store.Revision, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	var mine bool
	var err error
	if missed := s.task(ctx, func(ctx context.Context) { mine, err = s.writer.keeps(ctx) }); missed != nil {
		return 0, missed
	}
	pause := keeperPause
	if mine && err == nil {
		var rev store.Revision
		if rev, err = s.Commit(ctx, txn); err == nil || !unavailable(err) {
			return rev, err
		}
	}
	if err != nil {
		pause = lastPause // the outage itself is in the log
	}
	sleep(ctx, pause)
	return 0, nil // the queue looks again at what is due
}
