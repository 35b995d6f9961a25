package record

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// reclaimInterval is how often memory is looked at.
	reclaimInterval = 5 * time.Second
	// quietBytes is the most that is copied, and allocated, in that time while nothing
	// much goes on.
	quietBytes = 16 << 20
	// minReclaim is the least that is worth a collection.
	minReclaim = 16 << 20
)

// Reclaim returns memory to the system when a burst is over, until ctx ends: buffers
// that were returned to the pool, and what handshakes have left. The runtime alone
// keeps for minutes what the burst took.
func (p *Pool) Reclaim(ctx context.Context) {
	ticker := time.NewTicker(reclaimInterval)
	defer ticker.Stop()
	taken, allocated := p.taken.Load(), readMemory().allocated
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		now := readMemory()
		quiet := p.taken.Load()-taken < quietBytes && now.allocated-allocated < quietBytes
		if quiet && now.unused > minReclaim {
			runtime.GC() // a sync.Pool gives its content up in two collections
			debug.FreeOSMemory()
		}
		taken, allocated = p.taken.Load(), readMemory().allocated
	}
}

// memory is what the runtime says, in bytes.
type memory struct {
	allocated uint64 // ever
	unused    uint64 // by the heap: dead, or free and not returned; and pooled buffers
}

func readMemory() memory {
	samples := []metrics.Sample{
		{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/live:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/free:bytes"},
	}
	metrics.Read(samples)
	var v [4]uint64
	for i, s := range samples {
		if s.Value.Kind() == metrics.KindUint64 {
			v[i] = s.Value.Uint64()
		}
	}
	return memory{allocated: v[0], unused: v[2] - min(v[1], v[2]) + v[3]}
}
