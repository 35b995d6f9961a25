package sqlite

import (
	"context"
	"database/sql"

	"github.com/proxima-mesh/proxima/internal/store"
)

const (
	// pageEvents and pageBytes bound what a watcher reads at once, apart from
	// what its last transaction has beyond that.
	pageEvents = 512
	pageBytes  = 4 << 20
)

// History implements watch.Source.
func (s *Store) History(
	ctx context.Context, prefix string, after, until store.Revision,
) (batches []store.Batch, done store.Revision, err error) {
	err = s.read(ctx, "watch", func(snap snapshot) error {
		if after < snap.compacted {
			return store.ErrCompacted
		}
		batches, done, err = history(ctx, snap.tx, prefix, after, until)
		return err
	})
	return batches, done, err
}

// querier is a read transaction, or the writer's connection.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

func history(ctx context.Context, from querier, prefix string, after, until store.Revision) ([]store.Batch, store.Revision, error) {
	// The unary plus keeps SQLite from walking the keys' index, which has
	// the revisions in another order.
	query := `SELECT ` + historyColumns + `, p.revision, p.created, p.expires, p.value, p.batch, p.kind, p.prev, p.sum
		FROM history AS h LEFT JOIN history AS p ON p.revision = h.prev
		WHERE h.revision > ? AND h.revision <= ? AND +h.key >= ?`
	args := []any{after, until, []byte(prefix)}
	if end, bounded := successor(prefix); bounded {
		query += ` AND +h.key < ?`
		args = append(args, end)
	}
	rows, err := from.QueryContext(ctx, query+` ORDER BY h.revision`, args...)
	if err != nil {
		return nil, 0, err
	}
	defer rows.Close()
	var batches []store.Batch
	events, bytes := 0, 0
	for rows.Next() {
		e, batch, err := scanEvent(rows)
		if err != nil {
			return nil, 0, err
		}
		last := len(batches) - 1
		if last < 0 || batches[last].Revision != batch {
			if events >= pageEvents || bytes >= pageBytes {
				return batches, batches[last].Revision, nil
			}
			batches = append(batches, store.Batch{Revision: batch})
			last++
		}
		batches[last].Events = append(batches[last].Events, e)
		events++
		bytes += len(e.Record.Value)
		if e.Prev != nil {
			bytes += len(e.Prev.Value)
		}
	}
	return batches, until, rows.Err()
}

func scanEvent(rows *sql.Rows) (e store.Event, batch store.Revision, err error) {
	var r row
	var revision, created, expires, of, kind, prev sql.NullInt64 // of the row that it replaces; NULL: there is none
	p := row{}
	if err := rows.Scan(append(r.targets(), &revision, &created, &expires, &p.value, &of, &kind, &prev, &p.sum)...); err != nil {
		return store.Event{}, 0, err
	}
	if err := r.verify(); err != nil {
		return store.Event{}, 0, err
	}
	e = store.Event{Kind: store.EventKind(r.kind), Record: r.record()}
	if revision.Valid {
		p.key, p.revision, p.created, p.expires = r.key, revision.Int64, created.Int64, expires.Int64
		p.batch, p.kind, p.prev = of.Int64, kind.Int64, prev.Int64
		if err := p.verify(); err != nil {
			return store.Event{}, 0, err
		}
		replaced := p.record()
		e.Prev = &replaced
	}
	return e, store.Revision(r.batch), nil
}
