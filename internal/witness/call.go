package witness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	witnessv1 "github.com/proxima-mesh/proxima/api/witness/v1"
)

const (
	// maxAnswer of an agent: ten thousand Services are some megabytes.
	maxAnswer = 64 << 20
	// maxWaiting calls of one instance, which bounds what their answers take.
	maxWaiting = 16
)

// call waits for the answer of an agent.
type call struct {
	node string
	done chan answered // of capacity 1
}

type answered struct {
	body []byte
	err  error
}

// NotHereError: the agent of a node has no stream to this instance. It may have one to
// another instance.
type NotHereError struct{ Node string }

func (e *NotHereError) Error() string {
	return fmt.Sprintf("the agent of node %s has no stream to this instance", e.Node)
}

// GRPCStatus is the interface of package status.
func (e *NotHereError) GRPCStatus() *status.Status { return status.New(codes.Unavailable, e.Error()) }

// Call asks the agent of a node, and blocks until it answers, its stream ends, or ctx does,
// which needs a deadline. body is what kinds of calls that need one ask about. Errors are
// gRPC statuses; *NotHereError is one.
func (s *Server) Call(ctx context.Context, node string, kind witnessv1.CallKind, body []byte) ([]byte, error) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return nil, status.Error(codes.Internal, "a call of an agent needs a deadline")
	}
	a, id, c, err := s.begin(node)
	if err != nil {
		return nil, err
	}
	defer s.forget(id)
	order := &witnessv1.Call{
		Id: id, Kind: kind, Body: body, TimeoutMilliseconds: uint32(max(time.Until(deadline).Milliseconds(), 1)),
	}
	if !a.order(&witnessv1.PlaneMessage{Message: &witnessv1.PlaneMessage_Call{Call: order}}) {
		return nil, status.Errorf(codes.Unavailable, "the agent of node %s does not read its stream", node)
	}
	select {
	case got := <-c.done:
		return got.body, got.err
	case <-a.gone:
		return nil, status.Errorf(codes.Unavailable, "the stream of the agent of node %s ended before the answer", node)
	case <-ctx.Done():
		return nil, status.Errorf(codes.DeadlineExceeded, "the agent of node %s did not answer in time", node)
	}
}

func (s *Server) begin(node string) (*attendance, uint64, *call, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.streams[node]
	switch {
	case a == nil:
		return nil, 0, nil, &NotHereError{Node: node}
	case !a.answers:
		return nil, 0, nil, status.Errorf(codes.Unavailable, "the agent of node %s is of an older version, which answers no calls", node)
	case len(s.calls) >= maxWaiting:
		return nil, 0, nil, status.Errorf(codes.ResourceExhausted, "%d agents are asked already; try again in a moment", maxWaiting)
	}
	c := &call{node: node, done: make(chan answered, 1)}
	id := rand.Uint64()
	for s.calls[id] != nil {
		id = rand.Uint64()
	}
	s.calls[id] = c
	return a, id, c, nil
}

func (s *Server) forget(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.calls, id)
}

// Answer implements the service.
func (s *Server) Answer(stream grpc.ClientStreamingServer[witnessv1.AnswerPart, witnessv1.AnswerTaken]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	s.mu.Lock()
	c := s.calls[first.GetId()]
	s.mu.Unlock()
	if c == nil {
		return status.Error(codes.NotFound, "nobody waits for that answer")
	}
	if err := s.config.Admit(stream.Context(), c.node); err != nil {
		return err
	}
	body, err := collect(c.node, first, stream.Recv)
	select {
	case c.done <- answered{body, err}:
	default: // answered already
	}
	if err != nil {
		return err
	}
	return stream.SendAndClose(&witnessv1.AnswerTaken{})
}

// collect the parts of an answer.
func collect(node string, part *witnessv1.AnswerPart, next func() (*witnessv1.AnswerPart, error)) ([]byte, error) {
	id := part.GetId()
	var body []byte
	for {
		switch {
		case part.GetId() != id:
			return nil, status.Errorf(codes.InvalidArgument, "the agent of node %s mixed the answers to several calls", node)
		case part.GetCode() != 0:
			return nil, status.Errorf(codes.Code(part.GetCode()), "the agent of node %s: %s", node, part.GetMessage())
		case len(body)+len(part.GetPart()) > maxAnswer:
			return nil, status.Errorf(codes.ResourceExhausted, "the answer of the agent of node %s has more than %d bytes", node, maxAnswer)
		}
		body = append(body, part.GetPart()...)
		var err error
		if part, err = next(); errors.Is(err, io.EOF) {
			return body, nil
		} else if err != nil {
			return nil, status.Errorf(codes.Unavailable, "the answer of the agent of node %s broke off: %v", node, status.Convert(err).Message())
		}
	}
}
