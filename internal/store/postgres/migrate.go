package postgres

import (
	"context"
	"embed"
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// migrations make the tables, each from the version before. A file that was
// released never changes. Instances of two neighbouring versions run side by
// side for a while, so a migration must not break the program before it.
//
//go:embed migrations/*.sql
var migrations embed.FS

// Classes of advisory locks, the first of two numbers; the second distinguishes
// states in one database. The first bytes spell "Prox".
const (
	lockCommit  = 0x50726f01 // for the length of a commit
	lockExpiry  = 0x50726f02 // for the life of the session that deletes expired keys
	lockSweep   = 0x50726f03 // for a step of deleting compacted rows
	lockMigrate = 0x50726f04
	lockAlone   = 0x50726f05 // for the life of the session of who has the state alone
)

type migration struct {
	version int
	text    string
}

// readMigrations returns them in order; NNNN_name.sql has version NNNN.
func readMigrations() ([]migration, error) {
	entries, err := migrations.ReadDir("migrations")
	if err != nil {
		return nil, err
	}
	var all []migration
	for i, e := range entries { // sorted by name
		number, _, _ := strings.Cut(e.Name(), "_")
		version, err := strconv.Atoi(number)
		if err != nil || version != i+1 {
			return nil, fmt.Errorf("migration %q is out of sequence", e.Name())
		}
		text, err := migrations.ReadFile(path.Join("migrations", e.Name()))
		if err != nil {
			return nil, err
		}
		all = append(all, migration{version, string(text)})
	}
	return all, nil
}

// migrate brings the tables to the newest version, all in one transaction, so
// that a program that dies half-way leaves nothing. Instances that start at the
// same moment take turns. Nothing is written if nothing is to do.
func (t target) migrate(ctx context.Context, conn *pgx.Conn) error {
	all, err := readMigrations()
	if err != nil {
		return err
	}
	if version, err := schemaVersion(ctx, conn); err != nil || version == len(all) {
		return err
	} else if version > len(all) {
		return &SchemaError{Version: version, Known: len(all)}
	}
	return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1, hashtext(coalesce(nullif($2, ''), current_schema(), '')))`,
			lockMigrate, t.schema); err != nil {
			return err
		}
		if err := t.createSchema(ctx, tx); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `CREATE TABLE IF NOT EXISTS proxima_schema (
			version int PRIMARY KEY, applied timestamptz NOT NULL DEFAULT now())`); err != nil {
			return err
		}
		version, err := schemaVersion(ctx, tx) // with the lock: another process may have been faster
		if err != nil {
			return err
		}
		if version > len(all) {
			return &SchemaError{Version: version, Known: len(all)}
		}
		for _, m := range all[version:] {
			if _, err := tx.Exec(ctx, m.text, pgx.QueryExecModeSimpleProtocol); err != nil {
				return fmt.Errorf("migrate to schema version %d: %w", m.version, err)
			}
			if _, err := tx.Exec(ctx, `INSERT INTO proxima_schema (version) VALUES ($1)`, m.version); err != nil {
				return err
			}
		}
		return nil
	})
}

func (t target) createSchema(ctx context.Context, tx pgx.Tx) error {
	if t.schema == "" {
		return nil
	}
	var exists bool
	if err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)`, t.schema).Scan(&exists); err != nil || exists {
		return err
	}
	_, err := tx.Exec(ctx, `CREATE SCHEMA `+pgx.Identifier{t.schema}.Sanitize())
	return err
}

type querier interface {
	QueryRow(ctx context.Context, query string, args ...any) pgx.Row
}

// schemaVersion is 0 for a database without our tables.
func schemaVersion(ctx context.Context, from querier) (version int, err error) {
	var exists bool
	if err := from.QueryRow(ctx, `SELECT to_regclass('proxima_schema') IS NOT NULL`).Scan(&exists); err != nil || !exists {
		return 0, err
	}
	err = from.QueryRow(ctx, `SELECT coalesce(max(version), 0) FROM proxima_schema`).Scan(&version)
	return version, err
}
