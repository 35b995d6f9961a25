package sqlite

import (
	"context"

	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/group"
)

// Commit implements store.Store. The transaction is on the disk when it
// returns.
func (s *Store) Commit(ctx context.Context, txn store.Txn) (store.Revision, error) {
	if err := s.usable(ctx); err != nil {
		return 0, err
	}
	if err := txn.Validate(); err != nil {
		return 0, err
	}
	return s.queue.Commit(ctx, txn)
}

// task runs f between commits, on the writer's goroutine, and waits for it.
func (s *Store) task(ctx context.Context, f func()) error {
	return s.queue.Task(ctx, func() { s.ascertain(); f() })
}

// write is the one goroutine that changes the database.
func (s *Store) write() {
	s.queue.Run(group.Writer{Settle: func(requests []*group.Request) {
		s.ascertain()
		s.settle(requests)
	}})
}

// settle commits a group, publishes it and answers. No caller is answered, not even
// with a conflict, before what the answer builds on is on the disk.
func (s *Store) settle(requests []*group.Request) {
	err := s.noted(s.writer.commit(requests, s.clock.Now()))
	if err != nil && len(requests) > 1 {
		// One of them may be the reason, for example too large for the space left on
		// the disk. Each is tried alone.
		for _, r := range requests {
			s.settle([]*group.Request{r})
		}
		return
	}
	if err != nil {
		group.Fail(requests, s.failed(context.Background(), "commit", err))
		return
	}
	for _, r := range requests {
		if len(r.Events) > 0 {
			s.publish(store.Batch{Events: r.Events, Revision: r.Revision})
		}
	}
	s.size.Store(s.writer.size)
	s.moved()
	group.Answer(requests)
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
		return // the next write fails, and reports it
	}
	for _, batch := range missed {
		s.logger.Warn("a commit that was reported as failed is durable", "path", s.path, "revision", batch.Revision)
		s.publish(batch)
	}
	s.compacted.Store(int64(s.writer.compacted))
	s.size.Store(s.writer.size)
}
