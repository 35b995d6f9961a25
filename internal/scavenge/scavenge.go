// Package scavenge returns memory to the operating system after a burst.
//
// The Go runtime keeps the memory of a burst for minutes, as it collects again only when
// the heap has doubled: a process that has loaded its state would appear twice as large
// as it is. On Linux the pages of the program's own file are given back, too: code that ran at
// the start, and will not again, is most of what a small process has. Enter at Run. The package
// does nothing while the process is busy.
package scavenge

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// interval between two reads of the memory statistics.
	interval = 5 * time.Second
	// quiet is the most that is allocated in an interval while not much happens.
	quiet = 16 << 20
	// dropEvery is the least time between two times at which file pages are given back: those
	// that are used come back by faults, of some hundred µs together.
	dropEvery = 5 * time.Minute
	// dropAgain is that time after a burst, whose code is not needed any more.
	dropAgain = 10 * time.Second
	// dropCollected is that time after a collection. It reads the tables of every function on a stack,
	// which lie all over the file: 9 of 27 MB of file pages of a control plane.
	dropCollected = time.Minute
	// dropGrown is how many bytes of file pages more than were left have the same effect as a burst: one
	// proxy that connects uses code from all over the file, and brings 35 MB with it.
	dropGrown = 16 << 20
	// share of live memory, as a divisor, and least (bytes) that are worth a collection while next to
	// nothing happens. A small process would otherwise appear twice as large as it is for good.
	share, least = 4, 4 << 20
)

// state of the memory as the runtime reports it, in bytes.
type state struct {
	allocated uint64 // ever
	live      uint64 // after the last collection
	objects   uint64 // live, and dead but not collected
	free      uint64 // not in use, and not returned to the system
	cycles    uint64 // collections so far, no bytes
}

// reclaimable reports whether, judged by the state now and one interval before, a burst is
// over and has left more than minReclaim bytes behind. A process in which next to nothing happens
// collects for less, a share of what lives.
func (s state) reclaimable(before state, minReclaim uint64) bool {
	left := s.free + s.objects - min(s.live, s.objects)
	allocated, little := s.allocated-before.allocated, max(s.live/share, least)
	return allocated < quiet && left > minReclaim || allocated < little/4 && left > little && little < minReclaim
}

// settles reports whether, judged by the state one interval before, a burst is over that has allocated half
// as much as lives, and more than minReclaim, since the memory was returned last. The runtime's own
// collections during a burst keep what was allocated meanwhile, and pages and stacks for more of it.
func (s state) settles(before state, returned, minReclaim uint64) bool {
	return s.allocated-before.allocated < quiet && s.allocated-returned > max(s.live/2, minReclaim)
}

// dropper decides when file pages are given back. The zero value gives them back at once.
type dropper struct {
	last   time.Time
	cycles uint64 // at that time
	// left are the bytes of file pages that were resident after it, which the caller sets.
	left uint64
}

// due reports whether file pages, of which so many bytes are resident, are to be given back at a time, and
// expects that they are. burst: one has just ended.
func (d *dropper) due(at time.Time, s, before state, burst bool, resident uint64) bool {
	wait := dropEvery
	switch {
	case burst, resident > d.left+dropGrown:
		wait = dropAgain
	case s.cycles != d.cycles:
		wait = dropCollected
	}
	if s.allocated-before.allocated >= quiet || at.Sub(d.last) < wait {
		return false
	}
	d.last, d.cycles = at, s.cycles
	return true
}

// Run returns memory until ctx ends, and returns nil then. minReclaim (bytes) is the least
// that is worth a collection, which takes as long as there is live memory to scan. While next to
// nothing happens, a quarter of what lives is worth one, too, where that is less; and so is what a burst
// leaves that has allocated half of what lives.
func Run(ctx context.Context, minReclaim uint64) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	before := read()
	returned := before.allocated
	var pages dropper
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		now := read()
		burst := now.reclaimable(before, minReclaim) || now.settles(before, returned, minReclaim)
		if burst {
			debug.FreeOSMemory()
			now = read()
			returned = now.allocated
		}
		if pages.due(time.Now(), now, before, burst, filePages()) {
			_, _ = dropFilePages() // without /proc, as in some containers, they stay
			pages.left = filePages()
		}
		before = now
	}
}

func read() state {
	samples := []metrics.Sample{
		{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/live:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/free:bytes"},
		{Name: "/gc/cycles/total:gc-cycles"},
	}
	metrics.Read(samples)
	var values [5]uint64
	for i, s := range samples {
		if s.Value.Kind() == metrics.KindUint64 {
			values[i] = s.Value.Uint64()
		}
	}
	return state{allocated: values[0], live: values[1], objects: values[2], free: values[3], cycles: values[4]}
}
