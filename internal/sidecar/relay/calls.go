package relay

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/proxima-mesh/proxima/internal/sidecar/wire"
)

const (
	callService = "proxima.sidecar.v1.Calls"
	callMethod  = "Attend"
	// callPart of an answer, in bytes: other streams of the connection have their turn between two.
	callPart = 64 << 10
	// maxCalls are answered at the same time.
	maxCalls = 4
	// callRetry of a stream that has ended while its connection has not.
	callRetry = 5 * time.Second
)

// attend answers questions of the control plane on every connection to one.
func (r *Relay) attend(ctx context.Context) {
	if r.config.Answer == nil {
		return
	}
	for {
		conn, changed := r.link.get()
		var again <-chan time.Time
		if conn != nil {
			err := r.attendOn(ctx, conn)
			if status.Code(err) != codes.Unimplemented { // it is of an older version, and will be
				again = time.After(callRetry)
			}
			r.config.Logger.Debug("questions of the control plane are not answered", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-again:
		}
	}
}

// attendOn a connection until its stream ends.
func (r *Relay) attendOn(ctx context.Context, conn *grpc.ClientConn) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := conn.NewStream(ctx, streamDesc(callMethod), "/"+callService+"/"+callMethod)
	if err != nil {
		return err
	}
	a := &attendance{relay: r, stream: stream, running: map[uint64]context.CancelFunc{}}
	defer a.calls.Wait()
	defer cancel()
	if err := a.send(wire.Answer{Node: r.config.Node, Version: r.config.Version}); err != nil {
		return err
	}
	for {
		var frame wire.Frame
		if err := stream.RecvMsg(&frame); err != nil {
			return err
		}
		call, err := wire.ParseCall(frame)
		if err != nil {
			return err
		}
		a.take(ctx, call)
	}
}

// attendance is a stream of calls.
type attendance struct {
	relay  *Relay
	stream grpc.ClientStream
	calls  sync.WaitGroup

	sending sync.Mutex

	mu      sync.Mutex
	running map[uint64]context.CancelFunc
}

func (a *attendance) send(m wire.Answer) error {
	a.sending.Lock()
	defer a.sending.Unlock()
	frame := wire.Frame(m.Append(nil))
	return a.stream.SendMsg(&frame)
}

func (a *attendance) take(ctx context.Context, call wire.Call) {
	a.mu.Lock()
	defer a.mu.Unlock()
	cancel := a.running[call.ID]
	switch {
	case call.Cancelled:
		if cancel != nil {
			cancel()
		}
		return
	case cancel != nil:
		return // the ID is in use
	case len(a.running) >= maxCalls:
		a.calls.Go(func() {
			a.refuse(call.ID, status.Errorf(codes.ResourceExhausted, "the supervisor answers %d questions already", maxCalls))
		})
		return
	}
	ctx, cancel = context.WithCancel(ctx)
	a.running[call.ID] = cancel
	a.calls.Go(func() {
		body, err := a.relay.config.Answer(ctx, call.Question, call.Argument)
		a.mu.Lock()
		delete(a.running, call.ID)
		a.mu.Unlock()
		if err != nil {
			a.refuse(call.ID, err)
		} else if ctx.Err() == nil {
			a.answer(call.ID, body)
		}
		cancel()
	})
}

func (a *attendance) refuse(id uint64, err error) {
	s := status.Convert(err)
	_ = a.send(wire.Answer{ID: id, Last: true, Code: uint32(s.Code()), Message: s.Message()}) // the receiver finds out that the stream is over
}

func (a *attendance) answer(id uint64, body []byte) {
	for {
		part := body[:min(len(body), callPart)]
		body = body[len(part):]
		if a.send(wire.Answer{ID: id, Part: part, Last: len(body) == 0}) != nil || len(body) == 0 {
			return
		}
	}
}

// Held are the resources that Envoy has accepted: versions by name, by type URL.
func (r *Relay) Held() map[string]map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := map[string]map[string]string{}
	for url, t := range r.core.types {
		versions := make(map[string]string, len(t.accepted))
		for name, e := range t.accepted {
			if !t.isOwn(name) {
				versions[name] = e.Version
			}
		}
		if t.own == nil || len(versions) > 0 {
			out[url] = versions
		}
	}
	return out
}
