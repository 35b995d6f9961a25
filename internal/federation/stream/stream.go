// Package stream carries the synchronisation of control planes over gRPC.
//
// It owns the transport of package federation, for both ends: Zone dials global and
// keeps its streams open, Global serves them. Beside the streams of objects there are
// reverse calls, by which global reads from proxies and agents of a zone, and health
// checks, by which it notices that a zone is gone. Enter at NewZone and NewGlobal.
//
// It opens no port and dials nothing: servers and connections come from the caller,
// made with ServerOptions and DialOptions of package delta/stream. It never looks into
// an object: package local has both ends of what travels.
package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	federationv1 "github.com/proxima-mesh/proxima/api/federation/v1"
	"github.com/proxima-mesh/proxima/internal/delta"
	"github.com/proxima-mesh/proxima/internal/federation"
)

const (
	// CheckInterval is how often a zone calls HealthCheck.
	CheckInterval = 5 * time.Second
	// DefaultZoneTimeout is how long a silent zone counts as online.
	DefaultZoneTimeout = 15 * time.Second
	// CallTimeout is how long a reverse call may take, all hops together.
	CallTimeout = 5 * time.Second
)

// Names of the services whose messages are delta xDS (protocol version 2). Responses
// flow in the direction of the name: in GlobalToZoneSync the server sends them, in
// ZoneToGlobalSync the client.
const (
	globalToZoneService = "proxima.federation.v1.GlobalToZoneSync"
	zoneToGlobalService = "proxima.federation.v1.ZoneToGlobalSync"
	streamMethod        = "Stream"

	globalToZoneMethod = "/" + globalToZoneService + "/" + streamMethod
	zoneToGlobalMethod = "/" + zoneToGlobalService + "/" + streamMethod
)

// rpc is what both ends of a gRPC stream have.
type rpc interface {
	Context() context.Context
	SendMsg(m any) error
	RecvMsg(m any) error
}

// sender serializes what goroutines send on one stream: gRPC allows one at a time.
type sender struct {
	rpc rpc
	mu  sync.Mutex
}

func (s *sender) send(m any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rpc.SendMsg(m)
}

// engine is a sending end of the core, in either protocol version.
type engine interface {
	step(request proto.Message) error
	// next returns the message to send; nil: none.
	next() (any, error)
	status() federation.SenderStatus
	meters() *meter
}

// deltaEngine is protocol version 2.
type deltaEngine struct {
	*meter
	mu     sync.Mutex
	sender *federation.Sender
}

func (e *deltaEngine) step(r proto.Message) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	request := r.(*discovery.DeltaDiscoveryRequest)
	err := e.sender.Step(request)
	if err == nil {
		e.answered(request)
	}
	return err
}

func (e *deltaEngine) next() (any, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	m, err := e.sender.Next()
	if m == nil {
		e.idle(e.sender.Full())
		return nil, err
	}
	e.sent(m.Nonce, m.Frame.Type, m.Frame.Complete)
	return m, nil
}

func (e *deltaEngine) status() federation.SenderStatus {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.sender.Status()
}

// projectedEngine is protocol version 1.
type projectedEngine struct {
	*meter
	mu     sync.Mutex
	sender *federation.ProjectedSender
}

func (e *projectedEngine) step(r proto.Message) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	request := r.(*discovery.DiscoveryRequest)
	err := e.sender.Step(request)
	if err == nil {
		e.answered(request)
	}
	return err
}

func (e *projectedEngine) next() (any, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	m, err := e.sender.Next()
	if m == nil {
		e.idle(e.sender.Full())
		return nil, err
	}
	e.sent(m.GetNonce(), m.GetTypeUrl(), true)
	body, err := proto.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("marshal response of %s: %w", m.GetTypeUrl(), err)
	}
	return &federationv1.Multiplexed{Message: &federationv1.Multiplexed_Response{Response: body}}, nil
}

func (e *projectedEngine) status() federation.SenderStatus {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.sender.Status()
}

// transmit sends what an engine has until the stream ends. read is run in a goroutine
// of its own, and fails when the stream does; it signals asked after each request.
func transmit(ctx context.Context, out *sender, outlet federation.Outlet, e engine, asked <-chan struct{}, failed <-chan error) error {
	defer e.meters().end()
	for {
		changed := outlet.Changed()
		m, err := e.next()
		if err != nil {
			return statusOf(err)
		}
		if m != nil {
			if err := out.send(m); err != nil {
				return cmp.Or(drained(failed), statusOf(err))
			}
			select {
			case err := <-failed:
				return err
			default:
				continue
			}
		}
		select {
		case <-changed:
			e.meters().changed()
		case <-asked:
		case err := <-failed:
			return err
		case <-ctx.Done():
			return ended(ctx)
		}
	}
}

// drained returns why reading failed, if it has: readers get the reason.
func drained(failed <-chan error) error {
	select {
	case err := <-failed:
		return err
	case <-time.After(time.Second):
		return nil
	}
}

// serveDelta runs the sending end of a stream of protocol version 2.
func serveDelta(ctx context.Context, stream rpc, outlet federation.Outlet, zone string, l *link, observe func(engine), received func()) error {
	e := &deltaEngine{meter: l.newMeter(), sender: federation.NewSender(outlet.Sender(zone))}
	observe(e)
	asked, failed := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		for {
			r := &discovery.DeltaDiscoveryRequest{}
			err := stream.RecvMsg(r)
			if err == nil {
				err = e.step(r)
			}
			if err != nil {
				failed <- statusOf(err)
				return
			}
			received()
			signal(asked)
		}
	}()
	return transmit(ctx, &sender{rpc: stream}, outlet, e, asked, failed)
}

func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// followDelta runs the receiving end of a stream of protocol version 2.
func followDelta(ctx context.Context, stream rpc, inlet federation.Inlet, l *link, versions bool, received func()) error {
	out := &sender{rpc: stream}
	flow, err := inlet.Open(ctx, federation.StreamOptions{Protocol: 2, Versions: versions}, func(m proto.Message) error {
		l.answering(m)
		return out.send(m)
	})
	if err != nil {
		return reason(stream, err, func() any { return &discovery.DeltaDiscoveryResponse{} })
	}
	defer flow.Close()
	messages, failed := make(chan *discovery.DeltaDiscoveryResponse), make(chan error, 1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		for {
			m := &discovery.DeltaDiscoveryResponse{}
			if err := stream.RecvMsg(m); err != nil {
				failed <- statusOf(err)
				return
			}
			select {
			case messages <- m:
			case <-ctx.Done():
				return
			}
		}
	}()
	for {
		select {
		case m := <-messages:
			received()
			l.from(m.GetControlPlane())
			if err := flow.Receive(ctx, m); err != nil {
				if errors.Is(err, io.EOF) { // an answer was not sent: the reader gets the reason
					go discard(ctx, messages)
					return cmp.Or(drained(failed), statusOf(err))
				}
				return statusOf(err)
			}
		case err := <-failed:
			return err
		case <-ctx.Done():
			return ended(ctx)
		}
	}
}

// discard what arrives until ctx ends.
func discard[T any](ctx context.Context, messages <-chan T) {
	for {
		select {
		case <-messages:
		case <-ctx.Done():
			return
		}
	}
}

// reason is why a stream failed with err. gRPC says io.EOF where a message cannot be sent
// because the peer has ended the stream, and has the reason for whoever reads on. Nobody
// else may read.
func reason(stream rpc, err error, message func() any) error {
	if !errors.Is(err, io.EOF) {
		return statusOf(err)
	}
	for {
		if err := stream.RecvMsg(message()); err != nil {
			return statusOf(err)
		}
	}
}

// ended is why a stream ends whose context did.
func ended(ctx context.Context) error {
	return statusOf(context.Cause(ctx))
}

// multiplex runs both ends of a stream of protocol version 1.
func multiplex(ctx context.Context, stream rpc, outlet federation.Outlet, zone string, inlet federation.Inlet, l *link,
	observe func(engine), received func(),
) error {
	out := &sender{rpc: stream}
	flow, err := inlet.Open(ctx, federation.StreamOptions{Protocol: 1}, func(m proto.Message) error {
		l.answering(m)
		body, err := proto.Marshal(m)
		if err != nil {
			return fmt.Errorf("marshal request: %w", err)
		}
		return out.send(&federationv1.Multiplexed{Message: &federationv1.Multiplexed_Request{Request: body}})
	})
	if err != nil {
		return reason(stream, err, newMultiplexed)
	}
	defer flow.Close()
	e := &projectedEngine{meter: l.newMeter(), sender: federation.NewProjectedSender(outlet.Sender(zone))}
	observe(e)
	asked, failed := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		for {
			err := demultiplex(ctx, stream, e, flow, asked)
			if err != nil {
				failed <- reason(stream, err, newMultiplexed)
				return
			}
			received()
		}
	}()
	return transmit(ctx, out, outlet, e, asked, failed)
}

func newMultiplexed() any { return &federationv1.Multiplexed{} }

// demultiplex reads one message of protocol version 1.
func demultiplex(ctx context.Context, stream rpc, e engine, flow federation.Flow, asked chan<- struct{}) error {
	var m federationv1.Multiplexed
	if err := stream.RecvMsg(&m); err != nil {
		return err
	}
	switch body := m.GetMessage().(type) {
	case *federationv1.Multiplexed_Request:
		var r discovery.DiscoveryRequest
		if err := proto.Unmarshal(body.Request, &r); err != nil {
			return fmt.Errorf("%w: request: %w", federation.ErrProtocol, err)
		}
		if err := e.step(&r); err != nil {
			return err
		}
		signal(asked)
		return nil
	case *federationv1.Multiplexed_Response:
		var r discovery.DiscoveryResponse
		if err := proto.Unmarshal(body.Response, &r); err != nil {
			return fmt.Errorf("%w: response: %w", federation.ErrProtocol, err)
		}
		e.meters().link.from(r.GetControlPlane())
		return flow.Receive(ctx, &r)
	default:
		return fmt.Errorf("%w: a message that is neither request nor response", federation.ErrProtocol)
	}
}

// statusOf makes errors of the core statuses, by which the peer decides how to go on.
func statusOf(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, io.EOF) {
		return status.Error(codes.Unavailable, "the peer closed the stream")
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	switch {
	case errors.Is(err, delta.ErrPosition):
		return status.Error(codes.FailedPrecondition, err.Error())
	case errors.Is(err, federation.ErrBehind):
		return status.Error(codes.Unavailable, err.Error())
	case errors.Is(err, federation.ErrProtocol):
		return status.Error(codes.InvalidArgument, err.Error())
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return status.FromContextError(err).Err()
	default:
		return status.Error(codes.Aborted, err.Error())
	}
}

// streamDesc of all streams of objects.
func streamDesc() *grpc.StreamDesc {
	return &grpc.StreamDesc{StreamName: streamMethod, ServerStreams: true, ClientStreams: true}
}
