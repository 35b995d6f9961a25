//go:build unix

package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// TestCut breaks the connection at each point of a commit. Every commit is
// applied once and acknowledged, whatever was lost.
func TestCut(t *testing.T) {
	for name, f := range map[string]fault{"before": cutBefore, "inside": cutInside, "after": cutAfter} {
		t.Run(name, func(t *testing.T) {
			wire := newWire()
			url := testkit.Postgres(t)
			s, other := open(t, url, Options{dial: wire.dial}), open(t, url, Options{})
			seen, seenByOther := follow(t, "its own watcher", s), follow(t, "the other's watcher", other)
			// Statements are prepared with the first commit.
			if _, err := s.Commit(t.Context(), put("a", "1")); err != nil {
				t.Fatal(err)
			}
			wire.mark("fragile", f)
			rev, err := s.Commit(t.Context(), store.Txn{
				Conditions: []store.Condition{{Key: "a", Modified: 1}}, // a second time it would not hold
				Ops:        []store.Op{{Kind: store.Put, Key: "a", Value: []byte("fragile")}},
			})
			if rev != 2 || err != nil {
				t.Fatalf("commit: %d, %v; want 2", rev, err)
			}
			if _, err := other.Commit(t.Context(), put("b", "1")); err != nil {
				t.Fatal(err)
			}
			for _, j := range []*journal{seen, seenByOther} {
				if events := j.until(3); string(events[1].Record.Value) != "fragile" {
					t.Errorf("%s has %q at 2", j.name, events[1].Record.Value)
				}
			}
		})
	}
}

// TestLock: no commit gets past the holder of the lock, not even a read-only one, and
// what the holder commits counts for those that waited.
func TestLock(t *testing.T) {
	url := testkit.Postgres(t)
	s := open(t, url, Options{})
	if _, err := s.Commit(t.Context(), put("a", "1")); err != nil {
		t.Fatal(err)
	}
	holder, admin := session(t, url), session(t, url)
	if _, err := holder.Exec(t.Context(), `SELECT pg_advisory_lock($1, `+stateID+`)`, lockCommit); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		_, err := s.Commit(context.Background(), store.Txn{Conditions: []store.Condition{{Key: "a", Modified: 1}}})
		done <- err
	}()
	testkit.Eventually(t, "the commit waits for the lock", func() bool {
		var waits bool
		if err := admin.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND classid = $1 AND NOT granted)`,
			lockCommit).Scan(&waits); err != nil {
			t.Fatal(err)
		}
		return waits
	})
	if _, err := holder.Exec(t.Context(), `
		INSERT INTO proxima_history (revision, batch, kind, key, created, prev, expires, writer, value) VALUES (2, 2, 1, 'a', 1, 1, 0, 0, '2');
		UPDATE proxima_live SET revision = 2; UPDATE proxima_meta SET revision = 2`); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-done:
		t.Fatalf("it did not wait: %v", err)
	default:
	}
	if err := holder.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	var conflict *store.ConflictError
	if err := <-done; !errors.As(err, &conflict) || conflict.Current.Modified != 2 {
		t.Errorf("commit: %v, want a conflict with revision 2", err)
	}
}

// TestOvertaken: another process takes the revisions of a commit that was lost.
func TestOvertaken(t *testing.T) {
	wire := newWire()
	url := testkit.Postgres(t)
	s, other := open(t, url, Options{dial: wire.dial}), open(t, url, Options{})
	p := &plan{before: bookkeeping{epoch: s.epoch}, revision: 1}
	lookUp := func() (committed, known bool) {
		t.Helper()
		err := s.task(t.Context(), func(ctx context.Context) {
			var err error
			if committed, known, err = s.writer.lookUp(ctx, p); err != nil {
				t.Error(err)
			}
			s.writer.undo(ctx)
		})
		if err != nil {
			t.Fatal(err)
		}
		return committed, known
	}
	if committed, known := lookUp(); committed || !known {
		t.Errorf("nothing was committed: %v, %v", committed, known)
	}
	for i := range 2 {
		if _, err := other.Commit(t.Context(), put("a", fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	if committed, known := lookUp(); committed || !known {
		t.Errorf("another process committed: %v, %v", committed, known)
	}
	if err := other.Compact(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	if committed, known := lookUp(); committed || known {
		t.Errorf("it is compacted: %v, %v", committed, known)
	}
}

// TestFrozen: a server that does not answer is an outage as one that is gone.
func TestFrozen(t *testing.T) {
	wire := newWire()
	const limit = 2 * time.Second
	s := open(t, testkit.Postgres(t), Options{dial: wire.dial, outageTimeout: limit, exchangeTimeout: limit})
	if _, err := s.Commit(t.Context(), put("a", "1")); err != nil {
		t.Fatal(err)
	}
	wire.freeze()
	begin := time.Now()
	_, err := s.Commit(t.Context(), put("a", "2"))
	if took := time.Since(begin); err == nil || took > 3*limit {
		t.Errorf("%v after %s, want an error after %s", err, took, limit)
	}
	wire.heal()
	for s.Ready(t.Context()) != nil && time.Since(begin) < time.Minute {
		continue // each blocks for an exchange
	}
	if _, err := s.Commit(t.Context(), put("a", "3")); err != nil {
		t.Error(err)
	}
}

// TestUnknown: the database is out of reach after a COMMIT. The error reports that it
// may have happened; when the database is back, the commit is found.
func TestUnknown(t *testing.T) {
	wire := newWire()
	s := open(t, testkit.Postgres(t), Options{dial: wire.dial, outageTimeout: 100 * time.Millisecond})
	seen := follow(t, "watcher", s)
	if _, err := s.Commit(t.Context(), put("a", "1")); err != nil {
		t.Fatal(err)
	}
	wire.mark("fragile", downAfter)
	_, err := s.Commit(t.Context(), put("a", "fragile"))
	var unknown *UnknownError
	if !errors.As(err, &unknown) {
		t.Fatalf("error %v, want an *UnknownError", err)
	}
	// Now that it is known that nothing gets through, errors are plain.
	if _, err := s.Commit(t.Context(), put("a", "lost")); err == nil || errors.As(err, &unknown) {
		t.Errorf("error %v, want one that reports that nothing was committed", err)
	}
	if err := s.Ready(t.Context()); err == nil {
		t.Error("ready without a database")
	}
	wire.heal()
	if events := seen.until(2); string(events[1].Record.Value) != "fragile" {
		t.Errorf("at 2 there is %q", events[1].Record.Value)
	}
	if err := s.Ready(t.Context()); err != nil {
		t.Errorf("ready: %v", err)
	}
	if rev, err := s.Commit(t.Context(), put("a", "3")); rev != 3 || err != nil {
		t.Errorf("commit: %d, %v; want 3", rev, err)
	}
}

// TestRestart restarts the server, in good order and by a crash, under writes of
// two instances. All commits return, none is lost, and no revision is used twice.
func TestRestart(t *testing.T) {
	server := testkit.StartPostgres(t)
	a, b := open(t, server.URL(), Options{}), open(t, server.URL(), Options{})
	seenA, seenB := follow(t, "a", a), follow(t, "b", b)
	l := newLoad(t, "k", 4, a, b)
	for _, mode := range []string{"fast", "immediate", "immediate"} {
		l.more(50)
		server.Stop(t, mode)
		server.Start(t)
	}
	l.more(50)
	l.end(seenA, seenB)
	if err := a.Ready(t.Context()); err != nil {
		t.Errorf("ready: %v", err)
	}
}

// TestWithdraw: who gives up while the database is out of reach may be sure that
// nothing happened.
func TestWithdraw(t *testing.T) {
	wire := newWire()
	s := open(t, testkit.Postgres(t), Options{dial: wire.dial})
	wire.cut()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := s.Commit(ctx, put("a", "1")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("commit: %v, want its context's error", err)
	}
	if _, _, _, err := s.Get(ctx, "a", 0); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("get: %v, want its context's error", err)
	}
	wire.heal()
	if _, ok, rev, err := s.Get(t.Context(), "a", 0); ok || rev != 0 || err != nil {
		t.Errorf("get: %v at %d, %v; want nothing", ok, rev, err)
	}
}

// TestCloseCut: Close does not wait for a database that is not there.
func TestCloseCut(t *testing.T) {
	wire := newWire()
	s := open(t, testkit.Postgres(t), Options{dial: wire.dial})
	wire.cut()
	done := make(chan error)
	go func() { _, err := s.Commit(context.Background(), put("a", "1")); done <- err }()
	testkit.Eventually(t, "the writer notices", func() bool { return s.fault.Present() })
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := <-done; !errors.Is(err, store.ErrClosed) {
		t.Errorf("commit: %v, want ErrClosed", err)
	}
}

// TestReplaced: a state that is another's, or that lost commits, is never mixed
// with what was known of it.
func TestReplaced(t *testing.T) {
	for name, statement := range map[string]string{
		"another epoch":  `UPDATE proxima_meta SET epoch = 'restored'`,
		"a lost commit":  `UPDATE proxima_meta SET revision = 1`,
		"an empty state": `UPDATE proxima_meta SET revision = 0, epoch = 'new'`,
	} {
		t.Run(name, func(t *testing.T) {
			url := testkit.Postgres(t)
			s := open(t, url, Options{})
			seen := follow(t, "watcher", s)
			for i := range 2 {
				if _, err := s.Commit(t.Context(), put("a", fmt.Sprint(i))); err != nil {
					t.Fatal(err)
				}
			}
			seen.until(2)
			if _, err := session(t, url).Exec(t.Context(), statement); err != nil {
				t.Fatal(err)
			}
			var replaced *ReplacedError
			if _, err := s.Commit(t.Context(), put("a", "3")); !errors.As(err, &replaced) {
				t.Errorf("commit: %v, want a *ReplacedError", err)
			}
			if err := s.Ready(t.Context()); !errors.As(err, &replaced) {
				t.Errorf("ready: %v, want a *ReplacedError", err)
			}
			<-seen.done
			if seen.err == nil {
				t.Error("the watcher ended without an error")
			}
		})
	}
}

// TestTooLarge: what does not fit fails alone, not with the rest of its group.
func TestTooLarge(t *testing.T) {
	s := open(t, testkit.Postgres(t), Options{})
	var invalid *store.InvalidError
	if _, err := s.Commit(t.Context(), put(strings.Repeat("\xfe", longestKey+1), "")); !errors.As(err, &invalid) {
		t.Errorf("a key that is too long: %v", err)
	}
	key := make([]byte, longestKey)
	for i := range key {
		key[i] = byte(i*i*7 + i>>3) // hard to compress
	}
	if _, err := s.Commit(t.Context(), put(string(key), "v")); err != nil {
		t.Errorf("the longest key: %v", err)
	}
}
