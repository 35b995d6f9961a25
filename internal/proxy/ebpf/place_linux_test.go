package ebpf

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/kernel/cgroup"
)

// place is a cgroup for the programs of a node, that this process is in, and one beside it for threads that are
// not of the node. The machine's own cgroups are left alone.
type place struct {
	root, node, foreign string
	bpffs               string
}

const testPrefix = "proxima-ebpf-"

// newPlace makes the cgroups, moves this process, and mounts a bpffs for its pins. All of it goes with the test.
func newPlace(t *testing.T) *place {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("making cgroups needs root")
	}
	root, err := cgroup.Root()
	if err != nil {
		t.Skip(err)
	}
	if err := Check(Options{PeerIsVIP: true}); err != nil {
		t.Skip(err)
	}
	sweep(root)
	p := &place{root: filepath.Join(root, testPrefix+strconv.Itoa(os.Getpid())), bpffs: t.TempDir()}
	p.node, p.foreign = filepath.Join(p.root, "node"), filepath.Join(p.root, "foreign")
	own := strconv.Itoa(os.Getpid())
	for _, dir := range []string{p.root, p.node, p.foreign} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		write(t, root, "cgroup.procs", own)
		for _, dir := range []string{p.node, p.foreign, p.root} {
			if err := os.Remove(dir); err != nil {
				t.Error(err)
			}
		}
	})
	for _, dir := range []string{p.node, p.foreign} {
		write(t, dir, "cgroup.type", "threaded")
	}
	write(t, p.root, "cgroup.procs", own)
	write(t, p.node, "cgroup.procs", own)
	if err := unix.Mount("bpf", p.bpffs, "bpf", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(p.bpffs, unix.MNT_DETACH) })
	return p
}

// sweep removes the cgroups of tests that were killed.
func sweep(root string) {
	old, _ := filepath.Glob(filepath.Join(root, testPrefix+"*"))
	for _, dir := range old {
		pid, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(dir), testPrefix))
		if err != nil || unix.Kill(pid, 0) == nil {
			continue
		}
		inside, _ := filepath.Glob(filepath.Join(dir, "*/cgroup.procs"))
		for _, f := range inside {
			_ = os.Remove(filepath.Dir(f))
		}
		_ = os.Remove(dir)
	}
}

func write(t *testing.T, dir, file, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0); err != nil {
		t.Fatal(err)
	}
}

// leave makes the calling thread one that is not of the node.
func (p *place) leave() (back func(), err error) {
	move := func(dir string) error {
		return os.WriteFile(filepath.Join(dir, "cgroup.threads"), []byte(strconv.Itoa(unix.Gettid())), 0)
	}
	if err := move(p.foreign); err != nil {
		return nil, err
	}
	return func() {
		if err := move(p.node); err != nil {
			panic(fmt.Sprintf("a thread cannot return to its cgroup: %v", err))
		}
	}, nil
}

// options of the layer there.
func (p *place) options() Options { return Options{Cgroup: p.node, BPFFS: p.bpffs} }
