package seglog

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"
)

// TestModel plays random histories on a disk with faults and crashes, beside what must be true of them.
func TestModel(t *testing.T) {
	runs := 400
	if n, err := strconv.Atoi(os.Getenv("PROXIMA_MODEL_RUNS")); err == nil {
		runs = n
	} else if os.Getenv("PROXIMA_SOAK") != "" {
		runs = 100_000
	}
	states := 0
	for seed := range runs {
		g := &game{t: t, seed: uint64(seed), rand: rand.New(rand.NewPCG(uint64(seed), 7))}
		if err := g.play(); err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, g.trace)
		}
		states += g.crashes
	}
	t.Logf("%d histories with %d crashes", runs, states)
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
	skipped map[Position]Position // from, to
	readers []*Reader
	crashes int
	trace   string
}

func (g *game) note(format string, args ...any) { g.trace += fmt.Sprintf(format+"\n", args...) }

func (g *game) options() Options {
	return Options{
		Roots: g.roots, Copies: 1 + int(g.seed%2), Epoch: "e", SegmentBytes: 4 << 10, Reserve: 1, Disk: g.disk,
		Now: func() time.Time { return g.now },
	}
}

func (g *game) play() error {
	g.roots = []string{"/a", "/b"}
	if g.seed%3 == 0 {
		g.roots = g.roots[:1]
	}
	g.disk = newPlayedDisk(g.rand, "/a", "/b", "/c")
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
	if err := g.feed(); err != nil {
		return err
	}
	return g.check()
}

func (g *game) step() error {
	g.now = g.now.Add(time.Duration(g.rand.IntN(5000)) * time.Millisecond)
	switch g.rand.IntN(16) {
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
	r, at := g.log.Read(first), first
	for {
		entries, err := r.Poll()
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
