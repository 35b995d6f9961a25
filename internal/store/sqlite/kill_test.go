package sqlite

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/store"
)

// childPath is set in the environment of a test binary that is to write to a
// state until it is killed.
const childPath = "PROXIMA_TEST_SQLITE_CHILD"

const childWriters = 4

// ack is the child's report of a commit that returned.
type ack struct {
	revision store.Revision
	writer   int
	count    int
}

// TestChild is not a test but the body of the child of TestKill.
func TestChild(t *testing.T) {
	path := os.Getenv(childPath)
	if path == "" {
		t.Skip("runs only as the child of TestKill")
	}
	s, err := Open(t.Context(), path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	var out sync.Mutex
	var done sync.WaitGroup
	for writer := range childWriters {
		done.Go(func() {
			for count := childCount(t, s, writer) + 1; ; count++ {
				rev, err := s.Commit(t.Context(), store.Txn{Ops: []store.Op{
					{Kind: store.Put, Key: fmt.Sprintf("first/%d", writer), Value: []byte(strconv.Itoa(count))},
					{Kind: store.Put, Key: fmt.Sprintf("last/%d", writer), Value: []byte(strconv.Itoa(count))},
				}})
				if err != nil {
					t.Error(err)
					return
				}
				out.Lock()
				fmt.Println("ack", rev, writer, count)
				out.Unlock()
				if writer == 0 && count%20 == 0 {
					if err := s.Compact(t.Context(), rev*9/10); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	done.Wait()
}

// childCount is how far a writer is. Both of its keys always have the same value.
func childCount(t *testing.T, s *Store, writer int) int {
	page, err := s.List(t.Context(), store.ListOptions{})
	if err != nil {
		t.Error(err)
	}
	counts := map[string]int{}
	for _, r := range page.Records {
		counts[r.Key], _ = strconv.Atoi(string(r.Value))
	}
	first, last := counts[fmt.Sprintf("first/%d", writer)], counts[fmt.Sprintf("last/%d", writer)]
	if first != last {
		t.Errorf("writer %d: half a transaction: %d and %d", writer, first, last)
	}
	return last
}

// TestKill kills a writing process again and again. What it acknowledged is
// there afterwards, no revision was given out twice, and a watcher goes on where
// it was, or gets an error.
func TestKill(t *testing.T) {
	rounds, most := 30, 60
	if os.Getenv("PROXIMA_SOAK") == "1" {
		rounds, most = 500, 400
	}
	path := filepath.Join(t.TempDir(), "state.db")
	issued := map[store.Revision]ack{}
	for round := range rounds {
		for _, a := range killed(t, path, 1+rand.IntN(most)) {
			if twice, ok := issued[a.revision]; ok {
				t.Fatalf("round %d: revision %d was issued for %+v and for %+v", round, a.revision, twice, a)
			}
			issued[a.revision] = a
		}
		verify(t, path, issued)
		if t.Failed() {
			t.Fatalf("round %d", round)
		}
	}
	t.Logf("%d rounds, %d acknowledged transactions", rounds, len(issued))
}

// killed runs the child, kills it after some acknowledgements, and returns all
// it made.
func killed(t *testing.T, path string, after int) (acks []ack) {
	t.Helper()
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestChild$")
	child.Env = append(os.Environ(), childPath+"="+path)
	child.Stderr = os.Stderr
	stdout, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		var a ack
		if n, _ := fmt.Sscanf(lines.Text(), "ack %d %d %d", &a.revision, &a.writer, &a.count); n != 3 {
			t.Errorf("the child reports %q", lines.Text())
			continue
		}
		if acks = append(acks, a); len(acks) == after {
			if err := child.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := child.Wait(); err == nil {
		t.Error("the child ended by itself")
	}
	return acks
}

// verify checks the state against all acknowledgements.
func verify(t *testing.T, path string, issued map[store.Revision]ack) {
	t.Helper()
	s, err := Open(t.Context(), path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	newest := make([]int, childWriters)
	for _, a := range issued {
		newest[a.writer] = max(newest[a.writer], a.count)
	}
	for writer, count := range newest {
		// One more may have been committed without being acknowledged.
		if got := childCount(t, s, writer); got < count {
			t.Errorf("writer %d: acknowledged %d, the state has %d", writer, count, got)
		}
	}
	last := s.hub.Revision()
	found := map[store.Revision]bool{}
	for after := s.Compacted(); after < last; {
		batches, done, err := s.History(t.Context(), "", after, last)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range batches {
			for _, e := range b.Events {
				if e.Record.Modified <= after {
					continue // a transaction that compaction cut
				}
				if after++; e.Record.Modified != after {
					t.Fatalf("revision %d follows %d", e.Record.Modified, after-1)
				}
			}
			found[b.Revision] = true
			e := b.Events[len(b.Events)-1]
			got := fmt.Sprintf("%s = %s", e.Record.Key, e.Record.Value)
			if a, ok := issued[b.Revision]; ok && got != fmt.Sprintf("last/%d = %d", a.writer, a.count) {
				t.Errorf("acknowledged %+v, the history has %s", a, got)
			}
		}
		after = done
	}
	for rev, a := range issued {
		if rev > s.Compacted() && !found[rev] {
			t.Errorf("acknowledged %+v, the history up to %d has no such transaction", a, last)
		}
	}
	for rev := range issued { // any one
		resume(t, s, rev, last)
		break
	}
}

// resume watches from a revision that was acknowledged before the kill.
func resume(t *testing.T, s *Store, from, last store.Revision) {
	t.Helper()
	w, err := s.Watch(t.Context(), "", from)
	if from < s.Compacted() {
		if !errors.Is(err, store.ErrCompacted) {
			t.Errorf("watch after %d, compacted up to %d: %v", from, s.Compacted(), err)
		}
		return
	}
	if err != nil {
		t.Fatalf("watch after %d: %v", from, err)
	}
	defer w.Close()
	for seen := from; seen < last; {
		b, ok := <-w.Batches()
		if !ok {
			t.Fatalf("the watch from %d ended at %d of %d: %v", from, seen, last, w.Err())
		}
		for _, e := range b.Events {
			if seen++; e.Record.Modified != seen {
				t.Fatalf("revision %d follows %d", e.Record.Modified, seen-1)
			}
		}
	}
}

// restartTimeout is how long a state of 10,000 objects may take to be opened
// after its process was killed, checks and recovery and all, on a machine that
// has much else to do. The goal is a second; BenchmarkOpen measures it.
const restartTimeout = 20 * time.Second

// TestRestart opens the copy of a state that was not closed, as after a kill. The time
// that it takes must stay bounded; the test logs it.
func TestRestart(t *testing.T) {
	image := left(t)
	fastest := time.Duration(math.MaxInt64) // the machine may be busy
	for range 5 {
		fastest = min(fastest, reopen(t, image))
	}
	t.Logf("opened in %s, with a log of %d MB", fastest, len(image.log)>>20)
	if fastest > restartTimeout {
		t.Errorf("opening took %s, it should take %s at the most", fastest, restartTimeout)
	}
}

const leftObjects = 10_000

// left is what a process leaves that wrote many objects and was killed.
func left(t testing.TB) image {
	t.Helper()
	path := filepath.Join(t.TempDir(), "state.db")
	s, err := Open(t.Context(), path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const each = 500
	for first := 0; first < leftObjects; first += each {
		var txn store.Txn
		for i := range each {
			txn.Ops = append(txn.Ops, store.Op{Kind: store.Put, Key: fmt.Sprintf("/objects/%06d", first+i), Value: bytes.Repeat([]byte{'v'}, 1000)})
		}
		if _, err := s.Commit(t.Context(), txn); err != nil {
			t.Fatal(err)
		}
	}
	return imageOf(t, path)
}

// reopen opens what was left, and returns how long that took.
func reopen(t testing.TB, image image) time.Duration {
	t.Helper()
	path := filepath.Join(t.TempDir(), "state.db")
	for name, content := range map[string][]byte{path: image.db, path + "-wal": image.log} {
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	s, err := Open(t.Context(), path, Options{})
	took := time.Since(began)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := s.Count(t.Context(), ""); n != leftObjects || err != nil {
		t.Errorf("%d objects, %v", n, err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	return took
}
