package tunnel

import (
	"crypto/tls"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// key of pooled connections and of sessions. Go's own key of sessions is the server's
// name, by which a second workload would resume the session of the first one, and
// would be taken for it.
type key struct {
	identity, serial string
	peer             netip.AddrPort
	sni              string
}

func keyOf(r *Request, peer Peer) key {
	return key{r.Credentials.Identity, r.Credentials.Serial, peer.Address, r.SNI}
}

// bucket has what is kept for a key.
type bucket struct {
	idle     []*parking // the one that was used last is at the end
	sessions tls.ClientSessionCache
	used     time.Time
}

// sessionsPerKey is enough for handshakes at the same time: a ticket of TLS 1.3 is
// used once.
const sessionsPerKey = 4

// forgetAfter is how long sessions of a key are kept without use. Tickets of servers
// are of use for two days; a workload that is gone keeps none for long.
const forgetAfter = 10 * time.Minute

// pool of idle connections.
type pool struct {
	maxIdle int
	idle    time.Duration
	metrics *metrics
	readers sync.WaitGroup

	mu      sync.Mutex
	buckets map[key]*bucket
	swept   time.Time
	closed  bool
}

func newPool(maxIdle int, idle time.Duration, m *metrics) *pool {
	return &pool{maxIdle: maxIdle, idle: idle, metrics: m, buckets: map[key]*bucket{}, swept: time.Now()}
}

// of returns the bucket of k.
func (p *pool) of(k key) *bucket {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.bucketLocked(k)
}

// bucketLocked is of; the caller holds mu.
func (p *pool) bucketLocked(k key) *bucket {
	b := p.buckets[k]
	if b == nil {
		b = &bucket{sessions: tls.NewLRUClientSessionCache(sessionsPerKey)}
		p.buckets[k] = b
	}
	b.used = time.Now()
	p.sweep(b.used)
	return b
}

// sweep forgets what was not used for long, at most once a minute. The caller holds
// mu.
func (p *pool) sweep(now time.Time) {
	if now.Sub(p.swept) < time.Minute {
		return
	}
	p.swept = now
	for k, b := range p.buckets {
		if len(b.idle) == 0 && now.Sub(b.used) > forgetAfter {
			delete(p.buckets, k)
		}
	}
}

// take returns an idle connection of k, or nil.
func (p *pool) take(k key) *Conn {
	for {
		p.mu.Lock()
		b := p.bucketLocked(k)
		if len(b.idle) == 0 {
			p.mu.Unlock()
			return nil
		}
		stay := b.idle[len(b.idle)-1]
		b.idle = b.idle[:len(b.idle)-1]
		p.mu.Unlock()
		p.metrics.idle.Dec()
		if stay.unpark() {
			p.metrics.reused.Inc()
			return stay.conn
		}
		p.metrics.dropped.WithLabelValues("stale").Inc()
		stay.conn.close()
	}
}

// put keeps c, and reports whether it does.
func (p *pool) put(c *Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.buckets[c.key]
	if p.closed || b != c.bucket || len(b.idle) >= p.maxIdle {
		return false // b is another one, or nil, after retire
	}
	// Not by the reader itself: unpark may come first.
	rec := c.link.Record()
	if rec.SetWriteDeadline(time.Time{}) != nil || rec.SetReadDeadline(time.Now().Add(p.idle)) != nil {
		return false
	}
	limitUnanswered(c.socket, openUnanswered, idleProbe)
	stay := &parking{conn: c, result: make(chan error, 1)}
	b.idle = append(b.idle, stay)
	b.used = time.Now()
	p.metrics.idle.Inc()
	p.readers.Go(func() { stay.park() })
	return true
}

// unparked ends a stay that nothing else has ended: its parked reader is done.
func (p *pool) unparked(stay *parking, err error) {
	b := stay.conn.bucket
	p.mu.Lock()
	i := slices.Index(b.idle, stay)
	if i >= 0 {
		b.idle = slices.Delete(b.idle, i, i+1)
	}
	p.mu.Unlock()
	if i < 0 {
		return // it was taken or dropped
	}
	p.metrics.idle.Dec()
	reason := "stale"
	if isTimeout(err) {
		reason = "idle"
	}
	p.metrics.dropped.WithLabelValues(reason).Inc()
	stay.conn.close()
}

// retire drops everything of a certificate.
func (p *pool) retire(identity, serial string) {
	p.drop("retired", func(k key) bool { return k.identity == identity && k.serial == serial })
}

// dropPeer drops what leads to a peer that does not answer.
func (p *pool) dropPeer(peer netip.AddrPort) {
	p.drop("stale", func(k key) bool { return k.peer == peer })
}

func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.drop("closed", func(key) bool { return true })
	p.readers.Wait()
}

func (p *pool) drop(reason string, match func(key) bool) {
	var dropped []*parking
	p.mu.Lock()
	for k, b := range p.buckets {
		if match(k) {
			dropped = append(dropped, b.idle...)
			b.idle = nil
			delete(p.buckets, k)
		}
	}
	p.mu.Unlock()
	for _, stay := range dropped {
		p.metrics.idle.Dec()
		p.metrics.dropped.WithLabelValues(reason).Inc()
		stay.unpark()
		stay.conn.close()
	}
}
