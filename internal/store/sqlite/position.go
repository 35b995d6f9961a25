package sqlite

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"time"

	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/position"
)

// positionPeriod bounds how far the file is behind: a loss that is younger is not noticed.
const positionPeriod = time.Second

// positionPath is the file that says how far a state was. A state that is behind it lost acknowledged
// transactions: its log was deleted, or an older file was put in its place.
func positionPath(path string) string { return path + ".position" }

// resume compares the state with its position. Of one that is behind, revisions that were given
// out are above all that it has: it gets another epoch, goes on above them, and no reader can ask
// for what was before, so that everybody lists anew.
func (s *Store) resume() error {
	was, err := position.Read(positionPath(s.path))
	if err != nil {
		s.logger.Warn("how far the state was is not known; whether it lost transactions cannot be told", "error", err)
		return nil
	}
	s.recorded.Store(&was)
	if was.Revision <= s.writer.revision {
		return nil
	}
	had := s.writer.bookkeeping
	next := store.AfterLoss(was.Revision, s.clock.Now())
	id := make([]byte, 16)
	_, _ = rand.Read(id) // crypto/rand.Read never fails
	if err := s.writer.restart(hex.EncodeToString(id), next); err != nil {
		return explain(err)
	}
	s.logger.Error("the state is older than it was: transactions are lost; it goes on under another epoch, and all clients list anew. "+
		"To have them back, restore a backup, or put the newest file and its log (-wal) in place",
		"path", s.path, "revision", had.revision, "was", was.Revision, "continues", next, "epoch", s.writer.epoch)
	return nil
}

// restart the history at a revision, under another epoch.
func (w *writer) restart(epoch string, at store.Revision) error {
	return w.transact(func(next *bookkeeping) error {
		next.epoch, next.revision, next.compacted, next.swept = epoch, at, at, at
		if _, err := w.conn.ExecContext(context.Background(), `DELETE FROM history WHERE revision NOT IN (SELECT revision FROM live)`); err != nil {
			return err
		}
		_, err := w.conn.ExecContext(context.Background(), `UPDATE meta SET epoch = ?`, epoch)
		return err
	})
}

// recordPosition keeps the file up to date until ctx ends. dirty has a token after transactions.
func (s *Store) recordPosition(ctx context.Context) {
	failing := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.dirty:
		}
		err := s.writePosition()
		if err != nil && !failing {
			s.logger.Warn("how far the state is could not be recorded beside it; it is tried again", "error", err)
		}
		if failing = err != nil; failing {
			s.moved()
		}
		select {
		case <-ctx.Done():
			return
		case <-s.clock.After(positionPeriod):
		}
	}
}

// writePosition records how far the state is, if that has changed.
func (s *Store) writePosition() error {
	now := position.Position{Epoch: s.epoch, Revision: s.hub.Revision()}
	if was := s.recorded.Load(); was != nil && *was == now {
		return nil
	}
	if err := now.Write(positionPath(s.path)); err != nil {
		return err
	}
	s.recorded.Store(&now)
	return nil
}

// moved says that there are new transactions.
func (s *Store) moved() {
	select {
	case s.dirty <- struct{}{}:
	default:
	}
}
