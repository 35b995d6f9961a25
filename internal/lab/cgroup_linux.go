package lab

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/kernel/cgroup"
	"github.com/proxima-mesh/proxima/internal/kernel/netns"
	"github.com/proxima-mesh/proxima/internal/proxy/ebpf"
)

// cgroupOf a namespace: in mode ebpf each machine has one, as programs at a cgroup see the sockets of all
// namespaces. Empty: it has none.
func (s Spec) cgroupOf(in *netns.NS) (string, error) {
	if s.Mode != ebpf.Name {
		return "", nil
	}
	root, err := cgroup.Root()
	if err != nil {
		return "", err
	}
	return filepath.Join(root, in.Name()), nil
}

// join makes a command begin in the cgroup of its machine. leave is to be called once it was started.
func (s Spec) join(cmd *exec.Cmd, in *netns.NS) (leave func(), err error) {
	dir, err := s.cgroupOf(in)
	if err != nil || dir == "" {
		return func() {}, err
	}
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(f.Fd())
	return func() { _ = f.Close() }, nil
}

// joinCgroup has this process be in the cgroup of a machine, if it has one.
func (s Spec) joinCgroup(in *netns.NS) error {
	dir, err := s.cgroupOf(in)
	if err != nil || dir == "" {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0)
}

// clearLayer removes what an agent in mode ebpf left of a machine: pins and cgroups. Its processes have ended.
func clearLayer(ctx context.Context, in *netns.NS) error {
	err := in.Do(func() error { return ebpf.Cleanup(ebpf.Options{}) })
	root, none := cgroup.Root()
	if none != nil {
		return err
	}
	var dirs []string
	_ = filepath.WalkDir(filepath.Join(root, in.Name()), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return nil
	})
	errs := []error{err}
	for _, dir := range slices.Backward(dirs) {
		errs = append(errs, removeCgroup(ctx, dir))
	}
	return errors.Join(errs...)
}

// A process that was killed leaves its cgroup a little later.
const (
	cgroupLeft  = 5 * time.Second
	cgroupPause = 5 * time.Millisecond
)

func removeCgroup(ctx context.Context, dir string) error {
	for end := time.Now().Add(cgroupLeft); ; {
		err := os.Remove(dir)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if time.Now().After(end) || !backoff.Sleep(ctx, cgroupPause) {
			return err
		}
	}
}
