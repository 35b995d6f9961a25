package ebpf

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/kernel/netns"
)

// pinFolder has a directory for each network namespace, in the bpffs.
const pinFolder = "proxima"

// programNames are those of the object, and of the pins of their links.
var programNames = [...]string{"connect4", "connect6", "getpeername4", "getpeername6"}

var attachTypes = [len(programNames)]ebpf.AttachType{
	ebpf.AttachCGroupInet4Connect, ebpf.AttachCGroupInet6Connect, ebpf.AttachCgroupInet4GetPeername, ebpf.AttachCgroupInet6GetPeername,
}

// peerPrograms are those for constants.peers alone.
var peerPrograms = programNames[2:]

// links are where the programs run. References are kept: a finalizer would close the links, and unpinned
// ones detach then.
type links struct {
	cgroup string
	id     uint64 // of the cgroup
	// dir of the pins; empty: there are none, and unpinned says why, unless none were wanted.
	dir      string
	unpinned error
	of       [len(programNames)]link.Link
}

// newLinks for a cgroup, whose directory has to exist. They have no pins yet.
func newLinks(cgroup string) (*links, error) {
	var st unix.Stat_t
	if err := unix.Stat(cgroup, &st); err != nil {
		return nil, fmt.Errorf("cgroup %s: %w", cgroup, err)
	}
	if err := isCgroup2(cgroup); err != nil {
		return nil, err
	}
	return &links{cgroup: cgroup, id: st.Ino}, nil // the inode is the number of the cgroup (kernfs)
}

func isCgroup2(dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("cgroup %s: %w", dir, err)
	}
	if st.Type != unix.CGROUP2_SUPER_MAGIC {
		return fmt.Errorf("cgroup %s: it is in no file system of type cgroup2", dir)
	}
	return nil
}

// pinDir makes the directory for pins of this network namespace, and mounts a bpffs if there is none.
func pinDir(bpffs string) (string, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(bpffs, &st); err != nil {
		return "", fmt.Errorf("bpffs %s: %w", bpffs, err)
	}
	if st.Type != unix.BPF_FS_MAGIC {
		if err := unix.Mount("bpf", bpffs, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700"); err != nil {
			return "", fmt.Errorf("mounting a bpffs at %s: %w", bpffs, err)
		}
	}
	dir, err := ownPins(bpffs)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("pins: %w", err)
	}
	return dir, nil
}

// ownPins are those of this network namespace, which has one agent. A namespace that is gone may leave its
// number to another one: a link's cgroup tells whose it is.
func ownPins(bpffs string) (string, error) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &st); err != nil {
		return "", fmt.Errorf("network namespace: %w", err)
	}
	return filepath.Join(bpffs, pinFolder, fmt.Sprintf("netns-%d", st.Ino)), nil
}

func (l *links) pin(name string) string {
	if l.dir == "" {
		return ""
	}
	return filepath.Join(l.dir, name)
}

// set makes the links run these programs: those of an earlier process, if they are pinned, else new ones. Those of programs
// that are nil go.
func (l *links) set(programs [len(programNames)]*ebpf.Program) error {
	for i := range programs {
		if err := l.one(i, programs[i]); err != nil {
			return err
		}
	}
	return nil
}

func (l *links) one(i int, program *ebpf.Program) error {
	if l.of[i] == nil {
		l.of[i] = l.adopt(i)
	}
	if program == nil {
		l.drop(i)
		return nil
	}
	if l.of[i] != nil {
		if l.attached(i) && l.of[i].Update(program) == nil {
			return nil
		}
		l.drop(i)
	}
	made, err := link.AttachCgroup(link.CgroupOptions{Path: l.cgroup, Attach: attachTypes[i], Program: program})
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("attaching to cgroup %s: %w: another program is attached there, or to a cgroup above, and allows none beside it", l.cgroup, err)
	}
	if err != nil {
		return fmt.Errorf("attaching to cgroup %s: %w", l.cgroup, err)
	}
	l.of[i] = made
	l.repin(i)
	return nil
}

// adopt the link of an earlier process, if it is that of this cgroup; nil: there is none.
func (l *links) adopt(i int) link.Link {
	pin := l.pin(programNames[i])
	if pin == "" {
		return nil
	}
	found, err := link.LoadPinnedLink(pin, nil)
	if err != nil {
		return nil
	}
	info, err := found.Info()
	if err != nil || info.Cgroup() == nil || info.Cgroup().CgroupId != l.id {
		_ = found.Unpin()
		_ = found.Close()
		return nil
	}
	return found
}

// attached reports whether a link is: its cgroup may have gone, or somebody detached it.
func (l *links) attached(i int) bool {
	if l.of[i] == nil {
		return false
	}
	id, err := cgroupOf(l.of[i])
	return err == nil && id == l.id
}

// cgroupOf a link; 0: it is detached.
func cgroupOf(of link.Link) (uint64, error) {
	info, err := of.Info()
	if err != nil {
		return 0, err
	}
	if c := info.Cgroup(); c != nil {
		return c.CgroupId, nil
	}
	return 0, errors.New("no link of a cgroup")
}

// whole reports whether the links of these programs are attached and pinned.
func (l *links) whole(programs [len(programNames)]*ebpf.Program) (attached, pinned bool) {
	attached, pinned = true, true
	for i := range l.of {
		if programs[i] == nil {
			continue
		}
		attached = attached && l.attached(i)
		if pin := l.pin(programNames[i]); pin != "" {
			_, err := os.Lstat(pin)
			pinned = pinned && err == nil
		}
	}
	return attached, pinned
}

// repin a link, whose pin may have gone.
func (l *links) repin(i int) {
	pin := l.pin(programNames[i])
	if pin == "" || l.of[i] == nil {
		return
	}
	_ = l.of[i].Unpin()
	_ = os.Remove(pin)
	if err := l.of[i].Pin(pin); err != nil {
		l.unpinned = fmt.Errorf("pinning a link: %w", err)
	}
}

func (l *links) drop(i int) {
	if l.of[i] == nil {
		return
	}
	if pin := l.pin(programNames[i]); pin != "" {
		_ = os.Remove(pin)
	}
	_ = l.of[i].Close()
	l.of[i] = nil
}

// detach all: connections pass.
func (l *links) detach() {
	for i := range l.of {
		if l.of[i] == nil {
			l.of[i] = l.adopt(i)
		}
		l.drop(i)
	}
}

// close lets go of the links. Pinned ones go on.
func (l *links) close() {
	for i := range l.of {
		if l.of[i] != nil {
			_ = l.of[i].Close()
			l.of[i] = nil
		}
	}
}

// mapOf an earlier process, as it is pinned; nil: there is none that fits.
func (l *links) mapOf(k *keptMap) *ebpf.Map {
	pin := l.pin(k.name)
	if pin == "" {
		return nil
	}
	m, err := ebpf.LoadPinnedMap(pin, nil)
	if err != nil {
		return nil
	}
	if !k.fits(m) {
		_ = m.Close()
		l.unpinMap(k.name)
		return nil
	}
	return m
}

func (l *links) pinMap(name string, m *ebpf.Map) {
	if pin := l.pin(name); pin != "" {
		if err := m.Pin(pin); err != nil {
			l.unpinned = fmt.Errorf("pinning map %s: %w", name, err)
		}
	}
}

func (l *links) unpinMap(name string) {
	if pin := l.pin(name); pin != "" {
		_ = os.Remove(pin)
	}
}

// Cleanup detaches what an earlier process attached, in the network namespace of the calling thread, and removes its pins. Of
// Options it takes BPFFS. What is absent is no error. Close the mode before: it would attach again.
func Cleanup(opts Options) error {
	if opts.BPFFS == "" {
		opts.BPFFS = DefaultBPFFS
	}
	var st unix.Statfs_t
	if err := unix.Statfs(opts.BPFFS, &st); err != nil || st.Type != unix.BPF_FS_MAGIC {
		return nil
	}
	dir, err := ownPins(opts.BPFFS)
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range programNames {
		l, err := link.LoadPinnedLink(filepath.Join(dir, name), nil)
		if err != nil {
			continue
		}
		// A process that hangs may have it open. Before 5.9 it goes with its last reference.
		_ = detachLink(l)
		errs = append(errs, l.Close())
	}
	pins := slices.Clone(programNames[:])
	for _, k := range keptMaps {
		pins = append(pins, k.name)
	}
	for _, name := range pins {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func detachLink(l link.Link) error {
	if d, ok := l.(interface{ Detach() error }); ok {
		return d.Detach()
	}
	return nil
}

// initialNetwork is the cookie of the first network namespace: cookies count from 1 on (gen_cookie_next of
// linux/cookie.h), and the kernel makes it first (net_ns_init).
const initialNetwork = 1

// OnHost reports whether this process is in the network namespace of the host.
func OnHost() (bool, error) {
	if cookie, err := netns.Cookie(); err == nil {
		return cookie == initialNetwork, nil
	}
	// Before 5.14: the first process is of the host, unless this one has process numbers of its own.
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return false, err
	}
	first, err := os.Readlink("/proc/1/ns/net")
	return strings.TrimSpace(first) == own, err
}
