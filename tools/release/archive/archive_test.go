package archive_test

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/tools/release/archive"
)

var at = time.Date(2030, 1, 2, 3, 4, 5, 6, time.FixedZone("", 3600))

// writers of the formats.
var writers = map[string]func(io.Writer, []archive.Entry, time.Time) error{
	"tar": archive.Tar,
	"zip": archive.Zip,
	"tar.gz": func(w io.Writer, entries []archive.Entry, at time.Time) error {
		return archive.Gzip(w, func(w io.Writer) error { return archive.Tar(w, entries, at) })
	},
}

func entries(t *testing.T) []archive.Entry {
	t.Helper()
	file := filepath.Join(t.TempDir(), "b")
	if err := os.WriteFile(file, []byte("from a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	return []archive.Entry{
		{Name: "d/b", Mode: 0o755, Path: file},
		{Name: "d/", Mode: 0o777 | fs.ModeSticky},
		{Name: "a", Mode: 0o644, Data: []byte("data"), Owner: 65532},
	}
}

// TestReproducible: order, times and owners of what is read do not show.
func TestReproducible(t *testing.T) {
	for format, write := range writers {
		var one, other bytes.Buffer
		forwards := entries(t)
		backwards := entries(t) // other files
		slices.Reverse(backwards)
		if err := errors.Join(write(&one, forwards, at), write(&other, backwards, at.UTC())); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(one.Bytes(), other.Bytes()) {
			t.Errorf("%s: two files of the same entries differ", format)
		}
	}
}

func TestTar(t *testing.T) {
	var out bytes.Buffer
	if err := archive.Tar(&out, entries(t), at); err != nil {
		t.Fatal(err)
	}
	var got []string
	for r := tar.NewReader(&out); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%s %o %d:%d %s%s %s", h.Name, h.Mode, h.Uid, h.Gid, h.Uname, h.ModTime.UTC().Format(time.RFC3339Nano), data))
	}
	want := []string{
		"a 644 65532:65532 2030-01-02T02:04:05Z data",
		"d/ 1777 0:0 2030-01-02T02:04:05Z ",
		"d/b 755 0:0 2030-01-02T02:04:05Z from a file",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

func TestZip(t *testing.T) {
	var out bytes.Buffer
	if err := archive.Zip(&out, entries(t), at); err != nil {
		t.Fatal(err)
	}
	r, err := zip.NewReader(bytes.NewReader(out.Bytes()), int64(out.Len()))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range r.File {
		got = append(got, fmt.Sprintf("%s %s %s", f.Name, f.Mode(), f.Modified.UTC().Format(time.RFC3339)))
	}
	want := []string{"a -rw-r--r-- 2030-01-02T02:04:05Z", "d/ dtrwxrwxrwx 2030-01-02T02:04:05Z", "d/b -rwxr-xr-x 2030-01-02T02:04:05Z"}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	data, err := fs.ReadFile(r, "d/b")
	if err != nil || string(data) != "from a file" {
		t.Errorf("%q, %v", data, err)
	}
}

func TestMissingFile(t *testing.T) {
	for format, write := range writers {
		if err := write(io.Discard, []archive.Entry{{Name: "x", Path: filepath.Join(t.TempDir(), "absent")}}, at); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", format, err)
		}
	}
}
