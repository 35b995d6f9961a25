package seglog

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"
)

// TestModel plays random histories on a disk with faults and crashes, beside what must be true of them.
func TestModel(t *testing.T) {
	runs := 80
	if n, err := strconv.Atoi(os.Getenv("PROXIMA_MODEL_RUNS")); err == nil {
		runs = n
	} else if os.Getenv("PROXIMA_SOAK") != "" {
		runs = 100_000
	}
	states, first := 0, 0
	if n, err := strconv.Atoi(os.Getenv("PROXIMA_MODEL_SEED")); err == nil {
		runs, first = n+1, n
	}
	for seed := first; seed < runs; seed++ {
		g := &game{t: t, seed: uint64(seed), rand: rand.New(rand.NewPCG(uint64(seed), 7))}
		if err := g.play(); err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, g.trace)
		}
		states += g.crashes
	}
	t.Logf("%d histories with %d crashes", runs-first, states)
}

// game is one history.
type game struct {
	t     *testing.T
	seed  uint64
	rand  *rand.Rand
	disk  *playedDisk
	roots []string
	log   *Log
	hist  *history
	now   time.Time
	// durable is what must survive; promised by Durable while a root that has it is there.
	durable Position
	trimmed Position
	tier    *playedTier
	// edits are the values that were to be replaced, with their marks. Those that are not known to be gone everywhere may be read as they
	// were.
	edits   []playedEdit
	strict  bool
	crashes int
	trace   string
}

func (g *game) note(format string, args ...any) { g.trace += fmt.Sprintf(format+"\n", args...) }

func (g *game) options() Options {
	return Options{
		Roots: g.roots, Copies: 1 + int(g.seed%2), Epoch: "e", SegmentBytes: 4 << 10, Reserve: 1, Disk: g.disk, Tier: g.tier,
		Now: func() time.Time { return g.now },
	}
}

func (g *game) play() error {
	g.roots = []string{"/a", "/b"}
	if g.seed%3 == 0 {
		g.roots = g.roots[:1]
	}
	g.disk = newPlayedDisk(g.rand, "/a", "/b", "/c")
	g.tier = &playedTier{rand: g.rand, files: map[string][]byte{}}
	g.hist, g.now = newHistory(g.rand), time.UnixMilli(1_700_000_000_000)
	var err error
	if g.log, err = Open(g.options()); err != nil {
		return err
	}
	for range 60 {
		if err := g.step(); err != nil {
			return err
		}
	}
	for _, r := range g.disk.roots {
		*r = playedRoot{used: r.used}
	}
	g.now = g.now.Add(time.Minute)
	g.tier.away = false
	if err := g.feed(); err != nil {
		return err
	}
	return g.check()
}

func (g *game) step() error {
	g.now = g.now.Add(time.Duration(g.rand.IntN(5000)) * time.Millisecond)
	switch g.rand.IntN(22) {
	case 0, 1, 2, 3, 4:
		g.hist.take(1 + g.rand.IntN(15))
		return g.feed()
	case 5, 6:
		return g.sync()
	case 7:
		_ = g.log.Seal()
		g.promise()
	case 8:
		return g.crash()
	case 9:
		if err := g.log.Close(); err == nil {
			g.promise()
			g.note("close at %d", g.durable)
		}
		return g.reopen()
	case 10:
		r := g.disk.roots[g.roots[g.rand.IntN(len(g.roots))]]
		switch g.rand.IntN(4) {
		case 0:
			r.failWrites = 1 + g.rand.IntN(4)
		case 1:
			r.failSyncs = 1 + g.rand.IntN(4)
		case 2:
			r.space = r.used + int64(g.rand.IntN(4000))
		case 3:
			r.space, r.failWrites, r.failSyncs = 0, 0, 0
		}
		g.note("root %+v", *r)
	case 11:
		if len(g.roots) == 1 && g.rand.IntN(2) == 0 {
			return nil
		}
		_, at := g.log.End()
		g.log.Trim(12<<10, 0, at/2)
		g.trimmed = max(g.trimmed, at/2)
		g.note("trim to %d", at/2)
	case 12:
		g.log.Repair()
		g.note("repair")
	case 13:
		return g.loseRoot()
	case 14:
		if len(g.roots) == 2 && g.rand.IntN(4) == 0 { // a root is added: it is used by the next segment
			g.roots = append(g.roots, "/c")
			_ = g.log.Close()
			g.promise()
			g.note("root added")
			return g.reopen()
		}
	case 15:
		return g.check()
	case 16:
		return g.offload(g.log)
	case 17:
		g.log.Offloaded(g.tier.list)
		g.log.Release(int64(g.rand.IntN(10_000)))
		g.note("release")
		return g.check()
	case 18:
		switch g.rand.IntN(3) {
		case 0:
			g.tier.away = !g.tier.away
			g.note("tier away: %v", g.tier.away)
		case 1:
			return g.offloadOther()
		default:
			return g.prune()
		}
	case 19, 20:
		return g.edit()
	case 21:
		if g.rand.IntN(4) == 0 {
			return g.loseAll()
		}
	}
	return nil
}

// feed appends what the log lacks.
func (g *game) feed() error {
	for range 4 {
		_, at := g.log.End()
		err := g.log.Append(g.hist.after(at), 0)
		var rewound *RewindError
		switch {
		case errors.As(err, &rewound):
			if _, now := g.log.End(); now != rewound.To || rewound.To < g.durable {
				return fmt.Errorf("rewound to %d, it ends at %d; %d was durable", rewound.To, now, g.durable)
			}
			g.note("rewound to %d: %v", rewound.To, rewound.Err)
			continue
		case err != nil:
			g.note("append after %d: %v", at, err)
			g.now = g.now.Add(rootRetry)
			continue
		}
		g.note("append after %d to %d", at, g.hist.at)
		return nil
	}
	return nil
}

func (g *game) sync() error {
	err := g.log.Sync()
	g.note("sync: %v", err)
	g.promise()
	return nil
}

// loseRoot takes a root away, if there are copies of all on others, or brings it back.
func (g *game) loseRoot() error {
	for dir, r := range g.disk.roots {
		if r.lost {
			r.lost = false
			g.now = g.now.Add(rootRetry)
			g.note("root %s is back", dir)
			return nil
		}
	}
	for _, r := range g.disk.roots {
		r.failWrites, r.failSyncs, r.space = 0, 0, 0
	}
	g.now = g.now.Add(rootRetry)
	if g.options().Copies < 2 || len(g.roots) < 2 || g.log.Seal() != nil || g.log.Repair() != 0 {
		return nil
	}
	g.promise()
	lost := g.roots[g.rand.IntN(len(g.roots))]
	g.disk.roots[lost].lost = true
	g.note("root %s is lost", lost)
	return g.check()
}

func (g *game) promise() { g.durable = max(g.durable, g.log.Durable()) }

func (g *game) crash() error {
	g.promise()
	g.crashes++
	g.disk.crash()
	g.note("crash; durable to %d", g.durable)
	return g.reopen()
}

func (g *game) reopen() error {
	for _, r := range g.disk.roots { // what a root that fails has is not there while it does
		r.failWrites, r.failSyncs, r.space = 0, 0, 0
	}
	l, err := Open(g.options())
	if err != nil {
		return err
	}
	g.log = l
	l.Offloaded(g.tier.list)
	if _, at := l.End(); at < g.durable {
		return fmt.Errorf("it ends at %d, %d was durable", at, g.durable)
	}
	_, at := l.End()
	g.note("open at %d", at)
	return g.check()
}

// check that the log has the history, from where it begins to where it ends.
func (g *game) check() error {
	first, empty := g.log.First()
	_, end := g.log.End()
	if empty {
		return nil
	}
	if first > g.trimmed {
		return fmt.Errorf("it begins after %d, trimmed up to %d at most", first, g.trimmed)
	}
	defer func(away bool) { g.tier.away = away }(g.tier.away)
	r, at := g.log.Read(first), first
	for {
		entries, err := r.Poll()
		if g.tier.away && errors.Is(err, errLost) && r.At() == at {
			g.tier.away = false // the reader goes on where it was
			continue
		}
		if err != nil {
			return err
		}
		if len(entries) == 0 {
			break
		}
		for _, e := range entries {
			if at++; e.Position != at {
				return fmt.Errorf("position %d, want %d", e.Position, at)
			}
			if err := g.same(e, g.hist.all[at-1]); err != nil {
				return err
			}
		}
	}
	if at != end {
		return fmt.Errorf("read up to %d, it ends at %d", at, end)
	}
	return nil
}

// playedTier is a tier in memory, which may be away.
type playedTier struct {
	rand  *rand.Rand
	files map[string][]byte
	list  []Remote
	away  bool
}

// Open implements Tier. Files are released at any time.
func (p *playedTier) Open(_ context.Context, r Remote) (io.ReaderAt, int64, error) {
	data, ok := p.files[r.Name]
	if p.away || !ok {
		return nil, 0, errLost
	}
	return &playedRemote{p, data}, int64(len(data)), nil
}

type playedRemote struct {
	tier *playedTier
	data []byte
}

func (r *playedRemote) ReadAt(p []byte, at int64) (int, error) {
	if r.tier.rand.IntN(10) == 0 {
		return 0, fs.ErrClosed
	}
	return bytes.NewReader(r.data).ReadAt(p, at)
}

// offload what is sealed, as far as the tier takes it.
func (g *game) offload(l *Log) error {
	if g.tier.away {
		return nil
	}
	for _, s := range l.Segments() {
		if !s.Sealed || len(s.Copies) == 0 || s.Offloaded != "" {
			continue
		}
		f, size, r, err := l.OpenSegment(s.SHA256)
		if err != nil {
			continue // of a root that is lost
		}
		data := make([]byte, size)
		if _, err := f.ReadAt(data, 0); err != nil {
			return err
		}
		r.Name = r.SHA256
		if _, ok := g.tier.files[r.Name]; !ok {
			g.tier.list = append(g.tier.list, r)
		}
		g.tier.files[r.Name] = data
	}
	g.log.Offloaded(g.tier.list)
	g.note("offloaded: %d", len(g.tier.list))
	return nil
}

// offloadOther does it for another instance, whose segments are others.
func (g *game) offloadOther() error {
	if g.hist.at == 0 || g.tier.away {
		return nil
	}
	other, err := Open(Options{
		Roots: []string{"/o"}, Epoch: "e", SegmentBytes: 1 << 10 << g.rand.IntN(4), Reserve: 1, Disk: newPlayedDisk(g.rand, "/o"),
		Now: func() time.Time { return g.now },
	})
	if err != nil {
		return err
	}
	from := Position(g.rand.Int64N(int64(g.hist.at)))
	if err := other.Skip(from); err != nil {
		return err
	}
	if err := other.Append(g.hist.after(from), 0); err != nil {
		return err
	}
	if err := other.Seal(); err != nil {
		return err
	}
	g.note("another instance offloads after %d", from)
	return g.offload(other)
}

// prune the oldest of the tier. What is there alone is lost.
func (g *game) prune() error {
	if len(g.tier.list) == 0 {
		return nil
	}
	slices.SortFunc(g.tier.list, func(a, b Remote) int { return cmp.Compare(a.Complete, b.Complete) })
	gone := g.tier.list[0]
	g.tier.list = slices.Clone(g.tier.list[1:])
	delete(g.tier.files, gone.Name)
	g.trimmed = max(g.trimmed, gone.Complete)
	g.log.Offloaded(g.tier.list)
	g.note("the tier forgets up to %d", gone.Complete)
	return g.check()
}

// loseAll of the roots. The store has forgotten what was offloaded; the rest is appended again.
func (g *game) loseAll() error {
	reach := Position(0)
	for _, r := range g.tier.list {
		reach = max(reach, r.Complete)
	}
	if reach == 0 {
		return nil
	}
	g.disk = newPlayedDisk(g.rand, "/a", "/b", "/c")
	g.durable, g.crashes = 0, g.crashes+1
	g.note("all roots are lost, the tier has up to %d", reach)
	if err := g.reopen(); err != nil {
		return err
	}
	at := Position(g.rand.Int64N(int64(reach) + 1))
	if err := g.log.Skip(at); err != nil {
		return err
	}
	g.log.Offloaded(g.tier.list)
	// Only what is in one piece up to there is in reach.
	g.trimmed = max(g.trimmed, at)
	if all := g.log.Segments(); len(all) > 0 && all[len(all)-1].Complete == at {
		g.trimmed, _ = g.log.First()
	}
	g.hist.take(1)
	if err := g.feed(); err != nil {
		return err
	}
	if err := g.log.Sync(); err != nil { // where a log begins is on the disk with its first entry
		return err
	}
	first, empty := g.log.First()
	if _, end := g.log.End(); end < reach || empty || first > g.trimmed {
		return fmt.Errorf("it has %d to %d, want up to %d", first, end, reach)
	}
	return g.check()
}

// playedEdit replaces values of a key.
type playedEdit struct {
	mark string
	key  string
	upTo Position
}

func (p playedEdit) edited(value []byte) []byte { return fmt.Appendf(nil, "%s %x", p.mark, len(value)) }

// editor of all edits.
func (g *game) editor() Editor {
	ed := Editor{Edit: func(e *Entry, marks []string) (*Entry, error) {
		out := e
		for _, p := range g.edits {
			if e.Key != p.key || slices.Contains(marks, p.mark) {
				continue
			}
			next := *out
			changed := false
			if e.Kind == Put && e.Position <= p.upTo {
				next.Value, changed = p.edited(out.Value), true
			}
			if out.PrevValue != nil && e.Prev <= p.upTo {
				next.PrevValue, changed = p.edited(out.PrevValue), true
			}
			if changed {
				out = &next
			}
		}
		return out, nil
	}}
	for _, p := range g.edits {
		ed.Marks = append(ed.Marks, p.mark)
	}
	return ed
}

// edit values of a key in all files, or in some until the power is lost.
func (g *game) edit() error {
	_ = g.log.Seal()
	g.promise()
	if _, end := g.log.End(); end > 0 && len(g.edits) < 3 && g.rand.IntN(2) == 0 {
		key := "/registry/services/shop/s" + strconv.Itoa(g.rand.IntN(20))
		g.edits = append(g.edits, playedEdit{fmt.Sprintf("edit%d", len(g.edits)), key, end})
		g.note("edit %+v", g.edits[len(g.edits)-1])
	}
	reader := g.log.Read(Position(0))
	if first, empty := g.log.First(); !empty {
		reader = g.log.Read(first)
	}
	if _, err := reader.Poll(); err != nil && !errors.Is(err, errLost) {
		return err
	}
	ed := g.editor()
	files, err := g.log.Files()
	complete := err == nil
	for _, path := range files {
		if g.rand.IntN(30) == 0 {
			return g.crash()
		}
		info, err := g.log.Inspect(path)
		if err != nil || !info.Sealed {
			complete = false
			continue
		}
		if _, err := g.log.Edit(path, ed); err != nil {
			g.note("edit %s: %v", path, err)
			complete = false
		}
	}
	if g.tier.away {
		complete = false
	} else if err := g.editTier(ed); err != nil {
		return err
	}
	g.note("edited: %v", complete)
	if err := g.rest(reader); err != nil {
		return err
	}
	if !complete {
		return g.check()
	}
	g.strict = true
	defer func() { g.strict = false }()
	return g.check()
}

// rest reads on with a reader that was in a file before it was edited.
func (g *game) rest(r *Reader) error {
	for at := r.At(); ; {
		entries, err := r.Poll()
		if err != nil && g.tier.away && errors.Is(err, errLost) {
			return nil
		}
		var expired *ExpiredError
		if errors.As(err, &expired) && at == 0 {
			return nil
		}
		if err != nil {
			return fmt.Errorf("a reader of before at %d: %w", r.At(), err)
		}
		if len(entries) == 0 {
			return nil
		}
		for _, e := range entries {
			if at++; e.Position != at {
				return fmt.Errorf("a reader of before: position %d, want %d", e.Position, at)
			}
		}
	}
}

func (g *game) editTier(ed Editor) error {
	for i, r := range g.tier.list {
		data := g.tier.files[r.Name]
		to := &playedFile{}
		out, err := EditFile(bytes.NewReader(data), int64(len(data)), &handle{newPlayedDisk(g.rand, "."), "x", to}, ed)
		if err != nil {
			return err
		}
		if out.Entries == 0 {
			continue
		}
		if got, err := CheckFile(bytes.NewReader(to.data), out.Size); err != nil || got != out.Remote || int64(len(to.data)) != out.Size {
			return fmt.Errorf("the file that was edited is %+v, %w; want %+v", got, err, out.Remote)
		}
		g.tier.list = slices.Clone(g.tier.list)
		out.Remote.Name = out.Remote.SHA256
		g.tier.files[out.Remote.Name] = to.data
		g.tier.list[i] = out.Remote
		delete(g.tier.files, r.Name)
	}
	slices.SortFunc(g.tier.list, func(a, b Remote) int { return cmp.Compare(a.Name, b.Name) })
	g.tier.list = slices.CompactFunc(g.tier.list, func(a, b Remote) bool { return a.Name == b.Name })
	g.log.Offloaded(g.tier.list)
	return nil
}

// same compares an entry with the one that was written, and with what edits make of it.
func (g *game) same(e, want *Entry) error {
	own := *e
	value, _, err := g.log.Previous(e)
	if err != nil {
		return err
	}
	for _, v := range []struct {
		got, want []byte
		at        Position
	}{{e.Value, want.Value, e.Position}, {value, want.PrevValue, e.Prev}} {
		possible := [][]byte{v.want}
		for _, p := range g.edits {
			if e.Key != p.key || v.at > p.upTo || v.at == 0 || v.want == nil {
				continue
			}
			if g.strict {
				clear(possible)
				possible = possible[:0]
			}
			// Edits of one key come in any order, as files were there or not.
			for _, q := range g.edits {
				possible = append(possible, q.edited(v.want))
				for _, o := range g.edits {
					possible = append(possible, o.edited(q.edited(v.want)))
					for _, n := range g.edits {
						possible = append(possible, n.edited(o.edited(q.edited(v.want))))
					}
				}
			}
			break
		}
		if !slices.ContainsFunc(possible, func(p []byte) bool { return bytes.Equal(p, v.got) }) {
			return fmt.Errorf("position %d of %s has %q at %d; possible are %q", e.Position, e.Key, v.got, v.at, possible)
		}
	}
	own.Value, own.PrevValue = want.Value, want.PrevValue
	if own.Kind != Delete && own.Prev != 0 && own.PrevValue == nil {
		own.PrevValue = []byte{}
	}
	return same(g.log, &own, want)
}
