package sqlite

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/proxima-mesh/proxima/internal/store"
)

// childPath is set in the environment of a test binary that is to write to a
// state until it is killed.
const childPath = "PROXIMA_TEST_SQLITE_CHILD"

const childWriters = 4

// ack is what the child says about a commit that returned.
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

// childCount is how far a writer is. Both of its keys always say the same.
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
// there afterwards, and no revision was given out twice.
func TestKill(t *testing.T) {
	rounds := 5
	if os.Getenv("PROXIMA_SOAK") == "1" {
		rounds = 200
	}
	path := filepath.Join(t.TempDir(), "state.db")
	issued := map[store.Revision]ack{}
	for round := range rounds {
		for _, a := range killed(t, path, 1+rand.IntN(400)) {
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
			t.Errorf("the child says %q", lines.Text())
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
}
