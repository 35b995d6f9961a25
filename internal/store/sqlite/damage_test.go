package sqlite

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/position"
)

// undamaged is the values of all keys, as one list and as many reads say; nil: there was an error,
// which is that of damage.
func undamaged(t *testing.T, s *Store, keys []string) map[string]string {
	t.Helper()
	page, err := s.List(t.Context(), store.ListOptions{})
	damage := new(*DamagedError)
	if err != nil {
		return nil // SQLite may find it first
	}
	out := map[string]string{}
	for _, r := range page.Records {
		out[r.Key] = string(r.Value)
	}
	for _, key := range keys {
		r, ok, _, err := s.Get(t.Context(), key, 0)
		if err != nil {
			if !errors.As(err, damage) {
				t.Logf("get: %v", err)
			}
			return nil
		}
		if value, listed := out[key]; ok != listed || string(r.Value) != value {
			t.Errorf("%s: get and list differ", key)
		}
	}
	return out
}

// TestDamage: bits that flip in a file are noticed when it is opened or read; what is read without
// an error is what was written.
func TestDamage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	s := open(t, path)
	want := map[string]string{}
	var keys []string
	for i := range 60 {
		key := fmt.Sprintf("/registry/kind%d/object-%d", i%5, i)
		for range 1 + i%3 {
			want[key] = fmt.Sprintf("%d %s", i, strings.Repeat("value ", i*5))
			if _, err := s.Commit(t.Context(), put(key, []byte(want[key]))); err != nil {
				t.Fatal(err)
			}
		}
		keys = append(keys, key)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	image, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	refused, failed, whole := 0, 0, 0
	for seed := range uint64(150) {
		rng := rand.New(rand.NewPCG(seed, 20))
		damaged := append([]byte(nil), image...)
		for range 1 + rng.IntN(30) {
			damaged[4096+rng.IntN(len(damaged)-4096)] ^= 1 << rng.IntN(8)
		}
		at := filepath.Join(t.TempDir(), "state.db")
		if err := os.WriteFile(at, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Open(t.Context(), at, Options{})
		if err != nil {
			refused++
			continue
		}
		got := undamaged(t, s, keys)
		switch {
		case got == nil:
			failed++
		case !maps.Equal(got, want):
			t.Errorf("seed %d: damage was not noticed: %d of %d objects", seed, len(got), len(want))
		default:
			whole++ // it hit nothing that is live
		}
		_ = s.Close()
	}
	t.Logf("%d refused, %d found by a read, %d without an effect", refused, failed, whole)
	if refused == 0 || failed == 0 {
		t.Error("a way to find damage was not tried")
	}
}

// TestDamageIsNamed: the error says which objects are damaged, and the others can be read.
func TestDamageIsNamed(t *testing.T) {
	for name, tc := range map[string]struct{ statement, want string }{
		"a value":           {`UPDATE history SET value = x'00' WHERE key = CAST('b/1' AS BLOB)`, `"b/1" at revision 2`},
		"a revision":        {`UPDATE live SET revision = 1 WHERE key = CAST('b/1' AS BLOB)`, `"b/1" at revision 1`},
		"a key":             {`UPDATE live SET key = CAST('b/2' AS BLOB) WHERE key = CAST('b/1' AS BLOB)`, `"b/2" at revision 2`},
		"a row":             {`DELETE FROM history WHERE revision = 2`, `"b/1" at revision 2`},
		"an entry of live":  {`DELETE FROM live WHERE key = CAST('b/1' AS BLOB)`, `"b/1" at revision 2`},
		"a value, unclosed": {`UPDATE history SET value = x'00' WHERE key = CAST('b/1' AS BLOB)`, `"b/1" at revision 2`},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "state.db")
			s := open(t, path)
			for _, key := range []string{"a/1", "b/1", "c/1"} {
				if _, err := s.Commit(t.Context(), put(key, []byte(key))); err != nil {
					t.Fatal(err)
				}
			}
			if strings.HasSuffix(name, "unclosed") {
				alter(t, path, tc.statement)
				killed := filepath.Join(t.TempDir(), "state.db")
				for _, suffix := range []string{"", "-wal"} {
					data, err := os.ReadFile(path + suffix)
					if err == nil {
						err = os.WriteFile(killed+suffix, data, 0o600)
					}
					if err != nil {
						t.Fatal(err)
					}
				}
				path = killed
			} else {
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				alter(t, path, tc.statement)
			}
			s, err := Open(t.Context(), path, Options{})
			if err == nil {
				t.Cleanup(func() { _ = s.Close() })
				if _, err := s.List(t.Context(), store.ListOptions{Prefix: "a/"}); err != nil {
					t.Errorf("what is not damaged: %v", err)
				}
				_, err = s.List(t.Context(), store.ListOptions{Prefix: "b/"})
			}
			if !errors.As(err, new(*DamagedError)) || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "restore a backup") {
				t.Errorf("error %v, want %s", err, tc.want)
			}
		})
	}
}

// TestUpgrade: a file of version 1 is used as before, and gets checksums as it is written. A
// program of version 1 can use it in between.
func TestUpgrade(t *testing.T) {
	path := filled(t)
	alter(t, path, `ALTER TABLE history DROP COLUMN sum; ALTER TABLE meta DROP COLUMN digest; ALTER TABLE meta DROP COLUMN digested;
		PRAGMA user_version = 1`)
	use := func(value string) {
		t.Helper()
		s := open(t, path)
		before, err := s.Count(t.Context(), "")
		if err != nil || before == 0 {
			t.Fatalf("%d objects, %v", before, err)
		}
		if _, err := s.Commit(t.Context(), put("new", []byte(value))); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	use("1")
	// As a program of version 1 writes.
	alter(t, path, `INSERT INTO history (revision, batch, kind, key, created, prev, expires, value)
			SELECT revision + 1, revision + 1, 1, CAST('old' AS BLOB), revision + 1, 0, 0, x'01' FROM meta;
		INSERT INTO live SELECT CAST('old' AS BLOB), revision + 1, 0 FROM meta;
		UPDATE meta SET revision = revision + 1`)
	use("2")
	use("3")
	alter(t, path, `DELETE FROM live WHERE key = CAST('old' AS BLOB)`)
	if s, err := Open(t.Context(), path, Options{}); err == nil {
		_ = s.Close()
		t.Error("a loss was not noticed")
	}
}

// TestTimeGoesBack: a state that lost transactions goes on above all revisions that it gave out,
// under another epoch, and refuses to say what came after those that readers have seen.
func TestTimeGoesBack(t *testing.T) {
	copyOf := func(t *testing.T, from string) (to string) {
		t.Helper()
		to = filepath.Join(t.TempDir(), "state.db")
		data, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(to, data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		return to
	}
	for name, lose := range map[string]func(t *testing.T, path, older string){
		"an older file": func(t *testing.T, path, older string) {
			if err := os.Rename(older, path); err != nil {
				t.Fatal(err)
			}
		},
		"no file": func(t *testing.T, path, _ string) { remove(t, path) },
	} {
		t.Run(name, func(t *testing.T) {
			path := filled(t)
			older := copyOf(t, path)
			s := open(t, path)
			epoch := s.Epoch()
			revision, err := s.Commit(t.Context(), put("k/more", []byte("1")))
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			lose(t, path, older)
			var log bytes.Buffer
			s, err = Open(t.Context(), path, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Close() })
			now, err := s.Revision(t.Context())
			if err != nil || now <= revision || s.Epoch() == epoch {
				t.Errorf("revision %d after %d, epoch %s after %s, %v", now, revision, s.Epoch(), epoch, err)
			}
			if _, err := s.Watch(t.Context(), "", revision); !errors.Is(err, store.ErrCompacted) {
				t.Errorf("a watch from before: %v", err)
			}
			if !strings.Contains(log.String(), "transactions are lost") || !strings.Contains(log.String(), "restore a backup") {
				t.Errorf("it was not said: %s", log.String())
			}
			next, err := s.Commit(t.Context(), put("k/next", []byte("1")))
			if err != nil || next != now+1 {
				t.Errorf("the next revision is %d, %v", next, err)
			}
			if err := s.Compact(t.Context(), next); err != nil {
				t.Error(err)
			}
			epoch = s.Epoch()
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if s = open(t, path); s.Epoch() != epoch {
				t.Error("another epoch though nothing was lost")
			}
		})
	}
}

// TestPositionIsRecorded while the state is open: a log that is deleted after a crash is noticed.
func TestPositionIsRecorded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	s := open(t, path)
	var last store.Revision
	for i := range 3 {
		var err error
		if last, err = s.Commit(t.Context(), put("k", []byte{byte(i)})); err != nil {
			t.Fatal(err)
		}
	}
	for was, err := position.Read(positionPath(path)); was.Revision != last; was, err = position.Read(positionPath(path)) {
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
	killed := filepath.Join(t.TempDir(), "state.db")
	for _, suffix := range []string{"", ".position"} { // and not the log
		data, err := os.ReadFile(path + suffix)
		if err == nil {
			err = os.WriteFile(killed+suffix, data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	again, err := Open(t.Context(), killed, Options{})
	if errors.As(err, new(*DamagedError)) {
		return // the file alone has no tables yet: that is noticed, too
	}
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if now, _ := again.Revision(t.Context()); now <= last || again.Epoch() == s.Epoch() {
		t.Errorf("revision %d after %d", now, last)
	}
}

// TestLockIsOfTheFile: a state that another name leads to is in use.
func TestLockIsOfTheFile(t *testing.T) {
	path := filled(t)
	dir := t.TempDir()
	link, hard := filepath.Join(dir, "link.db"), filepath.Join(dir, "hard.db")
	if err := errors.Join(os.Symlink(path, link), os.Link(path, hard)); err != nil {
		t.Fatal(err)
	}
	s := open(t, path)
	for _, other := range []string{path, link, hard} {
		if again, err := Open(t.Context(), other, Options{}); !errors.As(err, new(*InUseError)) {
			t.Errorf("%s: %v", other, err)
			if err == nil {
				_ = again.Close()
			}
		}
	}
	if _, err := s.Commit(t.Context(), put("k", nil)); err != nil {
		t.Error(err)
	}
}
