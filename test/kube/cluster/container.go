package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// containerVariable has the container, in JSON, that this program, run again in namespaces of its
// own, is to become.
const containerVariable = "PROXIMA_KUBE_CONTAINER"

// container as a runtime takes it from kubelet. Its root is read-only.
type container struct {
	Root         string
	Command, Env []string
	User, Group  int
	Groups       []int
	// Capabilities that are left to it.
	Capabilities []uintptr
	// NoNewPrivileges: no program that it runs has more.
	NoNewPrivileges bool
	Mounts          []mount
	// Join is a process whose namespaces and root are used; 0: new ones are made.
	Join int
}

// mount of a file or folder of the machine.
type mount struct {
	From, To string
	ReadOnly bool
}

// EnterContainer becomes the command of a container where this program was started as one, and
// returns otherwise. Call it first in TestMain.
func EnterContainer() {
	text := os.Getenv(containerVariable)
	if text == "" {
		return
	}
	runtime.LockOSThread() // capabilities are those of a thread until it runs a program
	var c container
	err := json.Unmarshal([]byte(text), &c)
	if err == nil {
		err = c.enter()
	}
	fmt.Fprintln(os.Stderr, "start the container:", err)
	os.Exit(1)
}

// process of the container, in namespaces of its own but for the network, which is that of the
// thread that starts it.
func (c *container) process() (*exec.Cmd, error) {
	text, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{containerVariable + "=" + string(text)}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if c.Join == 0 {
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS
	}
	return cmd, nil
}

// enter the container and become its command. It returns errors alone.
func (c *container) enter() error {
	steps := []func() error{c.mountAll, c.pivot, c.becomeUser}
	if c.Join != 0 {
		steps = []func() error{c.join, c.becomeUser}
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	err := unix.Exec(c.Command[0], c.Command, c.Env)
	return fmt.Errorf("run %s: %w", c.Command[0], err)
}

// Mounts of runtimes, and paths below /proc that are read-only or hidden in a container that is
// not privileged (https://github.com/opencontainers/runtime-spec/blob/main/config-linux.md; the
// lists are containerd's, pkg/oci).
const harmless = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

var (
	readOnlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
	maskedPaths   = []string{
		"/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/timer_stats",
		"/proc/sched_debug", "/proc/scsi", "/sys/firmware",
	}
	devices = []string{"null", "zero", "full", "random", "urandom", "tty"}
)

func (c *container) mountAll() error {
	type step struct {
		from, to, kind string
		flags          uintptr
		data           string
	}
	in := func(path string) string { return filepath.Join(c.Root, path) }
	steps := []step{
		{"", "/", "", unix.MS_PRIVATE | unix.MS_REC, ""},
		{c.Root, c.Root, "", unix.MS_BIND | unix.MS_REC, ""},
		{"proc", in("/proc"), "proc", harmless, ""},
		{"sysfs", in("/sys"), "sysfs", harmless | unix.MS_RDONLY, ""},
		{"tmpfs", in("/dev"), "tmpfs", unix.MS_NOSUID | unix.MS_STRICTATIME, "mode=755,size=65536k"},
	}
	for _, s := range steps {
		if err := mountAt(s.from, s.to, s.kind, s.flags, s.data); err != nil {
			return err
		}
	}
	for _, name := range devices {
		if err := bind(mount{"/dev/" + name, in("/dev/" + name), false}); err != nil {
			return err
		}
	}
	for _, path := range readOnlyPaths {
		if _, err := os.Stat(in(path)); err != nil {
			continue // not of this kernel
		}
		if err := bind(mount{in(path), in(path), true}); err != nil {
			return err
		}
	}
	for _, path := range maskedPaths {
		info, err := os.Stat(in(path))
		switch {
		case err != nil:
			continue
		case info.IsDir():
			err = mountAt("tmpfs", in(path), "tmpfs", harmless|unix.MS_RDONLY, "")
		default:
			err = mountAt("/dev/null", in(path), "", unix.MS_BIND, "")
		}
		if err != nil {
			return err
		}
	}
	for _, m := range c.Mounts {
		if err := bind(mount{m.From, in(m.To), m.ReadOnly}); err != nil {
			return err
		}
	}
	return mountAt("", c.Root, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, "")
}

func mountAt(from, to, kind string, flags uintptr, data string) error {
	if kind != "" {
		if err := os.MkdirAll(to, 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount(from, to, kind, flags, data); err != nil {
		return fmt.Errorf("mount %s: %w", to, err)
	}
	return nil
}

// bind a file or folder, and make the mount point.
func bind(m mount) error {
	info, err := os.Stat(m.From)
	if err != nil {
		return err
	}
	if info.IsDir() {
		err = os.MkdirAll(m.To, 0o755)
	} else if err = os.MkdirAll(filepath.Dir(m.To), 0o755); err == nil {
		var f *os.File
		if f, err = os.OpenFile(m.To, os.O_CREATE, 0o644); err == nil {
			err = f.Close()
		}
	}
	if err == nil {
		err = mountAt(m.From, m.To, "", unix.MS_BIND|unix.MS_REC, "")
	}
	if err != nil || !m.ReadOnly {
		return err
	}
	return mountAt("", m.To, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|harmless, "")
}

// pivot makes the root of the container that of this process, and leaves nothing of the machine's.
func (c *container) pivot() error {
	err := unix.Chdir(c.Root)
	if err == nil {
		err = unix.PivotRoot(".", ".") // pivot_root(2): both are stacked
	}
	if err == nil {
		err = unix.Unmount(".", unix.MNT_DETACH)
	}
	if err == nil {
		err = unix.Chdir("/")
	}
	if err != nil {
		return fmt.Errorf("change of the root: %w", err)
	}
	return nil
}

// join the namespaces of a process, but for that of processes.
func (c *container) join() error {
	var files []*os.File
	for _, name := range []string{"net", "ipc", "uts", "mnt"} { // the last one changes what /proc is
		f, err := os.Open(fmt.Sprintf("/proc/%d/ns/%s", c.Join, name))
		if err != nil {
			return err
		}
		files = append(files, f)
	}
	if err := unix.Unshare(unix.CLONE_FS); err != nil { // setns(2): of a process with threads
		return err
	}
	for _, f := range files {
		if err := unix.Setns(int(f.Fd()), 0); err != nil {
			return fmt.Errorf("%s: %w", f.Name(), err)
		}
		_ = f.Close()
	}
	return unix.Chdir("/")
}

// becomeUser gives up all that the container is not to have.
func (c *container) becomeUser() error {
	err := errors.Join(unix.Setgroups(c.Groups), unix.Setgid(c.Group))
	var kept [2]uint32
	for n := uintptr(0); n <= unix.CAP_LAST_CAP; n++ {
		if slices.Contains(c.Capabilities, n) {
			kept[n/32] |= 1 << (n % 32)
			continue
		}
		// EINVAL: a capability that this kernel does not have yet.
		if e := unix.Prctl(unix.PR_CAPBSET_DROP, n, 0, 0, 0); e != nil && !errors.Is(e, unix.EINVAL) {
			err = errors.Join(err, fmt.Errorf("capability %d: %w", n, e))
		}
	}
	err = errors.Join(err, unix.Setuid(c.User))
	if c.User == 0 {
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var data [2]unix.CapUserData
		for i, k := range kept {
			data[i] = unix.CapUserData{Effective: k, Permitted: k}
		}
		_, _, e := unix.RawSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&data[0])), 0)
		if e != 0 {
			err = errors.Join(err, fmt.Errorf("capset: %w", e))
		}
	}
	if c.NoNewPrivileges {
		err = errors.Join(err, unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
	}
	// The change of the user has taken it back.
	return errors.Join(err, unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0))
}

// capabilities by name, those that runtimes leave to containers and those that charts add.
var capabilities = map[corev1.Capability]uintptr{
	"AUDIT_WRITE": unix.CAP_AUDIT_WRITE, "CHOWN": unix.CAP_CHOWN, "DAC_OVERRIDE": unix.CAP_DAC_OVERRIDE, "FOWNER": unix.CAP_FOWNER,
	"FSETID": unix.CAP_FSETID, "KILL": unix.CAP_KILL, "MKNOD": unix.CAP_MKNOD, "NET_BIND_SERVICE": unix.CAP_NET_BIND_SERVICE,
	"NET_RAW": unix.CAP_NET_RAW, "SETFCAP": unix.CAP_SETFCAP, "SETGID": unix.CAP_SETGID, "SETPCAP": unix.CAP_SETPCAP,
	"SETUID": unix.CAP_SETUID, "SYS_CHROOT": unix.CAP_SYS_CHROOT,
	"BPF": unix.CAP_BPF, "NET_ADMIN": unix.CAP_NET_ADMIN, "PERFMON": unix.CAP_PERFMON,
}

// added are the capabilities that are no runtime's default.
var added = []corev1.Capability{"BPF", "NET_ADMIN", "PERFMON"}

// newContainer has what a security context and an image say. It is an error if that is not
// supported here.
func newContainer(img *image, pod *corev1.PodSpec, of *corev1.Container) (*container, error) {
	own := of.SecurityContext
	if own == nil {
		own = &corev1.SecurityContext{}
	}
	all := pod.SecurityContext
	if all == nil {
		all = &corev1.PodSecurityContext{}
	}
	if own.ReadOnlyRootFilesystem == nil || !*own.ReadOnlyRootFilesystem || own.Privileged != nil && *own.Privileged {
		return nil, errors.New("a root file system that can be written, and privileges, are not supported")
	}
	c := &container{NoNewPrivileges: own.AllowPrivilegeEscalation != nil && !*own.AllowPrivilegeEscalation}
	if _, err := fmt.Sscanf(img.config.User, "%d:%d", &c.User, &c.Group); err != nil {
		return nil, fmt.Errorf("user %q of the image: %w", img.config.User, err)
	}
	for _, user := range []*int64{all.RunAsUser, own.RunAsUser} {
		if user != nil {
			c.User = int(*user)
			c.Group = 0 // CRI: that of the user in the image's /etc/passwd, or else root's
		}
	}
	for _, group := range []*int64{all.RunAsGroup, own.RunAsGroup} {
		if group != nil {
			c.Group = int(*group)
		}
	}
	if all.RunAsNonRoot != nil && *all.RunAsNonRoot && c.User == 0 {
		return nil, errors.New("runAsNonRoot, and the user is root")
	}
	if all.FSGroup != nil {
		c.Groups = append(c.Groups, int(*all.FSGroup))
	}
	return c, c.grant(own.Capabilities)
}

func (c *container) grant(of *corev1.Capabilities) error {
	if of == nil {
		of = &corev1.Capabilities{}
	}
	for name, n := range capabilities {
		if !slices.Contains(of.Drop, "ALL") && !slices.Contains(of.Drop, name) && !slices.Contains(added, name) {
			c.Capabilities = append(c.Capabilities, n)
		}
	}
	for _, name := range of.Add {
		n, known := capabilities[name]
		if !known {
			return fmt.Errorf("capability %s is not supported", name)
		}
		c.Capabilities = append(c.Capabilities, n)
	}
	return nil
}

// stat is what the permissions of a file depend on.
type stat struct {
	user, group int
	mode        fs.FileMode
}

func (s *stat) of(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		s.user, s.group = int(sys.Uid), int(sys.Gid)
	}
	s.mode = info.Mode() & (fs.ModePerm | fs.ModeSticky | fs.ModeSetgid | fs.ModeSetuid)
	return nil
}

// Privileges are what the kernel says of a process.
type Privileges struct {
	User            int
	Capabilities    uint64 // effective
	Bounding        uint64
	NoNewPrivileges bool
}

// Exec runs a program of the image in the container of a pod, with the privileges of the
// container, as "kubectl exec" does. It returns all that it prints.
func (n *Node) Exec(ctx context.Context, p *corev1.Pod, args ...string) (string, error) {
	img := n.c.images[p.Spec.Containers[0].Image]
	c, err := newContainer(img, &p.Spec, &p.Spec.Containers[0])
	if err == nil {
		err = n.variables(p, &p.Spec.Containers[0], img, p.Status.PodIP, c)
	}
	if err != nil {
		return "", err
	}
	c.Join, c.Command = n.PodPID(p.UID), args
	if c.Join == 0 {
		return "", fmt.Errorf("pod %s does not run", p.Name)
	}
	cmd, err := c.process()
	if err != nil {
		return "", err
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		return "", err
	}
	defer context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })()
	err = cmd.Wait()
	return out.String(), err
}

// PrivilegesOf a process.
func PrivilegesOf(pid int) (p Privileges, err error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return p, err
	}
	for line := range strings.Lines(string(data)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		value, _, _ = strings.Cut(strings.TrimSpace(value), "\t")
		switch name {
		case "Uid":
			p.User, err = strconv.Atoi(value)
		case "CapEff":
			p.Capabilities, err = strconv.ParseUint(value, 16, 64)
		case "CapBnd":
			p.Bounding, err = strconv.ParseUint(value, 16, 64)
		case "NoNewPrivs":
			p.NoNewPrivileges = value == "1"
		}
		if err != nil {
			return p, fmt.Errorf("%s of process %d: %w", name, pid, err)
		}
	}
	return p, nil
}
