//go:build unix

package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	testclock "k8s.io/utils/clock/testing"

	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// journal follows a store and keeps what it saw, checking that no revision is
// missing, late or seen twice.
type journal struct {
	t      *testing.T
	name   string
	cancel context.CancelFunc
	done   chan struct{}

	mu   sync.Mutex
	seen []store.Event // revision i+1 at i
	err  error         // why it ended
}

func follow(t *testing.T, name string, s *Store) *journal {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	w, err := s.Watch(ctx, "", 0)
	if err != nil {
		t.Fatal(err)
	}
	j := &journal{t: t, name: name, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(j.done)
		for b := range w.Batches() {
			j.take(b)
		}
		j.mu.Lock()
		defer j.mu.Unlock()
		j.err = w.Err()
	}()
	t.Cleanup(func() { cancel(); <-j.done })
	return j
}

func (j *journal) take(b store.Batch) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, e := range b.Events {
		if want := store.Revision(len(j.seen) + 1); e.Record.Modified != want {
			j.t.Errorf("%s saw revision %d, want %d", j.name, e.Record.Modified, want)
		}
		j.seen = append(j.seen, e)
	}
}

func (j *journal) until(rev store.Revision) []store.Event {
	j.t.Helper()
	testkit.Eventually(j.t, fmt.Sprintf("%s sees revision %d", j.name, rev), func() bool {
		j.mu.Lock()
		defer j.mu.Unlock()
		return store.Revision(len(j.seen)) >= rev
	})
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.seen[:rev]
}

// ack is a commit that returned.
type ack struct {
	rev        store.Revision
	key, value string
}

// load commits pairs of changes with several writers until they are stopped.
type load struct {
	t       *testing.T
	name    string
	stores  []*Store
	running sync.WaitGroup
	stop    chan struct{}

	mu   sync.Mutex
	acks []ack
}

func newLoad(t *testing.T, name string, writers int, stores ...*Store) *load {
	l := &load{t: t, name: name, stores: stores, stop: make(chan struct{})}
	for i := range writers {
		l.running.Go(func() { l.write(i) })
	}
	return l
}

func (l *load) write(writer int) {
	for i := 0; ; i++ {
		select {
		case <-l.stop:
			return
		default:
		}
		key, value := fmt.Sprintf("%s/%d", l.name, writer), fmt.Sprint(i)
		rev, err := l.stores[writer%len(l.stores)].Commit(context.Background(), store.Txn{Ops: []store.Op{
			{Kind: store.Put, Key: key + "/first", Value: []byte(value)},
			{Kind: store.Put, Key: key + "/last", Value: []byte(value)},
		}})
		if err != nil {
			l.t.Errorf("commit: %v", err)
			return
		}
		l.mu.Lock()
		l.acks = append(l.acks, ack{rev, key + "/last", value})
		l.mu.Unlock()
	}
}

// more waits until so many commits more have returned.
func (l *load) more(n int) {
	l.t.Helper()
	begin := l.count()
	testkit.Eventually(l.t, fmt.Sprintf("%d more commits", n), func() bool { return l.count() >= begin+n })
}

func (l *load) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.acks)
}

// end stops the writers and checks that journals have each commit that returned,
// once, and nothing else.
func (l *load) end(journals ...*journal) {
	l.t.Helper()
	close(l.stop)
	l.running.Wait()
	last, err := l.stores[0].Revision(l.t.Context())
	if err != nil {
		l.t.Fatal(err)
	}
	if want := store.Revision(2 * len(l.acks)); last != want {
		l.t.Errorf("the newest revision is %d after %d commits of two changes", last, len(l.acks))
	}
	for _, j := range journals {
		seen := j.until(last)
		for _, a := range l.acks {
			if e := seen[a.rev-1]; e.Record.Key != a.key || string(e.Record.Value) != a.value {
				l.t.Fatalf("%s has %q = %q at %d, which was acknowledged for %q = %q", j.name, e.Record.Key, e.Record.Value, a.rev, a.key, a.value)
			}
		}
	}
	l.t.Logf("%d commits", len(l.acks))
}

// TestTwoInstances shares one state between two instances.
func TestTwoInstances(t *testing.T) {
	url := testkit.Postgres(t)
	a, b := open(t, url, Options{}), open(t, url, Options{})
	if a.Epoch() != b.Epoch() {
		t.Errorf("epochs %q and %q of one state", a.Epoch(), b.Epoch())
	}
	seenA, seenB := follow(t, "a", a), follow(t, "b", b)
	l := newLoad(t, "k", 8, a, b)
	l.more(400)
	l.end(seenA, seenB)
}

// TestInstancesAgree: what one instance returned is visible to the other at once.
func TestInstancesAgree(t *testing.T) {
	url := testkit.Postgres(t)
	a, b := open(t, url, Options{}), open(t, url, Options{})
	for i := range 20 {
		rev, err := a.Commit(t.Context(), put("k", fmt.Sprint(i)))
		if err != nil {
			t.Fatal(err)
		}
		// A revision from a can be watched from at b, whatever b has seen.
		w, err := b.Watch(t.Context(), "", rev)
		if err != nil {
			t.Fatalf("watch at b after %d from a: %v", rev, err)
		}
		w.Close()
		if now, err := b.Revision(t.Context()); now != rev || err != nil {
			t.Fatalf("b is at %d, %v; a is at %d", now, err, rev)
		}
		_, err = b.Commit(t.Context(), store.Txn{Conditions: []store.Condition{{Key: "k", Modified: rev - 1}}})
		var conflict *store.ConflictError
		if !errors.As(err, &conflict) || conflict.Current.Modified != rev {
			t.Fatalf("b's condition on what a replaced: %v", err)
		}
	}
	// A progress marker covers what others committed.
	w, err := b.Watch(t.Context(), "none/", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	rev, err := a.Commit(t.Context(), put("k", "last"))
	if err != nil {
		t.Fatal(err)
	}
	w.Progress()
	if marker := <-w.Batches(); marker.Revision < rev {
		t.Errorf("marker %d after a commit of %d", marker.Revision, rev)
	}
	if err := a.Compact(t.Context(), rev); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "b has seen a's compaction", func() bool { return b.Compacted() == rev })
	if size, err := b.Size(t.Context()); size != 4 || err != nil {
		t.Errorf("size %d, %v; want 4", size, err)
	}
}

// syncBuffer collects a log.
type syncBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.String()
}

func logTo(log *syncBuffer) *slog.Logger { return slog.New(slog.NewTextHandler(log, nil)) }

// TestListenerKilled ends the connections that listen, again and again, while
// there are commits.
func TestListenerKilled(t *testing.T) {
	url := testkit.Postgres(t)
	var log syncBuffer
	a, b := open(t, url, Options{Logger: logTo(&log)}), open(t, url, Options{})
	seenA, seenB := follow(t, "a", a), follow(t, "b", b)
	admin := session(t, url)
	l := newLoad(t, "k", 4, a, b)
	killed := 0
	for range 5 {
		l.more(20)
		testkit.Eventually(t, "a connection listens", func() bool {
			var n int
			if err := admin.QueryRow(t.Context(), `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'
				AND datname = current_database()`).Scan(&n); err != nil {
				t.Fatal(err)
			}
			killed += n
			return n > 0
		})
	}
	l.more(20)
	l.end(seenA, seenB)
	t.Logf("%d killed", killed)
	if !strings.Contains(log.String(), "the connection that listens for commits is lost") {
		t.Errorf("it is not in the log:\n%s", log.String())
	}
}

// TestDeaf: without LISTEN an instance polls.
func TestDeaf(t *testing.T) {
	url := testkit.Postgres(t)
	wire := newWire()
	wire.deaf = true
	var log syncBuffer
	a, b := open(t, url, Options{}), open(t, url, Options{dial: wire.dial, Logger: logTo(&log)})
	seen := follow(t, "b", b)
	for i := range 3 {
		rev, err := a.Commit(t.Context(), put("k", fmt.Sprint(i)))
		if err != nil {
			t.Fatal(err)
		}
		seen.until(rev)
	}
	if !strings.Contains(log.String(), "asking for them instead") || strings.Contains(log.String(), "listening for commits") {
		t.Errorf("log:\n%s", log.String())
	}
}

// TestLeftBehind cuts an instance off while another goes on and compacts: its
// watchers end, and it goes on from there.
func TestLeftBehind(t *testing.T) {
	url := testkit.Postgres(t)
	wire := newWire()
	clock := testclock.NewFakeClock(time.Now())
	a, b := open(t, url, Options{Clock: clock}), open(t, url, Options{Clock: clock, dial: wire.dial})
	seen := follow(t, "b", b)
	first, err := a.Commit(t.Context(), put("k", "1"))
	if err != nil {
		t.Fatal(err)
	}
	seen.until(first)
	wire.cut()
	if _, err := a.Commit(t.Context(), put("k", "2")); err != nil {
		t.Fatal(err)
	}
	rev, err := a.Commit(t.Context(), store.Txn{Ops: []store.Op{{Kind: store.Put, Key: "short", TTL: time.Minute}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Compact(t.Context(), rev); err != nil {
		t.Fatal(err)
	}
	wire.heal()
	<-seen.done
	if !errors.Is(seen.err, store.ErrCompacted) {
		t.Errorf("the watcher ended with %v, want ErrCompacted", seen.err)
	}
	w, err := b.Watch(t.Context(), "", rev)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	// Deadlines that it missed and reads later are kept.
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	clock.Step(time.Minute)
	if batch := <-w.Batches(); batch.Revision != rev+1 || batch.Events[0].Record.Key != "short" {
		t.Errorf("got %+v, want the expiry at %d", batch, rev+1)
	}
}

// TestExpiryByOne: of two instances one deletes what expires, and when it goes
// the other takes over.
func TestExpiryByOne(t *testing.T) {
	url := testkit.Postgres(t)
	clock := testclock.NewFakeClock(time.Now())
	a, b := open(t, url, Options{Clock: clock}), open(t, url, Options{Clock: clock})
	seen := follow(t, "b", b)
	admin := session(t, url)
	owner := func() (pid uint32) {
		if err := admin.QueryRow(t.Context(),
			`SELECT coalesce((SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND classid = $1), 0)`,
			lockExpiry).Scan(&pid); err != nil {
			t.Fatal(err)
		}
		return pid
	}
	const keys = 300
	set := func() store.Revision {
		var ops []store.Op
		for i := range keys {
			ops = append(ops, store.Op{Kind: store.Put, Key: fmt.Sprintf("k/%d", i), TTL: time.Minute})
		}
		rev, err := b.Commit(t.Context(), store.Txn{Ops: ops})
		if err != nil {
			t.Fatal(err)
		}
		if !isClosed(a) {
			if _, err := a.Revision(t.Context()); err != nil { // a has read the deadlines
				t.Fatal(err)
			}
		}
		return rev
	}
	expire := func() {
		t.Helper()
		rev := set()
		clock.Step(time.Minute)
		seen.until(rev + keys)
		if n, err := b.Count(t.Context(), ""); n != 0 || err != nil {
			t.Errorf("%d keys are left, %v", n, err)
		}
	}
	// While a third has the lock, neither deletes, though both try to get it.
	third := session(t, url)
	if _, err := third.Exec(t.Context(), `SELECT pg_advisory_lock($1, `+stateID+`)`, lockExpiry); err != nil {
		t.Fatal(err)
	}
	rev := set()
	clock.Step(time.Minute)
	testkit.Eventually(t, "both try to get the lock", func() bool {
		var n int
		if err := admin.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_try_advisory_lock%' AND state = 'idle'
			AND pid IN ($1, $2)`, a.writer.pid.Load(), b.writer.pid.Load()).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n == 2
	})
	if now, err := b.Revision(t.Context()); now != rev || err != nil {
		t.Errorf("at %d, %v; want %d: no instance may delete", now, err, rev)
	}
	if err := third.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	seen.until(rev + keys)
	first := owner()
	if pids := []uint32{a.writer.pid.Load(), b.writer.pid.Load()}; first != pids[0] && first != pids[1] {
		t.Fatalf("the lock is with %d, want one of %v", first, pids)
	}
	expire()
	if now := owner(); now != first {
		t.Errorf("the lock went from %d to %d, and no instance left", first, now)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	expire()
	if now := owner(); now != b.writer.pid.Load() {
		t.Errorf("the lock is with %d, want the instance that is left", now)
	}
}

func isClosed(s *Store) bool { return s.queue.Closing() }
