package sqlite

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// InUseError reports that another process has the state open.
type InUseError struct {
	// PID of the other process; 0 if it is not known.
	PID int
}

func (e *InUseError) Error() string {
	if e.PID == 0 {
		return "it is in use by another process"
	}
	if e.PID == os.Getpid() {
		return fmt.Sprintf("it is open already in this process (%d)", e.PID)
	}
	return fmt.Sprintf("it is in use by process %d; stop that first", e.PID)
}

// lock is held by the one opener of a state. The system releases it when the
// process dies. Its file stays: removing it would race with the next opener.
type lock struct {
	file *os.File
	// data is the state itself, where a second name of it (a link, another mount) has a file of
	// its own for the lock; nil: there was no state yet.
	data *os.File
}

// acquire the lock of the state at path, which need not exist.
func acquire(path string) (*lock, error) {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	f, err := os.OpenFile(path+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("the folder must exist and be writable: %w", err)
	}
	held, err := lockFile(f)
	switch {
	case held:
		err = &InUseError{PID: holder(f)}
	case err == nil:
		err = sign(f)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	l := &lock{file: f}
	if l.data, err = lockData(path); err != nil {
		return nil, errors.Join(err, l.release())
	}
	return l, nil
}

// holder reads the process id that the lock's owner left.
func holder(f *os.File) int {
	content, err := io.ReadAll(io.LimitReader(f, 32))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil {
		return 0
	}
	return pid
}

// sign leaves the process id. A full disk does not keep a store from opening.
func sign(f *os.File) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return nil
}

func (l *lock) release() error {
	if l.data == nil {
		return l.file.Close()
	}
	return errors.Join(l.data.Close(), l.file.Close())
}
