package sqlite

import (
	"context"
	"errors"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"k8s.io/utils/clock"

	"github.com/proxima-mesh/proxima/internal/store"
)

// TestDurability: the settings that make a commit durable are in force on the
// connection that writes. That the disk honours them no test can show.
func TestDurability(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "state.db"))
	for pragma, want := range map[string]string{"journal_mode": "wal", "synchronous": "2", "fullfsync": "1", "checkpoint_fullfsync": "1"} {
		var got string
		err := s.task(t.Context(), func() {
			if err := s.writer.conn.QueryRowContext(t.Context(), "PRAGMA "+pragma).Scan(&got); err != nil {
				t.Error(err)
			}
		})
		if err != nil || got != want {
			t.Errorf("%s is %q, %v; want %q", pragma, got, err, want)
		}
	}
}

// gate is a clock that can block its reader.
type gate struct {
	clock.RealClock
	reads chan chan struct{}
}

func (g *gate) Now() time.Time {
	pass := make(chan struct{})
	g.reads <- pass
	<-pass
	return g.RealClock.Now()
}

// TestCancel cancels a commit that waits for its turn, and one that is under
// way: the first does not happen, the second is answered with its outcome.
func TestCancel(t *testing.T) {
	g := &gate{reads: make(chan chan struct{})}
	opened := make(chan struct{})
	go func() {
		close(<-g.reads) // expiry reads the clock once when it starts
		close(opened)
	}()
	s, err := Open(t.Context(), filepath.Join(t.TempDir(), "state.db"), Options{Clock: g})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	<-opened

	type answer struct {
		rev store.Revision
		err error
	}
	commit := func(ctx context.Context, key string) <-chan answer {
		done := make(chan answer, 1)
		go func() {
			rev, err := s.Commit(ctx, put(key, nil))
			done <- answer{rev, err}
		}()
		return done
	}
	ctx, cancel := context.WithCancel(t.Context())
	underWay := commit(ctx, "under way")
	writing := <-g.reads // the writer has it, and is blocked
	waiting := commit(ctx, "waiting")
	for s.queue.Waiting() == 0 {
		runtime.Gosched() // until it is queued
	}
	cancel()
	if a := <-waiting; !errors.Is(a.err, context.Canceled) {
		t.Errorf("waiting: %+v", a)
	}
	close(writing)
	if a := <-underWay; a.rev != 1 || a.err != nil {
		t.Errorf("under way: %+v, want revision 1", a)
	}
	last := commit(t.Context(), "last")
	close(<-g.reads)
	if a := <-last; a.rev != 2 || a.err != nil {
		t.Errorf("last: %+v, want revision 2: the withdrawn commit did not happen", a)
	}
}
