package seglog

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/proxima-mesh/proxima/internal/atomicfile"
)

// Disk is what a log needs of a file system. Tests inject faults by it; OS is the machine's.
type Disk interface {
	// Create a file for reading and writing, which must not exist.
	Create(name string) (File, error)
	// Open a file for reading and writing.
	Open(name string) (File, error)
	Rename(from, to string) error
	Remove(name string) error
	// List the names in a directory, which is made if it is missing.
	List(dir string) ([]string, error)
	// SyncDir brings names that were created, renamed or removed to the disk.
	SyncDir(dir string) error
	// Space is how many bytes are free for the caller, and how many the file system has; ErrNoSpaceInfo: it is not
	// known.
	Space(dir string) (free, total uint64, err error)
}

// File of a Disk.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	Size() (int64, error)
	Sync() error
	Truncate(size int64) error
}

// ErrNoSpaceInfo is returned by Disk.Space where the system does not tell.
var ErrNoSpaceInfo = errors.New("the system does not tell how much space is free")

// OS is the file system of the machine. Files are of the user alone.
type OS struct{}

var _ Disk = OS{}

type osFile struct{ *os.File }

func (f osFile) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// Create implements Disk.
func (OS) Create(name string) (File, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

// Open implements Disk.
func (OS) Open(name string) (File, error) {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

// Rename implements Disk.
func (OS) Rename(from, to string) error { return os.Rename(from, to) }

// Remove implements Disk.
func (OS) Remove(name string) error { return os.Remove(name) }

// List implements Disk.
func (OS) List(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(dir, 0o700); err == nil {
			err = atomicfile.SyncDir(filepath.Dir(dir))
		}
		return nil, err
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		if e.Type().IsRegular() {
			names = append(names, e.Name())
		}
	}
	return names, err
}

// SyncDir implements Disk.
func (OS) SyncDir(dir string) error { return atomicfile.SyncDir(dir) }
