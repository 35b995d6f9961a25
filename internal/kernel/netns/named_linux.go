package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Dir holds the names of namespaces, for us and for ip-netns(8): each is a file
// that the namespace is mounted on.
const Dir = "/run/netns"

// Create makes a namespace that lives until Remove, or until the machine is
// restarted. A name that is taken is an error that matches fs.ErrExist.
func Create(name string) (*NS, error) {
	n, err := create(name)
	if err != nil {
		return nil, fmt.Errorf("create network namespace %s: %w", name, err)
	}
	return n, nil
}

func create(name string) (*NS, error) {
	path, err := pathOf(name)
	if err != nil {
		return nil, err
	}
	unlock, err := lockDir()
	if err != nil {
		return nil, err
	}
	defer unlock()
	f, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE|os.O_EXCL, 0)
	if err != nil {
		return nil, err
	}
	_ = f.Close()
	err = apart(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		return unix.Mount(own, path, "", unix.MS_BIND, "")
	})
	var n *NS
	if err == nil {
		n, err = open(name, path)
	}
	if err == nil {
		err = n.prepare()
	}
	if err != nil {
		return nil, errors.Join(err, remove(path))
	}
	return n, nil
}

// OpenPath opens a namespace that is mounted on a file, as those of container runtimes are.
func OpenPath(path string) (*NS, error) {
	var what unix.Statfs_t
	if err := unix.Statfs(path, &what); err == nil && what.Type != unix.NSFS_MAGIC {
		return nil, fmt.Errorf("open network namespace: %s is an ordinary file: %w", path, fs.ErrNotExist)
	}
	n, err := open(filepath.Base(path), path)
	if err != nil {
		return nil, fmt.Errorf("open network namespace %s: %w", path, err)
	}
	return n, nil
}

// Open a namespace that has a name.
func Open(name string) (*NS, error) {
	path, err := pathOf(name)
	if err != nil {
		return nil, err
	}
	var what unix.Statfs_t
	if err := unix.Statfs(path, &what); err == nil && what.Type != unix.NSFS_MAGIC {
		return nil, fmt.Errorf("open network namespace %s: %s is an ordinary file: %w", name, path, fs.ErrNotExist)
	}
	n, err := open(name, path)
	if err != nil {
		return nil, fmt.Errorf("open network namespace %s: %w", name, err)
	}
	return n, nil
}

// Remove a name; with it goes the namespace with its links, unless a process is
// in it or holds it. A name that is not there is no error.
func Remove(name string) error {
	path, err := pathOf(name)
	if err != nil {
		return err
	}
	if err := remove(path); err != nil {
		return fmt.Errorf("remove network namespace %s: %w", name, err)
	}
	return nil
}

func remove(path string) error {
	// EINVAL: nothing is mounted there, as of a creation that was cut short.
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// List the names that begin with a prefix, sorted.
func List(prefix string) ([]string, error) {
	entries, err := os.ReadDir(Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list network namespaces: %w", err)
	}
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

func pathOf(name string) (string, error) {
	if name == "" || name == "." || name == ".." || filepath.Base(name) != name {
		return "", fmt.Errorf("network namespace %q: not a name", name)
	}
	return filepath.Join(Dir, name), nil
}

// lockDir makes Dir a mount that all mount namespaces share, as ip-netns(8) does,
// so that a name that is removed in one is gone in all. The lock is the same
// that ip takes.
func lockDir() (unlock func(), err error) {
	if err := os.MkdirAll(Dir, 0o755); err != nil {
		return nil, err
	}
	dir, err := os.Open(Dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		_ = dir.Close()
		return nil, fmt.Errorf("lock %s: %w", Dir, err)
	}
	unlock = func() { _ = dir.Close() }
	share := func() error { return unix.Mount("", Dir, "none", unix.MS_SHARED|unix.MS_REC, "") }
	err = share()
	if errors.Is(err, unix.EINVAL) { // it is no mount of its own yet
		if err = unix.Mount(Dir, Dir, "none", unix.MS_BIND|unix.MS_REC, ""); err == nil {
			err = share()
		}
	}
	if err != nil {
		unlock()
		return nil, fmt.Errorf("share %s: %w", Dir, err)
	}
	return unlock, nil
}
