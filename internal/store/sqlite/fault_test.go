package sqlite

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	driver "modernc.org/sqlite"

	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/group"
)

// limit lets the file grow by some pages only; 0 lifts the limit.
func limit(t *testing.T, s *Store, pages int) {
	t.Helper()
	err := s.task(t.Context(), func() {
		count := 0
		if pages > 0 {
			if err := s.writer.conn.QueryRowContext(t.Context(), `PRAGMA page_count`).Scan(&count); err != nil {
				t.Error(err)
			}
		} else {
			pages = 1 << 30
		}
		if _, err := s.writer.conn.ExecContext(t.Context(), fmt.Sprintf(`PRAGMA max_page_count = %d`, count+pages)); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestFull commits to a file that cannot grow.
func TestFull(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	s := open(t, path)
	w, err := s.Watch(t.Context(), "", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	limit(t, s, 20)
	var last store.Revision
	for {
		rev, err := s.Commit(t.Context(), put(fmt.Sprintf("k/%d", last), make([]byte, 4000)))
		if err != nil {
			var e *driver.Error
			if !errors.As(err, &e) || !strings.Contains(err.Error(), "the disk is full") {
				t.Errorf("error %v", err)
			}
			break
		}
		if last++; rev != last {
			t.Fatalf("revision %d, want %d", rev, last)
		}
	}
	if rev, err := s.Revision(t.Context()); rev != last || err != nil {
		t.Errorf("revision %d, %v; want %d", rev, err, last)
	}
	if n, err := s.Count(t.Context(), ""); n != int64(last) || err != nil {
		t.Errorf("reading: %d keys, %v; want %d", n, err, last)
	}
	if s.fault.Load() == nil {
		t.Error("the fault is not noted")
	}
	limit(t, s, 0)
	if err := s.Ready(t.Context()); err != nil {
		t.Errorf("not ready with space again: %v", err)
	}
	if rev, err := s.Commit(t.Context(), put("more", nil)); rev != last+1 || err != nil {
		t.Errorf("with space again: revision %d, %v; want %d", rev, err, last+1)
	}
	var seen store.Revision
	for b := range w.Batches() {
		if seen++; b.Revision != seen {
			t.Fatalf("watched revision %d, want %d", b.Revision, seen)
		}
		if seen == last+1 {
			break
		}
	}
}

// TestGroupIsolation commits a group in which one transaction does not fit on
// the disk and one has a condition that another of the group breaks.
func TestGroupIsolation(t *testing.T) {
	create := put("same", []byte("first"))
	create.Conditions = []store.Condition{{Key: "same"}}
	again := put("same", []byte("second"))
	again.Conditions = create.Conditions
	update := put("same", []byte("third"))
	update.Conditions = []store.Condition{{Key: "same", Modified: 2}}
	for name, huge := range map[string]int{"all fit": 1, "one does not fit": 1 << 20} {
		t.Run(name, func(t *testing.T) {
			s := open(t, filepath.Join(t.TempDir(), "state.db"))
			limit(t, s, 30)
			var requests []*group.Request
			for _, txn := range []store.Txn{put("a", nil), create, again, put("huge", make([]byte, huge)), update, put("z", nil)} {
				requests = append(requests, group.NewRequest(t.Context(), txn))
			}
			if err := s.task(t.Context(), func() { s.settle(requests) }); err != nil {
				t.Fatal(err)
			}
			var got []store.Revision
			for i, r := range requests {
				<-r.Done()
				got = append(got, r.Revision)
				var conflict *store.ConflictError
				if isConflict := errors.As(r.Err, &conflict); isConflict != (i == 2) {
					t.Errorf("%d: %v", i, r.Err)
				}
			}
			want := []store.Revision{1, 2, 0, 3, 4, 5}
			if huge > 1 {
				want = []store.Revision{1, 2, 0, 0, 3, 4}
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("revisions %v, want %v", got, want)
			}
			page, err := s.List(t.Context(), store.ListOptions{Prefix: "same"})
			if err != nil || string(page.Records[0].Value) != "third" {
				t.Errorf("page %+v, %v", page, err)
			}
		})
	}
}

// TestUnsure lets a commit become durable without its being known, as if the
// disk had failed right after it.
func TestUnsure(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "state.db"))
	w, err := s.Watch(t.Context(), "", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if _, err := s.Commit(t.Context(), put("a", []byte("known"))); err != nil {
		t.Fatal(err)
	}
	if err := s.task(t.Context(), func() {
		before := s.writer.bookkeeping
		if err := s.writer.commit([]*group.Request{group.NewRequest(t.Context(), put("b", []byte("unknown")))}, s.clock.Now()); err != nil {
			t.Error(err)
		}
		s.writer.bookkeeping, s.writer.unsure = before, true
		if err := s.writer.commit(nil, s.clock.Now()); !errors.Is(err, errUnsure) {
			t.Errorf("writing while unsure: %v", err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if rev, err := s.Commit(t.Context(), put("c", nil)); rev != 3 || err != nil {
		t.Errorf("revision %d, %v; want 3", rev, err)
	}
	for i, key := range []string{"a", "b", "c"} {
		b := <-w.Batches()
		if b.Revision != store.Revision(i+1) || b.Events[0].Record.Key != key {
			t.Errorf("watched %+v, want key %q", b, key)
		}
	}
	if size, err := s.Size(t.Context()); size != int64(len("known"+"unknown")) || err != nil {
		t.Errorf("size %d, %v", size, err)
	}
}
