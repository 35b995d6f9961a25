package seglog

import (
	"cmp"
	"errors"
	"fmt"
	"hash"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// Defaults of Options.
const (
	DefaultSegmentBytes = 64 << 20
	DefaultSegmentAge   = 24 * time.Hour
	DefaultReserve      = 256 << 20

	// rootRetry is how long a root that failed gets no new segment.
	rootRetry = 30 * time.Second
)

// Options of a Log. Roots and Epoch are required.
type Options struct {
	// Roots are directories for segments, best on disks of their own. Missing ones are made.
	Roots []string
	// Copies of each segment, on different roots; 0: 1. With fewer roots there are fewer.
	Copies int
	// Epoch of the store that positions are revisions of.
	Epoch string
	// A segment of SegmentBytes, or that is SegmentAge old, is sealed; 0: the defaults.
	SegmentBytes int64
	SegmentAge   time.Duration
	// Reserve is how many bytes of a root's file system are left free; 0: DefaultReserve.
	Reserve uint64
	// Tier has segments that were offloaded; nil: there is none.
	Tier   Tier
	Disk   Disk         // nil: OS
	Logger *slog.Logger // nil: discard
	// Now is the clock; nil: time.Now.
	Now func() time.Time
}

// Log is a segmented log. Make it with Open. One goroutine at a time calls Append, Advance, Sync, Seal and Repair, as they
// wait for each other; all else is safe for concurrent use and waits for no disk, unless it says so.
type Log struct {
	opts  Options
	log   *slog.Logger
	roots []*root

	writing sync.Mutex // held by the writer

	mu       sync.Mutex
	segments []*segment // in order
	open     *segment   // the last of segments, being written; nil: there is none
	durable  contents   // of open, that is on the disks
	end      contents   // Last, Complete and Newest of the log
	changed  chan struct{}
	closed   bool
}

// root is a place of segments.
type root struct {
	dir string
	// err is why it was given up, at failed; nil: it works. Guarded by Log.mu.
	err    error
	failed time.Time
}

// segment of a log. Fields are guarded by Log.mu; those of one that has copies change by the writer alone, but for Gap and remote.
type segment struct {
	header
	contents
	begin  int64 // of its blocks
	sealed bool
	sum    string   // of a sealed one
	marks  []string // of a sealed one, as of Editor
	// remote is the segment in the tier; nil: it is not there, as far as is known. Without copies the segment is read from it.
	remote *remote
	hash   hash.Hash // of the file up to Size, while it is written; nil: it is to be read; of the writer
	copies []*copyOf
	// lost are copies that could not be written any more, with less in them.
	lost []*copyOf
}

// copyOf a segment at a root.
type copyOf struct {
	root *root
	file File
}

func (c *copyOf) path(s *segment) string { return filepath.Join(c.root.dir, fileName(s.After)) }

func (o Options) withDefaults() Options {
	o.Copies = min(max(o.Copies, 1), len(o.Roots))
	o.SegmentBytes = cmp.Or(o.SegmentBytes, DefaultSegmentBytes)
	o.SegmentAge = cmp.Or(o.SegmentAge, DefaultSegmentAge)
	o.Reserve = cmp.Or(o.Reserve, DefaultReserve)
	if o.Disk == nil {
		o.Disk = OS{}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// Open finds the segments of the roots, and seals what was not. It blocks while files are read. A root that cannot be
// used is left out and tried again later, also if it is the only one: Append fails until then.
func Open(opts Options) (*Log, error) {
	if len(opts.Roots) == 0 || opts.Epoch == "" {
		return nil, errors.New("a log needs a root and an epoch")
	}
	opts = opts.withDefaults()
	l := &Log{opts: opts, log: opts.Logger, changed: make(chan struct{})}
	for _, dir := range opts.Roots {
		l.roots = append(l.roots, &root{dir: dir})
	}
	if err := l.recover(); err != nil {
		_ = l.Close()
		return nil, err
	}
	return l, nil
}

// End is where the log ends: last is the position of its last entry, and it is complete up to complete, which is at
// least that.
func (l *Log) End() (last, complete Position) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.end.Last, l.end.Complete
}

// Durable is the position up to which the log is complete on the disks.
func (l *Log) Durable() Position {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open != nil {
		return l.durable.Complete
	}
	return l.end.Complete
}

// First is the position after which the log is complete, without a gap, up to its end; empty is true if there is no segment.
func (l *Log) First() (after Position, empty bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range slices.Backward(l.segments) {
		after = s.After
		if s.Gap {
			break
		}
	}
	return after, len(l.segments) == 0
}

// Append adds entries, whose positions are above all before, in order. The log is then complete up to complete, or the last
// entry if that is above. A time that is before that of an earlier entry is set to that. When it returns, readers can have them; they survive a loss of power after Sync. Errors: ErrClosed;
// *RewindError, after which the caller appends again what comes after its To; any other error has changed nothing.
// A caller that cannot append what came between the end of the log and its first entry calls Skip before.
func (l *Log) Append(entries []*Entry, complete Position) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	if len(entries) > 0 {
		complete = max(complete, entries[len(entries)-1].Position)
	}
	if err := l.check(entries); err != nil {
		return err
	}
	if err := l.ready(); err != nil {
		return err
	}
	for len(entries) > 0 {
		n, size := 0, 0
		for n < len(entries) && size < blockBytes {
			e := entries[n]
			size += len(e.Key) + len(e.Value) + 32
			if e.Prev <= l.open.After || e.Kind == Delete {
				size += len(e.PrevValue)
			}
			n++
		}
		b := &block{entries: entries[:n], complete: entries[n-1].Position}
		if n == len(entries) {
			b.complete = complete
		}
		if err := l.write(b); err != nil {
			return err
		}
		if entries = entries[n:]; len(entries) > 0 {
			if err := l.ready(); err != nil {
				return err
			}
		}
	}
	if _, at := l.End(); complete > at {
		return l.write(&block{complete: complete})
	}
	return nil
}

// Skip tells that the changes between the end of the log and a position will not be appended. It is noted with the
// next entry.
// Errors: *RewindError.
func (l *Log) Skip(to Position) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	if err := l.seal(); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end.Complete = max(l.end.Complete, to)
	l.end.Last = l.end.Complete
	return nil
}

func (l *Log) check(entries []*Entry) error {
	l.mu.Lock()
	at, newest, closed := l.end.Complete, l.end.Newest, l.closed
	l.mu.Unlock()
	if closed {
		return ErrClosed
	}
	for _, e := range entries {
		switch {
		case e.Position <= at:
			return fmt.Errorf("an entry at position %d cannot follow position %d", e.Position, at)
		case e.Kind != Put && e.Kind != Delete:
			return fmt.Errorf("an entry is of the unknown kind %d", e.Kind)
		case len(e.Key) > MaxKey, len(e.Value) > MaxValue, len(e.PrevValue) > MaxValue, len(e.Actor) > MaxActor:
			return fmt.Errorf("the entry at position %d is too large", e.Position)
		}
		at = e.Position
		if now := e.Time.UnixMilli(); now < newest {
			e.Time = time.UnixMilli(newest)
		} else {
			newest = now
		}
	}
	return nil
}

// ready makes sure that there is an open segment with space.
func (l *Log) ready() error {
	if s := l.open; s != nil {
		full := s.Size >= l.opts.SegmentBytes || l.opts.Now().Sub(s.Created) >= l.opts.SegmentAge
		if !full && (len(s.copies) >= l.opts.Copies || len(l.usable()) <= len(s.copies)) {
			return nil
		}
		if err := l.seal(); err != nil {
			return err
		}
	}
	return l.begin()
}

// write a block to all copies of the open segment.
func (l *Log) write(b *block) error {
	s := l.open
	data := appendBlock(nil, s.Size, b, func(e *Entry) bool { return e.Kind == Delete || e.Prev <= s.After })
	var failed error
	lost := false
	for _, c := range slices.Clone(s.copies) {
		if _, err := c.file.WriteAt(data, s.Size); err != nil {
			failed, lost = errors.Join(failed, err), true
			l.lose(s, c, err)
		}
	}
	if len(s.copies) == 0 {
		return l.rewind(failed)
	}
	l.mu.Lock()
	s.hash.Write(data)
	s.note(b, s.Size, s.Size+int64(len(data)))
	l.end.Last, l.end.Complete, l.end.Newest = s.Last, s.Complete, s.Newest
	l.wake()
	l.mu.Unlock()
	if lost {
		return l.seal() // what follows goes where there are enough copies again
	}
	return nil
}

// wake those that wait for a change. l.mu is held.
func (l *Log) wake() {
	close(l.changed)
	l.changed = make(chan struct{})
}
