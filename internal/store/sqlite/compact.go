package sqlite

import (
	"context"
	"errors"

	"github.com/proxima-mesh/proxima/internal/store"
)

// sweep bounds the revisions whose leftovers one transaction deletes, so that
// commits in between wait for milliseconds.
const sweep = 1000

// Compact implements store.Store. History is out of reach when the first short
// transaction is through; then the rows are deleted step by step while commits
// go on. If that is cut short the next Compact goes on with it.
func (s *Store) Compact(ctx context.Context, upTo store.Revision) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	var err error
	if missed := s.task(ctx, func() {
		if upTo > s.writer.revision {
			err = store.ErrFuture
			return
		}
		err = s.noted(s.writer.compact(upTo))
		s.compacted.Store(int64(s.writer.compacted))
	}); missed != nil {
		return missed
	}
	if err != nil {
		if errors.Is(err, store.ErrFuture) {
			return err
		}
		return s.failed(ctx, "compact", err)
	}
	for more := true; more; {
		missed := s.task(context.WithoutCancel(ctx), func() {
			more, err = s.writer.sweep()
			err = s.noted(err)
		})
		if missed != nil || err != nil {
			if err != nil {
				s.logger.Warn("compacted history could not be deleted, the next compaction tries again", "path", s.path, "error", explain(err))
			}
			return nil // compacted it is
		}
	}
	return nil
}

func (w *writer) compact(upTo store.Revision) error {
	return w.transact(func(next *bookkeeping) error {
		next.compacted = max(next.compacted, upTo)
		return nil
	})
}

// sweep deletes rows that no read at or after the compacted revision sees: those
// that a row up to it replaced, and deletions. The row of the last revision
// stays, as reads need its batch.
func (w *writer) sweep() (more bool, err error) {
	first, last := w.swept, min(w.swept+sweep, w.compacted)
	if first == last {
		return false, nil
	}
	err = w.transact(func(next *bookkeeping) error {
		next.swept = last
		if _, err := w.conn.ExecContext(context.Background(), `DELETE FROM history WHERE revision IN
			(SELECT prev FROM history WHERE revision > ? AND revision <= ?)`, first, last); err != nil {
			return err
		}
		_, err := w.conn.ExecContext(context.Background(),
			`DELETE FROM history WHERE revision >= ? AND revision < ? AND kind = 2`, first, last)
		return err
	})
	return last < w.compacted, err
}
