package seglog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"sort"
	"time"
)

// Reader reads a log from a position on. Make it with Log.Read. Not safe for concurrent use. It holds nothing that must be
// released.
type Reader struct {
	log *Log
	at  Position
	// of is a position whose segment alone is read, also where one before it in the log has the same positions; 0: all are read.
	of Position

	segment *segment
	offset  int64
	window  window
	copy    *copyOf // that is read; nil: the first, or the one in the tier
	remote  bool    // no copy of segment can be read, but the one in the tier
}

// Read returns a reader of what comes after a position.
func (l *Log) Read(after Position) *Reader { return &Reader{log: l, at: after} }

// At is the position up to which everything was returned.
func (r *Reader) At() Position { return r.at }

// Next returns the next entries, one at least, which it waits for. Errors: that of ctx, *ExpiredError, *DamagedError (the next
// call goes on behind the damage), ErrClosed.
func (r *Reader) Next(ctx context.Context) ([]*Entry, error) {
	for {
		changed := r.log.Changed()
		entries, err := r.poll(ctx)
		if err != nil || len(entries) > 0 {
			return entries, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Changed is closed when the log has changed since the call.
func (l *Log) Changed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

// Poll is Next without waiting for entries: none, if there are no further ones yet. It waits for a segment of the tier.
func (r *Reader) Poll() ([]*Entry, error) { return r.poll(context.Background()) }

func (r *Reader) poll(ctx context.Context) ([]*Entry, error) {
	for {
		p, err := r.place()
		if err != nil || p.segment == nil {
			return nil, err
		}
		s, c := p.segment, p.copy
		var file io.ReaderAt
		if c != nil {
			file = c.file
		} else {
			file, err = r.log.load(ctx, s)
			var wrong *RemoteDamagedError
			if errors.As(err, &wrong) {
				err = r.damaged(s, nil, err)
			}
			if err != nil {
				return nil, err
			}
			if file == nil || !p.loaded {
				continue // its blocks can be found now
			}
		}
		b, next, err := r.window.block(file, p.offset, p.end)
		if err != nil {
			if c == nil && errors.Is(err, fs.ErrClosed) && ctx.Err() == nil {
				continue // it was released, and is fetched again
			}
			if err := r.damaged(s, c, err); err != nil {
				return nil, err
			}
			continue
		}
		r.offset = next
		entries := b.entries
		if b.complete > p.complete { // the next segment has the rest
			n := sort.Search(len(entries), func(i int) bool { return entries[i].Position > p.complete })
			entries, b.complete = entries[:n:n], p.complete
		}
		if n := len(entries); n > 0 && entries[0].Position <= r.at {
			entries = entries[sort.Search(n, func(i int) bool { return entries[i].Position > r.at }):]
		}
		r.at = max(r.at, b.complete)
		if len(entries) > 0 {
			return entries, nil
		}
	}
}

// place is where a block is.
type place struct {
	segment *segment // nil: there is none yet
	copy    *copyOf  // nil: the one in the tier
	// offset of the block; blocks go up to end, and up to complete.
	offset, end int64
	complete    Position
	loaded      bool // offset and end are known
}

// place finds the block to read next.
func (r *Reader) place() (place, error) {
	l := r.log
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return place{}, ErrClosed
	}
	i := sort.Search(len(l.segments), func(i int) bool { return l.segments[i].Complete > max(r.at, r.of-1) })
	if i == len(l.segments) {
		return place{}, nil
	}
	s := l.segments[i]
	if r.at < s.After && (i == 0 || s.Gap || r.of > 0) {
		return place{}, &ExpiredError{First: s.After}
	}
	if s != r.segment {
		r.segment, r.offset, r.window, r.copy, r.remote = s, -1, window{}, nil, false
	}
	out := place{segment: s, loaded: len(s.copies) > 0 || s.remote != nil && s.remote.loaded}
	if out.loaded && r.offset < 0 {
		r.offset = s.from(r.at, s.begin)
	}
	if r.copy == nil || !slices.Contains(s.copies, r.copy) {
		before := r.copy
		r.copy = nil
		switch {
		case len(s.copies) > 0 && !r.remote:
			r.copy, r.window = s.copies[0], window{}
		case s.remote == nil:
			return place{}, fmt.Errorf("%s has no copy that can be read", fileName(s.After))
		case before != nil:
			r.window = window{}
		}
	}
	out.copy, out.offset, out.end, out.complete = r.copy, r.offset, s.Size, s.Complete
	return out, nil
}

// damaged goes on with another copy than c, which is nil for the one in the tier, or reports what is lost and goes on behind it.
func (r *Reader) damaged(s *segment, c *copyOf, cause error) error {
	l := r.log
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.Contains(l.segments, s) || l.closed {
		return nil // it was removed meanwhile
	}
	if c != nil {
		i := slices.Index(s.copies, c)
		switch {
		case i >= 0 && i+1 < len(s.copies):
			r.copy, r.window = s.copies[i+1], window{}
			return nil
		case i < 0 && (len(s.copies) > 0 || s.remote != nil):
			r.copy, r.window = nil, window{} // it was removed meanwhile
			return nil
		case s.remote != nil:
			r.copy, r.window, r.remote = nil, window{}, true
			return nil
		}
	}
	to, offset := s.Complete, s.Size
	for _, ref := range s.Index {
		if r.offset >= 0 && ref.Offset > r.offset {
			to, offset = ref.At-1, ref.Offset
			break
		}
	}
	file := fileName(s.After)
	if c != nil {
		file = c.path(s)
	} else if s.remote != nil {
		file = s.remote.Name
	}
	err := &DamagedError{After: r.at, To: to, File: file, Err: cause}
	r.at, r.offset, r.copy, r.window, r.remote = max(r.at, to), offset, nil, window{}, false
	return err
}

// Previous returns the value that an entry replaced, and whether the log has it. It reads from a disk.
func (l *Log) Previous(e *Entry) (value []byte, ok bool, err error) {
	if e.Prev == 0 {
		return nil, false, nil
	}
	if e.PrevValue != nil || e.Kind == Delete {
		return e.PrevValue, true, nil
	}
	before, err := l.entry(e.Prev, e.Position)
	if before == nil && err == nil { // e is in another segment by now
		before, err = l.entry(e.Prev, 0)
	}
	if err != nil || before == nil || before.Key != e.Key || before.Kind != Put {
		return nil, false, err
	}
	return before.Value, true, nil
}

// entry at a position, in the segment of another one if that is not 0; nil: there is none.
func (l *Log) entry(at, of Position) (*Entry, error) {
	r := &Reader{log: l, at: at - 1, of: of}
	entries, err := r.Poll()
	var expired *ExpiredError
	if errors.As(err, &expired) {
		return nil, nil
	}
	if err != nil || len(entries) == 0 || entries[0].Position != at {
		return nil, err
	}
	return entries[0], nil
}

// Since returns the position after which all entries are of a time or later. It reads from a disk.
func (l *Log) Since(t time.Time) (Position, error) {
	millis := t.UnixMilli()
	l.mu.Lock()
	// Not a binary search: a segment without entries, as all its positions are of keys that the feed leaves out, has no time.
	i := slices.IndexFunc(l.segments, func(s *segment) bool { return s.Newest >= millis })
	if i < 0 {
		defer l.mu.Unlock()
		return l.end.Complete, nil
	}
	s := l.segments[i]
	if s.remote != nil && !s.remote.loaded && len(s.copies) == 0 {
		l.mu.Unlock()
		if _, err := l.load(context.Background(), s); err != nil {
			return 0, err
		}
		l.mu.Lock()
	}
	at := s.After
	if j := sort.Search(len(s.Index), func(j int) bool { return s.Index[j].Time >= millis }); j > 0 {
		at = s.Index[j-1].At - 1
	}
	l.mu.Unlock()
	r := l.Read(at)
	for {
		entries, err := r.Poll()
		if err != nil || len(entries) == 0 {
			return r.At(), err
		}
		for _, e := range entries {
			if e.Time.UnixMilli() >= millis {
				return at, nil
			}
			at = e.Position
		}
	}
}

// SegmentInfo describes a segment.
type SegmentInfo struct {
	// After, Last and Complete: its entries are above After, up to Last; it is complete up to Complete.
	After    Position `json:"after"`
	Last     Position `json:"last"`
	Complete Position `json:"complete"`
	Epoch    string   `json:"epoch"`
	// Gap: changes are missing between the segment before and this one.
	Gap     bool      `json:"gap,omitempty"`
	Entries int64     `json:"entries"`
	Bytes   int64     `json:"bytes"`
	Created time.Time `json:"created"`
	Oldest  time.Time `json:"oldest"`
	Newest  time.Time `json:"newest"`
	Sealed  bool      `json:"sealed"`
	// SHA256 of its blocks, if it is sealed.
	SHA256 string `json:"sha256,omitempty"`
	// Marks of what was changed in it since (Editor).
	Marks []string `json:"marks,omitempty"`
	// Copies are the files that have it.
	Copies []string `json:"copies"`
	// Offloaded is the name by which the tier has it; empty: it is not known to have it.
	Offloaded string `json:"offloaded,omitempty"`
}

// Segments are those of the log, in order.
func (l *Log) Segments() []SegmentInfo {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]SegmentInfo, len(l.segments))
	for i, s := range l.segments {
		out[i] = SegmentInfo{
			After: s.After, Last: s.Last, Complete: s.Complete, Epoch: s.Epoch, Gap: s.Gap, Entries: s.Entries, Bytes: s.Size,
			Oldest: time.UnixMilli(s.Oldest), Newest: time.UnixMilli(s.Newest), Sealed: s.sealed, SHA256: s.sum, Marks: s.marks, Created: s.Created,
		}
		for _, c := range s.copies {
			out[i].Copies = append(out[i].Copies, c.path(s))
		}
		if s.remote != nil {
			out[i].Offloaded = s.remote.Name
		}
	}
	return out
}

// RootInfo describes a root.
type RootInfo struct {
	Dir string `json:"dir"`
	// Segments and Bytes that it has.
	Segments int   `json:"segments"`
	Bytes    int64 `json:"bytes"`
	// Problem is why it gets no new segment; empty: it does.
	Problem string `json:"problem,omitempty"`
}

// Roots are those of the log, in the order of Options.
func (l *Log) Roots() []RootInfo {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]RootInfo, len(l.roots))
	for i, r := range l.roots {
		out[i].Dir = r.dir
		if r.err != nil {
			out[i].Problem = r.err.Error()
		}
		for _, s := range l.segments {
			if slices.ContainsFunc(s.copies, func(c *copyOf) bool { return c.root == r }) {
				out[i].Segments++
				out[i].Bytes += s.Size
			}
		}
	}
	return out
}
