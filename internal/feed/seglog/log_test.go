package seglog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// history makes entries as a store would, with the values before.
type history struct {
	rand *rand.Rand
	at   Position
	live map[string]*Entry
	all  []*Entry // by position - 1, without those left out: nil
	now  time.Time
}

func newHistory(r *rand.Rand) *history {
	return &history{rand: r, live: map[string]*Entry{}, now: time.UnixMilli(1_700_000_000_000)}
}

func (h *history) next() *Entry {
	h.at++
	h.now = h.now.Add(time.Duration(h.rand.IntN(3)) * time.Millisecond)
	key := "/registry/services/shop/s" + strconv.Itoa(h.rand.IntN(20))
	e := &Entry{Position: h.at, Time: h.now, Kind: Put, Last: true, Key: key, Created: h.at}
	before := h.live[key]
	if before != nil {
		e.Prev, e.PrevCreated, e.PrevValue, e.Created = before.Position, before.Created, before.Value, before.Created
	}
	if before != nil && h.rand.IntN(4) == 0 {
		e.Kind, e.Created = Delete, e.Position
		delete(h.live, key)
	} else {
		for range 1 + h.rand.IntN(40) {
			e.Value = fmt.Appendf(e.Value, "%s at %d: %x,", key, h.at, h.rand.Uint64())
		}
		if h.rand.IntN(3) == 0 {
			e.Actor = "system:node:" + key
		}
		h.live[key] = e
	}
	h.all = append(h.all, e)
	return e
}

func (h *history) take(n int) []*Entry {
	var out []*Entry
	for range n {
		out = append(out, h.next())
	}
	return out
}

// after returns copies of the entries above a position.
func (h *history) after(at Position) []*Entry {
	var out []*Entry
	for _, e := range h.all[at:] {
		c := *e
		out = append(out, &c)
	}
	return out
}

// same compares an entry that was read with the one that was written.
func same(l *Log, got, want *Entry) error {
	if got.Position != want.Position || got.Kind != want.Kind || got.Last != want.Last || got.Key != want.Key || got.Actor != want.Actor ||
		got.Created != want.Created || got.Prev != want.Prev || got.PrevCreated != want.PrevCreated || !bytes.Equal(got.Value, want.Value) || !got.Time.Equal(want.Time) {
		return fmt.Errorf("read %+v, want %+v", got, want)
	}
	value, ok, err := l.Previous(got)
	if err != nil {
		return fmt.Errorf("the value before position %d: %w", got.Position, err)
	}
	if ok != (want.Prev != 0) || !bytes.Equal(value, want.PrevValue) {
		return fmt.Errorf("the value before position %d is %q (%v), want %q", got.Position, value, ok, want.PrevValue)
	}
	return nil
}

// read all that a log has after a position.
func readAll(t *testing.T, l *Log, after Position) []*Entry {
	t.Helper()
	var out []*Entry
	for r := l.Read(after); ; {
		entries, err := r.Poll()
		if err != nil {
			t.Fatal(err)
		}
		if len(entries) == 0 {
			return out
		}
		out = append(out, entries...)
	}
}

func open(t *testing.T, o Options) *Log {
	t.Helper()
	if o.Epoch == "" {
		o.Epoch = "e"
	}
	l, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func TestReadsWhatWasWritten(t *testing.T) {
	h := newHistory(rand.New(rand.NewPCG(1, 1)))
	roots := []string{t.TempDir(), t.TempDir()}
	o := Options{Roots: roots, Copies: 2, SegmentBytes: 20 << 10, Reserve: 1}
	l := open(t, o)
	follower := l.Read(0)
	for range 100 {
		if err := l.Append(h.take(1+h.rand.IntN(20)), 0); err != nil {
			t.Fatal(err)
		}
		if got, err := follower.Next(t.Context()); err != nil || got[len(got)-1].Position != h.at {
			t.Fatalf("followed to %v, %v; want %d", got, err, h.at)
		}
	}
	if err := l.Append(nil, h.at+10); err != nil { // changes that are left out
		t.Fatal(err)
	}
	check := func(l *Log) {
		t.Helper()
		for i, e := range readAll(t, l, 0) {
			if err := same(l, e, h.all[i]); err != nil {
				t.Fatal(err)
			}
		}
		for after := Position(0); after < h.at; after += 37 {
			if got := readAll(t, l, after); Position(len(got)) != h.at-after {
				t.Fatalf("%d entries after %d, want %d", len(got), after, h.at-after)
			}
		}
		for i := 0; i < len(h.all); i += 29 {
			at, err := l.Since(h.all[i].Time)
			if err != nil || at != Position(slices.IndexFunc(h.all, func(e *Entry) bool { return !e.Time.Before(h.all[i].Time) })) {
				t.Fatalf("since %v: %d, %v", h.all[i].Time, at, err)
			}
		}
		if last, complete := l.End(); last != h.at || complete != h.at+10 {
			t.Fatalf("it ends at %d, complete to %d", last, complete)
		}
	}
	check(l)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l = open(t, o)
	check(l)
	if len(l.Segments()) < 5 {
		t.Errorf("%d segments: the test shows little", len(l.Segments()))
	}
	for _, s := range l.Segments() {
		if !s.Sealed || len(s.Copies) != 2 {
			t.Errorf("segment %+v", s)
		}
	}
	if err := os.RemoveAll(roots[0]); err != nil {
		t.Fatal(err)
	}
	l.Close()
	l = open(t, o)
	check(l)
	if n := l.Repair(); n != 0 {
		t.Errorf("%d segments have too few copies after a repair", n)
	}
	l.Close()
	o.Roots = roots[:1]
	check(open(t, o))
}

func TestExpired(t *testing.T) {
	h := newHistory(rand.New(rand.NewPCG(1, 2)))
	l := open(t, Options{Roots: []string{t.TempDir()}, SegmentBytes: 4 << 10, Reserve: 1})
	for range 50 {
		if err := l.Append(h.take(5), 0); err != nil {
			t.Fatal(err)
		}
	}
	l.Trim(20<<10, 0, 0)
	if first, _ := l.First(); first != 0 {
		t.Errorf("it begins after %d: what a reader needs was removed", first)
	}
	slow := l.Read(3)
	l.Trim(20<<10, 0, h.at)
	first, _ := l.First()
	var expired *ExpiredError
	if _, err := slow.Poll(); !errors.As(err, &expired) || expired.First != first || first < 100 {
		t.Errorf("a reader that is too slow: %v; it begins after %d", err, first)
	}
	if got := readAll(t, l, first); Position(len(got)) != h.at-first {
		t.Errorf("%d entries after %d", len(got), first)
	}
	l.Trim(0, 1, h.at)
	if n := len(l.Segments()); n > 2 {
		t.Errorf("%d segments are left", n)
	}
}

func TestGap(t *testing.T) {
	h := newHistory(rand.New(rand.NewPCG(1, 3)))
	l := open(t, Options{Roots: []string{t.TempDir()}, Reserve: 1})
	if err := l.Append(h.take(10), 0); err != nil {
		t.Fatal(err)
	}
	h.take(10)
	if err := l.Skip(h.at); err != nil {
		t.Fatal(err)
	}
	if err := l.Append(h.take(10), 0); err != nil {
		t.Fatal(err)
	}
	r := l.Read(0)
	var positions []Position
	var expired *ExpiredError
	for {
		entries, err := r.Poll()
		if errors.As(err, &expired) {
			r = l.Read(expired.First)
			continue
		}
		if err != nil || len(entries) == 0 {
			break
		}
		for _, e := range entries {
			positions = append(positions, e.Position)
		}
	}
	if expired == nil || expired.First != 20 || len(positions) != 20 || positions[10] != 21 {
		t.Errorf("gap %v, read %v", expired, positions)
	}
	if first, _ := l.First(); first != 20 {
		t.Errorf("complete after %d", first)
	}
}

func TestDamage(t *testing.T) {
	h := newHistory(rand.New(rand.NewPCG(1, 4)))
	roots := []string{t.TempDir(), t.TempDir()}
	l := open(t, Options{Roots: roots, Copies: 2, Reserve: 1})
	for range 200 {
		if err := l.Append(h.take(10), 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Seal(); err != nil {
		t.Fatal(err)
	}
	harm := func(path string, at int64) {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte("damage"), at); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	copies, size := l.Segments()[0].Copies, l.Segments()[0].Bytes
	harm(copies[0], size/2)
	if got := readAll(t, l, 0); Position(len(got)) != h.at {
		t.Errorf("%d entries of %d with one good copy", len(got), h.at)
	}
	harm(copies[1], size/2)
	r, n := l.Read(0), Position(0)
	var damaged *DamagedError
	for {
		entries, err := r.Poll()
		if err != nil && !errors.As(err, &damaged) {
			t.Fatal(err)
		}
		if n += Position(len(entries)); err == nil && len(entries) == 0 {
			break
		}
	}
	if damaged == nil || n+damaged.To-damaged.After != h.at || damaged.To-damaged.After > 500 {
		t.Errorf("%d of %d read, damage: %v", n, h.at, damaged)
	}
}

// A log whose only root is away opens, and goes on when it is back. The next Open has what was there before, too.
func TestRootAwayAtTheStart(t *testing.T) {
	h, now := newHistory(rand.New(rand.NewPCG(1, 6))), time.UnixMilli(1_700_000_000_000)
	dir := filepath.Join(t.TempDir(), "root")
	o := Options{Roots: []string{dir}, Reserve: 1, Now: func() time.Time { return now }}
	l := open(t, o)
	if err := errors.Join(l.Append(h.take(10), 0), l.Close()); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Rename(dir, dir+".away"), os.WriteFile(dir, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	l = open(t, o)
	if err := l.Skip(5); err != nil { // the store has what is above
		t.Fatal(err)
	}
	h.take(5)
	if err := l.Append(h.after(5), 0); err == nil || !strings.Contains(err.Error(), "no root of the log can be written") || l.Roots()[0].Problem == "" {
		t.Fatalf("without a root: %v, %+v", err, l.Roots())
	}
	if err := errors.Join(os.Remove(dir), os.Rename(dir+".away", dir)); err != nil {
		t.Fatal(err)
	}
	now = now.Add(rootRetry)
	if err := errors.Join(l.Append(h.after(5), 0), l.Close()); err != nil {
		t.Fatal(err)
	}
	l = open(t, o)
	if got := readAll(t, l, 0); len(got) != 15 {
		t.Fatalf("%d entries of 15", len(got))
	}
	for i, e := range readAll(t, l, 0) {
		if err := same(l, e, h.all[i]); err != nil {
			t.Error(err)
		}
	}
}

func TestNextWaits(t *testing.T) {
	l := open(t, Options{Roots: []string{t.TempDir()}, Reserve: 1})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Read(0).Next(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	done := make(chan error)
	go func() {
		_, err := l.Read(0).Next(context.Background())
		done <- err
	}()
	l.Close()
	if err := <-done; !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

func FuzzBlock(f *testing.F) {
	h := newHistory(rand.New(rand.NewPCG(1, 5)))
	for _, n := range []int{0, 1, 50} {
		entries := h.take(n)
		f.Add(appendBlock(nil, 0, &block{entries: entries, complete: h.at + 3}, func(e *Entry) bool { return e.Position%2 == 0 })[blockHeader:])
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		b, err := decodeBlock(body)
		if err != nil {
			return
		}
		at := Position(-1)
		for _, e := range b.entries {
			if e.Position <= at || e.Position > b.complete {
				t.Fatalf("position %d after %d, complete to %d", e.Position, at, b.complete)
			}
			at = e.Position
		}
		again, err := decodeBlock(appendBlock(nil, 0, b, func(e *Entry) bool { return e.PrevValue != nil })[blockHeader:])
		if err != nil || len(again.entries) != len(b.entries) || again.complete != b.complete {
			t.Fatalf("not the same again: %v", err)
		}
	})
}

// TestSinceBeforeAnEmptySegment: a segment can have positions without entries, and then has no time.
func TestSinceBeforeAnEmptySegment(t *testing.T) {
	l, err := Open(Options{Roots: []string{t.TempDir()}, Epoch: "e", Reserve: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	began := time.Now()
	e := &Entry{Position: 10, Created: 10, Time: began, Kind: Put, Last: true, Key: "/k", Value: []byte("v")}
	if err := l.Append([]*Entry{e}, 0); err != nil {
		t.Fatal(err)
	}
	if err := l.Seal(); err != nil {
		t.Fatal(err)
	}
	if err := l.Append(nil, 35); err != nil {
		t.Fatal(err)
	}
	for after, want := range map[time.Duration]Position{-time.Hour: 0, time.Hour: 35} {
		if at, err := l.Since(began.Add(after)); at != want || err != nil {
			t.Errorf("since %s: %d, %v; want %d", after, at, err, want)
		}
	}
}
