package stream

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	federationv1 "github.com/proxima-mesh/proxima/api/federation/v1"
	"github.com/proxima-mesh/proxima/internal/reversecall"
)

const (
	// partSize of an answer.
	partSize = 256 << 10
	// maxCalls are worked on at the same time in a zone.
	maxCalls = 16
)

// CallHandler answers a reverse call in a zone. ctx ends when the caller does not wait
// any longer. Errors should be gRPC statuses: Unavailable names the hop that is missing.
type CallHandler func(ctx context.Context, call *federationv1.Call) ([]byte, error)

// serveCalls answers the calls of one stream.
func (z *Zone) serveCalls(ctx context.Context, _ bool, received func()) error {
	desc := &federationv1.ZoneService_ServiceDesc.Streams[0]
	s, err := z.open(ctx, desc, federationv1.ZoneService_Serve_FullMethodName)
	if err != nil {
		return err
	}
	a := &answerer{handler: z.config.Calls, out: &sender{rpc: s}, running: map[uint64]context.CancelFunc{}}
	defer a.stop()
	for {
		var call federationv1.Call
		if err := s.RecvMsg(&call); err != nil {
			return statusOf(err)
		}
		received()
		a.take(ctx, &call)
	}
}

// answerer works on the calls of one stream.
type answerer struct {
	handler CallHandler
	out     *sender
	calls   sync.WaitGroup

	mu      sync.Mutex
	running map[uint64]context.CancelFunc
}

func (a *answerer) take(ctx context.Context, call *federationv1.Call) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if call.GetCancelled() {
		if cancel := a.running[call.GetId()]; cancel != nil {
			cancel()
		}
		return
	}
	timeout := min(time.Duration(call.GetTimeoutMilliseconds())*time.Millisecond, CallTimeout)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	busy := len(a.running) >= maxCalls || a.running[call.GetId()] != nil
	if !busy {
		a.running[call.GetId()] = cancel
	}
	a.calls.Go(func() {
		defer cancel()
		var body []byte
		err := status.Errorf(codes.ResourceExhausted, "the zone works on %d calls already", maxCalls)
		switch {
		case busy:
		case a.handler == nil:
			err = status.Error(codes.Unimplemented, "the zone answers no calls")
		default:
			body, err = a.handler(ctx, call)
		}
		if !busy {
			a.mu.Lock()
			delete(a.running, call.GetId())
			a.mu.Unlock()
		}
		a.answer(call.GetId(), body, err)
	})
}

// answer sends the outcome. A stream that has broken has no caller any more.
func (a *answerer) answer(id uint64, body []byte, err error) {
	if err == nil && len(body) > reversecall.MaxAnswer {
		err = status.Errorf(codes.ResourceExhausted, "the answer has %d bytes, the limit is %d", len(body), reversecall.MaxAnswer)
	}
	if err != nil {
		s, given := status.FromError(err)
		if !given {
			s = status.FromContextError(err) // its time may be over a moment before that of who waits
		}
		_ = a.out.send(&federationv1.CallAnswer{Id: id, Last: true, Code: uint32(s.Code()), Message: s.Message()})
		return
	}
	for {
		part := body[:min(len(body), partSize)]
		body = body[len(part):]
		if a.out.send(&federationv1.CallAnswer{Id: id, Part: part, Last: len(body) == 0}) != nil || len(body) == 0 {
			return
		}
	}
}

func (a *answerer) stop() {
	a.mu.Lock()
	for _, cancel := range a.running {
		cancel()
	}
	a.mu.Unlock()
	a.calls.Wait()
}

// caller is global's end of a stream of calls.
type caller struct {
	out     *sender
	pending reversecall.Pending
}

func newCaller(s rpc) *caller { return &caller{out: &sender{rpc: s}} }

// call sends a call and waits for the answer.
func (c *caller) call(ctx context.Context, zone string, call *federationv1.Call) ([]byte, error) {
	deadline, _ := ctx.Deadline()
	return c.pending.Do(ctx, "zone "+zone, func(id uint64) error {
		m := &federationv1.Call{
			Id: id, Kind: call.GetKind(), Target: call.GetTarget(), Namespace: call.GetNamespace(), Name: call.GetName(),
			TimeoutMilliseconds: uint32(max(time.Until(deadline).Milliseconds(), 1)), Type: call.GetType(), Body: call.GetBody(),
		}
		if c.out.send(m) != nil {
			return &NoStreamError{zone}
		}
		return nil
	}, func(id uint64) {
		_ = c.out.send(&federationv1.Call{Id: id, Cancelled: true}) // if it fails there is nothing to cancel
	})
}

// NoStreamError: the control plane of a zone has no stream to this instance of global. It
// may have one to another.
type NoStreamError struct{ Zone string }

func (e *NoStreamError) Error() string {
	return fmt.Sprintf("the control plane of zone %s has no stream to this instance of global", e.Zone)
}

// GRPCStatus is the interface of package status.
func (e *NoStreamError) GRPCStatus() *status.Status { return status.New(codes.Unavailable, e.Error()) }

// read takes answers until the stream ends.
func (c *caller) read(zone string) error {
	defer c.pending.End(&NoStreamError{zone})
	for {
		var a federationv1.CallAnswer
		if err := c.out.rpc.RecvMsg(&a); err != nil {
			return statusOf(err)
		}
		c.pending.Take(&a)
	}
}
