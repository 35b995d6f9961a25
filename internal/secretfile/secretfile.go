// Package secretfile reads files with keys in them: never more than a bound, and never
// one that others may have read.
//
// Enter at Read, or at Open for callers that need the file's attributes as well. It never
// writes, and its errors never quote a file.
package secretfile

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
)

// Readers are those who may read a file besides its owner.
type Readers fs.FileMode

// Who may read a file.
const (
	// OwnerOnly allows nobody else.
	OwnerOnly Readers = 0o077
	// OwnersGroup allows the file's group to read: Kubernetes gives mounted Secrets to a
	// group.
	OwnersGroup Readers = 0o027
	// Anyone is for what is no secret, as certificates.
	Anyone Readers = 0
)

// Rule says which files are read.
type Rule struct {
	Readers Readers
	// Max size in bytes; larger files are refused.
	Max int64
	// Advice ends the error about a file that others can read, as in "chmod 600 it".
	Advice string
	// Kind ends the error about a file that is too large, as in "it is no key file".
	Kind string
}

// Read reads a whole file by a rule. Errors: those of the file system.
func Read(path string, r Rule) ([]byte, error) {
	data, _, err := Open(path, r)
	return data, err
}

// Open is Read with the attributes that the file had while it was read.
func Open(path string, r Rule) ([]byte, fs.FileInfo, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	// Windows has access control lists in place of modes.
	if mode := info.Mode().Perm(); runtime.GOOS != "windows" && mode&fs.FileMode(r.Readers) != 0 {
		return nil, nil, fmt.Errorf("%s can be read by others (mode %04o): %s", path, mode, r.Advice)
	}
	data, err := io.ReadAll(io.LimitReader(f, r.Max+1))
	if err != nil {
		return nil, nil, err
	}
	if int64(len(data)) > r.Max {
		return nil, nil, fmt.Errorf("%s has more than %d bytes: %s", path, r.Max, r.Kind)
	}
	return data, info, nil
}
