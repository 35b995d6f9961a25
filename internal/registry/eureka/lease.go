package eureka

import (
	"container/heap"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/resource"
)

const (
	// sweepEvery is how often leases that have run out are looked for.
	sweepEvery = time.Second
	// Self-preservation: where more than one in waveShare of the leases runs out at a time, it is more
	// likely that the network is cut than that the clients are gone (Eureka's threshold is 0.85). Fewer
	// than minWave are no wave. They are kept for at most heldFor times their duration.
	waveShare = 0.15
	minWave   = 5
	heldFor   = 2
)

// leases of the clients that renew at this instance of the control plane.
type leases struct {
	log *slog.Logger

	mu    sync.Mutex
	all   map[resource.Key]*leased
	order byDue
	// held is since when leases that have run out are kept; zero: none are.
	held time.Time
}

// leased is one instance, with the session that keeps it alive.
type leased struct {
	key      resource.Key
	session  *registry.Session
	duration time.Duration
	due      time.Time
	at       int // in order
}

// byDue is a heap: the lease that runs out first is at its front.
type byDue []*leased

func (h byDue) Len() int           { return len(h) }
func (h byDue) Less(i, j int) bool { return h[i].due.Before(h[j].due) }
func (h byDue) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}
func (h *byDue) Push(x any) { l := x.(*leased); l.at = len(*h); *h = append(*h, l) }
func (h *byDue) Pop() any {
	old := *h
	l := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return l
}

func newLeases(log *slog.Logger) *leases { return &leases{log: log, all: map[resource.Key]*leased{}} }

// get the lease of an instance; nil: it has none here.
func (l *leases) get(key resource.Key) *leased {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all[key]
}

// put a lease, or renew it with another duration. before is a lease that it replaces, or nil.
func (l *leases) put(next *leased) (before *leased) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if before = l.all[next.key]; before != nil {
		heap.Remove(&l.order, before.at)
	}
	next.due = time.Now().Add(next.duration)
	l.all[next.key] = next
	heap.Push(&l.order, next)
	if before != nil && before.session == next.session {
		return nil
	}
	return before
}

// renew a lease; false: there is none.
func (l *leases) renew(key resource.Key) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	lease := l.all[key]
	if lease == nil {
		return false
	}
	lease.due = time.Now().Add(lease.duration)
	heap.Fix(&l.order, lease.at)
	return true
}

// remove a lease, and return it; nil: there is none.
func (l *leases) remove(key resource.Key) *leased {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.removeLocked(key)
}

func (l *leases) removeLocked(key resource.Key) *leased {
	lease := l.all[key]
	if lease == nil {
		return nil
	}
	delete(l.all, key)
	heap.Remove(&l.order, lease.at)
	return lease
}

func (l *leases) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.all)
}

// run ends leases that have run out, until ctx ends.
func (l *leases) run(ctx context.Context, ended func(*leased)) {
	ticker := time.NewTicker(sweepEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			for _, lease := range l.expired(now) {
				ended(lease)
			}
		}
	}
}

// expired removes the leases that have run out. In a wave of them those stay that are not late for
// long.
func (l *leases) expired(now time.Time) []*leased {
	l.mu.Lock()
	defer l.mu.Unlock()
	var late []*leased
	for look := []int{0}; len(look) > 0; { // only below those that are late: it is a heap
		i := look[len(look)-1]
		look = look[:len(look)-1]
		if i < len(l.order) && !l.order[i].due.After(now) {
			late = append(late, l.order[i])
			look = append(look, 2*i+1, 2*i+2)
		}
	}
	wave := len(late) >= minWave && float64(len(late)) > waveShare*float64(len(l.all))
	switch {
	case wave && l.held.IsZero():
		l.held = now
		l.log.Warn("many leases of Eureka clients run out at a time: they are kept for a while, as the network may be cut",
			"late", len(late), "all", len(l.all))
	case !wave && !l.held.IsZero():
		l.held = time.Time{}
		l.log.Info("leases of Eureka clients run out as usual again", "late", len(late), "all", len(l.all))
	}
	var out []*leased
	for _, lease := range late {
		if !wave || now.Sub(lease.due) > (heldFor-1)*lease.duration {
			out = append(out, l.removeLocked(lease.key))
		}
	}
	return out
}
