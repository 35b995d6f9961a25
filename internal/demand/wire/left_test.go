package wire

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/proxima-mesh/proxima/internal/demand"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// TestRestartLosesNothing: what was counted since the last report, and a report that was not
// answered, are reported by the next process, once, and under the first one's run.
func TestRestartLosesNothing(t *testing.T) {
	file := filepath.Join(t.TempDir(), "left")
	synctest.Test(t, func(t *testing.T) {
		to, mode := &plane{}, &counter{}
		live := func(node string, f func()) {
			c := NewClient(ClientConfig{
				Conn: direct{server: NewServer(to, anybody)}, Node: node, Zone: func() locality.Zone { return "a" }, Counter: mode, File: file,
			})
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- c.Run(ctx) }()
			synctest.Wait()
			f()
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		live("n", func() {
			mode.carry("x", 1)
			time.Sleep(demand.Interval)
			synctest.Wait()
			mode.carry("x", 2) // ends before the next report
		})
		live("n", func() {
			time.Sleep(demand.Interval)
			synctest.Wait()
			to.set(errors.New("away"))
			mode.carry("x", 4)
			time.Sleep(demand.Interval)
			synctest.Wait()
			mode.carry("x", 8) // one report is out, and this is counted
		})
		to.set(nil)
		next := func() { time.Sleep(demand.Interval); synctest.Wait() }
		live("n", next)
		live("n", next)
		if diff := cmp.Diff([]uint64{1, 2, 0, 4, 8, 0, 0}, to.connections()); diff != "" {
			t.Fatalf("connections (-want +got):\n%s", diff)
		}
		if to.taken[3].Run == to.taken[5].Run || to.taken[3].Run != to.taken[4].Run || to.taken[3].Sequence+1 != to.taken[4].Sequence {
			t.Error("what was left over is not reported under the run that counted it")
		}
		live("n", func() { mode.carry("x", 16) })
		live("other", next)
		if got := to.connections(); len(got) != 8 || got[7] != 0 {
			t.Errorf("another node reports what is not its own: %v", got)
		}
	})
}

// TestRestartKeepsFamilies: what a process left is of the same families after the restart.
func TestRestartKeepsFamilies(t *testing.T) {
	file := filepath.Join(t.TempDir(), "left")
	synctest.Test(t, func(t *testing.T) {
		to, mode := &plane{fail: errors.New("away")}, &counter{byFamily: true}
		live := func(f func()) {
			c := NewClient(ClientConfig{
				Conn: direct{server: NewServer(to, anybody)}, Node: "n", Zone: func() locality.Zone { return "a" }, Counter: mode, File: file,
			})
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- c.Run(ctx) }()
			synctest.Wait()
			f()
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		live(func() { mode.carry("x", 8); time.Sleep(demand.Interval); synctest.Wait() })
		to.set(nil)
		live(func() { time.Sleep(demand.Interval); synctest.Wait() })
		want := []demand.Traffic{{Port: port("x"), Family: proxy.IPv4, Connections: 4}, {Port: port("x"), Family: proxy.IPv6, Connections: 4}}
		if len(to.taken) == 0 {
			t.Fatal("nothing was reported")
		}
		if diff := cmp.Diff(want, to.taken[0].Traffic); diff != "" {
			t.Errorf("reported (-want +got):\n%s", diff)
		}
	})
}

// TestLeftIsBounded: of many restarts without a control plane, and in age.
func TestLeftIsBounded(t *testing.T) {
	file := filepath.Join(t.TempDir(), "left")
	synctest.Test(t, func(t *testing.T) {
		to, mode := &plane{fail: errors.New("away")}, &counter{}
		for n := range uint64(6) {
			c := NewClient(ClientConfig{
				Conn: direct{server: NewServer(to, anybody)}, Node: "n", Zone: func() locality.Zone { return "a" }, Counter: mode, File: file,
			})
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- c.Run(ctx) }()
			synctest.Wait()
			if n == 5 {
				to.set(nil)
				time.Sleep(demand.Interval)
				synctest.Wait()
			}
			mode.carry("x", 1<<n)
			time.Sleep(time.Microsecond) // some time to report, and hardly the next report
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		// The newest four of five, then that of the last process.
		if diff := cmp.Diff([]uint64{2, 4, 8, 16, 0}, to.connections()); diff != "" {
			t.Errorf("connections (-want +got):\n%s", diff)
		}
	})
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("the file: %v, %v", info, err)
	}
	old := time.Now().Add(-2 * maxLeftAge)
	if err := os.Chtimes(file, old, old); err != nil {
		t.Fatal(err)
	}
	l := left{path: file}
	if err := l.read("n"); err != nil || l.reports != nil {
		t.Errorf("a file that is too old: %v, %v", l.reports, err)
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("a file that is too old is still there")
	}
}

func FuzzLeft(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{3, 10, 1, 'n'})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0x7f})
	f.Fuzz(func(t *testing.T, data []byte) {
		reports, _ := parseLeft(data, "n")
		for _, r := range reports {
			if r.GetNode() != "n" {
				t.Errorf("a report of node %q", r.GetNode())
			}
		}
	})
}
