package seglog

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
)

// usable roots for a new segment, best first: those with the greatest part of their space free, so that roots of
// different sizes fill evenly, and one that was added is used at once.
func (l *Log) usable() []*root {
	type candidate struct {
		*root
		free float64
	}
	var out []candidate
	for _, r := range l.roots {
		l.mu.Lock()
		recent := r.err != nil && l.opts.Now().Sub(r.failed) < rootRetry
		l.mu.Unlock()
		if recent {
			continue
		}
		c := candidate{r, 1}
		switch free, total, err := l.opts.Disk.Space(r.dir); {
		case errors.Is(err, ErrNoSpaceInfo):
		case err != nil:
			l.fail(r, err)
			continue
		case free < l.opts.Reserve+uint64(l.opts.SegmentBytes)/8:
			l.fail(r, fmt.Errorf("%s: %d MiB are free; %d MiB are left alone", r.dir, free>>20, l.opts.Reserve>>20))
			continue
		default:
			c.free = float64(free) / float64(max(total, 1))
		}
		out = append(out, c)
	}
	slices.SortStableFunc(out, func(a, b candidate) int {
		switch {
		case a.free > b.free:
			return -1
		case a.free < b.free:
			return 1
		}
		return 0
	})
	roots := make([]*root, len(out))
	for i, c := range out {
		roots[i] = c.root
	}
	return roots
}

// fail notes that a root cannot be used for now.
func (l *Log) fail(r *root, err error) {
	l.mu.Lock()
	first := r.err == nil
	r.err, r.failed = err, l.opts.Now()
	l.mu.Unlock()
	if first {
		l.log.Warn("a root of the change feed cannot be used; segments go to the others", "root", r.dir, "error", err)
	}
}

// works notes that a root can be used.
func (l *Log) works(r *root) {
	l.mu.Lock()
	again := r.err != nil
	r.err = nil
	l.mu.Unlock()
	if again {
		l.log.Info("a root of the change feed can be used again", "root", r.dir)
	}
}

// begin a segment after the end of the log.
func (l *Log) begin() error {
	l.mu.Lock()
	h := header{Epoch: l.opts.Epoch, After: l.end.Complete, Created: l.opts.Now()}
	if n := len(l.segments); n > 0 {
		h.Gap = l.segments[n-1].Complete < h.After || l.segments[n-1].Epoch != h.Epoch
	}
	l.mu.Unlock()
	text, err := encodeHeader(h)
	if err != nil {
		return err
	}
	s := &segment{header: h, contents: contents{Last: h.After, Complete: h.After, Size: int64(len(text))}, begin: int64(len(text)), hash: sha256.New()}
	s.hash.Write(text)
	var failed error
	for _, r := range l.usable() {
		f, err := l.create(r, s, text)
		if err != nil {
			l.fail(r, err)
			failed = errors.Join(failed, err)
			continue
		}
		l.works(r)
		if s.copies = append(s.copies, &copyOf{r, f}); len(s.copies) == l.opts.Copies {
			break
		}
	}
	if len(s.copies) == 0 {
		if failed == nil {
			failed = l.rootErrors()
		}
		return fmt.Errorf("no root of the log can be written: %w", failed)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.segments = append(l.segments, s)
	l.open, l.durable = s, s.contents
	l.wake()
	return nil
}

func (l *Log) rootErrors() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out error
	for _, r := range l.roots {
		out = errors.Join(out, r.err)
	}
	return out
}

// create the file of a segment at a root. The name is on the disk when it returns.
func (l *Log) create(r *root, s *segment, text []byte) (File, error) {
	name := filepath.Join(r.dir, fileName(s.After))
	f, err := l.opts.Disk.Create(name)
	if errors.Is(err, fs.ErrExist) { // left over, or of a root that was away when the log was opened
		if err = l.opts.Disk.Rename(name, name+".left"); err == nil {
			f, err = l.opts.Disk.Create(name)
		}
	}
	if err != nil {
		return nil, err
	}
	_, err = f.WriteAt(text, 0)
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = l.opts.Disk.SyncDir(r.dir)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close(), l.opts.Disk.Remove(name))
	}
	return f, nil
}

// lose a copy of a segment, which could not be written.
func (l *Log) lose(s *segment, c *copyOf, err error) {
	l.fail(c.root, err)
	l.mu.Lock()
	s.copies = slices.DeleteFunc(slices.Clone(s.copies), func(other *copyOf) bool { return other == c })
	s.lost = append(s.lost, c)
	l.mu.Unlock()
}

// rewind to what is on the disks, as no copy of the open segment can be written. What was read of it beyond that stays
// true, but may have to be written again.
func (l *Log) rewind(err error) error {
	s := l.open
	l.mu.Lock()
	s.copies, s.lost = s.lost, nil // what is there can be read
	s.contents, s.hash = l.durable, nil
	l.open = nil
	l.end = l.durable
	to := l.end.Complete
	l.wake()
	l.mu.Unlock()
	if to == s.After {
		l.drop(s)
	}
	return &RewindError{To: to, Err: err}
}

// Sync brings all that was appended to the disks. It blocks for them. Errors: *RewindError if no copy could be written.
func (l *Log) Sync() error {
	l.writing.Lock()
	defer l.writing.Unlock()
	return l.sync()
}

func (l *Log) sync() error {
	s := l.open
	if s == nil || s.Size == l.durable.Size {
		return nil
	}
	var failed error
	lost := false
	for _, c := range slices.Clone(s.copies) {
		if err := c.file.Sync(); err != nil {
			failed, lost = errors.Join(failed, err), true
			l.lose(s, c, err)
		}
	}
	if len(s.copies) == 0 {
		return l.rewind(failed)
	}
	l.mu.Lock()
	l.durable = s.contents
	l.mu.Unlock()
	if lost {
		return l.seal()
	}
	return nil
}

// Seal closes the open segment; the next entry begins another.
func (l *Log) Seal() error {
	l.writing.Lock()
	defer l.writing.Unlock()
	return l.seal()
}

// seal the open segment, after a sync. One whose footer cannot be written is sealed when the log is opened again. Errors:
// *RewindError.
func (l *Log) seal() error {
	s := l.open
	if s == nil {
		return nil
	}
	if err := l.sync(); err != nil || l.open != s { // rewound, or sealed by sync
		return err
	}
	l.mu.Lock()
	l.open = nil
	l.mu.Unlock()
	if s.Complete == s.After {
		l.drop(s)
		return nil
	}
	l.finishAll(s)
	return nil
}

// finishAll writes the ends of all copies of a segment. One whose end cannot be written is none any more if another has it, and is made
// again. It returns whether the segment is sealed.
func (l *Log) finishAll(s *segment) bool {
	failed := map[*copyOf]error{}
	for _, c := range s.copies {
		if err := l.finish(s, c.file); err != nil {
			l.fail(c.root, err)
			failed[c] = err
		}
	}
	if len(failed) == len(s.copies) {
		return false
	}
	for c, err := range failed {
		l.lose(s, c, err)
	}
	return true
}

// finish a file of a segment: its blocks are there, up to s.Size.
func (l *Log) finish(s *segment, f File) error {
	var sum []byte
	var err error
	if s.hash != nil {
		sum = s.hash.Sum(nil)
	} else if sum, err = sumOf(f, s.Size); err != nil {
		return err
	}
	end, err := encodeFooter(s.contents, sum, s.marks)
	if err != nil {
		return err
	}
	if err := f.Truncate(s.Size); err != nil {
		return err
	}
	if _, err := f.WriteAt(end, s.Size); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	l.mu.Lock()
	s.sealed, s.sum = true, fmt.Sprintf("%x", sum)
	l.mu.Unlock()
	return nil
}

// drop a segment with all its copies. If the tier has it, it stays in the log.
func (l *Log) drop(s *segment) {
	l.mu.Lock()
	if s.remote == nil || s.Epoch != l.opts.Epoch {
		i := slices.Index(l.segments, s)
		if i > 0 && i+1 < len(l.segments) && l.segments[i+1].After > l.segments[i-1].Complete {
			l.segments[i+1].Gap = true // those before are in the tier
		}
		if i >= 0 {
			l.segments = slices.Delete(slices.Clone(l.segments), i, i+1)
		}
	}
	copies := append(slices.Clone(s.copies), s.lost...)
	s.copies, s.lost = nil, nil
	l.wake()
	l.mu.Unlock()
	for _, c := range copies {
		err := errors.Join(c.file.Close(), l.opts.Disk.Remove(c.path(s)), l.opts.Disk.SyncDir(c.root.dir))
		if err != nil {
			l.log.Warn("a segment of the change feed was not removed", "file", c.path(s), "error", err)
		}
	}
}

// newest sealed segment at the roots; nil: there is none. l.mu is held.
func (l *Log) newest() *segment {
	for _, s := range slices.Backward(l.segments) {
		if s != l.open && len(s.copies) > 0 {
			return s
		}
	}
	return nil
}

// Trim removes the oldest segments, which all are sealed, while all copies of one have more than bytes together, or the
// newest entry of the oldest is older than age (0: no bound), but none with an entry above keep, and not the last one that has
// entries on the disks: a log that is opened with none does not know where it ended. It waits for the writer.
func (l *Log) Trim(bytes int64, age int64, keep Position) {
	l.writing.Lock()
	defer l.writing.Unlock()
	for {
		l.mu.Lock()
		var oldest *segment
		total := int64(0)
		for _, s := range l.segments {
			if len(s.copies) == 0 {
				continue // in the tier alone
			}
			total += s.Size
			if oldest == nil && s != l.open {
				oldest = s
			}
		}
		old := oldest != nil && age > 0 && l.opts.Now().UnixMilli()-oldest.Newest > age
		remote := oldest != nil && oldest.remote != nil && oldest != l.newest()
		last := oldest != nil && oldest == l.newest() && (l.open == nil || l.durable.Complete == l.open.After)
		l.mu.Unlock()
		if oldest == nil || last || !remote && oldest.Complete > keep || (bytes <= 0 || total <= bytes) && !old {
			return
		}
		if l.opts.Tier != nil && !remote && oldest.Epoch == l.opts.Epoch {
			l.log.Warn("a segment of the change feed is removed before it was offloaded, as the feed has its greatest size or age",
				"after", oldest.After, "to", oldest.Complete)
		}
		l.drop(oldest)
	}
}

// Close syncs and seals, and releases the files. Readers end with ErrClosed. Idempotent.
func (l *Log) Close() error {
	l.writing.Lock()
	defer l.writing.Unlock()
	err := l.seal()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	for _, s := range l.segments {
		for _, c := range append(slices.Clone(s.copies), s.lost...) {
			err = errors.Join(err, c.file.Close())
		}
	}
	l.wake()
	return err
}
