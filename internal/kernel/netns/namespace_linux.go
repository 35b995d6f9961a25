package netns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// own is the namespace of the calling thread.
const own = "/proc/thread-self/ns/net"

// NS is a network namespace. Safe for concurrent use until Close.
type NS struct {
	name   string
	handle *netlink.Handle

	// Connections that no caller waits for any more may still be dialled when the
	// namespace is given up.
	mu   sync.RWMutex
	file *os.File
}

// Available reports why namespaces can't be made here; nil: they can.
func Available() error {
	n, err := New("probe")
	if err != nil {
		if errors.Is(err, unix.EPERM) {
			return fmt.Errorf("making a network namespace needs root (CAP_SYS_ADMIN and CAP_NET_ADMIN): %w", err)
		}
		return err
	}
	return n.Close()
}

// New makes a namespace that the kernel removes, with all links in it, when it
// is closed and no process is left in it, or when this process ends in whatever
// way. The name is for messages only.
func New(name string) (*NS, error) {
	var n *NS
	err := apart(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		var err error
		n, err = openHere(name)
		return err
	})
	if err == nil {
		err = n.prepare()
	}
	if err != nil {
		return nil, fmt.Errorf("make network namespace %s: %w", name, err)
	}
	return n, nil
}

// Current is the namespace of this process.
func Current() (*NS, error) {
	n, err := open("this process", "/proc/self/ns/net")
	if err != nil {
		return nil, fmt.Errorf("open network namespace of this process: %w", err)
	}
	return n, nil
}

// open a namespace by a file that stands for it.
func open(name, path string) (n *NS, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	n = &NS{name: name, file: file}
	err = n.Do(func() (err error) {
		n.handle, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	return n, nil
}

func openHere(name string) (*NS, error) { return open(name, own) }

// prepare a new namespace: loopback up, and addresses that are there at once.
func (n *NS) prepare() error {
	err := n.SetLinkUp("lo", true)
	if HasIPv6() {
		err = errors.Join(err,
			n.SetSysctl("net.ipv6.conf.all.accept_dad", "0"),
			n.SetSysctl("net.ipv6.conf.default.accept_dad", "0"))
	}
	if err != nil {
		_ = n.Close()
	}
	return err
}

// Close gives the namespace up. Links, processes and connections in it stay as
// long as something else holds it: its name, or a process in it.
func (n *NS) Close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.handle.Close()
	return n.file.Close()
}

// Name as given when it was made.
func (n *NS) Name() string { return n.name }

// Fd stands for the namespace until Close, as setns(2) takes it.
func (n *NS) Fd() int { return int(n.file.Fd()) }

// Handle speaks rtnetlink in the namespace, for what this package has no name
// for. It is closed with the namespace.
func (n *NS) Handle() *netlink.Handle { return n.handle }

// Do runs f with the calling goroutine's thread in the namespace: sockets that f
// makes and processes that it starts belong there for good. Goroutines that f
// starts are not in the namespace. Do may be nested, and f may end by
// runtime.Goexit, as testing's Fatal does.
func (n *NS) Do(f func() error) error {
	runtime.LockOSThread()
	back, err := os.Open(own)
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer back.Close()
	n.mu.RLock()
	err = enter(n.file)
	n.mu.RUnlock()
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter network namespace %s: %w", n.name, err)
	}
	defer func() {
		if err := enter(back); err != nil {
			// We came from there with the same rights a moment ago; to go on
			// in a foreign namespace would be worse than to end.
			panic(fmt.Sprintf("leave network namespace %s: %v", n.name, err))
		}
		runtime.UnlockOSThread()
	}()
	return f()
}

func enter(file *os.File) error { return unix.Setns(int(file.Fd()), unix.CLONE_NEWNET) }

// apart runs f on a thread that may change its namespace; it is back in this
// process's, or gone, afterwards.
func apart(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		back, err := os.Open(own)
		if err != nil {
			done <- err
			return
		}
		defer back.Close()
		err = f()
		if enter(back) == nil {
			runtime.UnlockOSThread()
		} // else the thread ends with this goroutine
		done <- err
	}()
	return <-done
}

// DialContext connects from the namespace. The address must not need a name
// server.
func (n *NS) DialContext(ctx context.Context, network, address string) (c net.Conn, err error) {
	err = n.Do(func() (err error) {
		c, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return err
	})
	return c, err
}

// Listen in the namespace.
func (n *NS) Listen(network, address string) (l net.Listener, err error) {
	err = n.Do(func() (err error) {
		l, err = net.Listen(network, address)
		return err
	})
	return l, err
}

// ListenPacket in the namespace.
func (n *NS) ListenPacket(network, address string) (c net.PacketConn, err error) {
	err = n.Do(func() (err error) {
		c, err = net.ListenPacket(network, address)
		return err
	})
	return c, err
}

// Start a command in the namespace; the caller waits for it as usual.
func (n *NS) Start(cmd *exec.Cmd) error { return n.Do(cmd.Start) }

// Output runs a command in the namespace and returns its standard output; what
// it said on standard error is in the error.
func (n *NS) Output(ctx context.Context, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	var out, complaint strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &complaint
	err := n.Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: in network namespace %s: %w: %s", name, n.name, err, strings.TrimSpace(complaint.String()))
	}
	return []byte(out.String()), nil
}

// SetSysctl sets a parameter such as "net.ipv4.ip_forward". Where an interface's
// name has a dot, the parts are separated by slashes, as sysctl(8) has it.
func (n *NS) SetSysctl(name, value string) error {
	path := sysctlPath(name)
	err := n.Do(func() error { return os.WriteFile(path, []byte(value), 0) })
	if err != nil {
		return fmt.Errorf("sysctl %s=%s in %s: %w", name, value, n.name, err)
	}
	return nil
}

// Sysctl reads a parameter.
func (n *NS) Sysctl(name string) (string, error) {
	path := sysctlPath(name)
	var data []byte
	err := n.Do(func() (err error) {
		data, err = os.ReadFile(path)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("sysctl %s in %s: %w", name, n.name, err)
	}
	return strings.TrimSpace(string(data)), nil
}

func sysctlPath(name string) string {
	if !strings.Contains(name, "/") {
		name = strings.ReplaceAll(name, ".", "/")
	}
	return filepath.Join("/proc/sys", filepath.Clean("/"+name))
}

// Processes lists those whose main thread is in the namespace, without the
// calling one.
func (n *NS) Processes() ([]int, error) {
	var mine unix.Stat_t
	if err := unix.Fstat(n.Fd(), &mine); err != nil {
		return nil, fmt.Errorf("network namespace %s: %w", n.name, err)
	}
	found, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, dir := range found {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err == nil && pid != os.Getpid() && inside(pid, &mine) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// inside reports whether a process is in a namespace; one that ended is not.
func inside(pid int, ns *unix.Stat_t) bool {
	var theirs unix.Stat_t
	err := unix.Stat(fmt.Sprintf("/proc/%d/ns/net", pid), &theirs)
	return err == nil && theirs.Dev == ns.Dev && theirs.Ino == ns.Ino
}

// Kill ends all processes in the namespace the hard way and returns when they
// have left it, or with the context. No other process is hit, even if process numbers
// are used again meanwhile.
func (n *NS) Kill(ctx context.Context) error {
	var mine unix.Stat_t
	if err := unix.Fstat(n.Fd(), &mine); err != nil {
		return fmt.Errorf("network namespace %s: %w", n.name, err)
	}
	for {
		pids, err := n.Processes()
		if err != nil || len(pids) == 0 {
			return err
		}
		for _, pid := range pids {
			if err := killInside(ctx, pid, &mine); err != nil {
				return fmt.Errorf("end process %d in network namespace %s: %w", pid, n.name, err)
			}
		}
	}
}

// KillProcess ends one process in the namespace the hard way and returns when it
// has ended. One that is gone, or is elsewhere, is left alone and is no error.
func (n *NS) KillProcess(ctx context.Context, pid int) error {
	var mine unix.Stat_t
	err := unix.Fstat(n.Fd(), &mine)
	if err == nil {
		err = killInside(ctx, pid, &mine)
	}
	if err != nil {
		return fmt.Errorf("end process %d in network namespace %s: %w", pid, n.name, err)
	}
	return nil
}

// Signal sends a signal to every process in the namespace. It does not wait for what
// follows.
func (n *NS) Signal(sig syscall.Signal) error {
	var mine unix.Stat_t
	if err := unix.Fstat(n.Fd(), &mine); err != nil {
		return err
	}
	pids, err := n.Processes()
	if err != nil {
		return err
	}
	var errs []error
	for _, pid := range pids {
		errs = append(errs, signalInside(pid, sig, &mine))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("signal the processes in network namespace %s: %w", n.name, err)
	}
	return nil
}

// signalInside holds the process by a descriptor before it looks where it is.
func signalInside(pid int, sig syscall.Signal, ns *unix.Stat_t) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if !inside(pid, ns) {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	return nil
}

// Holds reports whether a process is in the namespace.
func (n *NS) Holds(pid int) bool {
	var mine unix.Stat_t
	return pid > 0 && unix.Fstat(n.Fd(), &mine) == nil && inside(pid, &mine)
}

// killInside holds the process by a descriptor before it looks where it is, so
// that the one looked at is the one hit.
func killInside(ctx context.Context, pid int, ns *unix.Stat_t) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if !inside(pid, ns) {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	for { // readable when the process has ended (pidfd_open(2))
		if err := ctx.Err(); err != nil {
			return err
		}
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		ready, err := unix.Poll(poll, 100) // ms, to look at ctx
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if ready > 0 {
			return nil
		}
	}
}

// Cookie of the network namespace of the calling thread: the kernel's number of it, which is never used again
// while the machine runs. It needs Linux 5.14 (SO_NETNS_COOKIE).
func Cookie() (uint64, error) {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer func() { _ = unix.Close(s) }()
	return unix.GetsockoptUint64(s, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
}
