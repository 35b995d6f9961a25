package sqlite

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	driver "modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/proxima-mesh/proxima/internal/atomicfile"
	"github.com/proxima-mesh/proxima/internal/store"
)

const (
	driverName = "sqlite"
	// applicationID marks the file as ours (PRAGMA application_id): "Prox".
	applicationID = 0x50726f78
	// schemaVersion is in the low 16 bits of PRAGMA user_version. The bits above have the
	// oldest version whose programs work with the file, or 0: it is the same. A program
	// refuses a file that needs a newer one. A change is additive for one release at least, so
	// that the program before it can be started again.
	schemaVersion = 2
	oldestVersion = 1 // its programs leave the columns of version 2 empty
	versionBits   = 16
)

// schema of version 2. Keys are BLOBs, so that they are ordered as bytes.
//
// history has one row for each change since the last compaction, and the newest
// row of each live key however old it is. live finds those newest rows.
const schema = `
CREATE TABLE meta (
	id        INTEGER PRIMARY KEY CHECK (id = 1),
	epoch     TEXT    NOT NULL,
	revision  INTEGER NOT NULL, -- the newest ever given out
	compacted INTEGER NOT NULL, -- what a reader may no longer ask for
	swept     INTEGER NOT NULL, -- how far that is deleted
	size      INTEGER NOT NULL, -- bytes of live values
	probes    INTEGER NOT NULL, -- writes that only tried whether the disk takes them
	digest    INTEGER NOT NULL DEFAULT 0, -- of the rows of live
	digested  INTEGER NOT NULL DEFAULT 0  -- the revision that it was made at
) STRICT;
CREATE TABLE history (
	revision INTEGER PRIMARY KEY,
	batch    INTEGER NOT NULL,  -- the last revision of the transaction
	kind     INTEGER NOT NULL,  -- store.EventKind
	key      BLOB    NOT NULL,
	created  INTEGER NOT NULL,
	prev     INTEGER NOT NULL,  -- revision of the row that this one replaces, or 0
	expires  INTEGER NOT NULL,  -- Unix nanoseconds, or 0
	value    BLOB,
	sum      INTEGER            -- checksum of the row; NULL: a program of version 1 wrote it
) STRICT;
CREATE INDEX history_key ON history (key, revision, kind);
CREATE TABLE live (
	key      BLOB    PRIMARY KEY,
	revision INTEGER NOT NULL,
	expires  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE probe (filler BLOB) STRICT; -- empty but for moments
`

// upgrade of version 1.
const upgrade = `
ALTER TABLE meta ADD COLUMN digest INTEGER NOT NULL DEFAULT 0;
ALTER TABLE meta ADD COLUMN digested INTEGER NOT NULL DEFAULT 0;
ALTER TABLE history ADD COLUMN sum INTEGER;
`

// DamagedError reports a file that SQLite or its own bookkeeping finds broken.
type DamagedError struct {
	Detail string
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("the file is damaged (%s); restore a backup, or move the file away to start empty", e.Detail)
}

// Is makes it match [store.ErrDamaged].
func (e *DamagedError) Is(target error) bool { return target == store.ErrDamaged }

// SchemaError reports a file that this program does not understand.
type SchemaError struct {
	// Foreign is true for a database of another application.
	Foreign bool
	// Version of the file and the newest that is understood.
	Version, Known int
}

func (e *SchemaError) Error() string {
	if e.Foreign {
		return "the file is a database of another application"
	}
	return fmt.Sprintf("the file has schema version %d, this program supports up to %d; use a newer program", e.Version, e.Known)
}

// dsn names the database for the driver, with what every connection needs.
func dsn(path string, pragmas ...string) string {
	query := url.Values{"_pragma": append([]string{
		"busy_timeout(5000)", // another process may read the file with a shell
		"synchronous(FULL)",  // a commit in the write-ahead log is synced before it counts
		"fullfsync(1)",       // the same on macOS, where fsync alone promises nothing
		"checkpoint_fullfsync(1)",
		"temp_store(MEMORY)",
	}, pragmas...)}
	return "file:" + (&url.URL{Path: path}).EscapedPath() + "?" + query.Encode()
}

// prepare checks the file, or makes it.
func prepare(ctx context.Context, path string) error {
	// A new file is the owner's alone; SQLite gives its log the same mode. What
	// goes wrong here goes wrong again below, and has a better error there.
	if f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600); err == nil {
		_ = f.Close() // nothing was written
	}
	// SQLite removes its log when a file is closed.
	log, err := os.Stat(path + "-wal")
	unclean := err == nil && log.Size() > 0
	db, err := sql.Open(driverName, dsn(path))
	if err != nil {
		return err
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	if err := check(ctx, db, unclean); err != nil {
		return damaged(err)
	}
	return atomicfile.SyncDir(filepath.Dir(path))
}

// check the file, more thoroughly if it was not closed by the program that wrote it. Values are
// checked when they are read.
func check(ctx context.Context, db *sql.DB, unclean bool) error {
	var application, version, tables int
	if err := db.QueryRowContext(ctx, `
		SELECT (SELECT application_id FROM pragma_application_id),
			(SELECT user_version FROM pragma_user_version),
			(SELECT count(*) FROM sqlite_schema)`).Scan(&application, &version, &tables); err != nil {
		return err
	}
	switch {
	case application == 0 && tables == 0:
		return create(ctx, db)
	case application != applicationID:
		return &SchemaError{Foreign: true}
	case needs(version) > schemaVersion:
		return &SchemaError{Version: version & (1<<versionBits - 1), Known: schemaVersion}
	}
	pragma := `PRAGMA quick_check(1)`
	if unclean {
		pragma = `PRAGMA integrity_check(1)` // compares indexes with their tables, too
	}
	var verdict string
	if err := db.QueryRowContext(ctx, pragma).Scan(&verdict); err != nil {
		return err
	}
	if verdict != "ok" {
		return &DamagedError{Detail: strings.ReplaceAll(verdict, "\n", " ") + lost(ctx, db)}
	}
	if version&(1<<versionBits-1) < schemaVersion {
		if err := migrate(ctx, db); err != nil {
			return err
		}
	}
	return verifyLive(ctx, db)
}

// migrate makes a file of version 1 one of the present version. What it has no checksum of gets
// none: nothing is known of it.
func migrate(ctx context.Context, db *sql.DB) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it is void
	if _, err := tx.ExecContext(ctx, upgrade+fmt.Sprintf(`PRAGMA user_version = %d`, userVersion)); err != nil {
		return err
	}
	return tx.Commit()
}

// userVersion of the files that this program makes.
const userVersion = oldestVersion<<versionBits | schemaVersion

// needs is the schema version that a program must know to work with a file.
func needs(userVersion int) int {
	if oldest := userVersion >> versionBits; oldest > 0 {
		return oldest
	}
	return userVersion
}

// create makes the tables; in one transaction, so that a file is ours in full or
// not at all.
func create(ctx context.Context, db *sql.DB) error {
	if _, err := db.ExecContext(ctx, `PRAGMA journal_mode = WAL`); err != nil {
		return err
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it is void
	id := make([]byte, 16)
	_, _ = rand.Read(id) // crypto/rand.Read never fails
	if _, err := tx.ExecContext(ctx, schema); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO meta VALUES (1, ?, 0, 0, 0, 0, 0, 0, 0)`, hex.EncodeToString(id)); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx,
		fmt.Sprintf(`PRAGMA application_id = %d; PRAGMA user_version = %d`, applicationID, userVersion)); err != nil {
		return err
	}
	return tx.Commit()
}

// damaged recognises the errors by which SQLite reports a broken file.
func damaged(err error) error {
	var e *driver.Error
	if errors.As(err, &e) {
		switch e.Code() & 0xff { // the low byte is the primary code
		case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
			return &DamagedError{Detail: e.Error()}
		}
	}
	return explain(err)
}

// explain adds to an error of SQLite what an operator can do about it.
func explain(err error) error {
	var e *driver.Error
	if !errors.As(err, &e) {
		return err
	}
	hints := map[int]string{
		sqlite3.SQLITE_FULL:     "the disk is full; free space and writing goes on by itself",
		sqlite3.SQLITE_READONLY: "the file cannot be written; check its permissions and how it is mounted",
		sqlite3.SQLITE_CANTOPEN: "the file cannot be opened; check the folder and its permissions",
		sqlite3.SQLITE_IOERR:    "the disk reports an error; check the system's log",
	}
	if hint, ok := hints[e.Code()&0xff]; ok && !strings.HasPrefix(err.Error(), hint) {
		return fmt.Errorf("%s: %w", hint, err)
	}
	return err
}

// bookkeeping is the row of meta.
type bookkeeping struct {
	epoch     string
	revision  store.Revision
	compacted store.Revision
	swept     store.Revision
	size      int64
	probes    int64
	digest    int64
}

const selectMeta = `SELECT epoch, revision, compacted, swept, size, probes, digest FROM meta`

func (b *bookkeeping) scan(row interface{ Scan(...any) error }) error {
	return row.Scan(&b.epoch, &b.revision, &b.compacted, &b.swept, &b.size, &b.probes, &b.digest)
}
