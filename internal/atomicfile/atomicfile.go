// Package atomicfile replaces files so that a crash at any moment, a power failure
// included, leaves the old content or the new one, never a part.
//
// Enter at Write. It is for small files, which are in memory as a whole. It does not
// lock: of two writers at a time, one wins.
package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// ErrNotDurable is in the error of a call that did put the new file in its place, but
// does not know whether it survives a power failure.
var ErrNotDurable = errors.New("the new file is in place, but may be lost in a power failure")

// Write replaces or creates the file at path. Its folder must exist. Once Write
// returns nil, the new content and the name are on disk. After an error the old
// file is unchanged, except for ErrNotDurable.
//
// A private mode (no permissions for group and others) always applies to the new
// file. Otherwise an existing regular file keeps its permissions, and a newly
// created file gets mode, not reduced by the umask. A symbolic link at path is
// replaced, not followed.
func Write(path string, data []byte, mode fs.FileMode) error {
	_, err := Replace(path, data, mode)
	return err
}

// Replace is Write that also returns the FileInfo of the new file from before the
// rename. It is not nil if the error is nil or ErrNotDurable.
func Replace(path string, data []byte, mode fs.FileMode) (fs.FileInfo, error) {
	if old, err := os.Lstat(path); mode&0o077 != 0 && err == nil && old.Mode().IsRegular() {
		mode = old.Mode().Perm()
	}
	return put(path, data, mode, os.Rename)
}

// Create is Write for a file that does not exist. If it does, also made meanwhile by
// another process, it stays and the error is fs.ErrExist.
func Create(path string, data []byte, mode fs.FileMode) error {
	// A link fails where a rename would replace.
	_, err := put(path, data, mode, os.Link)
	return err
}

// put writes a file under another name, then gives it its own.
func put(path string, data []byte, mode fs.FileMode, name func(from, to string) error) (fs.FileInfo, error) {
	dir, prefix := filepath.Dir(path), "."+filepath.Base(path)+"-"
	f, err := os.CreateTemp(dir, prefix+"*"+suffix) // mode 0600
	if err != nil {
		return nil, fmt.Errorf("write %s: %w", path, err)
	}
	defer os.Remove(f.Name()) // it is gone after a rename
	if _, err = f.Write(data); err == nil && mode.Perm() != 0o600 {
		err = f.Chmod(mode.Perm())
	}
	if err == nil {
		err = f.Sync()
	}
	info, statErr := f.Stat()
	if err = errors.Join(err, statErr, f.Close()); err == nil {
		err = name(f.Name(), path)
	}
	if err != nil {
		return nil, fmt.Errorf("write %s: %w", path, err)
	}
	sweep(dir, prefix)
	if err := SyncDir(dir); err != nil {
		return info, fmt.Errorf("write %s: %w: %w", path, ErrNotDurable, err)
	}
	return info, nil
}

const (
	suffix = ".tmp"
	// abandoned is the age of a temporary file whose writer has crashed.
	abandoned = time.Hour
)

// sweep removes what crashes left behind; what it cannot remove stays.
func sweep(dir, prefix string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), prefix) || !strings.HasSuffix(e.Name(), suffix) {
			continue
		}
		if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > abandoned {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
}

// SyncDir makes what happened to the names in a folder durable.
func SyncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil // folders cannot be flushed there; NTFS journals names
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	if errors.Is(err, errors.ErrUnsupported) {
		err = nil // the file system makes names durable otherwise, or not at all
	}
	return errors.Join(err, d.Close())
}
