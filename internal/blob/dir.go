package blob

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/proxima-mesh/proxima/internal/atomicfile"
)

const (
	tempPrefix = ".new-"
	// tempAge is how old a file is that was not completed, when it is removed.
	tempAge = 24 * time.Hour
)

// Dir is a Target in a directory, which is made when it is written to first. Files are of the user alone.
type Dir struct{ dir string }

var _ Target = (*Dir)(nil)

// String implements Target.
func (d *Dir) String() string { return d.dir }

func (d *Dir) file(name string) string { return filepath.Join(d.dir, filepath.FromSlash(name)) }

// Put implements Target.
func (d *Dir) Put(ctx context.Context, name string, from io.ReaderAt, size int64, sum [sha256.Size]byte) error {
	if err := checkName(name); err != nil {
		return err
	}
	file := d.file(name)
	dir := filepath.Dir(file)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	d.sweep(dir)
	tmp, err := os.CreateTemp(dir, tempPrefix+"*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = io.Copy(tmp, reader(ctx, io.NewSectionReader(from, 0, size)))
	if err == nil {
		err = tmp.Sync()
	}
	if err == nil {
		err = d.check(ctx, tmp.Name(), name, sum)
	}
	if err = errors.Join(err, tmp.Close()); err != nil {
		return err
	}
	if err := os.Rename(tmp.Name(), file); err != nil {
		return err
	}
	for dir != d.dir && len(dir) > len(d.dir) {
		if err := atomicfile.SyncDir(dir); err != nil {
			return err
		}
		dir = filepath.Dir(dir)
	}
	return atomicfile.SyncDir(dir)
}

// check reads a file back.
func (d *Dir) check(ctx context.Context, file, name string, want [sha256.Size]byte) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, reader(ctx, f)); err != nil {
		return err
	}
	return compare(d.dir, name, h, want)
}

// sweep removes what others began and did not complete.
func (d *Dir) sweep(dir string) {
	old, _ := filepath.Glob(filepath.Join(dir, tempPrefix+"*"))
	for _, name := range old {
		if info, err := os.Stat(name); err == nil && time.Since(info.ModTime()) > tempAge {
			_ = os.Remove(name)
		}
	}
}

// Get implements Target.
func (d *Dir) Get(ctx context.Context, name string, w io.Writer) error {
	if err := checkName(name); err != nil {
		return err
	}
	f, err := os.Open(d.file(name))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %s: %w", d.dir, name, ErrNotFound)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, reader(ctx, f))
	return err
}

// List implements Target.
func (d *Dir) List(ctx context.Context, prefix string) ([]Info, error) {
	if _, err := os.Stat(d.dir); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil // nothing was written yet
		}
		return nil, err
	}
	var out []Info
	err := filepath.WalkDir(d.file(prefix), func(file string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || ctx.Err() != nil {
			return cmp.Or(err, ctx.Err())
		}
		if strings.HasPrefix(e.Name(), ".") && file != d.dir {
			if e.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if !e.Type().IsRegular() {
			return nil
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		name, relative := filepath.Rel(d.dir, file)
		if err := cmp.Or(err, relative); err != nil {
			return err
		}
		out = append(out, Info{Name: filepath.ToSlash(name), Size: info.Size(), Modified: info.ModTime()})
		return nil
	})
	slices.SortFunc(out, func(a, b Info) int { return cmp.Compare(a.Name, b.Name) })
	return out, err
}

// Delete implements Target.
func (d *Dir) Delete(_ context.Context, name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	if err := os.Remove(d.file(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// reader ends with ctx.
func reader(ctx context.Context, r io.Reader) io.Reader { return &stopped{ctx, r} }

type stopped struct {
	ctx context.Context
	r   io.Reader
}

func (s *stopped) Read(p []byte) (int, error) {
	if err := s.ctx.Err(); err != nil {
		return 0, err
	}
	return s.r.Read(p)
}
