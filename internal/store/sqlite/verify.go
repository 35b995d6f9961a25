package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
)

// named bounds how many damaged objects an error names.
const named = 10

// verifyLive checks that the table of live objects is as the last transaction left it. Errors:
// *DamagedError, with what is lost.
func verifyLive(ctx context.Context, db *sql.DB) error {
	var want int64
	var digested bool
	if err := db.QueryRowContext(ctx, `SELECT digest, digested = revision FROM meta`).Scan(&want, &digested); err != nil {
		return err
	}
	is, keys, err := digestLive(ctx, db)
	switch {
	case err != nil:
		return err
	case !digested: // new, or a program of an earlier version wrote last
		_, err = db.ExecContext(ctx, `UPDATE meta SET digest = ?, digested = revision`, is)
		return err
	case is != want:
		return &DamagedError{Detail: fmt.Sprintf("its table of %d live objects is not as it was left", keys) + lost(ctx, db)}
	}
	return nil
}

func digestLive(ctx context.Context, db *sql.DB) (sum int64, keys int, err error) {
	rows, err := db.QueryContext(ctx, `SELECT key, revision, expires FROM live`)
	if err != nil {
		return 0, 0, err
	}
	defer rows.Close()
	for rows.Next() {
		var key sql.RawBytes
		var revision, expires int64
		if err := rows.Scan(&key, &revision, &expires); err != nil {
			return 0, 0, err
		}
		sum ^= digest(key, revision, expires)
		keys++
	}
	return sum, keys, rows.Err()
}

// lost is what a damaged file has lost, for an error, as far as it can be read.
func lost(ctx context.Context, db *sql.DB) string {
	var all []string
	for _, find := range []struct {
		what string
		in   func(context.Context, *sql.DB, func(*row)) error
	}{
		{"changed on the disk", changedRows},
		{"lost or out of place", misplaced},
	} {
		var l losses
		err := find.in(ctx, db, func(r *row) { l.add(r.name()) })
		if text := l.String(); text != "" {
			all = append(all, find.what+": "+text)
		}
		if err != nil {
			all = append(all, "the rest cannot be read")
			break
		}
	}
	if len(all) == 0 {
		return ""
	}
	return "; " + strings.Join(all, "; ")
}

// changedRows are those that do not match their checksums.
func changedRows(ctx context.Context, db *sql.DB, found func(*row)) error {
	rows, err := db.QueryContext(ctx, `SELECT `+historyColumns+` FROM history AS h`)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var r row
		if err := rows.Scan(r.targets()...); err != nil {
			return err
		}
		if r.verify() != nil {
			found(&r)
		}
	}
	return rows.Err()
}

// misplaced are entries of live whose rows are others', and newest rows without an entry.
func misplaced(ctx context.Context, db *sql.DB, found func(*row)) error {
	rows, err := db.QueryContext(ctx, `
		SELECT live.key, live.revision FROM live LEFT JOIN history AS h USING (revision)
			WHERE h.revision IS NULL OR h.key <> live.key OR h.kind <> 1 OR h.expires <> live.expires
		UNION
		SELECT h.key, h.revision FROM history AS h LEFT JOIN live USING (key)
			WHERE h.kind = 1 AND (live.revision IS NULL OR live.revision < h.revision)
				AND NOT EXISTS (SELECT 1 FROM history AS later WHERE later.key = h.key AND later.revision > h.revision)`)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var r row
		if err := rows.Scan(&r.key, &r.revision); err != nil {
			return err
		}
		found(&r)
	}
	return rows.Err()
}

// losses are the damaged objects of a file.
type losses struct {
	names []string
	total int
}

func (l *losses) add(name string) {
	if l.total++; len(l.names) < named {
		l.names = append(l.names, name)
	}
}

func (l *losses) String() string {
	text := strings.Join(l.names, ", ")
	if more := l.total - len(l.names); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
