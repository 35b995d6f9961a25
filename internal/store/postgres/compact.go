package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/proxima-mesh/proxima/internal/store"
)

// sweep bounds the revisions whose leftovers one transaction deletes.
const sweep = 1000

// Compact implements store.Store. History is out of reach when the first short
// statement is through; then the rows are deleted step by step while commits go
// on. If that is cut short the next Compact goes on with it. It needs no commit
// lock, as it touches other columns and rows than commits do.
func (s *Store) Compact(ctx context.Context, upTo store.Revision) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	bound, cancel := s.bound(ctx)
	defer cancel()
	for try := 0; ; try++ {
		err := s.compact(bound, upTo)
		switch {
		case err == nil:
			s.sweepAll(bound)
			return nil
		case errors.Is(err, store.ErrFuture):
			return err
		case bound.Err() != nil || !unavailable(err) || !s.reads.Again(bound, try):
			return s.failed(ctx, "compact", err)
		}
	}
}

func (s *Store) compact(ctx context.Context, upTo store.Revision) error {
	now := bookkeeping{epoch: s.epoch}
	err := s.pool.QueryRow(ctx, `WITH changed AS (
			UPDATE proxima_meta SET compacted = greatest(compacted, $1) WHERE revision >= $1 AND epoch = $2
			RETURNING revision, compacted, pg_notify(`+channel+`, revision::text))
		SELECT revision, compacted FROM changed`, upTo, s.epoch).Scan(&now.revision, &now.compacted)
	if errors.Is(err, pgx.ErrNoRows) {
		if _, err := s.ask(ctx, question{}); err != nil { // is it another history?
			return err
		}
		return store.ErrFuture
	}
	if err != nil {
		return err
	}
	return s.accept(now, 0)
}

func (s *Store) sweepAll(ctx context.Context) {
	for more := true; more; {
		var err error
		if more, err = s.sweep(ctx); err != nil {
			if s.usable(ctx) == nil {
				s.logger.Warn("compacted history could not be deleted, the next compaction tries again", "store", s.target.label, "error", explain(err))
			}
			return // compacted it is
		}
	}
}

// sweep deletes rows that no read at or after the compacted revision sees: those
// that a row up to it replaced, and deletions. The row of the last revision
// stays, as reads need its batch. If another instance is at it, that does it all.
func (s *Store) sweep(ctx context.Context) (more bool, err error) {
	err = pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		var mine bool
		if err := tx.QueryRow(ctx, `SELECT pg_try_advisory_xact_lock($1, `+stateID+`)`, lockSweep).Scan(&mine); err != nil || !mine {
			return err
		}
		var now bookkeeping
		if err := now.scan(tx.QueryRow(ctx, selectMeta)); err != nil || now.swept >= now.compacted {
			return err
		}
		first, last := now.swept, min(now.swept+sweep, now.compacted)
		more = last < now.compacted
		var batch pgx.Batch
		batch.Queue(`DELETE FROM proxima_history WHERE revision = ANY(ARRAY(
			SELECT prev FROM proxima_history WHERE revision > $1 AND revision <= $2 AND prev > 0))`, first, last)
		batch.Queue(`DELETE FROM proxima_history WHERE revision >= $1 AND revision < $2 AND kind = 2`, first, last)
		// The last statement, as commits wait for this row until ours is through.
		batch.Queue(`UPDATE proxima_meta SET swept = $1`, last)
		return tx.SendBatch(ctx, &batch).Close()
	})
	return more && err == nil, err
}
