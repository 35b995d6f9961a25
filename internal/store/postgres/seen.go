package postgres

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/position"
)

// sightingInterval is how often the newest revision that this instance has seen is written to a file
// of its own: what is missing from it after a crash is too little for a restore to hide in. A
// database that is restored sets back everything in it, the epoch included.
const sightingInterval = 5 * time.Second

// resume compares the database with what this instance has seen. If it is behind, revisions
// that were given out are above all that it has: it gets another epoch, goes on above them, and
// no reader can ask for what was before, so that everybody lists anew. Other instances that
// have the state open end, as after a restore.
func (s *Store) resume(ctx context.Context, conn *pgx.Conn, now bookkeeping) (bookkeeping, error) {
	if s.seenFile == "" {
		return now, nil
	}
	was, err := position.Read(s.seenFile)
	if err != nil {
		s.logger.Warn("how far the state was is not known; whether it lost transactions cannot be told", "error", err)
		return now, nil
	}
	if was.Epoch != now.epoch || was.Revision <= now.revision {
		return now, nil
	}
	had := now
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1, `+stateID+`)`, lockCommit); err != nil {
			return err
		}
		if err := now.scan(tx.QueryRow(ctx, selectMeta)); err != nil {
			return err
		}
		if was.Epoch != now.epoch || was.Revision <= now.revision {
			return nil // another instance was faster
		}
		id := make([]byte, 16)
		_, _ = rand.Read(id) // crypto/rand.Read never fails
		now.epoch, now.revision = hex.EncodeToString(id), store.AfterLoss(was.Revision, s.clock.Now())
		now.compacted, now.swept = now.revision, now.revision
		if _, err := tx.Exec(ctx, `DELETE FROM proxima_history AS h WHERE NOT EXISTS (SELECT FROM proxima_live AS l WHERE l.revision = h.revision)`); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `UPDATE proxima_meta SET epoch = $1, revision = $2, compacted = $2, swept = $2`, now.epoch, now.revision)
		return err
	})
	if err != nil {
		return had, fmt.Errorf("go on after a loss: %w", err)
	}
	s.logger.Error("the state is older than it was: transactions are lost; it goes on under another epoch, and all clients list anew. "+
		"To have them back, restore a newer backup of the database",
		"store", s.target.label, "revision", had.revision, "was", was.Revision, "continues", now.revision, "epoch", now.epoch)
	return now, nil
}

// keepSighting writes the newest revision to its file until ctx ends, and once more then.
func (s *Store) keepSighting(ctx context.Context) {
	var kept position.Position
	failed := false
	for {
		now := position.Position{Epoch: s.epoch, Revision: s.hub.Revision()}
		var err error
		if now != kept {
			err = now.Write(s.seenFile)
		}
		switch {
		case err == nil:
			kept = now
		case !failed:
			s.logger.Warn("the newest revision cannot be kept; that the database went back is not noticed after a restart", "error", err)
		}
		failed = err != nil
		if ctx.Err() != nil {
			return
		}
		backoff.Sleep(ctx, sightingInterval)
	}
}
