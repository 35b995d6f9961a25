// Package ratelimit bounds how often each of many clients may do something.
package ratelimit

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// keep is how many names are remembered at least before those are forgotten that may use a whole burst.
const keep = 1024

// Limiter has a token bucket for each name. Make it with New. Safe for concurrent use.
type Limiter struct {
	rate  rate.Limit
	burst int

	mu      sync.Mutex
	buckets map[string]*rate.Limiter
	sweep   int // number of names at which the next sweep is due
}

// New makes a limiter of so many a second for each name, with bursts.
func New(perSecond rate.Limit, burst int) *Limiter {
	return &Limiter{rate: perSecond, burst: burst, buckets: map[string]*rate.Limiter{}, sweep: keep}
}

// Rate is how often each name may, a second.
func (l *Limiter) Rate() rate.Limit { return l.rate }

// Allow one more of a name, at a time. It never blocks. Names whose bucket is full are forgotten now and then, as
// a new one is the same; a sweep is due when twice as many are there as the one before has left.
func (l *Limiter) Allow(name string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.buckets[name]
	if b == nil {
		if len(l.buckets) >= l.sweep {
			for other, one := range l.buckets {
				if one.TokensAt(now) >= float64(l.burst) {
					delete(l.buckets, other)
				}
			}
			l.sweep = max(keep, 2*len(l.buckets))
		}
		b = rate.NewLimiter(l.rate, l.burst)
		l.buckets[name] = b
	}
	return b.AllowN(now, 1)
}
