//go:build unix

package postgres

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// TestExclusive: of two processes that want a state alone the second is refused, until
// the first is gone.
func TestExclusive(t *testing.T) {
	url := testkit.Postgres(t)
	first := open(t, url, Options{Exclusive: true})
	_, err := Open(t.Context(), url, Options{Exclusive: true})
	var inUse *InUseError
	if !errors.As(err, &inUse) || !strings.Contains(err.Error(), "stop that one") || !strings.Contains(err.Error(), "connected since") {
		t.Fatalf("the second: %v", err)
	}
	t.Log(err)
	// Another state of the same database does not matter.
	open(t, inSchema(t, url), Options{Exclusive: true})
	if _, err := first.Commit(t.Context(), put("a", "1")); err != nil {
		t.Error(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second := open(t, url, Options{Exclusive: true})
	if rev, err := second.Commit(t.Context(), put("a", "2")); rev != 2 || err != nil {
		t.Errorf("revision %d, %v", rev, err)
	}
}

// TestExclusiveSessionLost: the claim is taken again with a new session, also if the
// server has not noticed that the old one is dead.
func TestExclusiveSessionLost(t *testing.T) {
	wire := newWire()
	url := testkit.Postgres(t)
	s := open(t, url, Options{Exclusive: true, dial: wire.dial})
	admin := session(t, url)
	for i := range 3 {
		if _, err := s.Commit(t.Context(), put("a", "before")); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			if _, err := admin.Exec(t.Context(), `SELECT pg_terminate_backend($1)`, s.writer.pid.Load()); err != nil {
				t.Fatal(err)
			}
			continue
		}
		// The client has lost the session, the server has not.
		forgotten := s.writer.conn
		if err := s.task(t.Context(), func(context.Context) { s.writer.conn = nil }); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = forgotten.Close(context.Background()) }()
	}
	rev, err := s.Commit(t.Context(), put("a", "after"))
	if rev != 4 || err != nil {
		t.Errorf("revision %d, %v", rev, err)
	}
	if _, err := Open(t.Context(), url, Options{Exclusive: true}); err == nil {
		t.Error("the claim was not taken again")
	}
}

// TestExclusiveTakenOver: who was cut off and has lost the state to another process ends,
// and writes nothing.
func TestExclusiveTakenOver(t *testing.T) {
	url := testkit.Postgres(t)
	var log syncBuffer
	s := open(t, url, Options{Exclusive: true, Logger: logTo(&log)})
	w, err := s.Watch(t.Context(), "", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	// A successor gets the claim the moment that the session is gone.
	admin := session(t, url)
	if err := s.task(t.Context(), func(context.Context) {
		if _, err := admin.Exec(t.Context(), `SELECT pg_terminate_backend($1, 10000)`, s.writer.pid.Load()); err != nil {
			t.Error(err)
		}
		successor := open(t, url, Options{Exclusive: true})
		if _, err := successor.Commit(t.Context(), put("a", "the successor's")); err != nil {
			t.Error(err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	_, err = s.Commit(t.Context(), put("a", "mine"))
	var inUse *InUseError
	if !errors.As(err, &inUse) {
		t.Fatalf("commit: %v", err)
	}
	if err := s.Ready(t.Context()); !errors.As(err, &inUse) {
		t.Errorf("ready: %v", err)
	}
	for range w.Batches() { //nolint:revive // it must end
	}
	if !errors.Is(w.Err(), store.ErrClosed) {
		t.Errorf("the watcher ended with %v", w.Err())
	}
	if !strings.Contains(log.String(), "the store ends") {
		t.Errorf("log:\n%s", log.String())
	}
}

// TestRestoreBesideAnother: an instance that has the empty state open detects a
// restore, and its watchers end.
func TestRestoreBesideAnother(t *testing.T) {
	url := testkit.Postgres(t)
	a, b := open(t, url, Options{}), open(t, url, Options{})
	w, err := b.Watch(t.Context(), "", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	records := func(yield func(store.Record, error) bool) {
		_ = yield(store.Record{Key: "a", Value: []byte("old"), Created: 2, Modified: 5}, nil) &&
			yield(store.Record{Key: "b", Created: 3, Modified: 3}, nil)
	}
	if err := a.Restore(t.Context(), 100, records); err != nil {
		t.Fatal(err)
	}
	for range w.Batches() { //nolint:revive // it must end
	}
	if !errors.Is(w.Err(), store.ErrCompacted) {
		t.Errorf("the watcher ended with %v", w.Err())
	}
	if rec, ok, at, err := b.Get(t.Context(), "a", 0); string(rec.Value) != "old" || !ok || at != 100 || err != nil {
		t.Errorf("%+v at %d, %v", rec, at, err)
	}
	if rev, err := b.Commit(t.Context(), put("a", "new")); rev != 101 || err != nil {
		t.Errorf("revision %d, %v", rev, err)
	}
	if err := b.Restore(t.Context(), 200, records); !errors.Is(err, store.ErrNotEmpty) {
		t.Errorf("again: %v", err)
	}
}
