package sqlite

import (
	"context"
	"database/sql"
	"errors"

	"github.com/proxima-mesh/proxima/internal/store"
)

// snapshot is a read transaction: one state of the database, whatever is
// written meanwhile.
type snapshot struct {
	tx *sql.Tx
	bookkeeping
}

// read runs f on a snapshot. What it saw is published when read returns, so that
// a caller can watch from there. Errors of the contract pass unchanged.
func (s *Store) read(ctx context.Context, op string, f func(snapshot) error) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	tx, err := s.reads.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return s.failed(ctx, op, err)
	}
	defer tx.Rollback() //nolint:errcheck // a read has nothing to undo
	snap := snapshot{tx: tx}
	if err = snap.scan(tx.StmtContext(ctx, s.readMeta).QueryRowContext(ctx)); err == nil {
		err = f(snap)
	}
	switch {
	case errors.Is(err, store.ErrCompacted) || errors.Is(err, store.ErrFuture):
		return err
	case err != nil:
		return s.failed(ctx, op, err)
	}
	return s.hub.Await(ctx, snap.revision)
}

// boundary maps a requested revision to the one to read at. A revision inside
// a transaction becomes the transaction's last, as no reader sees a part of it.
func (snap snapshot) boundary(ctx context.Context, at store.Revision) (store.Revision, error) {
	switch {
	case at == 0 || at == snap.revision:
		return snap.revision, nil
	case at > snap.revision:
		return 0, store.ErrFuture
	case at < snap.compacted:
		return 0, store.ErrCompacted
	}
	// Compaction keeps the row of the compacted revision itself; a restored state
	// may begin at a revision without one.
	var batch store.Revision
	err := snap.tx.QueryRowContext(ctx, `SELECT batch FROM history WHERE revision = ?`, at).Scan(&batch)
	if errors.Is(err, sql.ErrNoRows) && at == snap.compacted {
		return at, nil
	}
	return batch, err
}

// Get implements store.Store.
func (s *Store) Get(ctx context.Context, key string, at store.Revision) (rec store.Record, ok bool, read store.Revision, err error) {
	err = s.read(ctx, "get", func(snap snapshot) (err error) {
		if read, err = snap.boundary(ctx, at); err != nil {
			return err
		}
		var found *sql.Row
		if read == snap.revision {
			found = snap.tx.StmtContext(ctx, s.readNewest).QueryRowContext(ctx, []byte(key))
		} else {
			found = snap.tx.QueryRowContext(ctx, `SELECT `+historyColumns+`
				FROM history AS h WHERE key = ? AND revision <= ? ORDER BY revision DESC LIMIT 1`, []byte(key), read)
		}
		var r row
		err = found.Scan(r.targets()...)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		if err == nil {
			err = r.verify()
		}
		if ok = err == nil && store.EventKind(r.kind) == store.Put; ok {
			rec = r.record()
		}
		return err
	})
	if err != nil {
		return store.Record{}, false, 0, err
	}
	return rec, ok, read, nil
}

// span is a range of keys at a revision, as parts of a query.
type span struct {
	from    string // what has one row for each key
	values  string // joins history as h, if from is not that already
	columns string // of the rows
	key     string // the column to order by, so that an index gives the order
	where   string
	args    []any
}

// span selects the state of the keys with a prefix, from a key on.
func (snap snapshot) span(prefix, from string, at store.Revision) span {
	p := span{args: []any{[]byte(max(prefix, from))}}
	end, bounded := successor(prefix)
	if at == snap.revision {
		p.columns = liveColumns
		p.from, p.values, p.key, p.where = `live`, ` LEFT JOIN history AS h USING (revision)`, `live.key`, `live.key >= ?`
		if bounded {
			p.where += ` AND live.key < ?`
			p.args = append(p.args, end)
		}
		return p
	}
	p.columns = historyColumns
	p.from, p.key, p.where = `history AS h`, `h.key`, `h.key >= ?`
	if bounded {
		p.where += ` AND h.key < ?`
		p.args = append(p.args, end)
	}
	p.where += ` AND h.revision <= ? AND h.kind = 1 AND NOT EXISTS
		(SELECT 1 FROM history AS later WHERE later.key = h.key AND later.revision > h.revision AND later.revision <= ?)`
	p.args = append(p.args, at, at)
	return p
}

// successor is the first key after all keys with a prefix, if there is one.
func successor(prefix string) (key []byte, bounded bool) {
	key = []byte(prefix)
	for len(key) > 0 {
		if last := len(key) - 1; key[last] < 0xff {
			key[last]++
			return key, true
		}
		key = key[:len(key)-1]
	}
	return nil, false
}

func (snap snapshot) count(ctx context.Context, p span) (n int64, err error) {
	err = snap.tx.QueryRowContext(ctx, `SELECT count(*) FROM `+p.from+` WHERE `+p.where, p.args...).Scan(&n)
	return n, err
}

// Count implements store.Store.
func (s *Store) Count(ctx context.Context, prefix string) (n int64, err error) {
	err = s.read(ctx, "count", func(snap snapshot) (err error) {
		n, err = snap.count(ctx, snap.span(prefix, "", snap.revision))
		return err
	})
	return n, err
}

// List implements store.Store.
func (s *Store) List(ctx context.Context, opts store.ListOptions) (page store.Page, err error) {
	err = s.read(ctx, "list", func(snap snapshot) (err error) {
		if page.Revision, err = snap.boundary(ctx, opts.At); err != nil {
			return err
		}
		p := snap.span(opts.Prefix, opts.From, page.Revision)
		if err := snap.list(ctx, p, opts, &page); err != nil || !page.More {
			return err
		}
		total, err := snap.count(ctx, p)
		page.Remaining = total - int64(len(page.Records))
		return err
	})
	if err != nil {
		return store.Page{}, err
	}
	return page, nil
}

func (snap snapshot) list(ctx context.Context, p span, opts store.ListOptions, page *store.Page) error {
	columns := p.columns
	if opts.KeysOnly {
		columns = withoutValues(columns)
	}
	query := `SELECT ` + columns + ` FROM ` + p.from + p.values + ` WHERE ` + p.where + ` ORDER BY ` + p.key
	if opts.Limit > 0 {
		query += ` LIMIT ?`
		p.args = append(p.args[:len(p.args):len(p.args)], opts.Limit+1) // one more shows whether keys follow
	}
	rows, err := snap.tx.QueryContext(ctx, query, p.args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if opts.Limit > 0 && len(page.Records) == opts.Limit {
			page.More = true
			break
		}
		var r row
		if err := rows.Scan(r.targets()...); err != nil {
			return err
		}
		if err := r.verify(); err != nil {
			return err
		}
		page.Records = append(page.Records, r.record())
	}
	return rows.Err()
}

// deadlines are the keys that expire, as events for the queue.
func (s *Store) deadlines(ctx context.Context) (events []store.Event, err error) {
	rows, err := s.reads.QueryContext(ctx, `SELECT key, revision, expires FROM live WHERE expires > 0`)
	if err != nil {
		return nil, damaged(err)
	}
	defer rows.Close()
	for rows.Next() {
		e := store.Event{Kind: store.Put}
		var expires int64
		if err := rows.Scan(&e.Record.Key, &e.Record.Modified, &expires); err != nil {
			return nil, err
		}
		e.Record.Expires = fromColumn(expires)
		events = append(events, e)
	}
	return events, rows.Err()
}
