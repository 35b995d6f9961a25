package nacos

import (
	"context"
	"net/netip"
	"time"

	"github.com/proxima-mesh/proxima/internal/registry"
)

// Clients have a list of servers, stay at the one that they are connected to, and go on at the next when it ends: so all
// clients of one go to the same other, and one that comes back has none. A server that has more than its share asks
// some of its clients to move (ConnectResetRequest).

const (
	// balanceEvery is how often shares are looked at: longer than it takes until the others know of a move.
	balanceEvery = 5 * time.Second
	// balanceFrom is how many more than its share a server has, in percent, before it asks clients to move.
	balanceFrom = 5
	// balancePart of those beyond the share are asked at a time, as a divisor.
	balancePart = 2
	// settled connections may be asked to move: they have registered and subscribed.
	settled = 10 * time.Second
	// returned: of so many clients of an address that were asked, half or more came back within returnsWithin. Their list has
	// this server alone, or what is between sends them here, so they are left alone for balanceAgain.
	returned      = 4
	returnsWithin = 30 * time.Second
	balanceAgain  = time.Hour
	// maxAsked addresses are remembered; the next one forgets them all.
	maxAsked = 4096
)

// asked clients of an address.
type asked struct {
	n, back int
	last    time.Time
}

// sticks reports whether clients of the address come back.
func (a *asked) sticks(now time.Time) bool {
	return a != nil && a.n >= returned && 2*a.back >= a.n && now.Sub(a.last) < balanceAgain
}

// Connections is how many clients of version 2 are connected.
func (s *Server) Connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for c := range s.conns {
		if _, ok := c.since(); ok {
			n++
		}
	}
	return n
}

// runBalance asks clients to move until ctx ends.
func (s *Server) runBalance(ctx context.Context) {
	if s.core.Others == nil {
		return
	}
	ticker := time.NewTicker(balanceEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			s.balance(s.core.Others(registry.Nacos), time.Now())
		}
	}
}

// surplus is how many clients each of the others should get of ours now, and their sum.
func surplus(own int, others []registry.Server) (give []int, sum int) {
	all := own
	for _, o := range others {
		all += o.Clients
	}
	n := len(others) + 1
	share := (all + n - 1) / n
	give = make([]int, len(others))
	if own <= share+share*balanceFrom/100 {
		return give, 0
	}
	left := (own - share + balancePart - 1) / balancePart
	for i, o := range others {
		give[i] = min(left, max(0, share-o.Clients))
		left -= give[i]
		sum += give[i]
	}
	return give, sum
}

func (s *Server) balance(others []registry.Server, now time.Time) {
	give, sum := surplus(s.Connections(), others)
	if sum == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n, to := 0, 0
	for c := range s.conns {
		for to < len(give) && give[to] == 0 {
			to++
		}
		if to == len(give) {
			break
		}
		at, ok := c.since()
		if !ok || now.Sub(at) < settled || s.asked[c.from].sticks(now) {
			continue
		}
		s.ask(c, others[to], now)
		give[to]--
		n++
	}
	if n > 0 {
		s.log.Info("clients are asked to connect to other instances of the control plane, which have fewer", "clients", n)
	}
}

// ask a client to move. s.mu is held.
func (s *Server) ask(c *conn, to registry.Server, now time.Time) {
	if s.asked[c.from] == nil {
		if len(s.asked) >= maxAsked {
			clear(s.asked)
		}
		s.asked[c.from] = &asked{}
	}
	a := s.asked[c.from]
	if now.Sub(a.last) >= balanceAgain {
		*a = asked{}
	}
	a.n, a.last = a.n+1, now
	c.move(to)
	s.core.Meters.Moved(registry.Nacos)
}

// came notes a connection from an address, maybe of a client that was asked to move. s.mu is held.
func (s *Server) came(from netip.Addr) {
	if a := s.asked[from]; a != nil && time.Since(a.last) < returnsWithin {
		a.back++
	}
}

// since when the client is connected; not ok: it has no stream yet, or is asked to move.
func (c *conn) since() (at time.Time, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.began, c.setUp && !c.closed && c.leaves == nil
}

func (c *conn) move(to registry.Server) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leaves = &connectReset{ServerIP: to.Host, ServerPort: to.Port, Module: "internal"}
	c.signal()
}
