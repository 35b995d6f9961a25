package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/proxima-mesh/proxima/internal/backoff"
)

// The claim to have a state alone is an advisory lock of the session that
// commits. Who has lost the session has lost the claim, and who has the session
// has it still: no commit can go by it.

// claimTimeout is how long a process that starts waits for its predecessor to
// be gone. The server notices the end of a process at once, and that of a
// machine after silentAtAll.
const claimTimeout = 3 * time.Second

// claim identifies a session that had the claim. A process id of the server may
// come again; with the moment of its start it is unique.
type claim struct {
	pid     int32
	started time.Time
}

// Shared claims go together with each other, and not with an exclusive one.

// claimFirst takes the claim for the first session of a store, and makes each
// later one take it.
func (w *writer) claimFirst(ctx context.Context, conn *pgx.Conn) error {
	for begin := time.Now(); ; {
		mine, err := w.tryClaim(ctx, conn)
		if err != nil {
			return err
		}
		if mine {
			w.claims = true
			return nil
		}
		if time.Since(begin) > claimTimeout || !backoff.Sleep(ctx, 100*time.Millisecond) {
			_, inUse, err := holder(ctx, conn)
			if err != nil {
				return err
			}
			return inUse
		}
	}
}

// reclaim takes the claim for a new session. The one before may still be there
// on the server, which does not know that its client is gone: it is ended. If
// another process has the claim, the store has ended.
func (w *writer) reclaim(ctx context.Context, conn *pgx.Conn) error {
	for range 2 {
		mine, err := w.tryClaim(ctx, conn)
		if err != nil || mine {
			return err
		}
		of, inUse, err := holder(ctx, conn)
		if err != nil {
			return err
		}
		switch {
		case of.pid == w.claim.pid && of.started.Equal(w.claim.started):
			// The last argument waits until it is gone, for so many milliseconds.
			if _, err := conn.Exec(ctx, `SELECT pg_terminate_backend($1, 5000)`, of.pid); err != nil {
				return fmt.Errorf("end the session before: %w", err)
			}
		case of.pid != 0:
			w.store.end(inUse)
			return inUse
		}
	}
	return fmt.Errorf("the claim to the state could not be taken again: %w", errBusy)
}

// errBusy is worth another try.
var errBusy = fmt.Errorf("it is changing hands")

// tryClaim does not wait.
func (w *writer) tryClaim(ctx context.Context, conn *pgx.Conn) (mine bool, err error) {
	var now claim
	lock := "pg_try_advisory_lock"
	if w.shared {
		lock = "pg_try_advisory_lock_shared"
	}
	err = conn.QueryRow(ctx,
		`SELECT `+lock+`($1, `+stateID+`), pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()`,
		lockAlone).Scan(&mine, &now.pid, &now.started)
	if mine {
		w.claim = now
	}
	return mine, err
}

// holder returns the session that has the claim; pid 0: none any more.
func holder(ctx context.Context, conn *pgx.Conn) (of claim, inUse *InUseError, err error) {
	inUse = &InUseError{}
	var address *string
	rows, err := conn.Query(ctx, `SELECT a.pid, a.backend_start, host(a.client_addr) FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)
		WHERE l.locktype = 'advisory' AND l.granted AND l.classid::bigint = $1 AND l.objid::bigint = 'proxima_meta'::regclass::oid::bigint
			AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())`, int64(lockAlone))
	if err != nil {
		return of, inUse, err
	}
	defer rows.Close()
	for rows.Next() {
		if err := rows.Scan(&of.pid, &of.started, &address); err != nil {
			return of, inUse, err
		}
		inUse.Holder = fmt.Sprintf("on this machine, connected since %s", of.started.UTC().Format(time.RFC3339))
		if address != nil {
			inUse.Holder = fmt.Sprintf("at %s, connected since %s", *address, of.started.UTC().Format(time.RFC3339))
		}
	}
	return of, inUse, rows.Err()
}
