// Package archive writes tar and zip files whose bytes depend on their contents alone.
//
// Enter at Tar, Gzip and Zip. Entries are written in the order of their names, with one time
// and without names of users.
package archive

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"cmp"
	"compress/gzip"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"
)

// Entry is a file or a directory.
type Entry struct {
	// Name with slashes; that of a directory ends with one.
	Name string
	// Mode are the permissions, with the sticky bit where it is wanted.
	Mode fs.FileMode
	// Data of a file, or Path of one with it.
	Data []byte
	Path string
	// Owner and its group are this number.
	Owner int
}

func (e Entry) directory() bool { return strings.HasSuffix(e.Name, "/") }

func (e Entry) open() (io.ReadCloser, int64, error) {
	if e.Path == "" {
		return io.NopCloser(bytes.NewReader(e.Data)), int64(len(e.Data)), nil
	}
	f, err := os.Open(e.Path)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err != nil {
		_ = f.Close()
		return nil, 0, err
	}
	return f, info.Size(), nil
}

func sorted(entries []Entry) []Entry {
	entries = slices.Clone(entries)
	slices.SortFunc(entries, func(a, b Entry) int { return cmp.Compare(a.Name, b.Name) })
	return entries
}

// Tar writes a tar file. Times are whole seconds.
func Tar(w io.Writer, entries []Entry, at time.Time) error {
	out := tar.NewWriter(w)
	for _, e := range sorted(entries) {
		if err := writeTar(out, e, at); err != nil {
			return fmt.Errorf("%s: %w", e.Name, err)
		}
	}
	return out.Close()
}

func writeTar(out *tar.Writer, e Entry, at time.Time) error {
	h := &tar.Header{
		Typeflag: tar.TypeReg, Name: e.Name, Mode: int64(e.Mode.Perm()), ModTime: at.Truncate(time.Second).UTC(), Uid: e.Owner, Gid: e.Owner, Format: tar.FormatPAX,
	}
	if e.Mode&fs.ModeSticky != 0 {
		h.Mode |= 0o1000 // S_ISVTX, inode(7)
	}
	if e.directory() {
		h.Typeflag = tar.TypeDir
		return out.WriteHeader(h)
	}
	in, size, err := e.open()
	if err != nil {
		return err
	}
	defer in.Close()
	h.Size = size
	if err := out.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return err
}

// Gzip writes what a function writes, compressed.
func Gzip(w io.Writer, write func(io.Writer) error) error {
	out := gzip.NewWriter(w)
	if err := write(out); err != nil {
		return err
	}
	return out.Close()
}

// Zip writes a zip file.
func Zip(w io.Writer, entries []Entry, at time.Time) error {
	out := zip.NewWriter(w)
	for _, e := range sorted(entries) {
		if err := writeZip(out, e, at); err != nil {
			return fmt.Errorf("%s: %w", e.Name, err)
		}
	}
	return out.Close()
}

func writeZip(out *zip.Writer, e Entry, at time.Time) error {
	h := &zip.FileHeader{Name: e.Name, Method: zip.Deflate, Modified: at.Truncate(time.Second).UTC()}
	h.SetMode(e.Mode)
	if e.directory() {
		h.Method = zip.Store
		h.SetMode(e.Mode | fs.ModeDir)
	}
	to, err := out.CreateHeader(h)
	if err != nil || e.directory() {
		return err
	}
	in, _, err := e.open()
	if err != nil {
		return err
	}
	defer in.Close()
	_, err = io.Copy(to, in)
	return err
}

// Gzipped is data, compressed.
func Gzipped(data []byte) ([]byte, error) {
	var out bytes.Buffer
	err := Gzip(&out, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
	return out.Bytes(), err
}
