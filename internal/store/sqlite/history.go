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
	query := `SELECT h.revision, h.batch, h.kind, h.key, h.created, h.expires, h.value,
			p.revision, p.created, p.expires, p.value
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
	var expires int64
	var prevRevision, prevCreated sql.Null[store.Revision]
	var prevExpires sql.NullInt64
	var prevValue []byte
	if err := rows.Scan(&e.Record.Modified, &batch, &e.Kind, &e.Record.Key, &e.Record.Created, &expires, &e.Record.Value,
		&prevRevision, &prevCreated, &prevExpires, &prevValue); err != nil {
		return store.Event{}, 0, err
	}
	e.Record.Expires = fromColumn(expires)
	if prevRevision.Valid {
		e.Prev = &store.Record{
			Key: e.Record.Key, Value: prevValue, Created: prevCreated.V, Modified: prevRevision.V,
			Expires: fromColumn(prevExpires.Int64),
		}
	}
	return e, batch, nil
}
