package modes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/windows"

	"github.com/proxima-mesh/proxima/internal/backoff"
)

const (
	// lockName is a file of the machine, which one process at a time has open for writing.
	lockName = "kernelspace.lock"
	// lockTimeout is how long a mode waits for another agent to end: an upgrade starts the new one early.
	lockTimeout = 10 * time.Second
	lockPause   = 100 * time.Millisecond
	// lockDescription bounds the name of the holder, in bytes.
	lockDescription = 1 << 10
)

// lock is held by the one agent that programs HNS. It ends with its process.
type lock struct{ file *os.File }

// takeLock waits for the lock until timeout, and fails with a *HeldError after that.
func takeLock(ctx context.Context, name, owner string, timeout time.Duration, log *slog.Logger) (*lock, error) {
	path := filepath.Join(filepath.Dir(kernelspaceState()), name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("taking the lock of HNS: %w", err)
	}
	until := time.Now().Add(timeout)
	for said := false; ; said = true {
		l, err := openLock(path, fmt.Sprintf("pid %d, %s", os.Getpid(), owner))
		if err == nil {
			return l, nil
		}
		if !errors.Is(err, windows.ERROR_SHARING_VIOLATION) {
			return nil, fmt.Errorf("taking the lock of HNS: %w", err)
		}
		holder := lockHolder(path)
		if time.Now().After(until) {
			return nil, &HeldError{Holder: holder}
		}
		if !said {
			log.Info("another agent carries the traffic of this machine; this one waits for its end", "holder", holder, "timeout", timeout)
		}
		if !backoff.Sleep(ctx, lockPause) {
			return nil, ctx.Err()
		}
	}
}

// openLock opens the file such that others can read it, and not write.
func openLock(path, owner string) (*lock, error) {
	name, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return nil, err
	}
	handle, err := windows.CreateFile(name, windows.GENERIC_WRITE, windows.FILE_SHARE_READ, nil, windows.CREATE_ALWAYS, windows.FILE_ATTRIBUTE_NORMAL, 0)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(handle), path)
	if _, err := file.WriteString(owner); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &lock{file}, nil
}

func lockHolder(path string) string {
	const unknown = "a process that does not say who it is"
	file, err := os.Open(path)
	if err != nil {
		return unknown
	}
	defer func() { _ = file.Close() }()
	text, err := io.ReadAll(io.LimitReader(file, lockDescription))
	if err != nil {
		return unknown
	}
	return cmp.Or(strings.TrimSpace(string(text)), unknown)
}

// release the lock; a nil one is none.
func (l *lock) release() {
	if l != nil {
		_ = l.file.Close()
	}
}
