package scavenge

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync/atomic"
	"time"
)

const (
	// steadyPercent is the runtime's default of GOGC, growingPercent the least that it is while live memory
	// grows. What is allocated between two collections lies between the objects that stay, and so its
	// room is not given back when it has gone: after 2,000 proxies had connected, 105 of 257 MB of
	// heap in use were free with 40 percent, 39 of 191 with 20. A lower percentage costs more
	// collections, so it is for growth, and for when they are rare.
	steadyPercent  = 100
	growingPercent = 20
	// mostGrowing is the most that it is while live memory grows, whatever that costs: of 30,000 instances that
	// registered, 345 MB were resident with 40 percent and 417 with 100, for 3 % more of the time.
	mostGrowing = 40
	// costly and cheap are shares of the process' CPU time that collections take. Beyond costly the percentage is
	// doubled, below cheap halved: half of it doubles what collections take, which stays below costly, so one
	// does not follow the other. With 20 percent they took half of the time in which 20,000 instances registered,
	// which lasted twice as long. The share is that of a second or more, as single collections differ.
	costly, cheap = 0.35, 0.15
	// dear and modest are the same where a small heap may have room: beyond dear it has all that it may have. Figures are
	// in bench/README.md.
	dear, modest = 0.25, 0.06
	measured     = time.Second
	// growth of live memory, in percent, from which on it counts: from one collection to the next, or over several.
	growth = 2
	// steady is how many collections without growth end it. A burst has some at its end: after three of
	// them the rest of it, 80 MB of insights, was allocated beside what lives.
	steady = 8
	// rare collections, with that much time from one to the next, cost little. The percentage is low after
	// one, as what is allocated until the next would be the first of a burst.
	rare = 10 * time.Second
)

// pace decides the percentage of GOGC by the live memory after each collection, and what collections cost.
type pace struct {
	// live memory that growth is measured from.
	live    uint64
	percent int
	// growing is the percentage while live memory grows, from growingPercent to most.
	growing int
	// room as in RunPaced.
	room uint64
	// idle collections are those without growth, one after the other.
	idle int
}

// collected is called after a collection, with the memory that lives, the time since the collection
// before, and the share of the process' CPU time that collecting has taken lately, from 0 to 1; between cheap and
// costly it has no effect. It returns the percentage.
func (p *pace) collected(live uint64, since time.Duration, share float64) int {
	grown := live > p.live+p.live*growth/100
	if grown || live < p.live {
		p.live = live
	}
	switch {
	case since >= rare:
		p.growing = growingPercent
	case p.room > 0 && share > dear:
		p.growing = steadyPercent
	case share > costly:
		p.growing *= 2
	case share < modest, p.room == 0 && share < cheap:
		p.growing = max(p.growing/2, growingPercent)
	}
	p.growing = min(p.growing, p.most(live))
	switch {
	case grown, since >= rare:
		p.idle = 0
	case p.idle < steady:
		p.idle++
	}
	if p.percent = p.growing; p.idle == steady {
		p.percent = steadyPercent
	}
	return p.percent
}

// most that growing may be.
func (p *pace) most(live uint64) int {
	return int(min(max(100*p.room/max(live, 1), mostGrowing), steadyPercent))
}

// RunPaced is Run, and lets the collector run more often while live memory grows, or it hardly runs. Room (bytes) is what a heap that
// grows may have between two collections all the same where they take much of the time, up to what lives: it adds nothing to
// a heap that is large, and holes to what is left of a burst. Only one may run in a process, as GOGC is the process's. Who has set the variable GOGC has Run.
func RunPaced(ctx context.Context, minReclaim, room uint64) error {
	if os.Getenv("GOGC") != "" {
		return Run(ctx, minReclaim)
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		keepPace(ctx, room)
	}()
	defer func() { cancel(); <-ended }()
	return Run(ctx, minReclaim)
}

// keepPace sets GOGC after collections until ctx ends, and then to its default.
func keepPace(ctx context.Context, room uint64) {
	defer debug.SetGCPercent(steadyPercent)
	p := pace{live: read().live, percent: growingPercent, growing: growingPercent, room: room}
	now, last := p.percent, time.Now()
	used, usedAt := readCPU(), last
	debug.SetGCPercent(now)
	for after := collections(ctx); ; {
		select {
		case <-ctx.Done():
			return
		case <-after:
		}
		since := time.Since(last)
		last = last.Add(since)
		share := (costly + cheap) / 2 // no effect
		if last.Sub(usedAt) >= measured {
			before := used
			used, usedAt = readCPU(), last
			share = used.share(before)
		}
		if next := p.collected(read().live, since, share); next != now {
			debug.SetGCPercent(next)
			now = next
		}
	}
}

// cpu is what the process has used since its start, by the runtime's estimate, in seconds of one CPU. The
// runtime brings it up to date at the end of a collection.
type cpu struct {
	collecting float64 // without what ran where nothing else would have
	user       float64 // everything else
}

func readCPU() cpu {
	samples := []metrics.Sample{
		{Name: "/cpu/classes/gc/mark/assist:cpu-seconds"}, {Name: "/cpu/classes/gc/mark/dedicated:cpu-seconds"},
		{Name: "/cpu/classes/user:cpu-seconds"},
	}
	metrics.Read(samples)
	var values [3]float64
	for i, s := range samples {
		if s.Value.Kind() == metrics.KindFloat64 {
			values[i] = s.Value.Float64()
		}
	}
	return cpu{collecting: values[0] + values[1], user: values[2]}
}

// share of collecting since a reading before.
func (c cpu) share(before cpu) float64 {
	collecting := c.collecting - before.collecting
	all := collecting + c.user - before.user
	if all <= 0 {
		return 0
	}
	return collecting / all
}

// collections returns a channel with a token after each collection, until ctx ends. A finalizer
// of an object that nobody refers to runs then, and makes the next such object.
func collections(ctx context.Context) <-chan struct{} {
	out := make(chan struct{}, 1)
	var arm func()
	arm = func() {
		// It has a pointer, as objects without are allocated together, and are not finalized for sure.
		object := &struct{ armed *atomic.Bool }{new(atomic.Bool)}
		runtime.SetFinalizer(object, func(any) {
			if ctx.Err() != nil {
				return
			}
			select {
			case out <- struct{}{}:
			default:
			}
			arm()
		})
	}
	arm()
	return out
}
