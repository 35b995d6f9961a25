package stream

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/proxima-mesh/proxima/internal/gateway/frame"
	"github.com/proxima-mesh/proxima/internal/gateway/record"
)

// Link is a connection with frames in TLS. It carries one stream after the other: the
// client calls Open and Await, the server Accept and then Accepted or Refuse; in
// between it is a Stream. Afterwards, if Reusable, the next one may follow.
type Link struct {
	secure
	decoder frame.Decoder
	rest    []byte // plaintext that was read and not decoded
	ended   error  // of the peer's direction: io.EOF after FIN
	goAway  atomic.Bool
}

// NewLink returns a connection after its handshake, and owns it. rec is the transport
// of conn.
func NewLink(conn *tls.Conn, rec *record.Conn, pool *record.Pool) *Link {
	return &Link{secure: secure{conn: conn, rec: rec, pool: pool}}
}

// TLS returns the connection's state, as of the handshake.
func (l *Link) TLS() tls.ConnectionState { return l.conn.ConnectionState() }

// Record returns the transport, for its deadlines.
func (l *Link) Record() *record.Conn { return l.rec }

// control returns the next frame, which blocks until it is there. Data and bodies are
// valid until the next call. io.EOF is the end of the connection between two frames.
func (l *Link) control() (frame.Type, []byte, error) {
	for {
		if len(l.rest) == 0 {
			if err := l.more(); err != nil {
				if errors.Is(err, io.EOF) && !l.decoder.Between() {
					err = io.ErrUnexpectedEOF
				}
				return 0, nil, err
			}
		}
		t, body, n, err := l.decoder.Next(l.rest)
		if err != nil {
			return 0, nil, err
		}
		l.rest = l.rest[n:]
		if t == frame.GoAway {
			l.goAway.Store(true)
		}
		if t != 0 {
			return t, body, nil
		}
	}
}

// more reads plaintext into rest.
func (l *Link) more() error {
	if err := l.wait(); err != nil {
		return err
	}
	b := l.pool.Get(record.Small)
	defer l.pool.Put(b)
	end, _, err := l.read(b, 0)
	if end > 0 {
		l.rest = append([]byte(nil), b.Bytes[:end]...)
		return nil // an error comes again
	}
	return err
}

// Open begins a stream: it sends OPEN and the first bytes, in one record if they fit.
// sent is false if no byte left this machine, so that the attempt may be made again on
// another connection.
func (l *Link) Open(s frame.Stream, first []byte) (sent bool, err error) {
	l.begin()
	l.ended = nil
	l.rec.Written() // forget earlier streams
	p, err := frame.AppendOpen(make([]byte, 0, 512+len(first)), s)
	if err != nil {
		return false, err
	}
	p = frame.AppendData(p, first)
	err = l.write(p, record.Medium)
	return err == nil || l.rec.Written(), err
}

// Await returns nil for OK, and a *frame.Error of type Refused for REFUSED. Any other
// end is an error that wraps ErrBroken: nothing says what became of the stream.
func (l *Link) Await() error {
	for {
		t, body, err := l.control()
		switch {
		case err != nil:
			return fmt.Errorf("%w: waiting for OK: %w", ErrBroken, err)
		case t == frame.OK:
			return nil
		case t == frame.GoAway:
			continue // OK or REFUSED follows
		case t == frame.Refused:
			reason, err := frame.ParseReason(t, body)
			if err != nil {
				return fmt.Errorf("%w: %w", ErrBroken, err)
			}
			return reason
		}
		return fmt.Errorf("%w: %s while waiting for OK", ErrBroken, t)
	}
}

// Accept blocks until the peer opens a stream. io.EOF: the connection ended between two
// streams. What is left of a stream that was refused is skipped.
func (l *Link) Accept() (frame.Stream, error) {
	l.begin()
	l.ended = nil
	for {
		t, body, err := l.control()
		if err != nil {
			return frame.Stream{}, err
		}
		switch t {
		case frame.Open:
			return frame.ParseOpen(body)
		case frame.Data, frame.Fin:
			continue
		case frame.Reset:
			return frame.Stream{}, io.EOF
		}
		return frame.Stream{}, fmt.Errorf("%w: %s instead of OPEN", frame.ErrMalformed, t)
	}
}

// Accepted answers OK.
func (l *Link) Accepted() error { return l.write(frame.AppendEmpty(nil, frame.OK), record.Small) }

// Refuse answers REFUSED.
func (l *Link) Refuse(r frame.Reason, text string) error {
	return l.write(frame.AppendReason(nil, frame.Refused, r, text), record.Small)
}

// GoAway says that no further stream is accepted.
func (l *Link) GoAway(r frame.Reason, text string) error {
	return l.write(frame.AppendReason(nil, frame.GoAway, r, text), record.Small)
}

// Receive implements Stream.
func (l *Link) Receive() (Chunk, error) {
	if l.ended != nil {
		return Chunk{}, l.ended
	}
	for {
		chunk, err := l.receive()
		if chunk.End > chunk.Begin || err != nil {
			return chunk, err
		}
		if l.pool.Put(chunk.Buffer); l.ended != nil {
			return Chunk{}, l.ended
		}
	}
}

// receive reads at least once, and as long as there are whole records and space. The
// chunk may be empty.
func (l *Link) receive() (Chunk, error) {
	if len(l.rest) == 0 {
		if err := l.wait(); err != nil && !errors.Is(err, io.EOF) {
			return Chunk{}, l.end(err)
		}
	}
	b := l.pool.Get(l.sizer.Class())
	c := Chunk{Buffer: b, Begin: Headroom, End: Headroom}
	for more := true; more && l.ended == nil; {
		if c.End > Headroom+b.Class().Size()-maxPlaintext {
			if c.End > Headroom { // there is more than fits
				note(&l.sizer, b, c.End, more)
				return c, nil
			}
		}
		var end int
		var err error
		if len(l.rest) > 0 {
			n := copy(b.Bytes[c.End:], l.rest)
			l.rest = l.rest[n:]
			end, more = c.End+n, len(l.rest) > 0
		} else {
			end, more, err = l.read(b, c.End)
		}
		if end > c.End {
			if err := l.decode(&c, end); err != nil {
				l.pool.Put(b)
				return Chunk{}, err
			}
		}
		if err != nil {
			l.ended = l.end(err)
		}
	}
	note(&l.sizer, b, c.End, false)
	return c, nil
}

// decode removes the headers from b[c.End:end], in place, and moves the end of the
// chunk behind the data. It stops at the end of the stream.
func (l *Link) decode(c *Chunk, end int) error {
	b := c.Buffer.Bytes
	p := b[c.End:end]
	for len(p) > 0 {
		t, data, n, err := l.decoder.Next(p)
		if err != nil {
			return err
		}
		p = p[n:]
		switch t {
		case 0:
		case frame.Data:
			c.End += copy(b[c.End:], data)
		case frame.GoAway:
			l.goAway.Store(true)
		case frame.Fin:
			l.ended = io.EOF
		case frame.Reset:
			reason, err := frame.ParseReason(t, data)
			if err != nil {
				return err
			}
			l.ended = reason
		default:
			return fmt.Errorf("%w: %s within a stream", frame.ErrMalformed, t)
		}
		if l.ended != nil {
			break
		}
	}
	if len(p) > 0 {
		l.rest = append(append([]byte(nil), p...), l.rest...)
	}
	return nil
}

// end is the meaning of an error of reading within a stream: never a clean end, thus
// not io.EOF, nor an error that wraps it.
func (l *Link) end(err error) error {
	if errors.Is(err, io.EOF) {
		return ErrBroken
	}
	return fmt.Errorf("%w: %w", ErrBroken, err)
}

// Send implements Stream.
func (l *Link) Send(c Chunk) error {
	p := c.Buffer.Bytes[c.Begin-frame.HeaderSize : c.End]
	frame.PutHeader(p, frame.Data, c.End-c.Begin)
	return l.write(p, c.Buffer.Class())
}

// CloseWrite implements Stream.
func (l *Link) CloseWrite() error {
	return l.write(frame.AppendEmpty(nil, frame.Fin), record.Small)
}

// Reset implements Stream.
func (l *Link) Reset(reason frame.Reason, text string) {
	l.reset(frame.AppendReason(nil, frame.Reset, reason, text))
}

// Close ends the connection between two streams.
func (l *Link) Close() {
	l.once.Do(func() { _ = l.rec.Close() })
}

// Fault implements Stream.
func (l *Link) Fault(err error) frame.Reason {
	var sent *frame.Error
	switch {
	case errors.As(err, &sent):
		return sent.Reason
	case errors.Is(err, frame.ErrMalformed):
		return frame.Protocol
	}
	return frame.Broken
}

// Reusable reports whether another stream may follow one that ended in both
// directions.
func (l *Link) Reusable() bool {
	return !l.goAway.Load() && len(l.rest) == 0 && l.decoder.Between()
}

// Idle blocks until something arrives on a connection that carries no stream: nothing
// should. A timeout of the read deadline leaves the connection as it was.
func (l *Link) Idle() error { return l.wait() }
