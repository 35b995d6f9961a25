package seglog

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
)

var errLost = errors.New("input/output error")

// playedDisk is a file system in memory that knows what a loss of power would leave: of each write that was not synced any
// part of its sectors, of each name that was not synced the old or the new one.
type playedDisk struct {
	rand *rand.Rand

	mu sync.Mutex
	// files by name as the system sees them; durable as the disk has them.
	files, durable map[string]*playedFile
	// roots by directory.
	roots map[string]*playedRoot
	lying bool // syncs do nothing
	// replaced are the names that a rename gave to another file, since the directory was synced: they are never absent.
	replaced map[string]bool
}

type playedRoot struct {
	lost        bool
	space, used int64 // bytes; space 0: without bound
	failWrites  int   // the nth from now fails, after a part of it; 0: none
	failSyncs   int
}

type playedFile struct {
	data, durable []byte
	writes        []played
}

type played struct {
	at   int64
	data []byte // nil: truncated to at
}

const sector = 512

func newPlayedDisk(r *rand.Rand, roots ...string) *playedDisk {
	d := &playedDisk{rand: r, files: map[string]*playedFile{}, durable: map[string]*playedFile{}, roots: map[string]*playedRoot{}, replaced: map[string]bool{}}
	for _, root := range roots {
		d.roots[root] = &playedRoot{}
	}
	return d
}

func (d *playedDisk) root(name string) (*playedRoot, error) {
	r := d.roots[filepath.Dir(name)]
	if r == nil || r.lost {
		return nil, fmt.Errorf("%s: %w", name, errLost)
	}
	return r, nil
}

func (d *playedDisk) Create(name string) (File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := d.root(name); err != nil {
		return nil, err
	}
	if d.files[name] != nil {
		return nil, fs.ErrExist
	}
	f := &playedFile{}
	d.files[name] = f
	return &handle{d, name, f}, nil
}

func (d *playedDisk) Open(name string) (File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := d.root(name); err != nil {
		return nil, err
	}
	f := d.files[name]
	if f == nil {
		return nil, fs.ErrNotExist
	}
	return &handle{d, name, f}, nil
}

func (d *playedDisk) Rename(from, to string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	r, err := d.root(from)
	if err != nil {
		return err
	}
	if old := d.files[to]; old != nil {
		r.used -= int64(len(old.data))
		d.replaced[to] = true
	}
	d.files[to] = d.files[from]
	delete(d.files, from)
	return nil
}

func (d *playedDisk) Remove(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	r, err := d.root(name)
	if err != nil {
		return err
	}
	if f := d.files[name]; f != nil {
		r.used -= int64(len(f.data))
	}
	delete(d.files, name)
	delete(d.replaced, name)
	return nil
}

func (d *playedDisk) List(dir string) ([]string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := d.root(dir + "/x"); err != nil {
		return nil, err
	}
	var out []string
	for name := range d.files {
		if rest, ok := strings.CutPrefix(name, dir+"/"); ok {
			out = append(out, rest)
		}
	}
	slices.Sort(out)
	return out, nil
}

func (d *playedDisk) SyncDir(dir string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := d.root(dir + "/x"); err != nil || d.lying {
		return err
	}
	maps.DeleteFunc(d.durable, func(name string, _ *playedFile) bool { return filepath.Dir(name) == dir })
	for name, f := range d.files {
		if filepath.Dir(name) == dir {
			d.durable[name] = f
		}
	}
	maps.DeleteFunc(d.replaced, func(name string, _ bool) bool { return filepath.Dir(name) == dir })
	return nil
}

func (d *playedDisk) Space(dir string) (free, total uint64, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r, err := d.root(dir + "/x")
	if err != nil {
		return 0, 0, err
	}
	if r.space == 0 {
		return 1 << 40, 1 << 41, nil
	}
	return uint64(max(r.space-r.used, 0)), uint64(r.space), nil
}

// crash loses power: what was not synced is there in any part.
func (d *playedDisk) crash() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, f := range d.files {
		if d.durable[name] != f && d.rand.IntN(2) == 0 {
			d.durable[name] = f
		}
	}
	for name, f := range d.durable {
		if d.files[name] != f && !d.replaced[name] && d.rand.IntN(2) == 0 {
			delete(d.durable, name)
		}
	}
	clear(d.replaced)
	d.files = maps.Clone(d.durable)
	done := map[*playedFile]bool{}
	for _, f := range d.files {
		if done[f] {
			continue
		}
		done[f] = true
		image := slices.Clone(f.durable)
		for _, w := range f.writes {
			image = d.maybe(image, w)
		}
		f.data, f.durable, f.writes = image, slices.Clone(image), nil
	}
	for dir, r := range d.roots {
		r.used = 0
		for name, f := range d.files {
			if filepath.Dir(name) == dir {
				r.used += int64(len(f.data))
			}
		}
	}
}

// maybe applies any sectors of a write.
func (d *playedDisk) maybe(image []byte, w played) []byte {
	switch d.rand.IntN(3) {
	case 0:
		return image
	case 1:
		return applied(image, w)
	}
	for at := 0; at < len(w.data); at += sector {
		if d.rand.IntN(2) == 0 {
			image = applied(image, played{w.at + int64(at), w.data[at:min(at+sector, len(w.data))]})
		}
	}
	return image
}

func applied(image []byte, w played) []byte {
	end := w.at + int64(len(w.data))
	if w.data == nil {
		return image[:min(w.at, int64(len(image)))]
	}
	for int64(len(image)) < end {
		image = append(image, 0)
	}
	copy(image[w.at:], w.data)
	return image
}

type handle struct {
	disk *playedDisk
	name string
	file *playedFile
}

func (h *handle) ReadAt(p []byte, at int64) (int, error) {
	h.disk.mu.Lock()
	defer h.disk.mu.Unlock()
	if _, err := h.disk.root(h.name); err != nil {
		return 0, err
	}
	if at >= int64(len(h.file.data)) {
		return 0, io.EOF
	}
	n := copy(p, h.file.data[at:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (h *handle) WriteAt(p []byte, at int64) (int, error) {
	h.disk.mu.Lock()
	defer h.disk.mu.Unlock()
	r, err := h.disk.root(h.name)
	if err != nil {
		return 0, err
	}
	if r.failWrites > 0 {
		if r.failWrites--; r.failWrites == 0 {
			err = errLost
		}
	}
	if grown := at + int64(len(p)) - int64(len(h.file.data)); grown > 0 {
		if r.space > 0 && r.used+grown > r.space {
			err = syscall.ENOSPC
		} else {
			r.used += grown
		}
	}
	if err != nil {
		p = p[:h.disk.rand.IntN(len(p)+1)]
	}
	w := played{at, slices.Clone(p)}
	if len(p) > 0 {
		h.file.data = applied(h.file.data, w)
		h.file.writes = append(h.file.writes, w)
	}
	return len(p), err
}

func (h *handle) Sync() error {
	h.disk.mu.Lock()
	defer h.disk.mu.Unlock()
	r, err := h.disk.root(h.name)
	if err != nil {
		return err
	}
	if r.failSyncs > 0 {
		if r.failSyncs--; r.failSyncs == 0 {
			for _, w := range h.file.writes { // the pages are dropped, and count as clean
				h.file.durable = h.disk.maybe(h.file.durable, w)
			}
			h.file.writes = nil
			return errLost
		}
	}
	if !h.disk.lying {
		h.file.durable, h.file.writes = slices.Clone(h.file.data), nil
	}
	return nil
}

func (h *handle) Truncate(size int64) error {
	h.disk.mu.Lock()
	defer h.disk.mu.Unlock()
	if _, err := h.disk.root(h.name); err != nil {
		return err
	}
	w := played{at: size}
	h.file.data = applied(h.file.data, w)
	h.file.writes = append(h.file.writes, w)
	return nil
}

func (h *handle) Size() (int64, error) { return int64(len(h.file.data)), nil }
func (h *handle) Close() error         { return nil }
