package record

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
)

const (
	// headerSize of a TLS record (RFC 8446, 5.1).
	headerSize = 5
	// maxTap bounds what is kept of the first bytes of a connection: the largest
	// handshake message of crypto/tls, and the headers of its records.
	maxTap = 80 << 10
)

// Gate limits how much is computed at a time. Conn leaves it while it waits for the
// peer.
type Gate interface {
	// Enter blocks until there is a place. An error ends the handshake.
	Enter() error
	Leave()
}

// Conn is the transport of one tls.Conn. One goroutine at a time may use Read and
// Wait, any number Write and Flush; Close is safe at any time.
type Conn struct {
	net.Conn
	pool   *Pool
	source *source

	in          *Buffer // nil: nothing is buffered
	begin, end  int     // of what is unread in it
	left        int     // bytes of the current record that were not passed on yet
	sizer       Sizer
	ended       bool // the socket ended
	handshaking atomic.Bool
	gate        Gate // of the handshake; nil: none
	tap         []byte
	tapping     bool

	mu       sync.Mutex // of what follows
	out      *Buffer
	filled   int
	expect   Class // of the batch that is collected
	corked   bool
	discard  bool
	written  bool
	writeErr error
}

// NewConn returns the transport over conn. It begins in the handshake: see
// EndHandshake. gate may be nil; the caller is in it.
func NewConn(conn net.Conn, pool *Pool, gate Gate) *Conn {
	c := &Conn{Conn: conn, pool: pool, gate: gate, corked: true}
	c.handshaking.Store(true)
	c.source = newSource(conn, c)
	return c
}

// Tap keeps what Read passes on, so that Detach can give it back. It ends with
// EndTap.
func (c *Conn) Tap() { c.tapping = true }

// EndTap forgets what Tap kept.
func (c *Conn) EndTap() { c.tap, c.tapping = nil, false }

// Detach returns everything that was received since Tap, and discards what is written
// from now on, so that the connection can be used without the tls.Conn. The
// caller goes on with the net.Conn below. To be called by the reader.
func (c *Conn) Detach() []byte {
	c.mu.Lock()
	c.discard = true
	c.pool.Put(c.out)
	c.out, c.filled = nil, 0
	c.mu.Unlock()
	received := c.tap
	if c.in != nil {
		received = append(received, c.in.Bytes[c.begin:c.end]...)
		c.release()
	}
	c.tap, c.tapping = nil, false
	return received
}

// EndHandshake says that the handshake is over. Until then writes are collected until
// the next read that would block, and the gate is left while it does. What is
// collected stays so until Flush. The caller has left the gate.
func (c *Conn) EndHandshake() {
	c.gate = nil
	c.handshaking.Store(false)
}

// Read implements net.Conn for the tls.Conn: it returns bytes of one record at most,
// so that no part of the next one is kept in the buffers of crypto/tls.
func (c *Conn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for c.end-c.begin < headerSize && c.left == 0 {
		if err := c.fill(); err != nil {
			if errors.Is(err, io.EOF) && c.end > c.begin {
				c.left = c.end - c.begin // less than a header: crypto/tls decides
				break
			}
			return 0, err
		}
	}
	if c.left == 0 {
		c.left = headerSize + int(binary.BigEndian.Uint16(c.in.Bytes[c.begin+3:]))
	}
	if c.begin == c.end {
		if err := c.fill(); err != nil {
			return 0, err
		}
	}
	n := copy(p, c.in.Bytes[c.begin:min(c.end, c.begin+c.left)])
	if c.tapping {
		if len(c.tap)+n > maxTap {
			return 0, errors.New("the first handshake message is too long")
		}
		c.tap = append(c.tap, c.in.Bytes[c.begin:c.begin+n]...)
	}
	c.begin += n
	c.left -= n
	if c.begin == c.end {
		c.release()
	}
	return n, nil
}

// Wait blocks until a whole record is buffered, or as much of one as the buffer takes,
// or the end of the connection. It holds no buffer while nothing has arrived. io.EOF
// is not returned if a part of a record is left to read.
func (c *Conn) Wait() error {
	for !c.Ready() {
		if err := c.fill(); err != nil {
			if errors.Is(err, io.EOF) && c.end > c.begin {
				return nil
			}
			return err
		}
	}
	return nil
}

// Ready reports whether Wait would return at once.
func (c *Conn) Ready() bool {
	have := c.end - c.begin
	if have == 0 {
		return false
	}
	if c.begin == 0 && c.end == len(c.in.Bytes) {
		return true
	}
	if c.left > 0 {
		return have >= c.left
	}
	return have >= headerSize && have >= headerSize+int(binary.BigEndian.Uint16(c.in.Bytes[c.begin+3:]))
}

// Ended reports whether the socket ended (by FIN). A tls.Conn that returns io.EOF
// while this is false has received close_notify.
func (c *Conn) Ended() bool { return c.ended }

// fill reads once, and blocks until it can.
func (c *Conn) fill() error {
	if c.ended {
		return io.EOF
	}
	n, err := c.source.read()
	if err == nil && n > 0 {
		c.sizer.Note(n, len(c.in.Bytes)-c.end)
		c.end += n
		return nil
	}
	if c.begin == c.end {
		c.release()
	}
	if err == nil {
		c.ended = true
		err = io.EOF
	}
	return err
}

// space implements reader.
func (c *Conn) space() []byte {
	if c.in == nil {
		c.in = c.pool.Get(c.sizer.Class())
	}
	if c.begin > 0 {
		c.end = copy(c.in.Bytes, c.in.Bytes[c.begin:c.end])
		c.begin = 0
	}
	return c.in.Bytes[c.end:]
}

// idle implements reader: there is nothing to read yet.
func (c *Conn) idle() {
	switch {
	case c.begin == c.end:
		c.release()
	case c.in.class > Small && c.end-c.begin <= nominal[Small]:
		// A part of a record that its peer is slow to complete.
		small := c.pool.Get(Small)
		if c.end-c.begin > len(small.Bytes) {
			c.pool.Put(small) // the pool is at its limit
			return
		}
		n := copy(small.Bytes, c.in.Bytes[c.begin:c.end])
		c.pool.Put(c.in)
		c.in, c.begin, c.end = small, 0, n
	}
}

func (c *Conn) release() {
	c.pool.Put(c.in)
	c.in, c.begin, c.end = nil, 0, 0
}

// beforeWait implements reader.
func (c *Conn) beforeWait() error {
	if !c.handshaking.Load() {
		return nil
	}
	err := c.Flush()
	c.Cork(Small)
	if c.gate != nil {
		c.gate.Leave()
	}
	return err
}

// afterWait implements reader.
func (c *Conn) afterWait() error {
	if c.handshaking.Load() && c.gate != nil {
		return c.gate.Enter()
	}
	return nil
}

// Cork collects what is written from now on, until Flush. The class is that of the
// data to come.
func (c *Conn) Cork(expect Class) {
	c.mu.Lock()
	c.corked, c.expect = true, expect
	c.mu.Unlock()
}

// Write implements net.Conn.
func (c *Conn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.discard:
		return len(p), nil
	case c.writeErr != nil:
		return 0, c.writeErr
	case !c.corked:
		var n int
		n, c.writeErr = c.Conn.Write(p)
		c.written = c.written || n > 0
		return n, c.writeErr
	}
	done := 0
	for done < len(p) {
		if c.out != nil && c.filled == len(c.out.Bytes) {
			if err := c.send(); err != nil {
				return done, err
			}
		}
		if c.out == nil {
			c.out, c.filled = c.pool.Get(max(c.expect, classFor(len(p)-done))), 0
		} else if c.filled+len(p)-done > len(c.out.Bytes) && c.out.class < Large {
			c.grow(c.filled + len(p) - done)
		}
		n := copy(c.out.Bytes[c.filled:], p[done:])
		c.filled += n
		done += n
	}
	return done, nil
}

// classFor is the smallest class for n bytes.
func classFor(n int) Class {
	class := Small
	for class < Large && n > nominal[class]+overhead {
		class++
	}
	return class
}

// grow replaces the buffer by a larger one, if the pool has one.
func (c *Conn) grow(n int) {
	larger := c.pool.Get(max(classFor(n), c.out.class+1))
	if larger.class <= c.out.class {
		c.pool.Put(larger)
		return
	}
	copy(larger.Bytes, c.out.Bytes[:c.filled])
	c.pool.Put(c.out)
	c.out = larger
}

// Flush writes what was collected, and ends collecting. If it fails, so does every
// later Write.
func (c *Conn) Flush() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.corked = false
	return c.send()
}

// send is called with mu held.
func (c *Conn) send() error {
	if c.out == nil || c.writeErr != nil {
		return c.writeErr
	}
	var n int
	n, c.writeErr = c.Conn.Write(c.out.Bytes[:c.filled])
	c.written = c.written || n > 0
	c.pool.Put(c.out)
	c.out, c.filled = nil, 0
	return c.writeErr
}

// Written reports whether the socket has accepted any byte since the last call, which
// this call forgets.
func (c *Conn) Written() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	written := c.written
	c.written = false
	return written
}

// Free returns all buffers to the pool. Reads and writes must have ended.
func (c *Conn) Free() {
	c.release()
	c.left = 0
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pool.Put(c.out)
	c.out, c.filled = nil, 0
	if c.writeErr == nil {
		c.writeErr = net.ErrClosed
	}
}
