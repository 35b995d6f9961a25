package audit

import (
	"net/netip"
	"sync"
	"time"
)

// Rates of Limiter. Together they fill DefaultMaxBytes in a day at the earliest.
const (
	sourceRate  = 1 // records a second
	sourceBurst = 60
	totalRate   = 20
	totalBurst  = 600
	// maxSources are remembered; when there are more, those that are at rest are
	// forgotten.
	maxSources = 4096
)

// Limiter bounds how fast records come, all together and from each source. The zero
// value is ready. Safe for concurrent use.
type Limiter struct {
	mu         sync.Mutex
	total      bucket
	sources    map[string]*bucket
	suppressed uint64
}

type bucket struct {
	tokens float64
	at     time.Time
}

// fill the bucket up to now; a new one is full.
func (b *bucket) fill(now time.Time, rate, burst float64) {
	if b.at.IsZero() {
		b.tokens = burst
	} else {
		b.tokens = min(burst, b.tokens+rate*max(0, now.Sub(b.at).Seconds()))
	}
	b.at = now
}

// Allow a record of a source, such as a user or an address, at a time. What is not
// allowed is counted.
func (l *Limiter) Allow(source string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	own := l.source(source, now)
	l.total.fill(now, totalRate, totalBurst)
	if own == nil || own.tokens < 1 || l.total.tokens < 1 {
		l.suppressed++
		return false
	}
	own.tokens--
	l.total.tokens--
	return true
}

// source of records; nil if there are too many.
func (l *Limiter) source(name string, now time.Time) *bucket {
	if b := l.sources[name]; b != nil {
		b.fill(now, sourceRate, sourceBurst)
		return b
	}
	if len(l.sources) >= maxSources {
		for other, b := range l.sources {
			if b.fill(now, sourceRate, sourceBurst); b.tokens == sourceBurst {
				delete(l.sources, other)
			}
		}
		if len(l.sources) >= maxSources {
			return nil
		}
	}
	if l.sources == nil {
		l.sources = map[string]*bucket{}
	}
	b := &bucket{}
	b.fill(now, sourceRate, sourceBurst)
	l.sources[name] = b
	return b
}

// Suppressed are the records that were not allowed since the last call.
func (l *Limiter) Suppressed() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.suppressed
	l.suppressed = 0
	return n
}

// SourceOf an address: an IPv6 host has a whole /64.
func SourceOf(address string) string {
	ip, err := netip.ParseAddr(address)
	if err != nil || ip.Unmap().Is4() {
		return address
	}
	prefix, err := ip.WithZone("").Prefix(64)
	if err != nil {
		return address
	}
	return prefix.String()
}
