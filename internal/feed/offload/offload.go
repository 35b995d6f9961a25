// Package offload keeps sealed segments of the change feed in a blob.Target, and reads them from there.
//
// It owns the names of segments at a target, that what is uploaded is whole, and the local cache of what is read. Enter at New.
// It never decides when a segment leaves the roots. Names have what the segment has, and its checksum, so instances whose segments
// are different keep them side by side, and the same segment has one name.
package offload

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"time"

	"github.com/proxima-mesh/proxima/internal/blob"
	"github.com/proxima-mesh/proxima/internal/feed/seglog"
)

const (
	// DefaultCacheBytes of segments that were read from a target are kept locally.
	DefaultCacheBytes = 256 << 20
	// transferTimeout of one segment.
	transferTimeout = 10 * time.Minute

	folder = "segments/"
)

// Config of an Offloader. Target and Cache are required.
type Config struct {
	Target blob.Target
	// Cache is a directory of its own for segments that are read; what it has is removed. CacheBytes bounds it, but for one
	// segment; 0: DefaultCacheBytes.
	Cache      string
	CacheBytes int64
	Logger     *slog.Logger // nil: discard
}

// Offloader is a seglog.Tier at a target. Make it with New. Safe for concurrent use.
type Offloader struct {
	cfg Config

	mu    sync.Mutex
	files map[string]*cached // by name
	clock int64              // rises with each use of a file
}

var _ seglog.Tier = (*Offloader)(nil)

// New returns an Offloader. It asks nothing of the target yet.
func New(cfg Config) (*Offloader, error) {
	cfg.CacheBytes = cmp.Or(cfg.CacheBytes, DefaultCacheBytes)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	old, err := filepath.Glob(filepath.Join(cfg.Cache, "*"+suffix))
	if err != nil {
		return nil, err
	}
	for _, name := range old {
		if err := os.Remove(name); err != nil {
			return nil, err
		}
	}
	return &Offloader{cfg: cfg, files: map[string]*cached{}}, nil
}

// Target as a user names it.
func (o *Offloader) Target() string { return o.cfg.Target.String() }

const suffix = ".seg"

// Name of a segment at a target: segments/EPOCH/AFTER-COMPLETE-NEWEST-SHA256.seg.
func Name(r seglog.Remote) string {
	return fmt.Sprintf("%s%s/%020d-%020d-%015d-%s%s", folder, url.PathEscape(r.Epoch), r.After, r.Complete, r.Newest, r.SHA256, suffix)
}

var names = regexp.MustCompile(`^` + folder + `([^/]+)/(\d{20})-(\d{20})-(\d{15})-([0-9a-f]{64})\.seg$`)

// parse a name; ok is false for what is not a segment's.
func parse(name string) (r seglog.Remote, ok bool) {
	m := names.FindStringSubmatch(name)
	if m == nil {
		return r, false
	}
	epoch, err := url.PathUnescape(m[1])
	after, err1 := strconv.ParseInt(m[2], 10, 64)
	complete, err2 := strconv.ParseInt(m[3], 10, 64)
	newest, err3 := strconv.ParseInt(m[4], 10, 64)
	r = seglog.Remote{Name: name, Epoch: epoch, After: seglog.Position(after), Complete: seglog.Position(complete), Newest: newest, SHA256: m[5]}
	return r, errors.Join(err, err1, err2, err3) == nil && complete > after && Name(r) == name
}

// List returns the segments at the target, of all epochs. It blocks for the target.
func (o *Offloader) List(ctx context.Context) ([]seglog.Remote, error) {
	all, err := o.cfg.Target.List(ctx, folder)
	if err != nil {
		return nil, err
	}
	var out []seglog.Remote
	for _, b := range all {
		if r, ok := parse(b.Name); ok {
			out = append(out, r)
		}
	}
	return out, nil
}

// Upload a sealed segment of a log. When it returns nil, the target was seen to have it as it is. It blocks for the target.
// Errors: fs.ErrNotExist if the log does not have the segment any more.
func (o *Offloader) Upload(ctx context.Context, log *seglog.Log, sha256 string) (seglog.Remote, error) {
	f, size, r, err := log.OpenSegment(sha256)
	if err != nil {
		return r, err
	}
	defer f.Close()
	sum, err := blob.Sum(f, size)
	if err != nil {
		return r, err
	}
	ctx, cancel := context.WithTimeout(ctx, transferTimeout)
	defer cancel()
	r.Name = Name(r)
	return r, o.cfg.Target.Put(ctx, r.Name, f, size, sum)
}

// Delete a segment at the target, and what is kept of it locally.
func (o *Offloader) Delete(ctx context.Context, r seglog.Remote) error {
	if err := o.cfg.Target.Delete(ctx, r.Name); err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	c := o.files[r.Name]
	if c == nil {
		return nil
	}
	delete(o.files, r.Name)
	select {
	case <-c.ready:
		c.release()
	default: // it is being read; fetch releases it
	}
	return nil
}

// Edit writes a segment at the target anew, as an editor changes it. The old one stays; it is the caller's to Delete. Remote is the new
// one, if entries were changed. It blocks for the target. Errors: blob.ErrNotFound; *seglog.RemoteDamagedError; those of the editor and
// of the target.
func (o *Offloader) Edit(ctx context.Context, r seglog.Remote, ed seglog.Editor) (out seglog.Edited, err error) {
	from, size, err := o.download(ctx, r)
	if err != nil {
		return out, err
	}
	defer remove(from, &err)
	to, err := os.CreateTemp(o.cfg.Cache, "*"+suffix)
	if err != nil {
		return out, err
	}
	defer remove(to, &err)
	if out, err = seglog.EditFile(from, size, to, ed); err != nil || out.Entries == 0 {
		return out, err
	}
	sum, err := blob.Sum(to, out.Size)
	if err != nil {
		return out, err
	}
	ctx, cancel := context.WithTimeout(ctx, transferTimeout)
	defer cancel()
	out.Remote.Name = Name(out.Remote)
	return out, o.cfg.Target.Put(ctx, out.Remote.Name, to, out.Size, sum)
}

// remove a file that was needed for a while.
func remove(f *os.File, err *error) { *err = errors.Join(*err, f.Close(), os.Remove(f.Name())) }

// Check reads a segment at the target, and compares it with its name.
func (o *Offloader) Check(ctx context.Context, r seglog.Remote) error {
	f, _, err := o.download(ctx, r)
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// cached is a segment that was read.
type cached struct {
	ready chan struct{} // closed when what follows is known
	err   error
	size  int64
	used  int64 // guarded by Offloader.mu

	mu   sync.RWMutex
	file *os.File // nil: it was released
}

// ReadAt implements io.ReaderAt.
func (c *cached) ReadAt(p []byte, at int64) (int, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.file == nil {
		return 0, fs.ErrClosed
	}
	return c.file.ReadAt(p, at)
}

func (c *cached) release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.file != nil {
		_ = c.file.Close()
		_ = os.Remove(c.file.Name())
		c.file = nil
	}
}

// Open implements seglog.Tier. A download goes on when ctx ends, for others and for the next time.
func (o *Offloader) Open(ctx context.Context, r seglog.Remote) (io.ReaderAt, int64, error) {
	o.mu.Lock()
	o.clock++
	c := o.files[r.Name]
	if c == nil {
		c = &cached{ready: make(chan struct{})}
		o.files[r.Name] = c
		go o.fetch(context.WithoutCancel(ctx), r, c)
	}
	c.used = o.clock
	o.mu.Unlock()
	select {
	case <-c.ready:
	case <-ctx.Done():
		return nil, 0, ctx.Err()
	}
	if c.err != nil {
		return nil, 0, c.err
	}
	return c, c.size, nil
}

func (o *Offloader) fetch(ctx context.Context, r seglog.Remote, c *cached) {
	f, size, err := o.download(ctx, r)
	c.file, c.size, c.err = f, size, err
	o.mu.Lock()
	defer o.mu.Unlock()
	close(c.ready)
	switch {
	case o.files[r.Name] != c: // it was deleted meanwhile
		if err == nil {
			c.release()
		}
	case err != nil:
		delete(o.files, r.Name) // the next one tries again
	default:
		o.shrink(c)
	}
}

// shrink the cache to its bound, but for one that is kept. o.mu is held.
func (o *Offloader) shrink(keep *cached) {
	for {
		total := int64(0)
		oldest := ""
		for name, c := range o.files {
			select {
			case <-c.ready:
			default:
				continue
			}
			if total += c.size; c != keep && (oldest == "" || c.used < o.files[oldest].used) {
				oldest = name
			}
		}
		if total <= o.cfg.CacheBytes || oldest == "" {
			return
		}
		o.files[oldest].release()
		delete(o.files, oldest)
	}
}

// download a segment into a file of the cache, and check it. Errors: *seglog.RemoteDamagedError.
func (o *Offloader) download(ctx context.Context, r seglog.Remote) (f *os.File, size int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, transferTimeout)
	defer cancel()
	if err := os.MkdirAll(o.cfg.Cache, 0o700); err != nil {
		return nil, 0, err
	}
	if f, err = os.CreateTemp(o.cfg.Cache, "*"+suffix); err != nil {
		return nil, 0, err
	}
	err = o.cfg.Target.Get(ctx, r.Name, f)
	if err == nil {
		size, err = f.Seek(0, io.SeekCurrent)
	}
	if err == nil {
		err = check(f, size, r)
	}
	if err != nil {
		return nil, 0, errors.Join(err, f.Close(), os.Remove(f.Name()))
	}
	return f, size, nil
}

func check(f io.ReaderAt, size int64, r seglog.Remote) error {
	got, err := seglog.CheckFile(f, size)
	got.Name = r.Name
	if err == nil && got != r {
		err = errors.New("it is not the segment that its name tells")
	}
	if err != nil {
		return &seglog.RemoteDamagedError{Name: r.Name, Err: err}
	}
	return nil
}

// Close releases the cache. Readers of it get fs.ErrClosed.
func (o *Offloader) Close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for name, c := range o.files {
		select {
		case <-c.ready:
			c.release()
			delete(o.files, name)
		default: // its file is removed when the cache is opened again
		}
	}
}
