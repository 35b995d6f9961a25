//go:build unix

package sqlite

import (
	"errors"
	"os"
	"syscall"
)

func lockFile(f *os.File) (held bool, err error) {
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return true, nil
	}
	return false, err
}

// lockData locks the state itself. The locks that SQLite takes are of another kind (fcntl), and
// both go together when the file is closed, so the lock is released last.
func lockData(path string) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil { // there is none yet, or SQLite says better what is wrong with it
		return nil, nil //nolint:nilerr,nilnil // see above
	}
	held, err := lockFile(f)
	if held {
		err = &InUseError{}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
