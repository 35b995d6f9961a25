//go:build unix

package postgres

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync"
)

var errCut = errors.New("the wire was cut")

// wire is the network between a store and its database, with faults.
type wire struct {
	mu    sync.Mutex
	conns map[*wireConn]struct{}
	down  bool
	deaf  bool // a session that sends LISTEN is cut off
	// frozen: what is written arrives nowhere, and nothing is answered.
	frozen bool
	// marks are faults to inject, once, into writes that contain such bytes.
	marks map[string]fault
}

type fault int

const (
	cutBefore fault = iota // nothing of it arrives
	cutInside              // a part of it arrives
	cutAfter               // it arrives, and its answer does not
	downAfter              // so, and nothing gets through any more
)

func newWire() *wire { return &wire{conns: map[*wireConn]struct{}{}, marks: map[string]fault{}} }

func (w *wire) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	w.mu.Lock()
	down := w.down
	w.mu.Unlock()
	if down {
		return nil, errCut
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	conn := &wireConn{Conn: c, wire: w}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conns[conn] = struct{}{}
	return conn, nil
}

// cut ends all connections and refuses new ones until heal.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down = true
	for c := range w.conns {
		_ = c.Conn.Close()
	}
}

func (w *wire) heal() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down, w.frozen = false, false
}

// freeze is a server that stops, or a network that drops everything, until heal.
func (w *wire) freeze() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.frozen = true
}

func (w *wire) isFrozen() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.frozen
}

func (w *wire) mark(text string, f fault) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.marks[text] = f
}

// marked returns the fault that is due for what is written.
func (w *wire) marked(p []byte) (fault, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.deaf && bytes.Contains(p, []byte("LISTEN")) {
		return cutBefore, true
	}
	for text, f := range w.marks {
		if bytes.Contains(p, []byte(text)) {
			delete(w.marks, text)
			return f, true
		}
	}
	return 0, false
}

type wireConn struct {
	net.Conn
	wire *wire
}

func (c *wireConn) Write(p []byte) (int, error) {
	if c.wire.isFrozen() {
		return len(p), nil
	}
	f, ok := c.wire.marked(p)
	if !ok {
		return c.Conn.Write(p)
	}
	switch f {
	case cutInside:
		_, _ = c.Conn.Write(p[:len(p)/2])
	case cutAfter, downAfter:
		_, _ = c.Conn.Write(p)
		_, _ = c.Conn.Read(make([]byte, 1<<16)) // the server answers after COMMIT
	}
	_ = c.Conn.Close()
	if f == downAfter {
		c.wire.cut()
	}
	return 0, errCut
}

func (c *wireConn) Close() error {
	c.wire.mu.Lock()
	delete(c.wire.conns, c)
	c.wire.mu.Unlock()
	return c.Conn.Close()
}
