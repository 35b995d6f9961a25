package feed

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/feed/seglog"
	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/sqlite"
)

// childDir is set in the environment of a test binary that is to write until it is killed.
const childDir = "PROXIMA_TEST_FEED_CHILD"

const childWriters = 4

// openChild opens the store and its feed.
func openChild(t *testing.T, dir string) (store.Store, *Feed) {
	t.Helper()
	s, err := sqlite.Open(t.Context(), filepath.Join(dir, "store.db"), sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	f, err := Open(t.Context(), Config{
		Store: s, Prefix: "/registry/", Roots: []string{filepath.Join(dir, "a"), filepath.Join(dir, "b")}, Copies: 2,
		Retention: 1 << 40, segmentBytes: 32 << 10, reserve: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	return s, f
}

// TestChild is not a test but the body of the child of TestKill.
func TestChild(t *testing.T) {
	dir := os.Getenv(childDir)
	if dir == "" {
		t.Skip("runs only as the child of TestKill")
	}
	s, f := openChild(t, dir)
	go func() { _ = f.Run(context.Background()) }()
	go func() { // sooner than it would be, to see it
		for range time.Tick(50 * time.Millisecond) {
			_ = f.Log.Sync()
			now, err := s.Revision(t.Context())
			if err != nil {
				return
			}
			_ = s.Compact(t.Context(), min(now-1, f.Compactable()))
		}
	}()
	var out sync.Mutex
	var writers sync.WaitGroup
	for writer := range childWriters {
		writers.Go(func() {
			for {
				key := fmt.Sprintf("/registry/services/w%d/s%d", writer, rand.IntN(10))
				op := store.Op{Kind: store.Put, Key: key, Value: []byte(strconv.FormatUint(rand.Uint64(), 36))}
				if rand.IntN(4) == 0 {
					op = store.Op{Kind: store.Delete, Key: key}
				}
				// The second change says which revision the transaction has, even if the first one changes nothing.
				at, err := s.Commit(t.Context(), store.Txn{Ops: []store.Op{op, {Kind: store.Put, Key: "/registry/leases/w", Value: []byte("x")}}})
				if err != nil {
					t.Error(err)
					return
				}
				out.Lock()
				fmt.Println("ack", at, key, "="+string(op.Value))
				out.Unlock()
			}
		})
	}
	writers.Wait()
}

// TestKill kills a process that writes, with its feed, again and again. All that was acknowledged is in the feed afterwards, once and in order,
// although the store forgets its history as fast as it is allowed to.
func TestKill(t *testing.T) {
	rounds := 10
	if os.Getenv("PROXIMA_SOAK") == "1" {
		rounds = 500
	}
	dir := t.TempDir()
	acked := map[seglog.Position]string{} // "key=value"; no value: deleted
	for round := range rounds {
		killed(t, dir, 20+rand.IntN(400), acked)
		if verify(t, dir, acked); t.Failed() {
			t.Fatalf("round %d", round)
		}
	}
	t.Logf("%d rounds, %d acknowledged changes", rounds, len(acked))
}

func killed(t *testing.T, dir string, after int, acked map[seglog.Position]string) {
	t.Helper()
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestChild$")
	child.Env = append(os.Environ(), childDir+"="+dir)
	child.Stderr = os.Stderr
	stdout, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	n := 0
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		var at seglog.Position
		var key, value string
		if got, _ := fmt.Sscanf(lines.Text(), "ack %d %s %s", &at, &key, &value); got != 3 {
			t.Errorf("the child reports %q", lines.Text())
			break
		}
		acked[at-1] = key + value
		if n++; n == after {
			if err := child.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	_ = child.Wait()
	if n < after {
		t.Fatalf("the child ended after %d changes", n)
	}
}

// verify that the feed has what was acknowledged.
func verify(t *testing.T, dir string, acked map[seglog.Position]string) {
	t.Helper()
	s, f := openChild(t, dir)
	defer s.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	done := make(chan struct{})
	go func() { defer close(done); _ = f.Run(ctx) }()
	defer func() { cancel(); <-done }()
	now, err := s.Revision(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Reach(ctx, seglog.Position(now)); err != nil {
		t.Fatal(err)
	}
	if first, _ := f.Log.First(); first != 0 {
		t.Fatalf("the feed begins after %d: it has a gap", first)
	}
	live, last := map[string]string{}, seglog.Position(0)
	lease := 0
	err = f.History(ctx, 0, func(string) bool { return true }, func(e *seglog.Entry) bool {
		if e.Position <= last {
			t.Errorf("position %d after %d", e.Position, last)
		}
		last = e.Position
		if e.Key == "/registry/leases/w" {
			lease++
			return true
		}
		text := e.Key + "=" + string(e.Value)
		if want, ok := acked[e.Position]; ok && text != want {
			t.Errorf("position %d is %q, acknowledged was %q", e.Position, text, want)
		}
		before, _, err := f.Log.Previous(e)
		if err != nil || string(before) != live[e.Key] {
			t.Errorf("position %d replaces %q, want %q (%v)", e.Position, before, live[e.Key], err)
		}
		live[e.Key] = string(e.Value)
		if e.Kind == seglog.Delete {
			delete(live, e.Key)
		}
		return !t.Failed()
	})
	if err != nil {
		t.Fatal(err)
	}
	if lease < len(acked) {
		t.Errorf("%d transactions are in the feed, %d were acknowledged", lease, len(acked))
	}
	page, err := s.List(ctx, store.ListOptions{Prefix: "/registry/services/"})
	if err != nil {
		t.Fatal(err)
	}
	for _, rec := range page.Records {
		if live[rec.Key] != string(rec.Value) {
			t.Errorf("%s is %q in the store, %q by the feed", rec.Key, rec.Value, live[rec.Key])
		}
	}
	if len(page.Records) != len(live) {
		t.Errorf("%d keys in the store, %d by the feed", len(page.Records), len(live))
	}
}
