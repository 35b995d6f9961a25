package issue

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Limits of the requests of one node. The zero value is the default.
type Limits struct {
	// Rate of requests per second; 0: 20.
	Rate rate.Limit
	// Burst that is possible at once; 0: 500, as a node that starts has that many
	// workloads at most.
	Burst int
}

const (
	defaultRate  = 20
	defaultBurst = 500
	// maxIdle is the number of nodes that are remembered before those that are within
	// their limits are forgotten.
	maxIdle = 4096
)

// limiter has a token bucket per node.
type limiter struct {
	limits Limits

	mu    sync.Mutex
	nodes map[string]*rate.Limiter
}

func newLimiter(l Limits) *limiter {
	if l.Rate <= 0 {
		l.Rate = defaultRate
	}
	if l.Burst <= 0 {
		l.Burst = defaultBurst
	}
	return &limiter{limits: l, nodes: map[string]*rate.Limiter{}}
}

func (l *limiter) allow(node string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, ok := l.nodes[node]
	if !ok {
		if len(l.nodes) >= maxIdle {
			l.forget(now)
		}
		n = rate.NewLimiter(l.limits.Rate, l.limits.Burst)
		l.nodes[node] = n
	}
	return n.AllowN(now, 1)
}

// forget nodes whose bucket is full: another one is the same.
func (l *limiter) forget(now time.Time) {
	for name, n := range l.nodes {
		if n.TokensAt(now) >= float64(l.limits.Burst) {
			delete(l.nodes, name)
		}
	}
}
