package seglog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
)

// Remote is a sealed segment that a Tier has.
type Remote struct {
	// Name by which the tier knows it.
	Name string
	// Epoch, After, Complete and Newest (Unix, ms) are those of the segment; SHA256 is that of its blocks, in hexadecimal.
	Epoch           string
	After, Complete Position
	Newest          int64
	SHA256          string
}

// Tier has sealed segments somewhere else.
type Tier interface {
	// Open returns the whole file of a segment, and its size. It blocks until that is here. Of a file that was released since, ReadAt
	// returns fs.ErrClosed: it is opened again. Errors: *RemoteDamagedError if the tier has something else under that name.
	Open(ctx context.Context, r Remote) (file io.ReaderAt, size int64, err error)
}

// RemoteDamagedError reports that a tier has not what it was given.
type RemoteDamagedError struct {
	Name string
	Err  error
}

func (e *RemoteDamagedError) Error() string { return fmt.Sprintf("%s: %v", e.Name, e.Err) }

func (e *RemoteDamagedError) Unwrap() error { return e.Err }

// remote is the state of a segment in the tier.
type remote struct {
	Remote
	// loaded: begin and contents of the segment are known, beyond what Remote tells.
	loaded bool
}

// Offloaded tells which segments the tier has, as it lists them; it replaces what was told before. Segments that are not at
// the roots are read from the tier where they fill what is missing before a segment, or before the end of the log, where what is
// missing was skipped. Those of other epochs are left out.
func (l *Log) Offloaded(list []Remote) {
	l.mu.Lock()
	defer l.mu.Unlock()
	known := map[string]Remote{}
	var candidates []Remote
	for _, r := range list {
		if known[r.SHA256] = r; r.Epoch == l.opts.Epoch {
			candidates = append(candidates, r)
		}
	}
	slices.SortFunc(candidates, func(a, b Remote) int {
		return cmp.Or(cmp.Compare(a.After, b.After), cmp.Compare(b.Complete, a.Complete), cmp.Compare(a.SHA256, b.SHA256))
	})
	had := map[string]*segment{}
	var local, out []*segment
	for _, s := range l.segments {
		if s == l.open || len(s.copies) > 0 {
			local = append(local, s)
			r, ok := known[s.sum]
			if s.remote = nil; ok && s.sealed && r.After == s.After {
				s.remote = &remote{Remote: r, loaded: true}
			}
		} else if s.remote != nil {
			had[s.sum] = s
		}
	}
	at := Position(0)
	for _, s := range local {
		if s.Epoch == l.opts.Epoch {
			out, at = l.fill(out, at, s.After, candidates, had)
		}
		if len(out) > 0 {
			s.Gap = s.After > at || out[len(out)-1].Epoch != s.Epoch
		}
		out, at = append(out, s), s.Complete
	}
	if l.open == nil {
		out, _ = l.fill(out, at, l.end.Complete, candidates, had)
	}
	if !slices.Equal(l.segments, out) {
		l.segments = out
		l.wake()
	}
}

// fill what lies between two positions with segments of the tier, which are sorted. It returns where that ends. l.mu is held.
func (l *Log) fill(out []*segment, at, to Position, from []Remote, had map[string]*segment) (all []*segment, end Position) {
	for at < to {
		best := -1
		for i := range from {
			r := &from[i]
			if r.After >= to || r.After > at && best >= 0 {
				break
			}
			if r.Complete > at && (best < 0 || r.Complete > from[best].Complete) {
				best = i
				if r.After > at {
					break
				}
			}
		}
		if best < 0 {
			return out, at
		}
		r := from[best]
		s := had[r.SHA256]
		if s == nil {
			s = &segment{header: header{Epoch: r.Epoch, After: r.After}, sealed: true, sum: r.SHA256, remote: &remote{Remote: r}}
			s.Newest, s.Oldest, s.Last = r.Newest, r.Newest, r.Complete
		} else if s.Complete != min(r.Complete, to) {
			own := *s // a reader that was in the block where it ended begins it anew
			own.remote = &remote{Remote: r, loaded: s.remote.loaded}
			s = &own
		}
		s.remote.Remote = r
		s.Complete = min(r.Complete, to)
		s.Gap = len(out) > 0 && (r.After > at || out[len(out)-1].Epoch != r.Epoch)
		out, at = append(out, s), s.Complete
	}
	return out, at
}

// load what is needed to read a segment of the tier. It blocks until it is here.
func (l *Log) load(ctx context.Context, s *segment) (io.ReaderAt, error) {
	l.mu.Lock()
	if s.remote == nil {
		l.mu.Unlock()
		return nil, fmt.Errorf("%s is not in the tier any more", fileName(s.After))
	}
	r := *s.remote
	l.mu.Unlock()
	if l.opts.Tier == nil {
		return nil, fmt.Errorf("%s is offloaded, and there is no tier to read it from", fileName(s.After))
	}
	file, size, err := l.opts.Tier.Open(ctx, r.Remote)
	if err != nil || r.loaded {
		return file, err
	}
	h, begin, err := readHeader(file)
	var end *footer
	if err == nil {
		end, err = readFooter(file, size)
	}
	if errors.Is(err, fs.ErrClosed) && ctx.Err() == nil {
		return l.load(ctx, s) // it was released meanwhile
	}
	if err == nil && (h.Epoch != r.Epoch || h.After != r.After || end.Complete != r.Complete || end.SHA256 != r.SHA256) {
		err = errors.New("it is not the segment that its name tells")
	}
	if err != nil {
		return nil, &RemoteDamagedError{r.Name, err}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.remote != nil && !s.remote.loaded {
		clipped := s.Complete
		s.contents, s.begin, s.Created = end.contents, begin, h.Created
		s.Complete = min(s.Complete, clipped)
		s.remote.loaded = true
	}
	return file, nil
}

// CheckFile checks a whole sealed file of a size: header, blocks, footer and SHA-256. It reads it all. It returns the file's
// segment, without a name.
func CheckFile(f io.ReaderAt, size int64) (Remote, error) {
	h, _, err := readHeader(f)
	if err != nil {
		return Remote{}, err
	}
	end, err := readFooter(f, size)
	if err != nil {
		return Remote{}, err
	}
	sum, err := sumOf(f, end.Size)
	if err != nil {
		return Remote{}, err
	}
	if got := fmt.Sprintf("%x", sum); got != end.SHA256 {
		return Remote{}, fmt.Errorf("the checksum of its blocks is SHA-256 %s, not %s", got, end.SHA256)
	}
	return Remote{Epoch: h.Epoch, After: h.After, Complete: end.Complete, Newest: end.Newest, SHA256: end.SHA256}, nil
}

// OpenSegment opens a sealed segment at the roots, and checks all of it: the first copy that is whole. The file is a handle
// of its own, which the caller closes. Errors: fs.ErrNotExist if it is not at the roots; else why the copies are not whole.
func (l *Log) OpenSegment(sha256 string) (f File, size int64, r Remote, err error) {
	l.mu.Lock()
	var paths []string
	for _, s := range l.segments {
		if s.sealed && s.sum == sha256 {
			for _, c := range s.copies {
				paths = append(paths, c.path(s))
			}
		}
	}
	l.mu.Unlock()
	if len(paths) == 0 {
		return nil, 0, r, fs.ErrNotExist
	}
	var failed error
	for _, path := range paths {
		f, size, r, err := l.openChecked(path)
		if err == nil {
			return f, size, r, nil
		}
		failed = errors.Join(failed, fmt.Errorf("%s: %w", path, err))
	}
	return nil, 0, r, failed
}

// CheckCopy reads a file of a segment at a root, and checks all of it.
func (l *Log) CheckCopy(path string) error {
	f, _, _, err := l.openChecked(path)
	if err != nil {
		return err
	}
	return f.Close()
}

func (l *Log) openChecked(path string) (f File, size int64, r Remote, err error) {
	if f, err = l.opts.Disk.Open(path); err != nil {
		return nil, 0, r, err
	}
	if size, err = f.Size(); err == nil {
		r, err = CheckFile(f, size)
	}
	if err != nil {
		return nil, 0, r, errors.Join(err, f.Close())
	}
	return f, size, r, nil
}

// Release removes the files of segments that the tier has and whose newest entry is older than age (ms). They stay in the
// log. The newest stays where it is, by which the log knows its end. It waits for the writer. It must not be called at the same time as Offloaded.
func (l *Log) Release(age int64) {
	l.writing.Lock()
	defer l.writing.Unlock()
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return
	}
	var those []*segment
	newest := l.newest()
	for _, s := range l.segments {
		if s != l.open && s != newest && s.remote != nil && len(s.copies) > 0 && s.Epoch == l.opts.Epoch && l.opts.Now().UnixMilli()-s.Newest > age {
			those = append(those, s)
		}
	}
	l.mu.Unlock()
	for _, s := range those {
		l.drop(s)
	}
}
