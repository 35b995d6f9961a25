package seglog

import (
	"errors"
	"math"
	"path/filepath"
	"slices"
	"strings"
)

// found is a file of a segment, as it is found when a log is opened.
type found struct {
	copyOf
	header
	contents
	begin  int64
	sealed bool
	sum    string
	marks  []string
}

// recover the segments from the files of the roots.
func (l *Log) recover() error {
	files := map[Position][]*found{}
	var failed error
	works := 0
	for _, r := range l.roots {
		names, err := l.opts.Disk.List(r.dir)
		if err != nil {
			l.fail(r, err)
			failed = errors.Join(failed, err)
			continue
		}
		works++
		for _, name := range names {
			path := filepath.Join(r.dir, name)
			if strings.HasPrefix(name, namePrefix) && unfinished(name) {
				_ = l.opts.Disk.Remove(path) // else it is removed before one is written under that name
				continue
			}
			after, ok := afterOf(name)
			if !ok {
				continue
			}
			f, err := l.opts.Disk.Open(path)
			if err != nil {
				l.fail(r, err)
				continue
			}
			one, err := inspect(f, after)
			if err != nil {
				// Of a crash it is one whose header did not reach the disk, so without entries. Any other is for people to look at.
				l.log.Warn("a segment of the change feed is left out", "file", path, "error", err)
				if err := errors.Join(f.Close(), l.opts.Disk.Rename(path, path+".damaged")); err != nil {
					l.fail(r, err)
				}
				continue
			}
			one.copyOf = copyOf{r, f}
			files[after] = append(files[after], one)
		}
	}
	if works == 0 {
		// Who follows the log goes on without it, and a root that comes back is used. What it has is found by the next Open.
		l.log.Error("no root of the change feed can be used; changes wait in the store's history until one can", "error", failed)
	}
	var order []Position
	for after := range files {
		order = append(order, after)
	}
	slices.Sort(order)
	for i, after := range order {
		limit := Position(math.MaxInt64)
		if i+1 < len(order) {
			limit = order[i+1]
		}
		l.adopt(files[after], limit)
	}
	for i, s := range l.segments {
		if i > 0 && s.After > l.segments[i-1].Complete {
			s.Gap = true // of a root that is away, or one was removed
		}
	}
	if n := len(l.segments); n > 0 {
		l.end = l.segments[n-1].contents
	}
	return nil
}

// inspect reads header and, if it is sealed, footer of a file.
func inspect(f File, after Position) (*found, error) {
	h, begin, err := readHeader(f)
	if err != nil {
		return nil, err
	}
	if h.After != after {
		return nil, errors.New("its name is not that of its header")
	}
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	out := &found{header: h, begin: begin, contents: contents{Size: size}}
	end, err := readFooter(f, size)
	switch {
	case errors.Is(err, errNotSealed):
	case err != nil:
		return nil, err
	default:
		out.contents, out.sealed, out.sum, out.marks = end.contents, true, end.SHA256, end.Marks
	}
	return out, nil
}

// adopt the files of one segment: the copy that has most is the truth, as an entry that was acknowledged is in it, and of two
// with as much the one that was edited; the others are made again from it.
func (l *Log) adopt(files []*found, limit Position) {
	for _, f := range files {
		if !f.sealed {
			f.contents = scan(f.file, f.header, f.begin, f.Size, limit)
		}
	}
	best := files[0]
	for _, f := range files[1:] {
		if f.Complete > best.Complete || f.Complete == best.Complete && f.sealed && (!best.sealed || len(f.marks) > len(best.marks)) {
			best = f
		}
	}
	s := &segment{header: best.header, contents: best.contents, begin: best.begin, sealed: best.sealed, sum: best.sum, marks: best.marks}
	for _, f := range files {
		same := f == best || f.sealed && best.sealed && f.sum == best.sum
		if same {
			s.copies = append(s.copies, &copyOf{f.root, f.file})
			continue
		}
		path := f.path(s)
		l.log.Info("a copy of a segment of the change feed is incomplete, and made again", "file", path)
		if err := errors.Join(f.file.Close(), l.opts.Disk.Remove(path)); err != nil {
			l.fail(f.root, err)
		}
	}
	n := len(l.segments)
	if best.Complete == best.After || n > 0 && best.Complete <= l.segments[n-1].Complete { // it adds nothing
		l.drop(s)
		return
	}
	if !s.sealed {
		if err := l.finish(s, best.file); err != nil {
			l.fail(best.root, err)
		}
	}
	l.segments = append(l.segments, s)
}

// Repair makes copies of sealed segments that have too few, where there is a root for them. It blocks for the disks. It
// returns how many segments still have too few.
func (l *Log) Repair() int {
	l.writing.Lock()
	defer l.writing.Unlock()
	short := 0
	l.mu.Lock()
	all := slices.Clone(l.segments)
	l.mu.Unlock()
	for _, s := range all {
		l.mu.Lock()
		n, open, sealed := len(s.copies), s == l.open, s.sealed
		l.mu.Unlock()
		if open || n == 0 || sealed && n >= l.opts.Copies {
			continue
		}
		if !sealed {
			if !l.finishAll(s) {
				short++
				continue
			}
			n = len(s.copies)
		}
		for _, r := range l.usable() {
			if n >= l.opts.Copies {
				break
			}
			if slices.ContainsFunc(s.copies, func(c *copyOf) bool { return c.root == r }) {
				continue
			}
			if err := l.copyTo(s, r); err != nil {
				l.fail(r, err)
				continue
			}
			n++
		}
		if n < l.opts.Copies {
			short++
		}
	}
	return short
}

// copyTo a root: the file is complete on the disk before it has the name of a segment.
func (l *Log) copyTo(s *segment, r *root) error {
	name := filepath.Join(r.dir, fileName(s.After))
	for _, old := range []string{name, name + newSuffix} {
		if f, err := l.opts.Disk.Open(old); err == nil { // what was lost, or left over
			if err := errors.Join(f.Close(), l.opts.Disk.Remove(old)); err != nil {
				return err
			}
		}
	}
	f, err := l.opts.Disk.Create(name + newSuffix)
	if err != nil {
		return err
	}
	from := s.copies[0].file
	size, err := from.Size()
	buffer := make([]byte, 1<<20)
	for at := int64(0); err == nil && at < size; {
		n := min(int64(len(buffer)), size-at)
		if _, err = from.ReadAt(buffer[:n], at); err == nil {
			_, err = f.WriteAt(buffer[:n], at)
		}
		at += n
	}
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = l.opts.Disk.Rename(name+newSuffix, name)
	}
	if err == nil {
		err = l.opts.Disk.SyncDir(r.dir)
	}
	if err != nil {
		return errors.Join(err, f.Close(), l.opts.Disk.Remove(name+newSuffix))
	}
	l.works(r)
	l.mu.Lock()
	s.copies = append(slices.Clone(s.copies), &copyOf{r, f})
	s.lost = slices.DeleteFunc(slices.Clone(s.lost), func(c *copyOf) bool {
		if c.root == r {
			_ = c.file.Close()
			return true
		}
		return false
	})
	l.mu.Unlock()
	return nil
}
