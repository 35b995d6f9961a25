package sqlite

import (
	"context"
	"errors"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/proxima-mesh/proxima/internal/store"
)

func restored(yield func(store.Record, error) bool) {
	_ = yield(store.Record{Key: "a", Value: []byte("old"), Created: 2, Modified: 5}, nil) &&
		yield(store.Record{Key: "b", Value: []byte("lease"), Created: 3, Modified: 3, Expires: time.Now().Add(time.Hour).UTC()}, nil)
}

// fillWith restores records, and stores the revision that it was called with.
func fillWith(records iter.Seq2[store.Record, error], previous *store.Revision) func(context.Context, *Store, store.Revision) error {
	return func(ctx context.Context, into *Store, known store.Revision) error {
		*previous = known
		return into.Restore(ctx, known+100, records)
	}
}

func contents(t *testing.T, path string) (map[string]string, store.Revision) {
	t.Helper()
	s, err := Open(t.Context(), path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	page, err := s.List(t.Context(), store.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, r := range page.Records {
		out[r.Key] = string(r.Value)
	}
	return out, page.Revision
}

func files(t *testing.T, path string) []string {
	t.Helper()
	names, err := filepath.Glob(path + "*")
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range names {
		names[i] = strings.TrimPrefix(name, path)
	}
	slices.Sort(names)
	return names
}

var wantRestored = map[string]string{"a": "old", "b": "lease"}

func TestReplaceNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	var previous store.Revision
	for range 2 { // an empty state is like none
		if kept, err := Replace(t.Context(), path, Replacement{},
			func(context.Context, *Store, store.Revision) error { return nil }); kept != "" || err != nil {
			t.Fatal(kept, err)
		}
	}
	if kept, err := Replace(t.Context(), path, Replacement{}, fillWith(restored, &previous)); kept != "" || err != nil || previous != 0 {
		t.Fatal(kept, previous, err)
	}
	got, rev := contents(t, path)
	if diff := cmp.Diff(wantRestored, got); diff != "" || rev != 100 {
		t.Errorf("revision %d %s", rev, diff)
	}
	// It outlives a restart, deadlines too.
	s := open(t, path)
	if rec, _, _, err := s.Get(t.Context(), "b", 0); rec.Expires.IsZero() || err != nil {
		t.Errorf("%+v, %v", rec, err)
	}
	if s.Compacted() != 100 {
		t.Errorf("compacted up to %d", s.Compacted())
	}
}

func TestReplaceState(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	s, err := Open(t.Context(), path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Commit(t.Context(), put("mine", []byte("kept"))); err != nil {
		t.Fatal(err)
	}
	epoch := s.Epoch()
	var previous store.Revision
	fill := fillWith(restored, &previous)

	var used *InUseError
	if _, err := Replace(t.Context(), path, Replacement{Force: true}, fill); !errors.As(err, &used) {
		t.Errorf("while it is open: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	var occupied *NotEmptyError
	if _, err := Replace(t.Context(), path, Replacement{}, fill); !errors.As(err, &occupied) || occupied.Revision != 1 {
		t.Errorf("without force: %v", err)
	}
	broken := errors.New("broken")
	if _, err := Replace(t.Context(), path, Replacement{Force: true}, func(ctx context.Context, into *Store, _ store.Revision) error {
		return errors.Join(into.Restore(ctx, 10, restored), broken)
	}); !errors.Is(err, broken) {
		t.Errorf("fill failed: %v", err)
	}
	if got, _ := contents(t, path); got["mine"] != "kept" || len(got) != 1 {
		t.Errorf("after three refusals it has %v", got)
	}
	if diff := cmp.Diff([]string{"", ".lock", ".position"}, files(t, path)); diff != "" {
		t.Error(diff)
	}

	kept, err := Replace(t.Context(), path, Replacement{Force: true, Now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}, fill)
	if err != nil || previous != 1 || filepath.Base(kept) != "state.db.replaced-20260102T030405.000" {
		t.Fatal(kept, previous, err)
	}
	if diff := cmp.Diff([]string{"", ".lock", ".position", ".replaced-20260102T030405.000"}, files(t, path)); diff != "" {
		t.Error(diff)
	}
	got, rev := contents(t, path)
	if diff := cmp.Diff(wantRestored, got); diff != "" || rev != 101 {
		t.Errorf("revision %d %s", rev, diff)
	}
	if old, rev := contents(t, kept); old["mine"] != "kept" || rev != 1 {
		t.Errorf("the one put aside has %v at %d", old, rev)
	}
	if open(t, path).Epoch() == epoch {
		t.Error("the epoch is the same")
	}
}

// TestReplaceDamaged: a broken state is put aside as it is, with its log.
func TestReplaceDamaged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	for name, content := range map[string]string{path: strings.Repeat("no database ", 1000), path + "-wal": "log", path + "-shm": "index"} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var previous store.Revision
	fill := fillWith(restored, &previous)
	var occupied *NotEmptyError
	var damaged *DamagedError
	if _, err := Replace(t.Context(), path, Replacement{}, fill); !errors.As(err, &occupied) || !errors.As(err, &damaged) {
		t.Errorf("without force: %v", err)
	}
	kept, err := Replace(t.Context(), path, Replacement{Force: true}, fill)
	if err != nil || previous != 0 {
		t.Fatal(previous, err)
	}
	if got, _ := contents(t, path); !cmp.Equal(got, wantRestored) {
		t.Errorf("it has %v", got)
	}
	if old, err := os.ReadFile(kept); !strings.HasPrefix(string(old), "no database") || err != nil {
		t.Errorf("put aside: %.20q, %v", old, err)
	}
}

// TestReplaceCutShort: what an earlier attempt left is no obstacle.
func TestReplaceCutShort(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	for _, suffix := range []string{".restoring", ".restoring-wal"} {
		if err := os.WriteFile(path+suffix, []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var previous store.Revision
	if _, err := Replace(t.Context(), path, Replacement{}, fillWith(restored, &previous)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"", ".lock"}, files(t, path)); diff != "" {
		t.Error(diff)
	}
}

// TestRestoreFull: a medium that fails leaves an empty store.
func TestRestoreFull(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "state.db"))
	limit(t, s, 3)
	err := s.Restore(t.Context(), 10, func(yield func(store.Record, error) bool) {
		yield(store.Record{Key: "a", Value: make([]byte, 1<<20), Created: 1, Modified: 1}, nil)
	})
	if err == nil || !strings.Contains(err.Error(), "the disk is full") {
		t.Errorf("error %v", err)
	}
	limit(t, s, 0)
	if err := s.Restore(t.Context(), 10, restored); err != nil {
		t.Error(err)
	}
	if rev, err := s.Commit(t.Context(), put("c", nil)); rev != 11 || err != nil {
		t.Errorf("revision %d, %v", rev, err)
	}
}
