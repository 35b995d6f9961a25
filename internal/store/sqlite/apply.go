package sqlite

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/expiry"
	"github.com/proxima-mesh/proxima/internal/store/group"
)

// writer changes the database. Only one goroutine at a time may call it.
//
// Its calls take no context: a statement that is interrupted in the middle of a
// group would fail transactions of others.
type writer struct {
	bookkeeping      // as in the database, committed
	unsure      bool // whether the last transaction was committed

	db     *sql.DB
	conn   *sql.Conn
	begin  *sql.Stmt
	end    *sql.Stmt
	undo   *sql.Stmt
	newest *sql.Stmt
	append *sql.Stmt
	point  *sql.Stmt
	unlink *sql.Stmt
	note   *sql.Stmt
	meta   *sql.Stmt
	stmts  []*sql.Stmt // all of them
}

func newWriter(ctx context.Context, path string) (*writer, error) {
	// The journal is cut back to this after a burst.
	db, err := sql.Open(driverName, dsn(path, "journal_mode(WAL)", fmt.Sprintf("journal_size_limit(%d)", 64<<20)))
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	w := &writer{db: db}
	if err := w.open(ctx); err != nil {
		_ = w.close() // the first error is the one that helps
		return nil, damaged(err)
	}
	return w, nil
}

func (w *writer) open(ctx context.Context) (err error) {
	if w.conn, err = w.db.Conn(ctx); err != nil {
		return err
	}
	for _, s := range []struct {
		stmt **sql.Stmt
		text string
	}{
		{&w.begin, `BEGIN IMMEDIATE`},
		{&w.end, `COMMIT`},
		{&w.undo, `ROLLBACK`},
		{&w.newest, selectNewest},
		{&w.append, `INSERT INTO history (revision, batch, kind, key, created, prev, expires, value, sum) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`},
		{&w.point, `INSERT INTO live (key, revision, expires) VALUES (?, ?, ?)
			ON CONFLICT (key) DO UPDATE SET revision = excluded.revision, expires = excluded.expires`},
		{&w.unlink, `DELETE FROM live WHERE key = ?`},
		{&w.note, `UPDATE meta SET revision = ?1, compacted = ?2, swept = ?3, size = ?4, probes = ?5, digest = ?6, digested = ?1`},
		{&w.meta, selectMeta},
	} {
		if *s.stmt, err = w.conn.PrepareContext(ctx, s.text); err != nil {
			return err
		}
		w.stmts = append(w.stmts, *s.stmt)
	}
	if err := w.scan(w.meta.QueryRowContext(ctx)); err != nil {
		return err
	}
	var last sql.Null[store.Revision]
	if err := w.conn.QueryRowContext(ctx, `SELECT max(revision) FROM history`).Scan(&last); err != nil {
		return err
	}
	if last.V > w.revision || (w.revision > w.compacted && last.V < w.revision) {
		return &DamagedError{Detail: fmt.Sprintf("the newest revision is recorded as %d, but the history ends at %d", w.revision, last.V)}
	}
	return nil
}

// close closes the statements too: with one left open SQLite keeps the file open
// and its log unmerged.
func (w *writer) close() error {
	var errs []error
	for _, s := range w.stmts {
		errs = append(errs, s.Close())
	}
	if w.conn != nil {
		errs = append(errs, w.conn.Close())
	}
	return errors.Join(append(errs, w.db.Close())...)
}

// transact runs f in a transaction and commits the bookkeeping it leaves in
// next. If nothing changed there is nothing to sync. On an error everything is
// as before, here and in the database.
func (w *writer) transact(f func(next *bookkeeping) error) error {
	if w.unsure {
		return errUnsure
	}
	if _, err := w.begin.Exec(); err != nil {
		// A connection may be left in a transaction that could not be undone.
		_, _ = w.undo.Exec()
		if _, err := w.begin.Exec(); err != nil {
			return err
		}
	}
	next := w.bookkeeping
	if err := f(&next); err != nil {
		_, _ = w.undo.Exec() // SQLite may have undone it already
		return err
	}
	if next == w.bookkeeping {
		_, err := w.undo.Exec()
		return err
	}
	_, err := w.note.Exec(next.revision, next.compacted, next.swept, next.size, next.probes, next.digest)
	if err == nil {
		_, err = w.end.Exec()
	}
	if err != nil {
		_, _ = w.undo.Exec()
		// The database has the last word: an error after the change became
		// visible, and so durable, is no failure of the transaction.
		var now bookkeeping
		w.unsure = now.scan(w.meta.QueryRow()) != nil
		if w.unsure || now != next {
			return err
		}
	}
	w.bookkeeping = next
	return nil
}

// errUnsure refuses writes while it is not known what the one before did.
var errUnsure = errors.New("the outcome of an earlier write is not known yet")

// ascertain finds out what a failed transaction left open. It returns what that
// changed after all, which was not acknowledged.
func (w *writer) ascertain() ([]store.Batch, error) {
	var now bookkeeping
	if err := now.scan(w.meta.QueryRow()); err != nil {
		return nil, err
	}
	var missed []store.Batch
	for after := w.revision; after < now.revision; {
		batches, done, err := history(context.Background(), w.conn, "", after, now.revision)
		if err != nil {
			return nil, err
		}
		missed, after = append(missed, batches...), done
	}
	w.bookkeeping, w.unsure = now, false
	return missed, nil
}

// probe finds out whether the database can be written. It writes more than a
// usual commit needs: on a full disk a page or two often fit somewhere.
func (w *writer) probe() error {
	for _, change := range []string{
		`INSERT INTO probe VALUES (zeroblob(65536))`,
		`DELETE FROM probe`,
	} {
		err := w.transact(func(next *bookkeeping) error {
			next.probes++
			_, err := w.conn.ExecContext(context.Background(), change)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// commit applies a group in the order of its requests, each on top of those
// before, and leaves their answers. An error is one of the medium and fails
// them all; a conflict is an answer like another.
func (w *writer) commit(requests []*group.Request, now time.Time) error {
	return w.transact(func(next *bookkeeping) error {
		for _, r := range requests {
			r.Reset()
			if err := w.apply(next, r, now); err != nil {
				return err
			}
		}
		return nil
	})
}

// apply checks all conditions before it changes anything, so that a conflict
// leaves nothing to undo.
func (w *writer) apply(next *bookkeeping, r *group.Request, now time.Time) error {
	seen := make(map[string]*store.Record, len(r.Txn.Ops)+len(r.Txn.Conditions))
	current := func(key string) (*store.Record, error) {
		if record, ok := seen[key]; ok {
			return record, nil
		}
		record, err := w.current(key)
		if err == nil {
			seen[key] = record
		}
		return record, err
	}
	for _, c := range r.Txn.Conditions {
		record, err := current(c.Key)
		if err != nil {
			return err
		}
		if (record == nil && c.Modified != 0) || (record != nil && c.Modified != record.Modified) {
			r.Err = &store.ConflictError{Condition: c, Current: record}
			return nil
		}
	}
	for _, op := range r.Txn.Ops {
		prev, err := current(op.Key)
		if err != nil {
			return err
		}
		if op.Kind == store.Delete && prev == nil {
			continue
		}
		next.revision++
		r.Events = append(r.Events, event(next.revision, op, prev, now))
	}
	r.Revision = next.revision
	for _, e := range r.Events {
		if err := w.record(e, r.Revision); err != nil {
			return err
		}
		next.size += int64(len(e.Record.Value))
		if e.Prev != nil {
			next.size -= int64(len(e.Prev.Value))
			next.digest ^= digest([]byte(e.Prev.Key), int64(e.Prev.Modified), toColumn(e.Prev.Expires))
		}
		if e.Kind == store.Put {
			next.digest ^= digest([]byte(e.Record.Key), int64(e.Record.Modified), toColumn(e.Record.Expires))
		}
	}
	return nil
}

func event(revision store.Revision, op store.Op, prev *store.Record, now time.Time) store.Event {
	e := store.Event{Kind: op.Kind, Prev: prev, Record: store.Record{Key: op.Key, Created: revision, Modified: revision}}
	if prev != nil {
		e.Record.Created = prev.Created
	}
	if op.Kind == store.Put {
		e.Record.Value = bytes.Clone(op.Value)
		e.Record.Expires = expiry.Deadline(now, op.TTL)
	}
	return e
}

// current is the newest state of a key, within the transaction; nil: absent.
func (w *writer) current(key string) (*store.Record, error) {
	var r row
	err := w.newest.QueryRow([]byte(key)).Scan(r.targets()...)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if err := r.verify(); err != nil {
		return nil, err
	}
	record := r.record()
	return &record, nil
}

// record writes one change to the tables.
func (w *writer) record(e store.Event, batch store.Revision) error {
	r := row{
		revision: int64(e.Record.Modified), batch: int64(batch), kind: int64(e.Kind), key: []byte(e.Record.Key),
		created: int64(e.Record.Created), expires: toColumn(e.Record.Expires), value: e.Record.Value,
	}
	if e.Prev != nil {
		r.prev = int64(e.Prev.Modified)
	}
	if _, err := w.append.Exec(r.revision, r.batch, r.kind, r.key, r.created, r.prev, r.expires, r.value, r.checksum()); err != nil {
		return err
	}
	var err error
	if e.Kind == store.Put {
		_, err = w.point.Exec(r.key, r.revision, r.expires)
	} else {
		_, err = w.unlink.Exec(r.key)
	}
	return err
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
