package local

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// Listen opens the socket of the agent of a data directory, at the first of
// Sockets that works. What a dead agent left there is replaced. It fails with an
// InUseError if another agent answers there or hangs. Only the agent's user, and
// root, can connect. Closing the listener removes the socket.
func Listen(dataDir string) (net.Listener, error) {
	var errs []error
	for _, path := range Sockets(dataDir) {
		l, err := listenAt(path)
		if err == nil {
			return l, nil
		}
		var used *InUseError
		if errors.As(err, &used) {
			return nil, err
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

func listenAt(path string) (net.Listener, error) {
	if err := makeDir(filepath.Dir(path)); err != nil {
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	if err := checkShared(path); err != nil {
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	switch info, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case info.Mode().Type()&(fs.ModeSocket|fs.ModeIrregular) == 0: // Windows calls a socket irregular
		return nil, fmt.Errorf("socket %s: there is something else of that name", path)
	default:
		if answers(path) {
			return nil, &InUseError{Path: path}
		}
	}
	return bind(path)
}

// makeDir makes the directory of a socket.
func makeDir(dir string) error {
	mode := fs.FileMode(0o700)
	if dir == filepath.Dir(SystemSocket) {
		mode = 0o755 // others may see that an agent runs
	}
	return os.MkdirAll(dir, mode)
}

// MakeSocketDir makes the directory of a socket, and refuses one that another user could
// write to.
func MakeSocketDir(path string) error {
	dir := filepath.Dir(path)
	if err := makeDir(dir); err != nil {
		return fmt.Errorf("socket %s: %w", path, err)
	}
	if err := checkOwner(dir); err != nil {
		return fmt.Errorf("socket %s: %w", path, err)
	}
	return nil
}

// checkShared refuses a socket outside of data directories, all of which are
// called node/agent.sock, if another user could have put it there.
func checkShared(path string) error {
	if filepath.Base(filepath.Dir(path)) == "node" {
		return nil
	}
	return checkOwner(filepath.Dir(path))
}

// answers reports whether a process listens on a socket, be it one that hangs.
func answers(path string) bool {
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		_ = conn.Close()
		return true
	}
	// EAGAIN: the queue of a process that does not accept is full.
	return errors.Is(err, syscall.EAGAIN) || errors.Is(err, os.ErrDeadlineExceeded)
}

// bind makes the socket in a directory that only this user can enter, and then
// moves it to its place: at no moment can others connect, and what was at its
// place is replaced at once.
func bind(path string) (net.Listener, error) {
	private, err := os.MkdirTemp(filepath.Dir(path), ".s")
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	defer os.RemoveAll(private)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(private, "s"), Net: "unix"})
	if errors.Is(err, syscall.EINVAL) { // too long with the directory, not without
		_ = os.Remove(path)
		l, err = net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		private = ""
	}
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	l.SetUnlinkOnClose(false)
	made := path
	if private != "" {
		made = filepath.Join(private, "s")
	}
	if err = os.Chmod(made, 0o600); err == nil && made != path {
		err = os.Rename(made, path)
	}
	info, statErr := os.Lstat(path)
	if err = errors.Join(err, statErr); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	return &socketListener{UnixListener: l, path: path, info: info}, nil
}

// socketListener removes its socket when it is closed.
type socketListener struct {
	*net.UnixListener
	path  string
	info  fs.FileInfo
	close sync.Once
}

// Addr is where the socket is.
func (l *socketListener) Addr() net.Addr { return &net.UnixAddr{Name: l.path, Net: "unix"} }

// Close implements net.Listener.
func (l *socketListener) Close() error {
	l.close.Do(func() {
		if now, err := os.Lstat(l.path); err == nil && os.SameFile(now, l.info) {
			_ = os.Remove(l.path)
		}
	})
	return l.UnixListener.Close()
}
