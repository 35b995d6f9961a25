// Package stream joins two byte streams of a gateway: plain TCP, TLS, and frames in
// TLS.
//
// All of them are a Stream, and Pipe carries bytes between two: it passes half-closes
// on, and turns every other end into a reset of both sides, so that a torn stream is
// never taken for a complete one. Enter at Pipe, NewTCP, NewTLS and NewLink. The
// package never dials, accepts or authorizes.
package stream

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/proxima-mesh/proxima/internal/gateway/frame"
	"github.com/proxima-mesh/proxima/internal/gateway/record"
)

// Headroom bytes before a chunk are free, so that a Stream can put a header there.
const Headroom = frame.HeaderSize

// Chunk is data in a buffer: Buffer.Bytes[Begin:End]. Begin is at least Headroom. Who
// has a Chunk owns its buffer.
type Chunk struct {
	Buffer     *record.Buffer
	Begin, End int
}

// Data of the chunk.
func (c Chunk) Data() []byte { return c.Buffer.Bytes[c.Begin:c.End] }

// Stream is one side of a Pipe. One goroutine may receive and another one send;
// Reset and Close are safe at any time.
type Stream interface {
	// Receive blocks until there is data, without a buffer. io.EOF is the end of the
	// peer's direction; every other error is the end of the stream.
	Receive() (Chunk, error)
	// Send writes the data of a chunk, and may write to the bytes before it. The caller
	// keeps the chunk.
	Send(Chunk) error
	// CloseWrite ends this direction; the other one goes on.
	CloseWrite() error
	// Reset ends both directions and the connection at once, in such a way that the peer
	// sees a failure. The text is for people. Further calls do nothing.
	Reset(reason frame.Reason, text string)
	// Fault is the reason that an error of Receive or Send stands for.
	Fault(err error) frame.Reason
}

// ErrBroken is a connection between two proxies that ended in the middle of a stream.
var ErrBroken = errors.New("the connection ended within a stream")

// Counter of bytes; a prometheus.Counter is one.
type Counter interface{ Add(bytes float64) }

// Failure is why a Pipe ended before both directions did.
type Failure struct {
	// Reason is what both sides were reset with.
	Reason frame.Reason
	Err    error
}

// Error implements error.
func (f *Failure) Error() string { return fmt.Sprintf("%s: %v", f.Reason, f.Err) }

// Unwrap returns the cause.
func (f *Failure) Unwrap() error { return f.Err }

// Pipe carries bytes between a and b until both directions have ended, which it
// returns nil for; the connections are open then. After any failure it resets both
// and returns a *Failure. It blocks, and uses one more goroutine.
func Pipe(a, b Stream, pool *record.Pool, aToB, bToA Counter) error {
	p := &pipe{sides: [2]Stream{a, b}, pool: pool}
	done := make(chan struct{})
	go func() {
		p.carry(a, b, bToA)
		close(done)
	}()
	p.carry(b, a, aToB)
	<-done
	if p.failure != nil {
		return p.failure
	}
	return nil
}

type pipe struct {
	sides   [2]Stream
	pool    *record.Pool
	once    sync.Once
	failure *Failure
}

// carry copies from src to dst until the end of src.
func (p *pipe) carry(dst, src Stream, count Counter) {
	for {
		chunk, err := src.Receive()
		if errors.Is(err, io.EOF) {
			if err := dst.CloseWrite(); err != nil {
				p.fail(dst, err)
			}
			return
		}
		if err != nil {
			p.fail(src, err)
			return
		}
		count.Add(float64(chunk.End - chunk.Begin))
		err = dst.Send(chunk)
		p.pool.Put(chunk.Buffer)
		if err != nil {
			p.fail(dst, err)
			return
		}
		if n, err := splice(dst, src); n > 0 || err != nil {
			count.Add(float64(n))
			if err != nil {
				p.fail(src, err)
				return
			}
		}
	}
}

// fail resets both sides. The first failure counts: later ones are its consequences.
func (p *pipe) fail(side Stream, err error) {
	p.once.Do(func() {
		p.failure = &Failure{Reason: side.Fault(err), Err: err}
		for _, s := range p.sides {
			s.Reset(p.failure.Reason, "")
		}
	})
}
