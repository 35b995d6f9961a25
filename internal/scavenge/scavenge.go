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
	dropAgain = 20 * time.Second
)

// state of the memory as the runtime reports it, in bytes.
type state struct {
	allocated uint64 // ever
	live      uint64 // after the last collection
	objects   uint64 // live, and dead but not collected
	free      uint64 // not in use, and not returned to the system
}

// reclaimable reports whether, judged by the state now and one interval before, a burst is
// over and has left more than minReclaim bytes behind.
func (s state) reclaimable(before state, minReclaim uint64) bool {
	dead := s.objects - min(s.live, s.objects)
	return s.allocated-before.allocated < quiet && s.free+dead > minReclaim
}

// Run returns memory until ctx ends, and returns nil then. minReclaim (bytes) is the least
// that is worth a collection, which takes as long as there is live memory to scan.
func Run(ctx context.Context, minReclaim uint64) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	before := read()
	var dropped time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		now, wait := read(), dropEvery
		if now.reclaimable(before, minReclaim) {
			debug.FreeOSMemory()
			now, wait = read(), dropAgain
		}
		if now.allocated-before.allocated < quiet && time.Since(dropped) >= wait {
			_, _ = dropFilePages() // without /proc, as in some containers, they stay
			dropped = time.Now()
		}
		before = now
	}
}

func read() state {
	samples := []metrics.Sample{
		{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/live:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/free:bytes"},
	}
	metrics.Read(samples)
	var values [4]uint64
	for i, s := range samples {
		if s.Value.Kind() == metrics.KindUint64 {
			values[i] = s.Value.Uint64()
		}
	}
	return state{allocated: values[0], live: values[1], objects: values[2], free: values[3]}
}
