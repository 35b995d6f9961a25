// Package reversecall is the asking end of calls that go against the direction of a connection: the
// client has opened a stream, the server sends calls on it, and the client answers each of them, in
// parts, so that a long answer does not hold up the others.
package reversecall

import (
	"context"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// MaxAnswer is the size that the parts of an answer may have together, in bytes: the configuration of an
// Envoy with 10,000 services has some 40 MB.
const MaxAnswer = 64 << 20

// Answer is a part of an answer, or an error in its place.
type Answer interface {
	GetId() uint64
	GetPart() []byte
	GetLast() bool
	// GetCode is a gRPC status code; 0: no error.
	GetCode() uint32
	GetMessage() string
}

// Pending are the calls of a stream that wait for their answers. The zero value is ready. Safe for
// concurrent use.
type Pending struct {
	mu      sync.Mutex
	last    uint64
	waiting map[uint64]*call
	ended   error
}

type call struct {
	body []byte
	done chan error // of capacity 1
}

// Do makes a call, and blocks until it is answered, the stream has ended, or ctx. send sends it under
// its number; cancel tells the client that nobody waits any longer. An error is that of send, the status
// of the client, what End was given, or DeadlineExceeded, where it begins with whom.
func (p *Pending) Do(ctx context.Context, whom string, send func(id uint64) error, cancel func(id uint64)) ([]byte, error) {
	c := &call{done: make(chan error, 1)}
	id, err := p.begin(c)
	if err != nil {
		return nil, err
	}
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.waiting, id)
	}()
	if err := send(id); err != nil {
		return nil, err
	}
	select {
	case err := <-c.done:
		return c.body, err
	case <-ctx.Done():
		cancel(id)
		return nil, status.Errorf(codes.DeadlineExceeded, "%s did not answer: %v", whom, ctx.Err())
	}
}

func (p *Pending) begin(c *call) (id uint64, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended != nil {
		return 0, p.ended
	}
	if p.waiting == nil {
		p.waiting = map[uint64]*call{}
	}
	p.last++
	p.waiting[p.last] = c
	return p.last, nil
}

// Take what the client has sent. An answer that nobody waits for is left out: its caller has gone.
func (p *Pending) Take(a Answer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.waiting[a.GetId()]
	if c == nil {
		return
	}
	var err error
	switch {
	case a.GetCode() != 0:
		err = status.Error(codes.Code(a.GetCode()), a.GetMessage())
	case len(c.body)+len(a.GetPart()) > MaxAnswer:
		err = status.Errorf(codes.ResourceExhausted, "the answer has more than %d bytes", MaxAnswer)
	default:
		c.body = append(c.body, a.GetPart()...)
		if !a.GetLast() {
			return
		}
	}
	delete(p.waiting, a.GetId())
	c.done <- err
}

// End of the stream: calls that wait, and later ones, fail with err, which is not nil.
func (p *Pending) End(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = err
	for id, c := range p.waiting {
		delete(p.waiting, id)
		c.done <- err
	}
}
