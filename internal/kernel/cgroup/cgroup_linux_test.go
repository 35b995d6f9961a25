package cgroup

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// hierarchy of this machine; the test is skipped where there is none.
func hierarchy(t *testing.T) *Hierarchy {
	t.Helper()
	h, err := Find()
	if err != nil {
		t.Skip(err)
	}
	return h
}

// sleeper starts a process in a group that ends with the test.
func sleeper(t *testing.T, g *Group) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "300")
	g.Start(cmd)
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}

func exists(h *Hierarchy, p string) bool {
	_, err := os.Stat(h.dir(p))
	return !errors.Is(err, fs.ErrNotExist)
}

// TestLife: a command begins in its cgroup; it can be found by its path and its number; it is
// not removed while it is held or in use, and is gone afterwards.
func TestLife(t *testing.T) {
	h := hierarchy(t)
	g, err := h.Create("test-life", "web")
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if err := h.Remove(g.Path()); !errors.Is(err, ErrInUse) {
		t.Errorf("removing one that is held: %v", err)
	}
	cmd := sleeper(t, g)
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", cmd.Process.Pid))
	if inside := path.Join(g.Path(), commandName); err != nil || parseOwn(string(data)) != inside {
		t.Fatalf("the command is in %q, want %q (%v)", parseOwn(string(data)), inside, err)
	}
	id, err := h.Lookup(g.Path())
	if err != nil || id.Level != levelOf(g.Path()) {
		t.Fatalf("%+v, %v", id, err)
	}
	inside, err := h.number(path.Join(g.Path(), commandName))
	if err != nil {
		t.Fatal(err)
	}
	for number, want := range map[uint64]string{id.Number: g.Path(), inside: path.Join(g.Path(), commandName)} {
		if p, err := h.PathOf(number); err != nil || p != want {
			t.Errorf("path of %d: %q, %v, want %q", number, p, err, want)
		}
	}

	if err := g.Close(); err != nil {
		t.Errorf("closing one in use: %v", err)
	}
	if err := h.Remove(g.Path()); !errors.Is(err, ErrInUse) {
		t.Errorf("removing one in use: %v", err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if err := h.Remove(g.Path()); err != nil {
		t.Error(err)
	}
	if exists(h, g.Path()) {
		t.Error("it is there still")
	}
	if _, err := h.Lookup(g.Path()); !errors.Is(err, ErrNone) {
		t.Errorf("looking up one that is gone: %v", err)
	}
	if p, err := h.PathOf(inside); !errors.Is(err, ErrNone) {
		t.Errorf("path of one that is gone: %q, %v", p, err)
	}
	if err := h.Remove(g.Path()); err != nil {
		t.Errorf("removing one that is gone: %v", err)
	}
}

// TestNestedRemains: what a command made below its cgroup goes with it.
func TestNestedRemains(t *testing.T) {
	h := hierarchy(t)
	g, err := h.Create("test-nested", "web")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(h.dir(path.Join(g.Path(), commandName, "a", "b")), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := g.Close(); err != nil || exists(h, g.Path()) {
		t.Errorf("%v, there: %v", err, exists(h, g.Path()))
	}
}

// TestKilled: the cgroup of a process that was killed is removed by the next Create beside it.
func TestKilled(t *testing.T) {
	const inside = "PROXIMA_TEST_CGROUP"
	if os.Getenv(inside) != "" {
		h := hierarchy(t)
		g, err := h.Create("test-killed", "web")
		if err != nil {
			t.Fatal(err)
		}
		fmt.Println("path " + g.Path())
		select {} // until it is killed
	}
	h := hierarchy(t)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestKilled$")
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	p, ok := strings.CutPrefix(strings.TrimSpace(line), "path ")
	if err != nil || !ok {
		t.Fatalf("%q, %v", line, err)
	}
	if err := h.Remove(p); !errors.Is(err, ErrInUse) {
		t.Errorf("removing one that is held: %v", err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if !exists(h, p) {
		t.Fatal("it is gone without anybody's doing")
	}
	g, err := h.Create("test-killed", "other")
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if exists(h, p) {
		t.Error("it was not removed")
	}
}

// TestCreateAmongSweeps: others that look for garbage do not keep a cgroup from being made.
func TestCreateAmongSweeps(t *testing.T) {
	h := hierarchy(t)
	ctx, cancel := context.WithCancel(t.Context())
	var sweeping sync.WaitGroup
	for range 4 {
		sweeping.Go(func() {
			for ctx.Err() == nil {
				h.Sweep()
			}
		})
	}
	for i := range 300 {
		g, err := h.Create("default", fmt.Sprint("web-", i))
		if err != nil {
			t.Error(err)
			break
		}
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	}
	cancel()
	sweeping.Wait()
}
