package sqlite

import (
	"errors"
	"fmt"
	"io"
	"os"
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
}

func acquire(path string) (*lock, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
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
	return &lock{file: f}, nil
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

func (l *lock) release() error { return l.file.Close() }
