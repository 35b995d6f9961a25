package cgroup

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Hierarchy is the cgroups of version 2 of this machine. Immutable.
type Hierarchy struct {
	mount string // directory
	own   string // this process's path
}

// initialNamespace is the inode of the first cgroup namespace (PROC_CGROUP_INIT_INO of
// linux/proc_ns.h). In another one paths and levels are not those of the machine.
const initialNamespace = 0xEFFFFFFB

// Find returns the hierarchy. An error is an *UnavailableError.
func Find() (*Hierarchy, error) {
	unavailable := func(format string, args ...any) (*Hierarchy, error) {
		return nil, &UnavailableError{Reason: fmt.Sprintf(format, args...)}
	}
	if os.Geteuid() != 0 {
		return unavailable("only root may make them")
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return unavailable("%v", err)
	}
	mount := parseMounts(string(mounts))
	if mount == "" {
		return unavailable("cgroup version 2 is not mounted (file system cgroup2)")
	}
	var namespace unix.Stat_t
	if err := unix.Stat("/proc/self/ns/cgroup", &namespace); err != nil {
		return unavailable("cgroup namespace: %v", err)
	}
	if namespace.Ino != initialNamespace {
		return unavailable("this process is in a cgroup namespace of its own, as in a container")
	}
	data, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return unavailable("%v", err)
	}
	own := parseOwn(string(data))
	if !strings.HasPrefix(own, "/") || strings.HasSuffix(own, " (deleted)") {
		return unavailable("this process has no cgroup of version 2 (%q)", own)
	}
	if err := unix.Access(mount, unix.W_OK); err != nil {
		return unavailable("%s: %v", mount, err)
	}
	return &Hierarchy{mount: mount, own: own}, nil
}

// Root is the directory where this machine's cgroups of version 2 are mounted, all of them. An error is an
// *UnavailableError.
func Root() (string, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", &UnavailableError{Reason: err.Error()}
	}
	mount := parseMounts(string(mounts))
	if mount == "" {
		return "", &UnavailableError{Reason: "cgroup version 2 is not mounted (file system cgroup2)"}
	}
	// The root alone has no cgroup.events (cgroup-v2.rst). A container sees its own cgroup in its place.
	if _, err := os.Lstat(filepath.Join(mount, "cgroup.events")); err == nil {
		return "", &UnavailableError{Reason: mount + " is the cgroup of a container, not the machine's root"}
	}
	return mount, nil
}

func (h *Hierarchy) dir(p string) string { return filepath.Join(h.mount, p) }

// Group is the cgroup of a workload, held by this process.
type Group struct {
	h       *Hierarchy
	path    string
	lock    *os.File
	command *os.File
}

// Another process that sweeps may take an empty cgroup for garbage before it is locked, and hold its lock
// meanwhile: it is tried again for createWithin.
const (
	createWithin = 5 * time.Second
	createPause  = 2 * time.Millisecond
)

// Create makes the cgroup of a workload, and holds it until Close. Cgroups beside it that were
// left behind are removed. It blocks while others take its cgroup for one of these, for a few
// milliseconds as a rule. An error says what is not possible here.
func (h *Hierarchy) Create(namespace, name string) (*Group, error) {
	h.Sweep()
	p := path.Join(h.own, nameOf(namespace, name, os.Getpid()))
	var err error
	for end := time.Now().Add(createWithin); ; time.Sleep(createPause) {
		var g *Group
		if g, err = h.create(p); err == nil {
			return g, nil
		}
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, ErrInUse) || time.Now().After(end) {
			break
		}
	}
	return nil, fmt.Errorf("make cgroup %s: %w", p, err)
}

func (h *Hierarchy) create(p string) (g *Group, err error) {
	if err := checkPath(p); err != nil {
		return nil, err
	}
	dir := h.dir(p)
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	g = &Group{h: h, path: p}
	defer func() {
		if err != nil {
			_ = g.Close()
		}
	}()
	if g.lock, err = lock(dir); err != nil {
		return nil, err
	}
	inside := filepath.Join(dir, commandName)
	if err := os.Mkdir(inside, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	kind, err := os.ReadFile(filepath.Join(inside, "cgroup.type"))
	if err != nil {
		return nil, err
	}
	if kind := strings.TrimSpace(string(kind)); kind != "domain" {
		return nil, fmt.Errorf("it is of type %q, which takes no processes: is the cgroup of this process threaded?", kind)
	}
	g.command, err = os.Open(inside)
	return g, err
}

// lock a cgroup's directory.
func lock(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, ErrInUse
		}
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	// Whoever had the lock before may have removed the directory.
	var held, there unix.Stat_t
	err = errors.Join(unix.Fstat(int(f.Fd()), &held), unix.Stat(dir, &there))
	if err == nil && held.Ino != there.Ino {
		err = fs.ErrNotExist
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// Path of the cgroup, as in /proc/PID/cgroup.
func (g *Group) Path() string { return g.path }

// Start makes a command begin in the cgroup; use it before the command is started.
func (g *Group) Start(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(g.command.Fd())
}

// Close lets go of the cgroup, and removes it if no process is left in it. If one is, the
// agent removes it, or the next Create beside it.
func (g *Group) Close() error {
	if g == nil {
		return nil
	}
	if g.command != nil {
		_ = g.command.Close()
	}
	if g.lock == nil {
		return nil
	}
	err := g.h.removeLocked(g.path)
	_ = g.lock.Close()
	if errors.Is(err, ErrInUse) {
		return nil
	}
	return err
}

// Lookup finds a workload's cgroup by its path. Errors: ErrNone, and others.
func (h *Hierarchy) Lookup(p string) (ID, error) {
	if err := checkPath(p); err != nil {
		return ID{}, err
	}
	number, err := h.number(p)
	return ID{Number: number, Level: levelOf(p)}, err
}

// handleType is FILEID_KERNFS (enum fid_type of Linux): the handle is the number, in the host's
// order.
const handleType = 0xfe

func (h *Hierarchy) number(p string) (uint64, error) {
	handle, _, err := unix.NameToHandleAt(unix.AT_FDCWD, h.dir(p), 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return 0, fmt.Errorf("cgroup %s: %w", p, ErrNone)
	case err != nil:
		return 0, fmt.Errorf("number of cgroup %s: %w", p, err)
	case handle.Type() != handleType || handle.Size() != 8:
		return 0, fmt.Errorf("number of cgroup %s: the kernel's handle has type %#x and %d bytes", p, handle.Type(), handle.Size())
	}
	return binary.NativeEndian.Uint64(handle.Bytes()), nil
}

// PathOf finds the path of any cgroup by its number. Errors: ErrNone, and others.
func (h *Hierarchy) PathOf(number uint64) (string, error) {
	mount, err := os.Open(h.mount)
	if err != nil {
		return "", err
	}
	defer mount.Close()
	handle := unix.NewFileHandle(handleType, binary.NativeEndian.AppendUint64(nil, number))
	fd, err := unix.OpenByHandleAt(int(mount.Fd()), handle, unix.O_PATH|unix.O_CLOEXEC)
	if errors.Is(err, unix.ESTALE) {
		return "", fmt.Errorf("cgroup %d: %w", number, ErrNone)
	}
	if err != nil {
		return "", fmt.Errorf("open cgroup %d: %w", number, err)
	}
	defer unix.Close(fd)
	dir, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return "", fmt.Errorf("path of cgroup %d: %w", number, err)
	}
	rest, ok := strings.CutPrefix(dir, strings.TrimSuffix(h.mount, "/"))
	if !ok || strings.HasSuffix(rest, " (deleted)") {
		return "", fmt.Errorf("cgroup %d at %s: %w", number, dir, ErrNone)
	}
	return path.Clean("/" + rest), nil
}

// Remove deletes a workload's cgroup, and what is below it. One that is not there is no error.
// Errors: ErrInUse, and others.
func (h *Hierarchy) Remove(p string) error {
	if err := checkPath(p); err != nil {
		return err
	}
	held, err := lock(h.dir(p))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer held.Close()
	return h.removeLocked(p)
}

func (h *Hierarchy) removeLocked(p string) error {
	data, err := os.ReadFile(filepath.Join(h.dir(p), "cgroup.events"))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	if err != nil {
		return err
	}
	if parsePopulated(string(data)) {
		return ErrInUse
	}
	err = removeTree(h.dir(p))
	if errors.Is(err, unix.EBUSY) {
		return ErrInUse // a process has come
	}
	return err
}

// removeTree removes directories, the deepest first. Their files go with them.
func removeTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeTree(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	return nil
}

// Sweep removes the cgroups of workloads below that of this process that nobody uses any more:
// whoever made them was killed, and no agent knew of them.
func (h *Hierarchy) Sweep() {
	entries, err := os.ReadDir(h.dir(h.own))
	if err != nil {
		return // what is made next says it
	}
	for _, e := range entries {
		if e.IsDir() && strings.HasPrefix(e.Name(), prefix) {
			_ = h.Remove(path.Join(h.own, e.Name())) // in use, or tried again by the next
		}
	}
}
