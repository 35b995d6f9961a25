package scavenge

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"
)

const (
	// steadyPercent is the runtime's default of GOGC, growingPercent what it is while live memory
	// grows. What is allocated between two collections lies between the objects that stay, and so its
	// room is not given back when it has gone: after 2,000 proxies had connected, 105 of 257 MB of
	// heap in use were free with 40 percent, 39 of 191 with 20. A lower percentage costs more
	// collections, so it is for growth, and for when they are rare.
	steadyPercent  = 100
	growingPercent = 20
	// growth of live memory from one collection to the next, in percent, from which on it counts.
	growth = 2
	// steady is how many collections without growth end it. A burst has some at its end: after three of
	// them the rest of it, 80 MB of insights, was allocated beside what lives.
	steady = 8
	// rare collections, with that much time from one to the next, cost little. The percentage is low after
	// one, as what is allocated until the next would be the first of a burst.
	rare = 10 * time.Second
)

// pace decides the percentage of GOGC by the live memory after each collection.
type pace struct {
	live    uint64
	percent int
	// idle collections are those without growth, one after the other.
	idle int
}

// collected is called after a collection, with the memory that lives and the time since the collection
// before. It returns the percentage.
func (p *pace) collected(live uint64, since time.Duration) int {
	grown := live > p.live+p.live*growth/100
	p.live = live
	switch {
	case grown, since >= rare:
		p.idle, p.percent = 0, growingPercent
	case p.idle < steady:
		p.idle++
	}
	if p.idle == steady {
		p.percent = steadyPercent
	}
	return p.percent
}

// RunPaced is Run, and lets the collector run more often while live memory grows, or it hardly runs. Only one may run in
// a process, as GOGC is the process's. Who has set the variable GOGC has Run.
func RunPaced(ctx context.Context, minReclaim uint64) error {
	if os.Getenv("GOGC") != "" {
		return Run(ctx, minReclaim)
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		keepPace(ctx)
	}()
	defer func() { cancel(); <-ended }()
	return Run(ctx, minReclaim)
}

// keepPace sets GOGC after collections until ctx ends, and then to its default.
func keepPace(ctx context.Context) {
	defer debug.SetGCPercent(steadyPercent)
	p := pace{live: read().live, percent: growingPercent}
	now, last := p.percent, time.Now()
	debug.SetGCPercent(now)
	for after := collections(ctx); ; {
		select {
		case <-ctx.Done():
			return
		case <-after:
		}
		since := time.Since(last)
		last = last.Add(since)
		if next := p.collected(read().live, since); next != now {
			debug.SetGCPercent(next)
			now = next
		}
	}
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
