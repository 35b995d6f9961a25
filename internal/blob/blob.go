// Package blob keeps immutable, named files elsewhere: in a directory, such as a mount of another machine, or in an object
// store that speaks the protocol of Amazon S3.
//
// It owns that a name is listed only if all of its bytes are there as they were given. Enter at Open. It never interprets
// what it keeps, and takes credentials only from where the tools of AWS find them.
package blob

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/url"
	"path/filepath"
	"strings"
	"time"
)

// Target is a place of blobs. Safe for concurrent use. All methods block for the target and end with ctx. Errors name
// the target and the blob.
type Target interface {
	// Put stores the first size bytes of from, whose SHA-256 is sum, under a name that has slashes between its parts. When
	// it returns nil, the target was seen to have just that. After an error the name is absent, or has what
	// it had; with a target that stores wrong bytes it is deleted. Idempotent.
	Put(ctx context.Context, name string, from io.ReaderAt, size int64, sum [sha256.Size]byte) error
	// Get writes what is stored under a name. Errors: ErrNotFound. w may have a part after an error.
	Get(ctx context.Context, name string, w io.Writer) error
	// List returns what has a name below a prefix, which is empty or ends in a slash, in order of names.
	List(ctx context.Context, prefix string) ([]Info, error)
	// Delete removes a name. What is absent is no error.
	Delete(ctx context.Context, name string) error
	// String is the target as a user names it, without secrets.
	String() string
}

// Info describes a blob.
type Info struct {
	Name string
	Size int64
	// Modified is when the target has taken it.
	Modified time.Time
}

// ErrNotFound is returned by Get for a name that is not there.
var ErrNotFound = errors.New("it is not there")

// ChecksumError reports that a target has other bytes than it was given.
type ChecksumError struct {
	Target, Name string
	// Got and Want are SHA-256 in hexadecimal.
	Got, Want string
}

func (e *ChecksumError) Error() string {
	return fmt.Sprintf("%s: %s: the checksum of what is stored is SHA-256 %s, not %s", e.Target, e.Name, e.Got, e.Want)
}

// Open returns the target of a location: a directory, or s3://BUCKET/PREFIX?endpoint=URL&region=NAME. It asks nothing of the
// target yet. Options of an s3 URL:
//   - endpoint: the address of the object store, as minio.example.com:9000; default: Amazon's. With http:// before it, it is
//     reached without TLS.
//   - region: default AWS_REGION, AWS_DEFAULT_REGION, else us-east-1.
//   - path-style: true or false, whether the bucket is in the path or in the host name; default: by the endpoint.
//
// Credentials come from the environment (AWS_ACCESS_KEY_ID, …), the files of AWS, or the role of the machine.
func Open(location string) (Target, error) {
	if !strings.Contains(location, "://") {
		if location == "" {
			return nil, errors.New("want a directory, or s3://BUCKET/PREFIX")
		}
		dir, err := filepath.Abs(location)
		if err != nil {
			return nil, err
		}
		return &Dir{dir: dir}, nil
	}
	u, err := url.Parse(location)
	if err != nil {
		return nil, errors.New("it is not a URL; want s3://BUCKET/PREFIX?endpoint=HOST:PORT") // err could repeat a password
	}
	if u.Scheme != "s3" {
		return nil, fmt.Errorf("the scheme %q is not known: want a directory, or s3://BUCKET/PREFIX", u.Scheme)
	}
	return openS3(u)
}

// Sum returns the SHA-256 of the first size bytes of a file.
func Sum(from io.ReaderAt, size int64) (out [sha256.Size]byte, err error) {
	h := sha256.New()
	if n, err := io.Copy(h, io.NewSectionReader(from, 0, size)); err != nil {
		return out, err
	} else if n != size {
		return out, io.ErrUnexpectedEOF
	}
	h.Sum(out[:0])
	return out, nil
}

// checkName refuses names that would leave the target, or that are kept for files that are not complete.
func checkName(name string) error {
	if name == "" || !filepath.IsLocal(filepath.FromSlash(name)) {
		return fmt.Errorf("%q is no name of a blob: want a relative path", name)
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || part[0] == '.' {
			return fmt.Errorf("%q is no name of a blob: its parts must not be empty or begin with a dot", name)
		}
	}
	return nil
}

// compare the hash of what was read back.
func compare(target, name string, got hash.Hash, want [sha256.Size]byte) error {
	if sum := hex.EncodeToString(got.Sum(nil)); sum != hex.EncodeToString(want[:]) {
		return &ChecksumError{Target: target, Name: name, Got: sum, Want: hex.EncodeToString(want[:])}
	}
	return nil
}
