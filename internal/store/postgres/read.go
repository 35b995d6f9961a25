package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/proxima-mesh/proxima/internal/store"
)

// bookkeeping is the row of proxima_meta.
type bookkeeping struct {
	epoch     string
	revision  store.Revision
	compacted store.Revision
	swept     store.Revision
	size      int64
}

const selectMeta = `SELECT epoch, revision, compacted, swept, size FROM proxima_meta`

func (b *bookkeeping) scan(row pgx.Row) error {
	return row.Scan(&b.epoch, &b.revision, &b.compacted, &b.swept, &b.size)
}

// question is a read: statements to queue, and a function that takes their
// answers in the same order.
type question struct {
	queue func(*pgx.Batch)
	scan  func(pgx.BatchResults, bookkeeping) error
}

// ask runs a question on one snapshot, in one round trip, and once.
func (s *Store) ask(ctx context.Context, q question) (now bookkeeping, err error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return now, err
	}
	defer conn.Release()
	known := s.hub.Revision()
	var batch pgx.Batch
	batch.Queue(`BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY`)
	batch.Queue(selectMeta)
	if q.queue != nil {
		q.queue(&batch)
	}
	batch.Queue(`COMMIT`)
	results := conn.SendBatch(ctx, &batch)
	if _, err = results.Exec(); err == nil {
		err = now.scan(results.QueryRow())
	}
	if err == nil {
		err = s.accept(now, known)
	}
	if err == nil && q.scan != nil {
		err = q.scan(results, now)
	}
	// Close reads what is left, COMMIT's answer too.
	if closed := results.Close(); err == nil {
		err = closed
	}
	return now, err
}

// accept takes note of bookkeeping that was read. It ends the store if that is
// not of the history we know: known was published before it was read.
func (s *Store) accept(now bookkeeping, known store.Revision) error {
	var detail string
	switch {
	case now.epoch != s.epoch:
		detail = fmt.Sprintf("its epoch is %s, it was %s", now.epoch, s.epoch)
	case now.revision < known:
		detail = fmt.Sprintf("its newest revision is %d, it was %d", now.revision, known)
	default:
		for {
			old := s.compacted.Load()
			if int64(now.compacted) <= old || s.compacted.CompareAndSwap(old, int64(now.compacted)) {
				return nil
			}
		}
	}
	err := &ReplacedError{Detail: detail}
	s.end(err)
	return err
}

// read repeats a query until it succeeds, or a retry is of no use. The revision that
// it saw is published when read returns, so that a caller can watch from there.
// Errors of the contract pass unchanged.
func (s *Store) read(ctx context.Context, op string, q question) (now bookkeeping, err error) {
	if err := s.usable(ctx); err != nil {
		return now, err
	}
	bound, cancel := s.bound(ctx)
	defer cancel()
	for try := 0; ; try++ {
		now, err = s.ask(bound, q)
		switch {
		case err == nil:
			s.reads.Over()
			if now.revision > s.hub.Revision() {
				// Another instance's commit, or our own between COMMIT and publication.
				s.follower.wake()
				err = s.hub.Await(bound, now.revision)
			}
			if err == nil {
				return now, nil
			}
			return now, s.failed(ctx, op, err)
		case errors.Is(err, store.ErrCompacted) || errors.Is(err, store.ErrFuture):
			return now, err
		case bound.Err() != nil || !unavailable(err) || !s.reads.Again(bound, try):
			return now, s.failed(ctx, op, err)
		}
	}
}

// bound ends with a caller's context or the store.
func (s *Store) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	detach := context.AfterFunc(s.running, cancel)
	return ctx, func() { detach(); cancel() }
}

// keys is a range of keys as a condition on a column.
type keys struct {
	where string
	args  []any
}

// within selects keys with a prefix, from a key on. args are parameters that come
// before.
func within(column, prefix, from string, args ...any) keys {
	args = append(args, []byte(max(prefix, from)))
	k := keys{where: fmt.Sprintf("%s >= $%d", column, len(args))}
	if end, bounded := successor(prefix); bounded {
		args = append(args, end)
		k.where += fmt.Sprintf(" AND %s < $%d", column, len(args))
	}
	k.args = args
	return k
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

// selectBatch finds the end of the transaction that has revision $1. Compaction
// keeps the row of the compacted revision itself.
const selectBatch = `SELECT batch FROM proxima_history WHERE revision = $1`

// boundary maps a requested revision to the one to read at, given the result of
// selectBatch. A revision inside a transaction becomes the transaction's last,
// as no reader sees a part of it.
func boundary(results pgx.BatchResults, at store.Revision, now bookkeeping) (store.Revision, error) {
	var batch store.Revision
	err := results.QueryRow().Scan(&batch)
	switch {
	case at == 0 || at == now.revision:
		return now.revision, nil
	case at > now.revision:
		return 0, store.ErrFuture
	case at < now.compacted:
		return 0, store.ErrCompacted
	}
	if errors.Is(err, pgx.ErrNoRows) && at == now.compacted {
		return at, nil // where a restored state begins there is no row
	}
	return batch, err
}

// Get implements store.Store.
func (s *Store) Get(ctx context.Context, key string, at store.Revision) (rec store.Record, ok bool, read store.Revision, err error) {
	q := question{
		queue: func(b *pgx.Batch) {
			b.Queue(selectBatch, at)
			if at == 0 {
				b.Queue(`SELECT revision, created, expires, value, kind FROM proxima_history
					WHERE key = $1 ORDER BY revision DESC LIMIT 1`, []byte(key))
				return
			}
			b.Queue(`SELECT revision, created, expires, value, kind FROM proxima_history
				WHERE key = $1 AND revision <= (`+batchOf("$2")+`) ORDER BY revision DESC LIMIT 1`, []byte(key), at)
		},
		scan: func(results pgx.BatchResults, now bookkeeping) (err error) {
			if read, err = boundary(results, at, now); err != nil {
				return err
			}
			rec = store.Record{Key: key}
			var expires int64
			var kind int16
			err = results.QueryRow().Scan(&rec.Modified, &rec.Created, &expires, &rec.Value, &kind)
			if errors.Is(err, pgx.ErrNoRows) {
				err = nil
			}
			ok = err == nil && kind == int16(store.Put)
			rec.Expires = fromColumn(expires)
			return err
		},
	}
	if _, err := s.read(ctx, "get", q); err != nil || !ok {
		return store.Record{}, false, read, err
	}
	return rec, true, read, nil
}

// rowOf looks up the row of the history that a column of another table refers to.
// OFFSET 0 prevents the planner from making it a join: that could read the whole
// history, for example with a plan that was cached when it was small.
func rowOf(revision string) string {
	return `LATERAL (SELECT * FROM proxima_history WHERE revision = ` + revision + ` OFFSET 0)`
}

// batchOf is selectBatch for any parameter, which stands for itself where there
// is no such row.
func batchOf(parameter string) string {
	return `SELECT coalesce((SELECT batch FROM proxima_history WHERE revision = ` + parameter + `), ` + parameter + `)`
}

// Count implements store.Store.
func (s *Store) Count(ctx context.Context, prefix string) (n int64, err error) {
	_, err = s.read(ctx, "count", question{
		queue: func(b *pgx.Batch) {
			k := within("key", prefix, "")
			b.Queue(`SELECT count(*) FROM proxima_live WHERE `+k.where, k.args...)
		},
		scan: func(results pgx.BatchResults, _ bookkeeping) error { return results.QueryRow().Scan(&n) },
	})
	return n, err
}

// List implements store.Store.
func (s *Store) List(ctx context.Context, opts store.ListOptions) (page store.Page, err error) {
	q := question{
		queue: func(b *pgx.Batch) { b.Queue(selectBatch, opts.At); queueList(b, opts) },
		scan: func(results pgx.BatchResults, now bookkeeping) (err error) {
			page = store.Page{}
			if page.Revision, err = boundary(results, opts.At, now); err != nil {
				return err
			}
			return takeList(results, opts, &page)
		},
	}
	if _, err := s.read(ctx, "list", q); err != nil {
		return store.Page{}, err
	}
	return page, nil
}

// queueList queues the query for a page, one record more than its limit, and, if it
// has a limit, for the number of keys without it.
func queueList(b *pgx.Batch, opts store.ListOptions) {
	value := `h.value`
	if opts.KeysOnly {
		value = `NULL::bytea`
	}
	var k keys
	var from, count string
	if opts.At == 0 {
		k = within("live.key", opts.Prefix, opts.From)
		from = `proxima_live AS live, ` + rowOf("live.revision") + ` AS h WHERE ` + k.where + ` ORDER BY live.key`
		count = `proxima_live AS live WHERE ` + k.where
	} else {
		// The index has the newest row of each key first.
		k = within("key", opts.Prefix, opts.From, opts.At)
		newest := func(value string) string {
			return `(SELECT DISTINCT ON (key) key, revision, created, expires, kind` + value + ` FROM proxima_history
				WHERE ` + k.where + ` AND revision <= (` + batchOf("$1") + `) ORDER BY key, revision DESC) AS h WHERE h.kind = 1`
		}
		from = newest(`, value`) + ` ORDER BY h.key`
		count = newest(``)
	}
	query := `SELECT h.key, h.revision, h.created, h.expires, ` + value + ` FROM ` + from
	if opts.Limit > 0 {
		args := append(k.args[:len(k.args):len(k.args)], opts.Limit+1)
		b.Queue(fmt.Sprintf(`%s LIMIT $%d`, query, len(args)), args...)
		b.Queue(`SELECT count(*) FROM `+count, k.args...)
		return
	}
	b.Queue(query, k.args...)
}

func takeList(results pgx.BatchResults, opts store.ListOptions, page *store.Page) error {
	rows, err := results.Query()
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if opts.Limit > 0 && len(page.Records) == opts.Limit {
			page.More = true
			continue
		}
		var key []byte
		var r store.Record
		var expires int64
		if err := rows.Scan(&key, &r.Modified, &r.Created, &expires, &r.Value); err != nil {
			return err
		}
		r.Key, r.Expires = string(key), fromColumn(expires)
		page.Records = append(page.Records, r)
	}
	if err := rows.Err(); err != nil || opts.Limit == 0 {
		return err
	}
	var total int64
	err = results.QueryRow().Scan(&total)
	if page.More {
		page.Remaining = total - int64(len(page.Records))
	}
	return err
}

// Revision implements store.Store. It reads the database: another instance may
// have committed.
func (s *Store) Revision(ctx context.Context) (store.Revision, error) {
	now, err := s.read(ctx, "read the revision", question{})
	return now.revision, err
}

// Size implements store.Store: the bytes of live values. The tables are larger.
func (s *Store) Size(ctx context.Context) (int64, error) {
	now, err := s.read(ctx, "read the size", question{})
	return now.size, err
}

// toColumn and fromColumn convert deadlines.
func toColumn(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

func fromColumn(nanoseconds int64) time.Time {
	if nanoseconds == 0 {
		return time.Time{}
	}
	return time.Unix(0, nanoseconds).UTC()
}
