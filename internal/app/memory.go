package app

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// memoryEvery is how often memory is looked at.
	memoryEvery = 5 * time.Second
	// memoryQuiet is the most that is allocated in that time while nothing much
	// goes on.
	memoryQuiet = 16 << 20
	// planeWorth and agentWorth are the least that is worth a collection, which
	// takes as long as there is live memory to look at; an agent has less.
	planeWorth = 40 << 20
	agentWorth = 12 << 20
)

// memoryState is what the runtime says, in bytes.
type memoryState struct {
	allocated uint64 // ever
	live      uint64 // after the last collection
	objects   uint64 // live, and dead but not collected
	free      uint64 // not in use, and not given back to the system
}

// worthFreeing tells, by a look at the memory now and one before, whether a burst
// is over and has left more than worth behind.
func (m memoryState) worthFreeing(before memoryState, worth uint64) bool {
	dead := m.objects - min(m.live, m.objects)
	return m.allocated-before.allocated < memoryQuiet && m.free+dead > worth
}

// giveBack returns memory to the system once a burst is over, if it is worth it.
// By itself the runtime keeps as much as the burst took for minutes, as it collects
// again only when the heap has doubled: a process that has loaded its state would
// look twice as large as it is.
func giveBack(worth uint64) func(context.Context) error {
	return func(ctx context.Context) error { return watchMemory(ctx, worth) }
}

func watchMemory(ctx context.Context, worth uint64) error {
	ticker := time.NewTicker(memoryEvery)
	defer ticker.Stop()
	before := readMemory()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		now := readMemory()
		if now.worthFreeing(before, worth) {
			debug.FreeOSMemory()
			now = readMemory()
		}
		before = now
	}
}

func readMemory() memoryState {
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
	return memoryState{allocated: values[0], live: values[1], objects: values[2], free: values[3]}
}
