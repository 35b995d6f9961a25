package backup_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/backup"
	"github.com/proxima-mesh/proxima/internal/store/memory"
	"github.com/proxima-mesh/proxima/internal/store/postgres"
	"github.com/proxima-mesh/proxima/internal/store/sqlite"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var now = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

// engines are the stores that can be restored into.
var engines = map[string]func(t *testing.T) store.Restorer{
	"memory": func(t *testing.T) store.Restorer {
		s := memory.New(memory.Options{})
		t.Cleanup(func() { _ = s.Close() })
		return s
	},
	"sqlite": func(t *testing.T) store.Restorer {
		s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "state.db"), sqlite.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	},
	"postgres": func(t *testing.T) store.Restorer {
		s, err := postgres.Open(t.Context(), testkit.Postgres(t), postgres.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	},
}

func commit(t *testing.T, s store.Store, ops ...store.Op) store.Revision {
	t.Helper()
	rev, err := s.Commit(t.Context(), store.Txn{Ops: ops})
	if err != nil {
		t.Fatal(err)
	}
	return rev
}

func put(key, value string) store.Op {
	return store.Op{Kind: store.Put, Key: key, Value: []byte(value)}
}

func write(t *testing.T, s store.Store, opts backup.WriteOptions) []byte {
	t.Helper()
	var b bytes.Buffer
	if _, err := backup.Write(t.Context(), &b, s, opts); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func open(t *testing.T, data []byte) *backup.Backup {
	t.Helper()
	b, err := backup.Open(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func all(t *testing.T, s store.Store) []store.Record {
	t.Helper()
	page, err := s.List(t.Context(), store.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return page.Records
}

// filled has keys that were changed, deleted, will expire, are empty and are no
// text.
func filled(t *testing.T, s store.Store) store.Revision {
	commit(t, s, put("/a/1", "one"), put("/a/2", "two"), put("/b", ""))
	commit(t, s, put("/a/1", "uno"), store.Op{Kind: store.Delete, Key: "/a/2"})
	commit(t, s, store.Op{Kind: store.Put, Key: "/lease", Value: []byte{0, 255, 10}, TTL: time.Hour})
	return commit(t, s, put("/\xff\x00", strings.Repeat("long", 100_000)))
}

func TestRoundTrip(t *testing.T) {
	for from, source := range engines {
		for to, target := range engines {
			t.Run(from+" to "+to, func(t *testing.T) {
				s := source(t)
				last := filled(t, s)
				files := []backup.File{{Name: "pki/secrets.keys", Data: []byte("key")}, {Name: "empty", Data: []byte{}}}
				data := write(t, s, backup.WriteOptions{Program: "test", Created: now, Files: files})
				b := open(t, data)
				want := backup.Header{Epoch: s.Epoch(), Revision: last, Created: now, Program: "test"}
				if diff := cmp.Diff(want, b.Header); diff != "" {
					t.Error(diff)
				}
				if diff := cmp.Diff(files, b.Files); diff != "" {
					t.Error(diff)
				}
				restored := target(t)
				at, err := backup.Restore(t.Context(), restored, b, 0, now)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(all(t, s), all(t, restored), cmp.Comparer(bytes.Equal)); diff != "" {
					t.Error(diff)
				}
				checkRestored(t, restored, s, at, last)
			})
		}
	}
}

// checkRestored: the restored store is another history, above the old one.
func checkRestored(t *testing.T, restored, original store.Store, at, last store.Revision) {
	t.Helper()
	ctx := t.Context()
	if restored.Epoch() == original.Epoch() {
		t.Error("the epoch is the same")
	}
	if rev, err := restored.Revision(ctx); rev != at || err != nil || at <= last {
		t.Errorf("revision %d, %v; want %d, above %d", rev, err, at, last)
	}
	if got := restored.Compacted(); got != at {
		t.Errorf("compacted up to %d, want %d", got, at)
	}
	want, _ := original.Size(ctx)
	if size, err := restored.Size(ctx); size != want || err != nil {
		t.Errorf("size %d, %v; want %d", size, err, want)
	}
	for _, after := range []store.Revision{0, last, last + 5, at - 1} {
		if _, err := restored.Watch(ctx, "", after); !errors.Is(err, store.ErrCompacted) {
			t.Errorf("watch after %d: %v, want ErrCompacted", after, err)
		}
		if _, err := restored.List(ctx, store.ListOptions{At: max(after, 1)}); !errors.Is(err, store.ErrCompacted) {
			t.Errorf("list at %d: %v, want ErrCompacted", after, err)
		}
	}
	w, err := restored.Watch(ctx, "", at)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if rev := commit(t, restored, put("/a/1", "eins"), put("/new", "")); rev != at+2 {
		t.Errorf("first write after it: revision %d, want %d", rev, at+2)
	}
	batch := <-w.Batches()
	if len(batch.Events) != 2 || batch.Events[0].Prev == nil || string(batch.Events[0].Prev.Value) != "uno" {
		t.Errorf("watched %+v, want a change with its previous value", batch)
	}
	// The base can still be read, after it was left and after it was compacted.
	page, err := restored.List(ctx, store.ListOptions{At: at, Prefix: "/a/"})
	if err != nil || page.Revision != at || len(page.Records) != 1 || string(page.Records[0].Value) != "uno" {
		t.Errorf("list at the base: %+v, %v", page, err)
	}
	if err := restored.Compact(ctx, at+2); err != nil {
		t.Error(err)
	}
	if rec, ok, _, err := restored.Get(ctx, "/a/1", 0); string(rec.Value) != "eins" || !ok || err != nil {
		t.Errorf("after compaction: %+v, %v", rec, err)
	}
}

func TestRestoreRefuses(t *testing.T) {
	source := engines["memory"](t)
	filled(t, source)
	b := open(t, write(t, source, backup.WriteOptions{}))
	for name, target := range engines {
		t.Run(name, func(t *testing.T) {
			s := target(t)
			commit(t, s, put("mine", "kept"))
			if _, err := backup.Restore(t.Context(), s, b, 0, now); !errors.Is(err, store.ErrNotEmpty) {
				t.Errorf("not empty: %v", err)
			}
			if got := all(t, s); len(got) != 1 || string(got[0].Value) != "kept" {
				t.Errorf("it has %v", got)
			}
		})
		t.Run(name+" all or nothing", func(t *testing.T) {
			broken := errors.New("broken")
			good := store.Record{Key: "b", Created: 1, Modified: 2}
			for what, bad := range map[string]store.Record{
				"error": {}, "no key": {Created: 1, Modified: 1}, "twice": good, "order": {Key: "a", Created: 1, Modified: 1},
				"created": {Key: "c", Created: 3, Modified: 2}, "future": {Key: "c", Created: 1, Modified: 10},
			} {
				s := target(t)
				err := s.Restore(t.Context(), 9, func(yield func(store.Record, error) bool) {
					if !yield(good, nil) {
						return
					}
					if what == "error" {
						yield(bad, broken)
						return
					}
					yield(bad, nil)
				})
				var invalid *store.InvalidError
				if what == "error" && !errors.Is(err, broken) || what != "error" && !errors.As(err, &invalid) {
					t.Errorf("%s: %v", what, err)
				}
				if rev := commit(t, s, put("x", "")); rev != 1 || len(all(t, s)) != 1 {
					t.Errorf("%s: the store has something: revision %d, %v", what, rev, all(t, s))
				}
			}
		})
	}
}

// TestWatcherOfTheEmptyStore: a watcher that was there before the restore ends
// instead of seeing nothing.
func TestWatcherOfTheEmptyStore(t *testing.T) {
	source := engines["memory"](t)
	filled(t, source)
	b := open(t, write(t, source, backup.WriteOptions{}))
	for name, target := range engines {
		t.Run(name, func(t *testing.T) {
			s := target(t)
			w, err := s.Watch(t.Context(), "", 0)
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			if _, err := backup.Restore(t.Context(), s, b, 0, now); err != nil {
				t.Fatal(err)
			}
			for batch := range w.Batches() {
				t.Errorf("watched %+v", batch)
			}
			if !errors.Is(w.Err(), store.ErrCompacted) {
				t.Errorf("ended with %v, want ErrCompacted", w.Err())
			}
		})
	}
}

// TestConcurrentWrites: a backup is one moment. Writers keep the sum of pairs
// constant, in one transaction each.
func TestConcurrentWrites(t *testing.T) {
	for name, source := range engines {
		t.Run(name, func(t *testing.T) {
			s := source(t)
			const keys, sum = 600, 1000 // more keys than the first page has
			var ops []store.Op
			for i := range keys {
				ops = append(ops, put(fmt.Sprintf("k/%04d", i), number(sum/2)))
			}
			commit(t, s, ops...)
			ctx, stop := context.WithCancel(t.Context())
			var writers sync.WaitGroup
			for w := range 2 {
				writers.Go(func() {
					for i := w; ctx.Err() == nil; i++ {
						a, b := i%(keys/2), keys-1-i%(keys/2) // far apart, so on different pages
						_, _ = s.Commit(ctx, store.Txn{Ops: []store.Op{
							put(fmt.Sprintf("k/%04d", a), number(i%sum)), put(fmt.Sprintf("k/%04d", b), number(sum-i%sum)),
							put(fmt.Sprintf("x/%d", i%50), ""),
						}})
					}
				})
			}
			for range 5 {
				b := open(t, write(t, s, backup.WriteOptions{}))
				values := map[string]int{}
				for r, err := range b.Records() {
					if err != nil {
						t.Fatal(err)
					}
					if r.Modified > b.Revision {
						t.Errorf("%s is of revision %d, the backup of %d", r.Key, r.Modified, b.Revision)
					}
					if strings.HasPrefix(r.Key, "k/") {
						values[r.Key] = int(binary.BigEndian.Uint32(r.Value))
					}
				}
				for i := range keys / 2 {
					a, b := values[fmt.Sprintf("k/%04d", i)], values[fmt.Sprintf("k/%04d", keys-1-i)]
					if a+b != sum {
						t.Fatalf("pair %d: %d + %d", i, a, b)
					}
				}
			}
			stop()
			writers.Wait()
		})
	}
}

func number(n int) string { return string(binary.BigEndian.AppendUint32(nil, uint32(n))) }

// TestCompactedMeanwhile: a backup that took too long fails with an error and is not usable.
func TestCompactedMeanwhile(t *testing.T) {
	s := engines["memory"](t)
	var ops []store.Op
	for i := range 600 {
		ops = append(ops, put(fmt.Sprintf("k/%04d", i), ""))
	}
	commit(t, s, ops...)
	var b bytes.Buffer
	_, err := backup.Write(t.Context(), &b, compacting{s}, backup.WriteOptions{})
	if !errors.Is(err, store.ErrCompacted) {
		t.Errorf("error %v", err)
	}
	if _, err := backup.Open(bytes.NewReader(b.Bytes()), int64(b.Len())); !isFormat(err) {
		t.Errorf("open: %v", err)
	}
}

// compacting writes and compacts after every page.
type compacting struct{ store.Store }

func (c compacting) List(ctx context.Context, opts store.ListOptions) (store.Page, error) {
	page, err := c.Store.List(ctx, opts)
	if err == nil {
		var rev store.Revision
		rev, err = c.Commit(ctx, store.Txn{Ops: []store.Op{put("z", "")}})
		err = errors.Join(err, c.Compact(ctx, rev))
	}
	return page, err
}

func isFormat(err error) bool {
	var e *backup.FormatError
	return errors.As(err, &e)
}

// TestDamage flips every bit and cuts at every length of a small backup.
func TestDamage(t *testing.T) {
	s := engines["memory"](t)
	commit(t, s, put("/a", "one"), put("/b", "two"))
	data := write(t, s, backup.WriteOptions{Created: now, Files: []backup.File{{Name: "f", Data: []byte("x")}}})
	open(t, data)
	for i := range data {
		for bit := range 8 {
			flipped := bytes.Clone(data)
			flipped[i] ^= 1 << bit
			if _, err := backup.Open(bytes.NewReader(flipped), int64(len(flipped))); !isFormat(err) {
				t.Fatalf("bit %d of byte %d flipped: %v", bit, i, err)
			}
		}
		if _, err := backup.Open(bytes.NewReader(data[:i]), int64(i)); !isFormat(err) {
			t.Fatalf("cut to %d of %d bytes: %v", i, len(data), err)
		}
	}
	longer := append(bytes.Clone(data), 0)
	if _, err := backup.Open(bytes.NewReader(longer), int64(len(longer))); !isFormat(err) {
		t.Errorf("with a byte more: %v", err)
	}
	other := []byte("proxima backup 2\n" + strings.Repeat("x", 100))
	if _, err := backup.Open(bytes.NewReader(other), int64(len(other))); !isFormat(err) || !strings.Contains(err.Error(), "version") {
		t.Errorf("another version: %v", err)
	}
}

// FuzzOpen reads what an attacker made on purpose: the checksum always holds.
func FuzzOpen(f *testing.F) {
	s := memory.New(memory.Options{})
	defer s.Close()
	if _, err := s.Commit(f.Context(),
		store.Txn{Ops: []store.Op{put("/a", "one"), {Kind: store.Put, Key: "/b", TTL: time.Hour}}}); err != nil {
		f.Fatal(err)
	}
	var b bytes.Buffer
	if _, err := backup.Write(f.Context(), &b, s, backup.WriteOptions{Files: []backup.File{{Name: "pki/x", Data: []byte("x")}}}); err != nil {
		f.Fatal(err)
	}
	f.Add(backup.Frames(b.Bytes()))
	f.Add([]byte("h\x02{}"))
	f.Add([]byte(`h+{"epoch":"x","revision":9223372036854775807}`))
	f.Add([]byte("f\xff\xff\xff\xff\xff\xff\xff\xff\x01"))
	f.Fuzz(func(t *testing.T, frames []byte) {
		data := backup.Packed(frames)
		sum := sha256.Sum256(data)
		data = append(data, sum[:]...)
		opened, err := backup.Open(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			if !isFormat(err) {
				t.Errorf("open: %v", err)
			}
			return
		}
		for _, file := range opened.Files {
			if !filepath.IsLocal(file.Name) {
				t.Errorf("file %q leads out", file.Name)
			}
		}
		target := memory.New(memory.Options{})
		defer target.Close()
		at, err := backup.Restore(t.Context(), target, opened, 0, now)
		var invalid *store.InvalidError
		switch {
		case err == nil && at < opened.Revision:
			t.Errorf("restored at %d, the backup is of %d", at, opened.Revision)
		case err != nil && !isFormat(err) && !errors.As(err, &invalid):
			t.Errorf("restore: %v", err)
		}
	})
}
