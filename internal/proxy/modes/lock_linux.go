package modes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/backoff"
)

const (
	// lockName is an abstract Unix socket (unix(7)): there is one of the name in a network
	// namespace, whatever file systems its processes see, and it ends with its process.
	lockName = "@proxima.dev/kernel-mode"
	// lockTimeout is how long a mode waits for another agent to end: an upgrade starts the new
	// one early.
	lockTimeout = 10 * time.Second
	lockPause   = 100 * time.Millisecond
	// lockAnswer bounds the wait for the name of the holder, in time and bytes.
	lockAnswer      = time.Second
	lockDescription = 1 << 10
)

// lock is held by the one agent of a network namespace that programs its kernel.
type lock struct{ listener *net.UnixListener }

// takeLock waits for the lock until timeout, and fails with a *HeldError after that. A lock
// that a process of another, unprivileged user holds is none, since that process could not be an
// agent of a kernel mode; the result is nil then.
func takeLock(ctx context.Context, name, owner string, timeout time.Duration, log *slog.Logger) (*lock, error) {
	until := time.Now().Add(timeout)
	for said := false; ; said = true {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
		if err == nil {
			held := &lock{l}
			go held.answer(fmt.Sprintf("pid %d, %s", os.Getpid(), owner))
			return held, nil
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			return nil, fmt.Errorf("taking the lock of this network namespace's kernel modes: %w", err)
		}
		holder, privileged, err := askHolder(name)
		switch {
		case errors.Is(err, unix.ECONNREFUSED):
			continue // it has just ended
		case !privileged:
			log.Warn("a process that cannot program the kernel has the name of the lock of kernel modes, so the lock is not used", "socket", name, "holder", holder)
			return nil, nil
		case time.Now().After(until):
			return nil, &HeldError{Holder: holder}
		case !said:
			log.Info("another agent carries the traffic of this network namespace; this one waits for its end", "holder", holder, "timeout", timeout)
		}
		if !backoff.Sleep(ctx, lockPause) {
			return nil, ctx.Err()
		}
	}
}

// askHolder for its description. privileged: it is root's, or this user's.
func askHolder(name string) (holder string, privileged bool, err error) {
	c, err := net.DialTimeout("unix", name, lockAnswer)
	if err != nil {
		return "a process that does not answer", true, err
	}
	defer func() { _ = c.Close() }()
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return "", true, err
	}
	var cred *unix.Ucred
	if err := errors.Join(raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }), err); err != nil {
		return "", true, err
	}
	if cred.Uid != 0 && int(cred.Uid) != os.Geteuid() {
		return fmt.Sprintf("pid %d of user %d", cred.Pid, cred.Uid), false, nil
	}
	_ = c.SetReadDeadline(time.Now().Add(lockAnswer))
	text, _ := io.ReadAll(io.LimitReader(c, lockDescription)) // of an agent that is stopped, nothing
	if holder = strings.TrimSpace(string(text)); holder == "" {
		holder = fmt.Sprintf("pid %d", cred.Pid)
	}
	return holder, true, nil
}

// answer tells others who has the lock, until it is released.
func (l *lock) answer(text string) {
	for {
		c, err := l.listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(lockPause) // no file descriptors, for the moment
			continue
		}
		_ = c.SetWriteDeadline(time.Now().Add(lockAnswer))
		_, _ = io.WriteString(c, text)
		_ = c.Close()
	}
}

// release is for a nil lock, too.
func (l *lock) release() {
	if l != nil {
		_ = l.listener.Close()
	}
}
