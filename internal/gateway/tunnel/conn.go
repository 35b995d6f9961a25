package tunnel

import (
	"context"
	"errors"
	"net"
	"syscall"
	"time"

	"github.com/proxima-mesh/proxima/internal/gateway/frame"
	"github.com/proxima-mesh/proxima/internal/gateway/stream"
)

// Conn is a stream that a peer has accepted. It is a stream.Stream.
type Conn struct {
	socket net.Conn
	link   *stream.Link // nil: a connection without frames
	plain  *stream.TLS
	key    key
	pool   *pool
	// bucket to which the connection returns, unless it was retired meanwhile.
	bucket *bucket
}

// open begins a stream and waits for the answer. sent: the peer may have received it.
func (c *Conn) open(ctx context.Context, s frame.Stream, first []byte) (sent bool, err error) {
	if c.link == nil {
		return c.openPlain(first)
	}
	rec := c.link.Record()
	at, _ := ctx.Deadline()
	if err := rec.SetDeadline(at); err != nil {
		return false, err
	}
	if sent, err = c.link.Open(s, first); err == nil {
		err = c.link.Await()
	}
	if err == nil {
		limitUnanswered(c.socket, streamUnanswered, keepAlive.Idle)
		err = rec.SetDeadline(time.Time{})
	}
	return sent, err
}

// openPlain sends the first bytes on a connection without frames, where a handshake
// is the only answer.
func (c *Conn) openPlain(first []byte) (sent bool, err error) {
	if err := c.plain.Flush(); err != nil {
		return false, err
	}
	limitUnanswered(c.socket, streamUnanswered, keepAlive.Idle)
	if len(first) == 0 {
		return true, nil
	}
	if err := c.plain.Write(first); err != nil {
		return true, errors.Join(stream.ErrBroken, err)
	}
	return true, nil
}

func (c *Conn) stream() stream.Stream {
	if c.link != nil {
		return c.link
	}
	return c.plain
}

// Receive implements stream.Stream.
func (c *Conn) Receive() (stream.Chunk, error) { return c.stream().Receive() }

// Send implements stream.Stream.
func (c *Conn) Send(chunk stream.Chunk) error { return c.stream().Send(chunk) }

// CloseWrite implements stream.Stream.
func (c *Conn) CloseWrite() error { return c.stream().CloseWrite() }

// Reset implements stream.Stream.
func (c *Conn) Reset(reason frame.Reason, text string) { c.stream().Reset(reason, text) }

// Fault implements stream.Stream.
func (c *Conn) Fault(err error) frame.Reason { return c.stream().Fault(err) }

// Finish ends the use of the stream. clean: both directions have ended; the connection
// may carry another stream then. Otherwise it is reset.
func (c *Conn) Finish(clean bool) {
	if !clean {
		c.abort()
		return
	}
	c.release()
}

// release returns the connection to the pool, or closes it.
func (c *Conn) release() {
	if c.link == nil {
		c.plain.Close()
		c.plain.Free()
		return
	}
	if !c.link.Reusable() || !c.pool.put(c) {
		c.close()
	}
}

// close ends a connection between two streams.
func (c *Conn) close() {
	c.link.Close()
	c.link.Free()
}

func (c *Conn) abort() {
	c.Reset(frame.Unspecified, "")
	if c.link != nil {
		c.link.Free()
		return
	}
	c.plain.Free()
}

// parking is one stay of a connection in the pool. The connection may leave and return
// before its parked reader is done, so each stay has an identity of its own.
type parking struct {
	conn   *Conn
	result chan error // of the parked reader
}

// park waits for whatever arrives on an idle connection until its read deadline:
// nothing should, so that the connection is of no use then.
func (p *parking) park() {
	err := p.conn.link.Idle()
	p.result <- err
	p.conn.pool.unparked(p, err)
}

// unpark ends park, and reports whether the connection is as it was.
func (p *parking) unpark() bool {
	rec := p.conn.link.Record()
	_ = rec.SetReadDeadline(time.Unix(1, 0)) // fails only if the connection is closed, which park reports
	err := <-p.result
	return isTimeout(err) && rec.SetReadDeadline(time.Time{}) == nil
}

// isTimeout reports whether a deadline of this side has passed.
func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout() && !errors.Is(err, syscall.ETIMEDOUT)
}

// isUnanswered reports whether the peer answered nothing until a deadline, or the kernel
// gave the connection up.
func isUnanswered(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}
