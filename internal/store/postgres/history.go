package postgres

import (
	"context"
	"fmt"
	"math"

	"github.com/jackc/pgx/v5"

	"github.com/proxima-mesh/proxima/internal/store"
)

const (
	// pageEvents and pageBytes bound what a watcher reads at once, apart from
	// what its last transaction has beyond that.
	pageEvents = 512
	pageBytes  = 4 << 20
)

// newest stands for the end of the history.
const newest store.Revision = math.MaxInt64

// History implements watch.Source.
func (s *Store) History(
	ctx context.Context, prefix string, after, until store.Revision,
) (batches []store.Batch, done store.Revision, err error) {
	_, err = s.read(ctx, "watch", past(prefix, after, until, &batches, &done))
	return batches, done, err
}

// past is the query for a page of history. done is the revision up to which it is
// complete.
func past(prefix string, after, until store.Revision, batches *[]store.Batch, done *store.Revision) question {
	return question{
		queue: func(b *pgx.Batch) {
			k := within("h.key", prefix, "", after, until)
			// The page ends with a transaction; find that end by the sizes alone,
			// which does not touch the values.
			end := `SELECT max(batch) FROM (
				SELECT batch, sum(bytes) OVER (ORDER BY revision) - bytes AS before FROM (
					SELECT revision, batch, coalesce(octet_length(value), 0) AS bytes FROM proxima_history AS h
					WHERE revision > $1 AND revision <= $2 AND ` + k.where + ` ORDER BY revision LIMIT ` + fmt.Sprint(pageEvents) + `
				) AS rows) AS sums WHERE before < ` + fmt.Sprint(pageBytes)
			b.Queue(`SELECT h.revision, h.batch, h.kind, h.key, h.created, h.expires, h.value, p.revision, p.created, p.expires, p.value
				FROM proxima_history AS h
				LEFT JOIN `+rowOf("h.prev")+` AS p ON true
				WHERE h.revision > $1 AND h.revision <= (`+end+`) AND `+k.where+` ORDER BY h.revision`, k.args...)
		},
		scan: func(results pgx.BatchResults, now bookkeeping) error {
			if after < now.compacted {
				return store.ErrCompacted
			}
			page, full, err := takeHistory(results)
			if err != nil {
				return err
			}
			*batches, *done = page, min(until, now.revision)
			if full {
				*done = page[len(page)-1].Revision
			}
			return nil
		},
	}
}

func takeHistory(results pgx.BatchResults) (batches []store.Batch, full bool, err error) {
	rows, err := results.Query()
	if err != nil {
		return nil, false, err
	}
	defer rows.Close()
	events, bytes := 0, 0
	for rows.Next() {
		e, batch, err := scanEvent(rows)
		if err != nil {
			return nil, false, err
		}
		last := len(batches) - 1
		if last < 0 || batches[last].Revision != batch {
			batches = append(batches, store.Batch{Revision: batch})
			last++
		}
		batches[last].Events = append(batches[last].Events, e)
		events++
		bytes += len(e.Record.Value)
	}
	return batches, events >= pageEvents || bytes >= pageBytes, rows.Err()
}

func scanEvent(row pgx.Row) (e store.Event, batch store.Revision, err error) {
	var kind int16
	var key []byte
	var expires int64
	var prevRevision, prevCreated *store.Revision
	var prevExpires *int64
	var prevValue []byte
	if err := row.Scan(&e.Record.Modified, &batch, &kind, &key, &e.Record.Created, &expires, &e.Record.Value,
		&prevRevision, &prevCreated, &prevExpires, &prevValue); err != nil {
		return store.Event{}, 0, err
	}
	e.Kind, e.Record.Key, e.Record.Expires = store.EventKind(kind), string(key), fromColumn(expires)
	if e.Kind != store.Put && e.Kind != store.Delete || len(key) == 0 || e.Record.Modified < 1 {
		return store.Event{}, 0, &DamagedError{Detail: fmt.Sprintf("%q at revision %d is not a change of a key", key, e.Record.Modified)}
	}
	if prevRevision != nil {
		e.Prev = &store.Record{
			Key: e.Record.Key, Value: prevValue, Created: *prevCreated, Modified: *prevRevision, Expires: fromColumn(*prevExpires),
		}
	}
	return e, batch, nil
}

// deadlines are the keys that expire, as events for the queue.
func (s *Store) deadlines(ctx context.Context) (events []store.Event, err error) {
	rows, err := s.pool.Query(ctx, `SELECT key, revision, expires FROM proxima_live WHERE expires > 0`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var key []byte
		var expires int64
		e := store.Event{Kind: store.Put}
		if err := rows.Scan(&key, &e.Record.Modified, &expires); err != nil {
			return nil, err
		}
		e.Record.Key, e.Record.Expires = string(key), fromColumn(expires)
		events = append(events, e)
	}
	return events, rows.Err()
}
