package apiserver

import (
	"net"
	"sync"
	"time"
)

// shutdownTimeout is how long requests may take to finish at shutdown. Upstream's
// default is the longest time of a request, 60 s. A connection whose handshake ends
// after the shutdown began gets no GOAWAY: it uses up the whole timeout.
const shutdownTimeout = 10 * time.Second

// connections is a listener that tracks its open connections. Safe for concurrent use.
type connections struct {
	net.Listener

	mu   sync.Mutex
	open map[*connection]struct{}
}

func newConnections(l net.Listener) *connections {
	return &connections{Listener: l, open: map[*connection]struct{}{}}
}

// Accept implements net.Listener.
func (c *connections) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	out := &connection{Conn: conn, of: c}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open[out] = struct{}{}
	return out, nil
}

// closeAll closes the connections that are open.
func (c *connections) closeAll() {
	c.mu.Lock()
	left := c.open
	c.open = map[*connection]struct{}{}
	c.mu.Unlock()
	for conn := range left {
		_ = conn.Conn.Close()
	}
}

type connection struct {
	net.Conn
	of *connections
}

// Close implements net.Conn.
func (c *connection) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}
