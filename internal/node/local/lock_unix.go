//go:build unix

package local

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Lock takes the directory of an agent for this process, until release is called
// or the process ends. It fails with an InUseError if another process has it. It
// writes nothing, so a read-only file system is no obstacle.
func Lock(dir string) (release func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("lock the agent's directory: %w", err)
	}
	switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		_ = f.Close()
		return nil, &InUseError{Path: dir}
	case err != nil:
		// NFS locks files that are open for writing only. The socket is then what
		// shows that there is another agent.
		_ = f.Close()
		return func() {}, nil
	}
	return func() { _ = f.Close() }, nil
}

// checkOwner refuses a directory that another user could write to.
func checkOwner(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.IsDir():
		return fmt.Errorf("%s is not a directory", dir)
	case ok && int(owner.Uid) != os.Geteuid() && owner.Uid != 0:
		return fmt.Errorf("%s belongs to user %d", dir, owner.Uid)
	case info.Mode().Perm()&0o022 != 0 && info.Mode()&fs.ModeSticky == 0:
		return fmt.Errorf("%s can be written by others (%04o)", dir, info.Mode().Perm())
	}
	return nil
}
