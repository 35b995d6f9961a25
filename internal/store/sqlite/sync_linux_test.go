package sqlite

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// syncChildPath is set in the environment of a test binary that commits under
// the eyes of strace.
const syncChildPath = "PROXIMA_TEST_SQLITE_SYNC"

const syncCommits = 1500 // enough for some checkpoints

// TestSyncChild is not a test but the body of the child of TestSyncBeforeAck.
func TestSyncChild(t *testing.T) {
	path := os.Getenv(syncChildPath)
	if path == "" {
		t.Skip("runs only as the child of TestSyncBeforeAck")
	}
	s, err := Open(t.Context(), path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range syncCommits {
		if _, err := s.Commit(t.Context(), put(fmt.Sprint(i%100), make([]byte, 100))); err != nil {
			t.Fatal(err)
		}
		fmt.Println("ack", i)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestSyncBeforeAck traces the system calls of a process that commits: when it
// acknowledges a commit, everything that was written to the log has been synced; and
// before the log is restarted, everything that was written to the file has been.
func TestSyncBeforeAck(t *testing.T) {
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("no strace on this machine")
	}
	dir := t.TempDir()
	path, trace := filepath.Join(dir, "state.db"), filepath.Join(dir, "trace")
	child := exec.CommandContext(t.Context(), strace, "-f", "-y", "-s", "16", "-e", "trace=write,pwrite64,fsync,fdatasync", "-o", trace,
		os.Args[0], "-test.run=^TestSyncChild$")
	child.Env = append(os.Environ(), syncChildPath+"="+path)
	if out, err := child.CombinedOutput(); err != nil {
		if strings.Contains(string(out), "Operation not permitted") {
			t.Skip("this machine does not allow tracing: ", string(out))
		}
		t.Fatalf("%v: %s", err, out)
	}
	f, err := os.Open(trace)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := syncWatch{T: t, path: path, dirty: map[string]bool{}, pending: map[string]string{}}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		w.line(lines.Text())
	}
	if w.acks != syncCommits || w.logSyncs < syncCommits || w.fileSyncs == 0 || w.restarts == 0 {
		t.Errorf("seen: %d acknowledgements, %d syncs of the log, %d of the file, %d times the log restarted",
			w.acks, w.logSyncs, w.fileSyncs, w.restarts)
	}
	t.Logf("%d acknowledgements, %d syncs of the log, %d of the file, %d times the log restarted", w.acks, w.logSyncs, w.fileSyncs, w.restarts)
}

// syncWatch follows a trace.
type syncWatch struct {
	*testing.T
	path                                string
	dirty                               map[string]bool   // files with writes that are not synced
	pending                             map[string]string // call that has begun, by thread
	acks, logSyncs, fileSyncs, restarts int
}

// line is "PID call(FD<FILE>, …) = RESULT", or that in two halves.
func (w *syncWatch) line(line string) {
	pid, call, _ := strings.Cut(line, " ")
	call = strings.TrimSpace(call)
	if begun, unfinished := strings.CutSuffix(call, "<unfinished ...>"); unfinished {
		w.pending[pid] = begun
		w.begin(begun)
		return
	}
	if strings.HasPrefix(call, "<... ") {
		w.end(w.pending[pid], call)
		return
	}
	w.begin(call)
	w.end(call, call)
}

func (w *syncWatch) target(call string) string {
	_, rest, _ := strings.Cut(call, "<")
	name, _, _ := strings.Cut(rest, ">")
	return name
}

// begin: from here on a write may be on its way to the disk.
func (w *syncWatch) begin(call string) {
	log := w.path + "-wal"
	switch name := w.target(call); {
	case strings.HasPrefix(call, "pwrite64"):
		if name == log && strings.HasSuffix(strings.SplitN(call, " = ", 2)[0], ", 32, 0)") {
			w.restarts++ // the log's header
			if w.dirty[w.path] {
				w.Errorf("the log is restarted while the file is not synced: %s", call)
			}
		}
		w.dirty[name] = true
	case strings.HasPrefix(call, "write(1<") && strings.Contains(call, `"ack `):
		w.acks++
		if w.dirty[log] {
			w.Errorf("acknowledged before the log is synced: %s", call)
		}
	}
}

// end: only a sync that has returned well counts.
func (w *syncWatch) end(call, result string) {
	if !strings.HasPrefix(call, "fsync") && !strings.HasPrefix(call, "fdatasync") || !strings.HasSuffix(result, "= 0") {
		return
	}
	name := w.target(call)
	w.dirty[name] = false
	switch name {
	case w.path + "-wal":
		w.logSyncs++
	case w.path:
		w.fileSyncs++
	}
}
