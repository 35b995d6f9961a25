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
// side for a while, and the older one may be started again, so a migration must not
// break the program before it: it is additive for one release at least. Its first line
// may be "-- needs: N": programs that know version N work with the tables after it.
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
	// needs is the version that a program must know to work with the tables after it.
	needs int
	text  string
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
		needs, err := needsOf(string(text), version)
		if err != nil {
			return nil, fmt.Errorf("migration %q: %w", e.Name(), err)
		}
		all = append(all, migration{version, needs, string(text)})
	}
	return all, nil
}

// needsOf reads the first line of a migration; without it only programs that know the
// migration work with the tables.
func needsOf(text string, version int) (int, error) {
	line, _, _ := strings.Cut(text, "\n")
	number, ok := strings.CutPrefix(line, "-- needs: ")
	if !ok {
		return version, nil
	}
	needs, err := strconv.Atoi(number)
	if err != nil || needs < 1 || needs > version {
		return 0, fmt.Errorf("%q: want a version from 1 to %d", line, version)
	}
	return needs, nil
}

// migrate brings the tables to the newest version, all in one transaction, so
// that a program that dies half-way leaves nothing. Instances that start at the
// same moment take turns. Nothing is written if nothing is to do.
func (t target) migrate(ctx context.Context, conn *pgx.Conn) error {
	all, err := readMigrations()
	if err != nil {
		return err
	}
	if done, err := migrated(ctx, conn, len(all)); err != nil || done {
		return err
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
			version int PRIMARY KEY, applied timestamptz NOT NULL DEFAULT now(), needs int)`); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `ALTER TABLE proxima_schema ADD COLUMN IF NOT EXISTS needs int`); err != nil {
			return err
		}
		// With the lock: another process may have been faster.
		if done, err := migrated(ctx, tx, len(all)); err != nil || done {
			return err
		}
		version, _, err := schemaVersion(ctx, tx)
		if err != nil {
			return err
		}
		for _, m := range all[version:] {
			if _, err := tx.Exec(ctx, m.text, pgx.QueryExecModeSimpleProtocol); err != nil {
				return fmt.Errorf("migrate to schema version %d: %w", m.version, err)
			}
			if _, err := tx.Exec(ctx, `INSERT INTO proxima_schema (version, needs) VALUES ($1, $2)`, m.version, m.needs); err != nil {
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

// migrated reports whether nothing is to be migrated. The error is a *SchemaError if the
// tables need a program that knows more versions.
func migrated(ctx context.Context, from querier, known int) (bool, error) {
	version, needs, err := schemaVersion(ctx, from)
	if err == nil && needs > known {
		err = &SchemaError{Version: version, Known: known}
	}
	return version >= known, err
}

// schemaVersion is that of the tables, and the one that programs must know to work with
// them. Both are 0 for a database without our tables.
func schemaVersion(ctx context.Context, from querier) (version, needs int, err error) {
	var exists bool
	if err := from.QueryRow(ctx, `SELECT to_regclass('proxima_schema') IS NOT NULL`).Scan(&exists); err != nil || !exists {
		return 0, 0, err
	}
	// The tables of earlier programs have no column "needs".
	err = from.QueryRow(ctx, `SELECT coalesce(max(version), 0), coalesce(max(coalesce((to_jsonb(s)->>'needs')::int, version)), 0)
		FROM proxima_schema s`).Scan(&version, &needs)
	return version, needs, err
}
