package eureka

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

const (
	// holdMax is how long an answer waits for a change at most. Clients give up reading after 8 s (Eureka's
	// eurekaServerReadTimeoutSeconds), others after 5.
	holdMax = 4 * time.Second
	// holdShare of the time between two requests, in percent: Eureka's client gives a request up that takes as
	// long as its interval, and asks half as often then.
	holdShare = 80
	// holdFrom is the least time between two requests for which one is held: a shorter one is that of several
	// clients behind a proxy, or of one that polls.
	holdFrom = time.Second
	// holdSettle is how long an answer waits after a change for those that come with it: the client asks
	// again an interval later.
	holdSettle = 100 * time.Millisecond
	// holdAgain is how long nothing is held for an address from which a client gave up waiting.
	holdAgain = time.Hour
	// maxImpatient addresses are remembered; beyond it nothing is held for any that gives up.
	maxImpatient = 4096
)

// conn is what is known of a connection, so of a client, as clients keep theirs: when and to what it was
// answered last.
type conn struct {
	mu      sync.Mutex
	at      time.Time // of the last document; zero: none yet
	key     viewKey
	version int64
}

type connKey struct{}

// withConn is http.Server's ConnContext.
func withConn(ctx context.Context, _ net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, &conn{})
}

// answered with a version of a view.
func (c *conn) answered(key viewKey, version int64) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at, c.key, c.version = time.Now(), key, version
}

// patience is how long the client can wait for a change of a view that it has seen at a version; 0: it has not.
func (c *conn) patience(key viewKey, version int64) time.Duration {
	if c == nil {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	since := time.Since(c.at)
	if c.at.IsZero() || since < holdFrom || c.key != key || c.version != version {
		return 0
	}
	return min(holdMax, since*holdShare/100)
}

// impatient are the addresses from which clients gave up waiting, with the time until which nothing is held
// for them.
type impatient struct {
	mu    sync.Mutex
	until map[netip.Addr]time.Time
}

func (i *impatient) has(a netip.Addr) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	until, ok := i.until[a]
	if ok && time.Now().After(until) {
		delete(i.until, a)
		ok = false
	}
	return ok || len(i.until) >= maxImpatient
}

func (i *impatient) add(a netip.Addr) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.until == nil {
		i.until = map[netip.Addr]time.Time{}
	}
	if len(i.until) >= maxImpatient {
		for a, until := range i.until {
			if time.Now().After(until) {
				delete(i.until, a)
			}
		}
	}
	if len(i.until) < maxImpatient {
		i.until[a] = time.Now().Add(holdAgain)
	}
}

// hold the request for a delta until there is something that the client has not seen, it can't wait any longer, or
// the server ends. So a change reaches a client that waits at once, and not after its interval.
func (s *Server) hold(r *request) {
	changed, version := s.views.watch(r.key)
	patience := r.conn.patience(r.key, version)
	if changed == nil || patience <= 0 || s.impatient.has(r.from) {
		return
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-changed:
		settle := time.NewTimer(holdSettle)
		defer settle.Stop()
		select {
		case <-settle.C:
		case <-r.Context().Done():
		}
	case <-timer.C:
	case <-r.Context().Done():
		if !s.ended.Load() {
			s.log.Debug("a client gave up waiting for a change; its address is answered at once for an hour", "address", r.from)
			s.impatient.add(r.from)
		}
	}
}

// connOf a request; nil: the server is not Serve's.
func connOf(r *http.Request) *conn {
	c, _ := r.Context().Value(connKey{}).(*conn)
	return c
}
