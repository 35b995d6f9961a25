package postgres

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/jackc/pgx/v5"

	"github.com/proxima-mesh/proxima/internal/store"
)

var _ store.Restorer = (*Store)(nil)

// Restore implements store.Restorer, in one transaction. Commits wait until it
// is done, those of other processes too. If the connection breaks during the
// database's COMMIT the error is an *UnknownError; trying again shows by
// store.ErrNotEmpty that it had happened.
func (s *Store) Restore(ctx context.Context, at store.Revision, records iter.Seq2[store.Record, error]) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	r := &restoration{at: at, records: records}
	var failed error
	missed := s.task(ctx, func(running context.Context) {
		bound, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(running, cancel)()
		failed = s.restore(bound, r)
	})
	switch {
	case missed != nil:
		return missed
	case r.given != nil:
		return r.given
	case failed != nil:
		return s.failed(ctx, "restore", failed)
	}
	s.follower.wake()
	return nil
}

// restoration is a restore under way.
type restoration struct {
	at      store.Revision
	records iter.Seq2[store.Record, error]
	given   error // by the records, or because of them
	size    int64
}

func (s *Store) restore(ctx context.Context, r *restoration) error {
	conn, err := s.writer.connected(ctx)
	if err != nil {
		return err
	}
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err == nil {
		err = s.fill(ctx, tx, r)
	}
	if err != nil {
		s.writer.disconnect() // not committed, as COMMIT was not sent
		return err
	}
	if err := s.noted(tx.Commit(ctx)); err != nil {
		if !refused(err) {
			s.writer.disconnect()
			return &UnknownError{Err: err}
		}
		return err
	}
	return s.restored(ctx, r.at)
}

// fill writes the records as a history that is compacted up to its end.
func (s *Store) fill(ctx context.Context, tx pgx.Tx, r *restoration) error {
	if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1, `+stateID+`)`, lockCommit); err != nil {
		return err
	}
	var now bookkeeping
	if err := now.scan(tx.QueryRow(ctx, selectMeta)); err != nil {
		return err
	}
	if now.revision > 0 {
		r.given = store.ErrNotEmpty
		return r.given
	}
	if err := s.accept(now, s.hub.Revision()); err != nil {
		return err
	}
	next, stop := iter.Pull2(store.CheckRestored(r.at, r.records))
	defer stop()
	columns := []string{"revision", "batch", "kind", "key", "created", "prev", "expires", "writer", "value"}
	if _, err := tx.CopyFrom(ctx, pgx.Identifier{"proxima_history"}, columns, pgx.CopyFromFunc(func() ([]any, error) {
		return r.row(next, s.writer.id)
	})); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx,
		`INSERT INTO proxima_live (key, revision, expires) SELECT key, revision, expires FROM proxima_history`); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, `UPDATE proxima_meta SET revision = $1, compacted = $1, swept = $1, size = $2`, r.at, r.size)
	if err == nil {
		_, err = tx.Exec(ctx, `SELECT pg_notify(`+channel+`, $1::bigint::text)`, r.at)
	}
	return err
}

// row is the next row of the history; nil: there is none.
func (r *restoration) row(next func() (store.Record, error, bool), writer int64) ([]any,
	error) { //nolint:revive // the order is that of iter.Seq2
	record, err, ok := next()
	switch {
	case !ok:
		return nil, nil
	case err == nil && len(record.Key) > longestKey:
		err = &store.InvalidError{Key: record.Key[:64] + "…", Reason: fmt.Sprintf("longer than %d bytes", longestKey)}
	}
	if err != nil {
		r.given = err
		return nil, err
	}
	value := record.Value
	if value == nil {
		value = []byte{} // a live record has a value
	}
	r.size += int64(len(value))
	return []any{int64(record.Modified), int64(record.Modified), int16(store.Put), []byte(record.Key), int64(record.Created), int64(0),
		toColumn(record.Expires), writer, value}, nil
}

// restored makes this instance continue from the restored state. Other instances are
// informed by NOTIFY.
func (s *Store) restored(ctx context.Context, at store.Revision) error {
	s.follower.publishing.Lock()
	defer s.follower.publishing.Unlock()
	s.compacted.Store(int64(at))
	deadlines, err := s.deadlines(ctx)
	if err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("it is restored, but deadlines cannot be read: %w", err)
	}
	s.expiry.Observe(deadlines)
	s.hub.Skip(at)
	return nil
}
