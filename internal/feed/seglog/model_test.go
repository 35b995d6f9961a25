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
	switch g.rand.IntN(20) {
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
	case 19:
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
			if err := same(g.log, e, g.hist.all[at-1]); err != nil {
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
