package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/proxima-mesh/proxima/internal/store"
)

func open(t *testing.T, path string) *Store {
	t.Helper()
	s, err := Open(t.Context(), path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func put(key string, value []byte) store.Txn {
	return store.Txn{Ops: []store.Op{{Kind: store.Put, Key: key, Value: value}}}
}

// filled makes a closed state that has a few pages.
func filled(t *testing.T) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "state.db")
	s := open(t, path)
	for i := range 50 {
		if _, err := s.Commit(t.Context(), put(fmt.Sprintf("k/%d", i), make([]byte, 1000))); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

// alter changes a closed state behind the store's back.
func alter(t *testing.T, path, statement string) {
	t.Helper()
	db, err := sql.Open(driverName, path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
}

func TestOpenRefuses(t *testing.T) {
	cases := []struct {
		name    string
		tamper  func(t *testing.T, path string)
		kind    any
		message string
	}{
		{"a newer schema", func(t *testing.T, path string) {
			alter(t, path, "PRAGMA user_version = 3")
		}, new(*SchemaError), "schema version 3, this program supports up to 2"},
		{"a newer schema that needs newer programs", func(t *testing.T, path string) {
			alter(t, path, "PRAGMA user_version = 196612") // 3<<16 | 4
		}, new(*SchemaError), "schema version 4, this program supports up to 2"},
		{"another application's database", func(t *testing.T, path string) {
			alter(t, path, "PRAGMA application_id = 7")
		}, new(*SchemaError), "another application"},
		{"any other database", func(t *testing.T, path string) {
			remove(t, path)
			alter(t, path, "CREATE TABLE t (x)")
		}, new(*SchemaError), "another application"},
		{"something else", func(t *testing.T, path string) {
			overwrite(t, path, 0, "certainly not a database, but long enough to be taken for one"+strings.Repeat(".", 200))
		}, new(*DamagedError), "damaged"},
		{"a damaged page", func(t *testing.T, path string) {
			for page := int64(1); page < 8; page++ {
				overwrite(t, path, page*4096, strings.Repeat("\xff", 64))
			}
		}, new(*DamagedError), "restore a backup"},
		{"a file that was cut", func(t *testing.T, path string) {
			if err := os.Truncate(path, 3*4096); err != nil {
				t.Fatal(err)
			}
		}, new(*DamagedError), "damaged"},
		{"a history that lost its end", func(t *testing.T, path string) {
			alter(t, path, "DELETE FROM history WHERE revision > 45")
		}, new(*DamagedError), "recorded as 50, but the history ends at 45"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			path := filled(t)
			c.tamper(t, path)
			s, err := Open(t.Context(), path, Options{})
			if err == nil {
				_ = s.Close()
				t.Fatal("it was opened")
			}
			if !errors.As(err, c.kind) || !strings.Contains(err.Error(), c.message) || !strings.Contains(err.Error(), path) {
				t.Errorf("error %q (%T), want a %T with %q", err, err, c.kind, c.message)
			}
			t.Log(err)
		})
	}
}

// TestOpenAdditiveSchema: a file that a newer program has added something to is used as before.
func TestOpenAdditiveSchema(t *testing.T) {
	path := filled(t)
	alter(t, path, "ALTER TABLE meta ADD COLUMN colour TEXT; PRAGMA user_version = 65539") // 1<<16 | 3
	s, err := Open(t.Context(), path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Commit(t.Context(), put("more", []byte("1"))); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

func overwrite(t *testing.T, path string, at int64, content string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte(content), at); err != nil {
		t.Fatal(err)
	}
}

func TestOpenOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	s := open(t, path)
	_, err := Open(t.Context(), path, Options{})
	var inUse *InUseError
	if !errors.As(err, &inUse) || inUse.PID != os.Getpid() {
		t.Errorf("opening twice: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	open(t, path)
}

func TestOpenWithoutFolder(t *testing.T) {
	_, err := Open(t.Context(), filepath.Join(t.TempDir(), "none", "state.db"), Options{})
	if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "the folder must exist and be writable") {
		t.Errorf("error %v", err)
	}
}

func TestOpenCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	path := filepath.Join(t.TempDir(), "state.db")
	if _, err := Open(ctx, path, Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	open(t, path) // nothing is left behind
}

func TestOddPath(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a folder?with=odd&characters#100%.d")
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(path, "state ?.db")
	s := open(t, path)
	if _, err := s.Commit(t.Context(), put("a", nil)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
}

// TestFilesArePrivate: they contain hashes of tokens and the objects of all users.
func TestFilesArePrivate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	s, err := Open(t.Context(), path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Commit(t.Context(), store.Txn{Ops: []store.Op{{Kind: store.Put, Key: "/a", Value: []byte("b")}}}); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{path, path + "-wal", path + ".lock"} {
		info, err := os.Stat(file)
		if err != nil {
			t.Error(err)
		} else if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v, want 0600", file, info.Mode())
		}
	}
}
