package redact

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/feed/seglog"
	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/sqlite"
)

// childDir is set in the environment of a test binary that redacts until it is killed, childRound says what.
const (
	childDir   = "PROXIMA_TEST_REDACT_CHILD"
	childRound = "PROXIMA_TEST_REDACT_ROUND"
)

func openChild(t *testing.T, dir string) (*instance, store.Store) {
	t.Helper()
	s, err := sqlite.Open(t.Context(), filepath.Join(dir, "store.db"), sqlite.Options{})
	must(t, err)
	return start(t, s, "", dir, filepath.Join(dir, "target")), s
}

// TestChild is not a test but the body of the child of TestKill.
func TestChild(t *testing.T) {
	dir := os.Getenv(childDir)
	if dir == "" {
		t.Skip("runs only as the child of TestKill")
	}
	round, err := strconv.Atoi(os.Getenv(childRound))
	must(t, err)
	i, _ := openChild(t, dir)
	fmt.Println("redacts")
	_, err = i.Redact(t.Context(), request(round%5, round/5), "test")
	must(t, err)
	fmt.Println("redacted")
	time.Sleep(time.Hour)
}

// TestKill kills a process that redacts, again and again. Whenever that was: afterwards all segments are whole, none has lost or got an entry, a
// redaction that was begun is carried out, and then no file has the value.
func TestKill(t *testing.T) {
	rounds := 10
	if os.Getenv("PROXIMA_SOAK") == "1" {
		rounds = 250
	}
	dir := t.TempDir()
	i, s := openChild(t, dir)
	fill(t, s, rounds/5, i)
	want := entries(t, i)
	i.stop()
	must(t, s.Close())
	whole, half := 0, 0
	for round := range rounds {
		done := killed(t, dir, round)
		i, s := openChild(t, dir)
		i.look()
		list, err := i.List(t.Context())
		must(t, err)
		begun := map[string]bool{}
		for _, r := range list {
			if begun[r.String()] = true; !r.Done {
				t.Errorf("round %d: outstanding: %q", round, r.Outstanding)
			}
		}
		q := request(round%5, round/5)
		switch {
		case done:
			whole++
		case begun[q.String()]:
			half++
		}
		if text := fmt.Sprintf("secret-%d-%d-", round/5, round%5); begun[q.String()] == (len(files(t, text, dir)) > 0) {
			t.Errorf("round %d: begun %t; %s is in %v", round, begun[q.String()], text, files(t, text, dir))
		}
		i.whole()
		if got := entries(t, i); strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("round %d: the entries are\n%v, want\n%v", round, got, want)
		}
		i.stop()
		if must(t, s.Close()); t.Failed() {
			return
		}
	}
	t.Logf("of %d redactions %d were done when their process was killed, %d were begun", rounds, whole, half)
}

// entries of the feed that were not of its own records: positions and keys.
func entries(t *testing.T, i *instance) (out []string) {
	t.Helper()
	must(t, i.feed.History(t.Context(), 0, func(string) bool { return true }, func(e *seglog.Entry) bool {
		out = append(out, fmt.Sprintf("%d %s", e.Position, e.Key))
		return true
	}))
	return out
}

// killed redacts in a process that is killed at some moment, and returns whether it was done before.
func killed(t *testing.T, dir string, round int) (done bool) {
	t.Helper()
	ctx, kill := context.WithCancel(t.Context())
	defer kill()
	child := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestChild$")
	child.Env = append(os.Environ(), childDir+"="+dir, childRound+"="+strconv.Itoa(round))
	child.Stderr = os.Stderr
	stdout, err := child.StdoutPipe()
	must(t, err)
	must(t, child.Start())
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		switch lines.Text() {
		case "redacts":
			time.AfterFunc(time.Duration(rand.IntN(250))*time.Millisecond, kill)
		case "redacted":
			done = true
		}
	}
	_ = child.Wait()
	return done
}
