package userspace

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
)

// relays carries TCP with the means of the Go runtime: two goroutines for each
// connection. It is what systems other than Linux have.
type relays struct {
	mode *Mode

	mu   sync.Mutex
	live map[*relay]struct{}
	idle chan struct{} // closed when draining and live is empty
	shut bool
}

func newRelays(m *Mode) *relays {
	return &relays{mode: m, live: map[*relay]struct{}{}, idle: make(chan struct{})}
}

// add reports false when draining has begun.
func (s *relays) add(r *relay) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shut {
		return false
	}
	s.live[r] = struct{}{}
	return true
}

func (s *relays) remove(r *relay) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.live, r)
	s.finish()
}

// finish closes idle once there is nothing left to wait for. The caller holds
// s.mu.
func (s *relays) finish() {
	if !s.shut || len(s.live) > 0 {
		return
	}
	select {
	case <-s.idle:
	default:
		close(s.idle)
	}
}

func (s *relays) drain(ctx context.Context) {
	s.mu.Lock()
	s.shut = true
	s.finish()
	s.mu.Unlock()
	select {
	case <-s.idle:
		return
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for r := range s.live {
		r.abort()
	}
}

// relay carries one connection between a client and an endpoint. Each direction
// ends by itself: its end of stream is passed on as a half-close. An error in
// one direction resets both sides, so that no peer takes a torn stream for a
// complete one.
type relay struct {
	relays   *relays
	counters *counters
	exchange *exchange // with the endpoint; nil: there is none yet
	client   *net.TCPConn
	left     atomic.Int32 // directions still running

	mu      sync.Mutex
	backend *net.TCPConn // nil while an endpoint is looked for
	aborted bool
}

// start carries traffic until both directions have ended. It owns backend.
func (r *relay) start(backend *net.TCPConn, with *exchange) {
	r.exchange = with.begin()
	r.mu.Lock()
	r.backend = backend
	if r.aborted {
		reset(backend)
	}
	r.mu.Unlock()
	r.left.Store(2)
	r.relays.mode.wg.Go(func() { r.run(r.client, backend, &r.exchange.bytesOut) })
	r.run(backend, r.client, &r.exchange.bytesIn)
}

// run carries src to dst until the stream ends. The last direction to end
// closes the connections, for which no half-close is needed then.
func (r *relay) run(dst, src *net.TCPConn, count *atomic.Uint64) {
	err := carry(dst, src, count)
	if err != nil {
		r.abort()
	}
	if r.left.Add(-1) == 0 {
		closeQuietly(r.client)
		closeQuietly(r.backend)
		r.end()
		return
	}
	if err == nil && dst.CloseWrite() != nil {
		r.abort()
	}
}

// abort resets both sides. It may be called at any time and more than once.
func (r *relay) abort() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.aborted {
		return
	}
	r.aborted = true
	reset(r.client)
	if r.backend != nil {
		reset(r.backend)
	}
}

// end gives back what the connection held of the mode.
func (r *relay) end() {
	r.exchange.end()
	r.counters.active.Add(-1)
	r.relays.remove(r)
	r.relays.mode.slots.give()
}

const (
	// A direction copies through a pooled buffer that it holds only while data is
	// there, so that idle connections cost no buffer, and interactive ones no
	// detour through a pipe.
	bufferSize = 16 << 10
	// After so many full buffers in a row it is a bulk transfer, which the kernel
	// moves from socket to socket (splice) without a copy through this process.
	fullBuffersToBulk = 4
	// Bytes are counted at the latest after so many of bulk.
	bulkChunk = 1 << 20
)

var streamBuffers = newBuffers(bufferSize)

// carry copies src to dst until the end of src, which is no error.
func carry(dst, src *net.TCPConn, count *atomic.Uint64) error {
	ended, err := carryInteractive(dst, src, count)
	if err != nil || ended {
		return err
	}
	for {
		n, err := dst.ReadFrom(&io.LimitedReader{R: src, N: bulkChunk})
		count.Add(uint64(n))
		if err != nil || n < bulkChunk {
			return err
		}
	}
}

// carryInteractive copies through a buffer until the end of src (true) or until
// the transfer turns out to be bulk (false).
func carryInteractive(dst, src *net.TCPConn, count *atomic.Uint64) (ended bool, err error) {
	full := 0
	err = receive(src, streamBuffers, func(data []byte) (more bool, err error) {
		if len(data) == 0 {
			ended = true
			return false, nil
		}
		n, err := dst.Write(data)
		count.Add(uint64(n))
		if err != nil {
			return false, err
		}
		if full++; len(data) < bufferSize {
			full = 0
		}
		return full < fullBuffersToBulk, nil
	})
	return ended, err
}

// bufferPool is a sync.Pool of buffers of one size.
type bufferPool struct{ pool sync.Pool }

func newBuffers(size int) *bufferPool {
	p := &bufferPool{}
	p.pool.New = func() any { b := make([]byte, size); return &b }
	return p
}

func (p *bufferPool) get() *[]byte  { return p.pool.Get().(*[]byte) }
func (p *bufferPool) put(b *[]byte) { p.pool.Put(b) }
