package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/group"
	"github.com/proxima-mesh/proxima/internal/store/outage"
)

// longestKey fits an index: an entry has at most 2,704 bytes (a third of a page,
// BTMaxItemSize in PostgreSQL's nbtree.h), with the revision in it.
const longestKey = 2600

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
	return s.queue.Commit(ctx, txn)
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
	return s.queue.Task(ctx, func() { f(s.running) })
}

// write is the goroutine that has the writer. It runs on the store's context
// alone: to interrupt a statement for one caller would fail the rest of the group.
func (s *Store) write() {
	s.queue.Run(group.Writer{
		Settle: func(requests []*group.Request) { s.settle(s.running, requests) },
		Idle:   func() { s.writer.ping(s.running) }, Every: keepAlive,
	})
}

// settle commits a group, publishes it and answers. No caller is answered, not even
// with a conflict, before what the answer builds on is durable.
func (s *Store) settle(ctx context.Context, requests []*group.Request) {
	begin := time.Now()
	for try := 0; len(requests) > 0; try++ {
		before, err := s.writer.commit(ctx, requests, s.clock.Now())
		_ = s.noted(err)
		if err == nil {
			s.writes.Over()
			s.publish(ctx, before, requests)
			group.Answer(requests)
			return
		}
		switch {
		case unavailable(err):
			s.writes.Began(begin)
			if !s.queue.Closing() && s.writes.Again(ctx, try) {
				// It did not happen, so those who lost interest may leave.
				requests = group.Withdraw(requests)
				continue
			}
		case len(requests) > 1 && refused(err):
			// One of them may be the reason, for example too large for the space left
			// on the disk. Each is tried alone.
			for _, r := range requests {
				s.settle(ctx, []*group.Request{r})
			}
			return
		}
		group.Fail(requests, s.failed(context.Background(), "commit", err))
		var unknown *UnknownError
		if errors.As(err, &unknown) {
			s.follower.wake() // should it have happened, watchers get it all the same
		}
		return
	}
}

// expiryLeaderPause is how long an instance that may not delete expired keys waits for
// the one that may, before it tries to take over.
const expiryLeaderPause = 250 * time.Millisecond

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
	pause := expiryLeaderPause
	if mine && err == nil {
		var rev store.Revision
		if rev, err = s.Commit(ctx, txn); err == nil || !unavailable(err) {
			return rev, err
		}
	}
	if err != nil {
		pause = outage.LastPause // the outage itself is in the log
	}
	backoff.Sleep(ctx, pause)
	return 0, nil // the queue checks again what is due
}
