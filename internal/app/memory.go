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
	// memoryWorth is the least that is worth a collection.
	memoryWorth = 40 << 20
)

// memoryState is what the runtime says, in bytes.
type memoryState struct {
	allocated uint64 // ever
	live      uint64 // after the last collection
	objects   uint64 // live, and dead but not collected
	free      uint64 // not in use, and not given back to the system
}

// worthFreeing tells, by a look at the memory now and one before, whether a burst
// has left much behind and is over.
func (m memoryState) worthFreeing(before memoryState) bool {
	dead := m.objects - min(m.live, m.objects)
	return m.allocated-before.allocated < memoryQuiet && m.free+dead > memoryWorth
}

// giveBack returns memory to the system once a burst is over. By itself the
// runtime keeps as much as the burst took for minutes, as it collects again only
// when the heap has doubled: a control plane that has loaded its state would look
// twice as large as it is.
func giveBack(ctx context.Context) error {
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
		if now.worthFreeing(before) {
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
