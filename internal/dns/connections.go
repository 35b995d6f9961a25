package dns

import (
	"container/list"
	"net"
	"sync"
)

// connections are those of a TCP listener. When there are as many as there may be, the one that has
// waited longest for its next question is closed for each new one (RFC 7766, 6.2.3), so that clients that hold
// connections without asking do not keep others out.
type connections struct {
	most int

	mu      sync.Mutex
	open    int
	waiting *list.List // of net.Conn, by the begin of the wait
}

func newConnections(most int) *connections { return &connections{most: most, waiting: list.New()} }

// begin with a connection. The last free place is kept free where a connection waits.
func (c *connections) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open++; c.open < c.most {
		return
	}
	if oldest := c.waiting.Front(); oldest != nil {
		_ = c.waiting.Remove(oldest).(net.Conn).Close()
	}
}

func (c *connections) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open--
}

// wait for a question on a connection until done is called. A question that has come in part
// is waited for as well.
func (c *connections) wait(conn net.Conn) (done func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.waiting.PushBack(conn)
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.waiting.Remove(e) // nothing, if it was closed
	}
}
