package postgres

import (
	"bytes"
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/expiry"
	"github.com/proxima-mesh/proxima/internal/store/group"
	"github.com/proxima-mesh/proxima/internal/store/outage"
)

const (
	// phaseTimeout bounds one exchange with the database that is no part of a commit; the longest
	// wait in it is for other instances' commits.
	phaseTimeout = 30 * time.Second
	// keepAlive is how often the writer's session shows that it lives.
	keepAlive = 20 * time.Second
	// The server ends the session of a writer that went silent, so that a frozen
	// process, or one behind a network that swallows packets, holds the commit
	// lock and the expiry lock for so long at most.
	silentInCommit = "10s"
	silentAtAll    = "60s"
)

// writer has the connection that commits. Only one goroutine at a time may call
// it.
type writer struct {
	target       target
	store        *Store
	id           int64         // marks our rows in the history
	limit        time.Duration // of an exchange of a commit
	conn         *pgx.Conn
	expiryLeader bool          // this session has the expiry lock
	claims       bool          // each session must have the claim to the state
	shared       bool          // the claim is one that others may have, too
	claim        claim         // of the session before this one, if it had one
	pid          atomic.Uint32 // of the server's process, for the listener
}

// connected returns the connection, a new one if there is none.
func (w *writer) connected(ctx context.Context) (*pgx.Conn, error) {
	if w.conn != nil && !w.conn.IsClosed() {
		return w.conn, nil
	}
	w.disconnect()
	conn, err := w.target.dial(ctx)
	if err != nil {
		return nil, err
	}
	w.conn = conn
	// A commit that is acknowledged before it is on the disk is none.
	if _, err := conn.Exec(ctx, `SELECT
		set_config('idle_in_transaction_session_timeout', $1, false),
		set_config('idle_session_timeout', $2, false),
		CASE WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on', false) END`,
		silentInCommit, silentAtAll); err != nil {
		w.disconnect()
		return nil, err
	}
	if w.claims {
		if err := w.reclaim(ctx, conn); err != nil {
			w.disconnect()
			return nil, err
		}
	}
	w.pid.Store(conn.PgConn().PID())
	return conn, nil
}

// disconnect ends the session; the server undoes what was not committed.
func (w *writer) disconnect() {
	if w.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = w.conn.Close(ctx) // it is gone either way
	w.conn, w.expiryLeader = nil, false
}

func (w *writer) ping(ctx context.Context) {
	if w.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, phaseTimeout)
	defer cancel()
	if err := w.conn.Ping(ctx); err != nil {
		w.disconnect()
	}
}

// keeps reports whether this instance deletes expired keys, and makes it the one if
// there is none.
func (w *writer) keeps(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, phaseTimeout)
	defer cancel()
	conn, err := w.connected(ctx)
	if err != nil || w.expiryLeader {
		return w.expiryLeader, err
	}
	err = conn.QueryRow(ctx, `SELECT pg_try_advisory_lock($1, `+stateID+`)`, lockExpiry).Scan(&w.expiryLeader)
	return w.expiryLeader, err
}

// stateID distinguishes states in one database: the table's object id.
const stateID = `'proxima_meta'::regclass::oid::int`

// plan is what a group changes.
type plan struct {
	before   bookkeeping
	revision store.Revision
	size     int64
	// current has every key of the group: its state at first as it is, then as the
	// group leaves it. nil: absent.
	current map[string]*store.Record
	changed map[string]struct{}
	events  []store.Event
	batches []store.Revision // of the events
}

func (p *plan) first() store.Revision { return p.before.revision + 1 }

// commit applies a group in the order of its requests, each on top of those
// before, and records their answers; a conflict is an answer like another. It
// returns the revision that the group was built on. With an error other than an
// *UnknownError nothing was committed.
//
// There are two exchanges. The first takes the lock and reads, the second writes
// and commits.
func (w *writer) commit(ctx context.Context, requests []*group.Request, now time.Time) (before store.Revision, err error) {
	p, err := w.begin(ctx, requests)
	if err != nil {
		w.disconnect() // not committed, as COMMIT was not sent
		return 0, err
	}
	for _, r := range requests {
		r.Reset()
		p.apply(r, now)
	}
	if len(p.events) == 0 {
		w.undo(ctx)
		return p.before.revision, nil
	}
	finishing := time.Now()
	err = w.finish(ctx, p)
	switch {
	case err == nil:
		return p.before.revision, nil
	case refused(err):
		w.undo(ctx)
		return 0, err
	}
	w.disconnect()
	return p.before.revision, w.resolve(ctx, p, finishing, err)
}

// begin opens a transaction, takes the commit lock and reads the state of the
// group's keys.
//
// The lock makes commits of all instances follow one another, up to the moment
// when they become visible. Numbers from a sequence would be in order too, but
// they are given out before their transactions commit: a watcher that has read
// up to revision 8 while the transaction that took 7 is still open would skip 7
// for ever. With the lock, a reader of a revision sees all before it. And once
// a session gets the lock, all earlier commits are over, which resolve needs.
//
// The isolation must be READ COMMITTED: each statement sees what was committed
// when it began, so the ones after the lock see all that earlier holders did.
// One snapshot for the transaction would be that of the moment the wait began.
func (w *writer) begin(ctx context.Context, requests []*group.Request) (*plan, error) {
	ctx, cancel := context.WithTimeout(ctx, w.limit)
	defer cancel()
	p := &plan{current: map[string]*store.Record{}, changed: map[string]struct{}{}}
	known := w.store.hub.Revision()
	conn, err := w.connected(ctx)
	if err != nil {
		return nil, err
	}
	var batch pgx.Batch
	queueLock(&batch)
	batch.Queue(selectMeta)
	batch.Queue(`SELECT live.key, h.revision, h.created, h.expires, h.value FROM proxima_live AS live, `+rowOf("live.revision")+` AS h
		WHERE live.key = ANY($1)`, p.keys(requests))
	results := conn.SendBatch(ctx, &batch)
	if err = takeLock(results); err == nil {
		err = p.before.scan(results.QueryRow())
	}
	if err == nil {
		err = p.takeCurrent(results)
	}
	if closed := results.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = w.store.accept(p.before, known)
	}
	p.revision, p.size = p.before.revision, p.before.size
	return p, err
}

func queueLock(batch *pgx.Batch) {
	batch.Queue(`BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE`)
	batch.Queue(`SELECT pg_advisory_xact_lock($1, `+stateID+`)`, lockCommit)
}

func takeLock(results pgx.BatchResults) error {
	_, err := results.Exec()
	if err == nil {
		_, err = results.Exec()
	}
	return err
}

// keys of a group, each once. Until they are read they count as absent.
func (p *plan) keys(requests []*group.Request) (keys [][]byte) {
	add := func(key string) {
		if _, ok := p.current[key]; !ok {
			p.current[key] = nil
			keys = append(keys, []byte(key))
		}
	}
	for _, r := range requests {
		for _, c := range r.Txn.Conditions {
			add(c.Key)
		}
		for _, op := range r.Txn.Ops {
			add(op.Key)
		}
	}
	return keys
}

func (p *plan) takeCurrent(results pgx.BatchResults) error {
	rows, err := results.Query()
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var key []byte
		var r store.Record
		var expires int64
		if err := rows.Scan(&key, &r.Modified, &r.Created, &expires, &r.Value); err != nil {
			return err
		}
		r.Key, r.Expires = string(key), fromColumn(expires)
		p.current[r.Key] = &r
	}
	return rows.Err()
}

// apply checks all conditions of a request before it changes anything, so that a
// conflict leaves nothing to undo.
func (p *plan) apply(r *group.Request, now time.Time) {
	for _, c := range r.Txn.Conditions {
		record := p.current[c.Key]
		if (record == nil && c.Modified != 0) || (record != nil && c.Modified != record.Modified) {
			r.Err = &store.ConflictError{Condition: c, Current: record}
			return
		}
	}
	for _, op := range r.Txn.Ops {
		prev := p.current[op.Key]
		if op.Kind == store.Delete && prev == nil {
			continue
		}
		p.revision++
		e := event(p.revision, op, prev, now)
		r.Events = append(r.Events, e)
		p.changed[op.Key] = struct{}{}
		if p.current[op.Key] = nil; op.Kind == store.Put {
			p.current[op.Key] = &e.Record
		}
		p.size += int64(len(e.Record.Value))
		if prev != nil {
			p.size -= int64(len(prev.Value))
		}
	}
	r.Revision = p.revision
	for range r.Events {
		p.batches = append(p.batches, r.Revision)
	}
	p.events = append(p.events, r.Events...)
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

// finish writes a plan and commits it. If a statement fails, the server skips
// those after it, so COMMIT is reached only after all others went well.
func (w *writer) finish(ctx context.Context, p *plan) error {
	ctx, cancel := context.WithTimeout(ctx, w.limit)
	defer cancel()
	var batch pgx.Batch
	p.queueHistory(&batch, w.id)
	p.queueLive(&batch)
	batch.Queue(`UPDATE proxima_meta SET revision = $1, size = $2`, p.revision, p.size)
	batch.Queue(`SELECT pg_notify(`+channel+`, $1::bigint::text)`, p.revision)
	batch.Queue(`COMMIT`)
	results := w.conn.SendBatch(ctx, &batch)
	var tag pgconn.CommandTag
	var err error
	for range batch.Len() {
		if tag, err = results.Exec(); err != nil {
			break
		}
	}
	if closed := results.Close(); err == nil {
		err = closed
	}
	if err == nil && tag.String() != "COMMIT" {
		// A transaction that failed before is answered so, without an error.
		return &pgconn.PgError{SeverityUnlocalized: "ERROR", Severity: "ERROR", Message: "COMMIT was answered with " + tag.String()}
	}
	return err
}

func (p *plan) queueHistory(batch *pgx.Batch, writer int64) {
	n := len(p.events)
	revisions, created, prevs, expires := make([]int64, n), make([]int64, n), make([]int64, n), make([]int64, n)
	kinds, keys, values := make([]int16, n), make([][]byte, n), make([][]byte, n)
	batches := make([]int64, n)
	for i, e := range p.events {
		revisions[i], batches[i], kinds[i] = int64(e.Record.Modified), int64(p.batches[i]), int16(e.Kind)
		keys[i], created[i], expires[i] = []byte(e.Record.Key), int64(e.Record.Created), toColumn(e.Record.Expires)
		values[i] = e.Record.Value
		if e.Prev != nil {
			prevs[i] = int64(e.Prev.Modified)
		}
	}
	batch.Queue(`INSERT INTO proxima_history (revision, batch, kind, key, created, prev, expires, value, writer)
		SELECT *, $9::bigint FROM unnest($1::bigint[], $2::bigint[], $3::smallint[], $4::bytea[], $5::bigint[],
			$6::bigint[], $7::bigint[], $8::bytea[])`,
		revisions, batches, kinds, keys, created, prevs, expires, values, writer)
}

// queueLive writes the state that the group leaves, each key once.
func (p *plan) queueLive(batch *pgx.Batch) {
	var gone, keys [][]byte
	var revisions, expires []int64
	for key := range p.changed {
		record := p.current[key]
		if record == nil {
			gone = append(gone, []byte(key))
			continue
		}
		keys = append(keys, []byte(key))
		revisions, expires = append(revisions, int64(record.Modified)), append(expires, toColumn(record.Expires))
	}
	if len(keys) > 0 {
		batch.Queue(`INSERT INTO proxima_live (key, revision, expires) SELECT * FROM unnest($1::bytea[], $2::bigint[], $3::bigint[])
			ON CONFLICT (key) DO UPDATE SET revision = excluded.revision, expires = excluded.expires`, keys, revisions, expires)
	}
	if len(gone) > 0 {
		batch.Queue(`DELETE FROM proxima_live WHERE key = ANY($1)`, gone)
	}
}

// undo gives up the transaction.
func (w *writer) undo(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, phaseTimeout)
	defer cancel()
	if _, err := w.conn.Exec(ctx, `ROLLBACK`); err != nil {
		w.disconnect()
	}
}

// resolve finds out whether a plan was committed whose session was lost during the
// COMMIT. It returns nil if it was, the cause if it was not, and an *UnknownError if
// the database gives no answer.
//
// It tries until an outage that began with the COMMIT has lasted too long, and once at least.
// resolve takes the commit lock. The lost session held that lock, so it is over by
// then, and the answer is final.
func (w *writer) resolve(ctx context.Context, p *plan, begin time.Time, cause error) error {
	for try := 0; ; try++ {
		committed, known, err := w.lookUp(ctx, p)
		switch {
		case err == nil && committed:
			return nil
		case err == nil && known:
			return cause
		case err == nil:
			return &UnknownError{Err: fmt.Errorf("%w; others went on and compacted it since", cause)}
		case !unavailable(err) || time.Since(begin) > w.store.writes.Timeout || !backoff.Sleep(ctx, outage.Retry.After(try+1)):
			return &UnknownError{Err: fmt.Errorf("%w; looking it up: %w", cause, err)}
		}
	}
}

// lookUp searches for the rows of a plan.
func (w *writer) lookUp(ctx context.Context, p *plan) (committed, known bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, w.limit)
	defer cancel()
	conn, err := w.connected(ctx)
	if err != nil {
		return false, false, err
	}
	var now bookkeeping
	var rows, ours int
	var batch pgx.Batch
	queueLock(&batch)
	batch.Queue(selectMeta)
	batch.Queue(`SELECT count(*), count(*) FILTER (WHERE writer = $3) FROM proxima_history WHERE revision BETWEEN $1 AND $2`,
		p.first(), p.revision, w.id)
	batch.Queue(`ROLLBACK`)
	results := conn.SendBatch(ctx, &batch)
	if err = takeLock(results); err == nil {
		err = now.scan(results.QueryRow())
	}
	if err == nil {
		err = results.QueryRow().Scan(&rows, &ours)
	}
	if closed := results.Close(); err == nil {
		err = closed
	}
	if err != nil {
		w.disconnect()
		return false, false, err
	}
	// Rows of another transaction, or none yet, prove that it was not committed. Rows
	// that compaction removed prove nothing.
	return ours > 0, rows > 0 || now.revision < p.first(), w.store.accept(now, p.before.revision)
}

// probe finds out whether the database can be written.
func (w *writer) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, phaseTimeout)
	defer cancel()
	conn, err := w.connected(ctx)
	if err != nil {
		return err
	}
	if _, err = conn.Exec(ctx, `UPDATE proxima_meta SET swept = swept`); err != nil && !refused(err) {
		w.disconnect()
	}
	return err
}
