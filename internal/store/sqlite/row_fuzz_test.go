package sqlite

import (
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/proxima-mesh/proxima/internal/store"
)

// FuzzRow reads a row that something else has written, by each way in which rows are read.
func FuzzRow(f *testing.F) {
	path := filepath.Join(f.TempDir(), "state.db")
	s, err := Open(f.Context(), path, Options{})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = s.Close() })
	const key = "/a"
	for i := range 3 {
		if _, err := s.Commit(f.Context(), put(key, fmt.Append(nil, i))); err != nil {
			f.Fatal(err)
		}
	}
	db, err := sql.Open(driverName, dsn(path))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = db.Close() })
	f.Add(int64(3), int64(1), []byte(key), int64(1), int64(2), int64(0), []byte("2"), int64(0), false)
	f.Add(int64(3), int64(1), []byte(key), int64(1), int64(2), int64(0), []byte("2"), int64(1), true)
	f.Add(int64(3), int64(9), []byte(key), int64(1), int64(2), int64(0), []byte("2"), int64(0), false)
	f.Add(int64(-1), int64(9), []byte{}, int64(-1), int64(1<<62), int64(-1<<62), []byte(nil), int64(-1), true)
	f.Add(int64(1<<62), int64(2), []byte{0xff, 0}, int64(0), int64(3), int64(1<<62), []byte{0}, int64(0), false)
	f.Fuzz(func(t *testing.T, batch, kind int64, rowKey []byte, created, prev, expires int64, value []byte, sum int64, summed bool) {
		if rowKey == nil {
			rowKey = []byte{}
		}
		if _, err := db.ExecContext(t.Context(), `UPDATE history SET batch = ?, kind = ?, key = ?, created = ?, prev = ?, expires = ?, value = ?, sum = ?
			WHERE revision = 3`, batch, kind, rowKey, created, prev, expires, value, sql.NullInt64{Int64: sum, Valid: summed}); err != nil {
			t.Fatal(err)
		}
		check := func(what string, err error) {
			if err != nil && !errors.Is(err, store.ErrDamaged) && !errors.Is(err, store.ErrCompacted) && !errors.Is(err, store.ErrFuture) {
				t.Errorf("%s: %v", what, err)
			}
		}
		_, _, _, err := s.Get(t.Context(), key, 0)
		check("get", err)
		for at := range store.Revision(4) {
			_, err = s.List(t.Context(), store.ListOptions{At: at})
			check(fmt.Sprintf("list at %d", at), err)
		}
		batches, _, err := s.History(t.Context(), "", 0, 3)
		check("history", err)
		for _, b := range batches {
			for _, e := range b.Events {
				if e.Kind != store.Put && e.Kind != store.Delete {
					t.Errorf("event of kind %d", e.Kind)
				}
			}
		}
	})
}
