package cgroups

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/proxima-mesh/proxima/internal/kernel/cgroup"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// kernel is a hierarchy in memory.
type kernel struct {
	mu   sync.Mutex
	at   map[string]cgroup.ID
	busy map[string]bool
	next uint64
}

func newKernel() *kernel { return &kernel{at: map[string]cgroup.ID{}, busy: map[string]bool{}} }

// make a cgroup that is in use.
func (k *kernel) make(path string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.next++
	k.at[path], k.busy[path] = cgroup.ID{Number: k.next, Level: strings.Count(path, "/")}, true
}

func (k *kernel) leave(path string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.busy[path] = false
}

func (k *kernel) Lookup(path string) (cgroup.ID, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	id, ok := k.at[path]
	if !ok {
		return cgroup.ID{}, cgroup.ErrNone
	}
	return id, nil
}

func (k *kernel) PathOf(number uint64) (string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for path, id := range k.at {
		if id.Number == number {
			return path, nil
		}
	}
	return "", cgroup.ErrNone
}

func (k *kernel) Remove(path string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.busy[path] {
		return cgroup.ErrInUse
	}
	delete(k.at, path)
	return nil
}

const one, two = "/proxima-ns.one-1", "/unit/proxima-ns.two-2"

var keyOne, keyTwo = resource.Key{Namespace: "ns", Name: "one"}, resource.Key{Namespace: "ns", Name: "two"}

// told is what Changed was called with last.
type told struct {
	mu    sync.Mutex
	paths []string
}

func (c *told) changed(all []Group) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.paths = []string{}
	for _, g := range all {
		c.paths = append(c.paths, g.Path)
	}
}

func (c *told) want(t *testing.T, paths ...string) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if diff := cmp.Diff(append([]string{}, paths...), c.paths); diff != "" {
		t.Error(diff)
	}
}

// TestLife: a cgroup is a workload's until its run has ended and no process is in it.
func TestLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, c := newKernel(), &told{}
		table := New(Config{Hierarchy: k, File: filepath.Join(t.TempDir(), "cgroups.json"), Changed: c.changed})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- table.Run(ctx) }()
		if _, err := table.Hold(one, keyOne); !errors.Is(err, cgroup.ErrNone) {
			t.Errorf("one that is not there: %v", err)
		}
		k.make(one)
		k.make(two)
		release, err := table.Hold(one, keyOne)
		if err != nil {
			t.Fatal(err)
		}
		again, err := table.Hold(one, keyOne)
		if err != nil {
			t.Fatal(err)
		}
		releaseTwo, err := table.Hold(two, keyTwo)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := table.Hold(one, keyTwo); err == nil {
			t.Error("one cgroup of two workloads")
		}
		c.want(t, one, two)
		k.make("/proxima-ns.one-1/command/nested")
		inside, _ := k.Lookup("/proxima-ns.one-1/command/nested")
		if w, ok := table.WorkloadOf(inside.Number); !ok || w != keyOne {
			t.Errorf("a cgroup below: %v, %v", w, ok)
		}
		if _, ok := table.WorkloadOf(999); ok {
			t.Error("a cgroup that is nobody's")
		}

		k.leave(one)
		release()
		synctest.Wait()
		c.want(t, one, two) // it is held still
		again()
		synctest.Wait()
		c.want(t, two)
		if _, err := k.Lookup(one); err == nil {
			t.Error("the cgroup is left behind")
		}

		releaseTwo() // its run was killed, and its command lives
		synctest.Wait()
		c.want(t, two)
		k.leave(two)
		<-table.cfg.Clock.After(2 * lookAgain)
		synctest.Wait()
		c.want(t)
		if table.Placed(keyTwo) {
			t.Error("the workload has a cgroup still")
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestRestart: an agent that was killed knows the cgroups that are there still, and removes
// those that nobody uses any more.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKernel()
		file := filepath.Join(t.TempDir(), "cgroups.json")
		first := New(Config{Hierarchy: k, File: file})
		for path, key := range map[string]resource.Key{one: keyOne, two: keyTwo} {
			k.make(path)
			if _, err := first.Hold(path, key); err != nil {
				t.Fatal(err)
			}
		}
		k.make(two) // the path is another one's by now
		c := &told{}
		second := New(Config{Hierarchy: k, File: file, Changed: c.changed})
		c.want(t, one)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- second.Run(ctx) }()
		synctest.Wait()
		c.want(t, one) // its command runs
		release, err := second.Hold(one, keyOne)
		if err != nil {
			t.Fatal(err)
		}
		k.leave(one)
		<-second.cfg.Clock.After(2 * lookAgain)
		c.want(t, one) // its run has come back
		release()
		synctest.Wait()
		c.want(t)
		cancel()
		<-done
	})
	t.Run("damaged file", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "cgroups.json")
		if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		k := newKernel()
		k.make(one)
		table := New(Config{Hierarchy: k, File: file})
		if _, err := table.Hold(one, keyOne); err != nil || len(table.Groups()) != 1 {
			t.Errorf("%v, %v", err, table.Groups())
		}
	})
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"version":1,"groups":[{"path":"/proxima-a.b-1","number":7,"namespace":"a","name":"b"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if groups, err := decode(data); err != nil && groups != nil {
			t.Fatal("groups of a damaged file")
		}
	})
}
