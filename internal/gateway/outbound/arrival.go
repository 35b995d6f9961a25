package outbound

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// arrivals match the connections of a proxy.Announcer with what it says of them. The mode
// makes its announcement once it has connected, so that either may come first.
type arrivals struct {
	mu       sync.Mutex
	arrived  map[netip.AddrPort]proxy.Redirected
	expected map[netip.AddrPort]chan proxy.Redirected
	order    []netip.AddrPort // of arrived, the oldest first
}

const (
	// announceTimeout bounds the wait for an announcement: whoever else connects to the
	// tunnel is reset after it.
	announceTimeout = time.Second
	// maxArrived bounds announcements whose connection was never accepted.
	maxArrived = 4096
)

func newArrivals() *arrivals {
	return &arrivals{arrived: map[netip.AddrPort]proxy.Redirected{}, expected: map[netip.AddrPort]chan proxy.Redirected{}}
}

// Announce is for proxy.Announcer: it tells whose a connection to the tunnel is.
func (r *Router) Announce(c proxy.Redirected) { r.arrival.announce(c) }

func (a *arrivals) announce(c proxy.Redirected) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if to := a.expected[c.From]; to != nil {
		delete(a.expected, c.From)
		to <- c // it holds one
		return
	}
	if len(a.order) >= maxArrived {
		delete(a.arrived, a.order[0])
		a.order = a.order[1:]
	}
	if _, again := a.arrived[c.From]; !again {
		a.order = append(a.order, c.From)
	}
	a.arrived[c.From] = c
}

var errNotAnnounced = errors.New("the connection is not one of this agent: the tunnel serves virtual addresses only")

// Announced is the origin of a connection that a proxy.Announcer makes. It fits
// tunnel.ServerConfig.Origin.
func (r *Router) Announced(conn net.Conn) (client, destination netip.AddrPort, err error) {
	from, ok := conn.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}, netip.AddrPort{}, errNotAnnounced
	}
	at := from.AddrPort()
	c, ok := r.arrival.await(netip.AddrPortFrom(at.Addr().Unmap(), at.Port()))
	if !ok {
		return netip.AddrPort{}, netip.AddrPort{}, errNotAnnounced
	}
	return c.Client, c.Destination, nil
}

func (a *arrivals) await(from netip.AddrPort) (proxy.Redirected, bool) {
	a.mu.Lock()
	if c, ok := a.arrived[from]; ok {
		delete(a.arrived, from)
		a.forget(from)
		a.mu.Unlock()
		return c, true
	}
	ready := make(chan proxy.Redirected, 1)
	a.expected[from] = ready
	a.mu.Unlock()
	timer := time.NewTimer(announceTimeout)
	defer timer.Stop()
	select {
	case c := <-ready:
		return c, true
	case <-timer.C:
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.expected, from)
	select {
	case c := <-ready: // at the last moment
		return c, true
	default:
		return proxy.Redirected{}, false
	}
}

// forget an arrival's place in the order. The newest are asked for, so the search begins
// there. The caller holds mu.
func (a *arrivals) forget(from netip.AddrPort) {
	for i := len(a.order) - 1; i >= 0; i-- {
		if a.order[i] == from {
			a.order = append(a.order[:i], a.order[i+1:]...)
			return
		}
	}
}
