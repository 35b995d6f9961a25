package stream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/proxima-mesh/proxima/internal/gateway/frame"
	"github.com/proxima-mesh/proxima/internal/gateway/record"
)

const (
	// maxPlaintext of a record (RFC 8446, 5.1).
	maxPlaintext = 16 << 10
	// smallRecord makes a record of 4 kB with its header, content type and tag (22
	// bytes). crypto/tls keeps a buffer for each connection that is as large as the
	// largest record that came.
	smallRecord = 4<<10 - 22
	// smallUntil is what a stream has carried when its records become large.
	smallUntil = 1 << 20
	// resetTimeout bounds the attempt to send a frame before a connection is reset.
	resetTimeout = 100 * time.Millisecond
)

// secure is what TLS streams with and without frames share.
type secure struct {
	conn *tls.Conn
	rec  *record.Conn
	pool *record.Pool
	once sync.Once

	// of the receiving goroutine
	sizer    record.Sizer
	leftover bool // crypto/tls may hold plaintext that was not read

	mu      sync.Mutex // of the sending side
	carried int64
}

// read appends plaintext to buffer.Bytes[end:], and returns the new end and whether
// more can be read without waiting. It blocks only if crypto/tls needs the rest of a
// record.
func (s *secure) read(b *record.Buffer, end int) (int, bool, error) {
	space := b.Bytes[end:]
	n, err := s.conn.Read(space)
	s.leftover = n == len(space) && n > 0
	return end + n, err == nil && !s.leftover && s.rec.Ready(), err
}

// wait blocks until read would return something.
func (s *secure) wait() error {
	if s.leftover {
		return nil
	}
	return s.rec.Wait()
}

// write sends plaintext of the given class, in records of a size that fits what the
// stream has carried.
func (s *secure) write(p []byte, class record.Class) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	size := maxPlaintext
	if s.carried < smallUntil {
		size = smallRecord
	}
	s.carried += int64(len(p))
	if len(p) > size {
		s.rec.Cork(class)
	}
	for len(p) > 0 {
		n := min(size, len(p))
		if size == maxPlaintext {
			n = len(p) // crypto/tls makes records of that size itself
		}
		if _, err := s.conn.Write(p[:n]); err != nil {
			return err
		}
		p = p[n:]
	}
	return s.rec.Flush()
}

// begin starts to count what a stream carries.
func (s *secure) begin() {
	s.mu.Lock()
	s.carried = 0
	s.mu.Unlock()
	s.sizer = record.Sizer{}
}

// Flush sends what the handshake has left to send.
func (s *secure) Flush() error { return s.rec.Flush() }

// Free returns buffers to the pool, after the connection was closed and both
// directions have ended.
func (s *secure) Free() { s.rec.Free() }

// reset closes the socket with RST, after last was sent if that is possible at once.
func (s *secure) reset(last []byte) {
	s.once.Do(func() {
		if len(last) > 0 && s.mu.TryLock() {
			_ = s.rec.SetWriteDeadline(time.Now().Add(resetTimeout))
			if _, err := s.conn.Write(last); err == nil {
				_ = s.rec.Flush() // best effort: the reset that follows says the same
			}
			s.mu.Unlock()
		}
		Reset(s.rec.Conn)
	})
}

// TLS is a connection with TLS and without frames.
type TLS struct {
	secure
	fault  frame.Reason
	strict bool
	// ended is the error that came with the last bytes: crypto/tls may have read the close_notify
	// behind them, and nothing else need arrive after it.
	ended error
}

// NewTLS returns a connection after its handshake as a Stream, and owns it. rec is the
// transport of conn. fault is the reason that its failures stand for. strict: an end
// without close_notify is a failure, as RFC 8446 (6.1) has it; else it is an end, as
// many servers send none.
func NewTLS(conn *tls.Conn, rec *record.Conn, pool *record.Pool, fault frame.Reason, strict bool) *TLS {
	return &TLS{secure: secure{conn: conn, rec: rec, pool: pool}, fault: fault, strict: strict}
}

// Client begins TLS on a connection to an endpoint, which it owns: it is reset if the handshake
// fails or takes longer than the timeout. It blocks until then.
func Client(ctx context.Context, conn net.Conn, config *tls.Config, timeout time.Duration, pool *record.Pool) (*TLS, error) {
	config = config.Clone()
	config.DynamicRecordSizingDisabled = true // this package chooses the size
	rec := record.NewConn(conn, pool, nil)
	secure := tls.Client(rec, config)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := secure.HandshakeContext(ctx)
	rec.EndHandshake()
	if err == nil {
		err = rec.Flush()
	}
	if err != nil {
		Reset(conn)
		rec.Free()
		return nil, fmt.Errorf("handshake: %w", err)
	}
	return NewTLS(secure, rec, pool, frame.EndpointReset, false), nil
}

// Receive implements Stream.
func (t *TLS) Receive() (Chunk, error) {
	if t.ended != nil {
		return Chunk{}, t.failed(t.ended)
	}
	if err := t.wait(); err != nil && !errors.Is(err, io.EOF) {
		return Chunk{}, err
	}
	b := t.pool.Get(t.sizer.Class())
	end, more, err := t.read(b, Headroom)
	for err == nil && more && end <= Headroom+b.Class().Size()-maxPlaintext {
		end, more, err = t.read(b, end)
	}
	if end > Headroom {
		note(&t.sizer, b, end, more)
		t.ended = err
		return Chunk{Buffer: b, Begin: Headroom, End: end}, nil
	}
	t.pool.Put(b)
	return Chunk{}, t.failed(err)
}

// failed is the error of a receiver, for one of crypto/tls.
func (t *TLS) failed(err error) error {
	if errors.Is(err, io.EOF) && t.rec.Ended() && t.strict {
		return fmt.Errorf("%w: no close_notify was received", ErrBroken)
	}
	return err
}

func note(s *record.Sizer, b *record.Buffer, end int, more bool) {
	space := b.Class().Size()
	if more {
		s.Note(space, space)
		return
	}
	s.Note(min(end-Headroom, space-1), space)
}

// Send implements Stream.
func (t *TLS) Send(c Chunk) error { return t.write(c.Data(), c.Buffer.Class()) }

// Write sends p, which the caller keeps.
func (t *TLS) Write(p []byte) error { return t.write(p, record.Medium) }

// CloseWrite implements Stream: it sends close_notify.
func (t *TLS) CloseWrite() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.rec.Flush(); err != nil { // crypto/tls allows no write afterwards
		return err
	}
	return t.conn.CloseWrite()
}

// Reset implements Stream. Without frames, RST is all that the peer sees.
func (t *TLS) Reset(frame.Reason, string) { t.reset(nil) }

// Close ends the connection after both directions have.
func (t *TLS) Close() { t.once.Do(func() { _ = t.rec.Close() }) }

// Fault implements Stream.
func (t *TLS) Fault(error) frame.Reason { return t.fault }
