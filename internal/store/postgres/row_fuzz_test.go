//go:build unix

package postgres

import (
	"errors"
	"testing"

	"github.com/proxima-mesh/proxima/internal/store"
)

// foreignRow is a row of the history with that of the change before, as the database has it.
type foreignRow struct {
	revision, batch  store.Revision
	kind             int16
	key, value       []byte
	created, expires int64
	// prev is NULL unless hasPrev.
	hasPrev bool
	prev    store.Revision
	before  []byte
}

// Scan implements pgx.Row.
func (r foreignRow) Scan(dest ...any) error {
	*dest[0].(*store.Revision), *dest[1].(*store.Revision), *dest[2].(*int16) = r.revision, r.batch, r.kind
	*dest[3].(*[]byte), *dest[4].(*store.Revision), *dest[5].(*int64), *dest[6].(*[]byte) = r.key, store.Revision(r.created), r.expires, r.value
	if r.hasPrev {
		created, expires := store.Revision(r.created), r.expires
		*dest[7].(**store.Revision), *dest[8].(**store.Revision), *dest[9].(**int64) = &r.prev, &created, &expires
		*dest[10].(*[]byte) = r.before
	}
	return nil
}

// FuzzRow reads a row that something else has written: it is an event, or damage.
func FuzzRow(f *testing.F) {
	f.Add(int64(3), int64(3), int16(1), []byte("/a"), []byte("2"), int64(1), int64(0), true, int64(2), []byte("1"))
	f.Add(int64(3), int64(3), int16(2), []byte("/a"), []byte(nil), int64(1), int64(0), false, int64(0), []byte(nil))
	f.Add(int64(-1), int64(0), int16(7), []byte{}, []byte{0xff}, int64(-1), int64(-1<<62), true, int64(9), []byte(nil))
	f.Fuzz(func(t *testing.T, revision, batch int64, kind int16, key, value []byte, created, expires int64, hasPrev bool, prev int64, before []byte) {
		e, _, err := scanEvent(foreignRow{
			revision: store.Revision(revision), batch: store.Revision(batch), kind: kind, key: key, value: value, created: created, expires: expires,
			hasPrev: hasPrev, prev: store.Revision(prev), before: before,
		})
		switch {
		case err != nil && !errors.Is(err, store.ErrDamaged):
			t.Errorf("%v", err)
		case err != nil:
		case e.Kind != store.Put && e.Kind != store.Delete, e.Record.Key == "", e.Record.Modified < 1:
			t.Errorf("event %+v", e)
		}
	})
}
