package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/proxima-mesh/proxima/internal/store"
)

// SchemaError reports tables that this program does not understand.
type SchemaError struct {
	// Version of the tables and the newest that is understood.
	Version, Known int
}

func (e *SchemaError) Error() string {
	return fmt.Sprintf("the database has schema version %d, this program supports up to %d; use a newer program", e.Version, e.Known)
}

// DamagedError reports tables whose bookkeeping contradicts their content.
type DamagedError struct {
	Detail string
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("the tables are damaged (%s); restore a backup", e.Detail)
}

// Is makes it match [store.ErrDamaged].
func (e *DamagedError) Is(target error) bool { return target == store.ErrDamaged }

// ReplacedError reports that the database no longer holds the history that the
// store was opened on: it was restored, or its server's successor lacks commits.
// The store is of no use from then on; open it again.
type ReplacedError struct {
	Detail string
}

func (e *ReplacedError) Error() string {
	return "the history in the database was replaced: " + e.Detail
}

// InUseError reports that another process has the state open alone.
type InUseError struct {
	// Holder describes the holder of the lock; empty if unknown.
	Holder string
}

func (e *InUseError) Error() string {
	by := "another process"
	if e.Holder != "" {
		by += " (" + e.Holder + ")"
	}
	return "the database is in use by " + by + "; stop that one, or use a schema of its own by search_path=NAME in the URL"
}

// UnknownError reports a commit that may have happened or not: the connection
// was lost while it was under way, and the database could not be reached since.
// Read before trying again.
type UnknownError struct {
	Err error
}

func (e *UnknownError) Error() string {
	return "the outcome of the commit is unknown: " + e.Err.Error()
}

func (e *UnknownError) Unwrap() error { return e.Err }

// unavailable reports whether an error has its cause not in the request, but in the
// server, the connection or another session: a retry may succeed.
func unavailable(err error) bool {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		// Appendix A of PostgreSQL's manual.
		return strings.HasPrefix(pg.Code, "08") || slices.Contains([]string{
			"25006",          // read_only_sql_transaction: a standby that is about to be promoted
			"25P03",          // idle_in_transaction_session_timeout
			"40001", "40P01", // serialization_failure, deadlock_detected
			"53300",                            // too_many_connections
			"55P03",                            // lock_not_available
			"57P01", "57P02", "57P03", "57P05", // shutting down, crashed, starting up, idle_session_timeout
		}, pg.Code)
	}
	for _, permanent := range []any{
		new(*store.ConflictError), new(*store.InvalidError), new(*URLError), new(*SchemaError), new(*DamagedError),
		new(*ReplacedError), new(*InUseError), new(*UnknownError),
	} {
		if errors.As(err, permanent) {
			return false
		}
	}
	// What is left is the connection. A deadline is ours: callers' contexts are
	// looked at before.
	return !errors.Is(err, context.Canceled)
}

// refused reports whether the server itself rejected a statement and goes on: the
// transaction did not happen. Anything worse than ERROR ends the session and leaves
// the outcome of a COMMIT open.
func refused(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.SeverityUnlocalized == "ERROR"
}

// explain adds to an error of PostgreSQL what an operator can do about it.
func explain(err error) error {
	if text := err.Error(); strings.Contains(text, "\n") {
		err = &flatError{strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\t' }), " "), err}
	}
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return err
	}
	hints := map[string]string{
		"28P01": "the server does not accept user and password",
		"28000": "the server does not let this user in; see its pg_hba.conf",
		"3D000": "create the database first, for example with createdb",
		"42501": "grant the user CREATE on the schema, or name one of its own by search_path=NAME in the URL",
		"53100": "the server's disk is full; free space and writing goes on by itself",
		"53300": "the server has no connections left; raise max_connections, or set pool_max_conns in the URL",
		"25006": "the server is a standby or read-only; name all servers in the URL, or wait for its promotion",
		"54000": "the key or value is too large for PostgreSQL",
	}
	if hint, ok := hints[pg.Code]; ok {
		return fmt.Errorf("%s: %w", hint, err)
	}
	return err
}

// flatError has the text of another on one line.
type flatError struct {
	text string
	err  error
}

func (e *flatError) Error() string { return e.text }
func (e *flatError) Unwrap() error { return e.err }
