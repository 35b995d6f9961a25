package xds

import (
	"context"
	"fmt"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	sidecarv1 "github.com/proxima-mesh/proxima/api/sidecar/v1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/delta"
	"github.com/proxima-mesh/proxima/internal/reversecall"
)

// NotHereError: the supervisor of a proxy has no stream for questions to this server.
type NotHereError struct{ Dataplane catalog.Key }

func (e *NotHereError) Error() string {
	return fmt.Sprintf("the supervisor of the proxy of Dataplane %s has no stream to this instance", e.Dataplane)
}

// GRPCStatus is the interface of package status.
func (e *NotHereError) GRPCStatus() *status.Status { return status.New(codes.Unavailable, e.Error()) }

// supervisors are those that answer questions.
type supervisors struct {
	sidecarv1.UnimplementedCallsServer
	server *Server

	mu sync.Mutex
	of map[catalog.Key]*supervisor // the newest of each Dataplane
}

// supervisor is a stream of questions.
type supervisor struct {
	stream grpc.BidiStreamingServer[sidecarv1.Answer, sidecarv1.Call]

	sending sync.Mutex
	pending reversecall.Pending
}

// Attend implements the service Calls.
func (s *supervisors) Attend(stream grpc.BidiStreamingServer[sidecarv1.Answer, sidecarv1.Call]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	client, err := ParseClientID(first.GetHello().GetNode())
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	if err := s.server.config.Admit(stream.Context(), client); err != nil {
		return err
	}
	one := &supervisor{stream: stream}
	s.mu.Lock()
	s.of[client.Dataplane] = one
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		if s.of[client.Dataplane] == one {
			delete(s.of, client.Dataplane)
		}
		s.mu.Unlock()
		one.pending.End(&NotHereError{client.Dataplane})
	}()
	for {
		a, err := stream.Recv()
		if err != nil {
			return err
		}
		one.pending.Take(a)
	}
}

func (s *supervisor) send(c *sidecarv1.Call) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	return s.stream.Send(c)
}

// Ask the supervisor of a Dataplane's proxy a question (wire.AskConfig and so on), and wait for the
// answer. Errors are gRPC statuses; NotHereError: there is no stream of it.
func (s *Server) Ask(ctx context.Context, dataplane catalog.Key, question, argument string) ([]byte, error) {
	s.supervisors.mu.Lock()
	one := s.supervisors.of[dataplane]
	s.supervisors.mu.Unlock()
	if one == nil {
		return nil, &NotHereError{dataplane}
	}
	return one.pending.Do(ctx, "the supervisor of the proxy of Dataplane "+dataplane.String(), func(id uint64) error {
		if one.send(&sidecarv1.Call{Id: id, Question: question, Argument: argument}) != nil {
			return &NotHereError{dataplane}
		}
		return nil
	}, func(id uint64) {
		_ = one.send(&sidecarv1.Call{Id: id, Cancelled: true}) // if it fails there is nothing to cancel
	})
}

// SentResource is one that a proxy was sent.
type SentResource struct {
	delta.Ref
	Version string
	// Named: it was asked for by name, and not as one of all.
	Named bool
}

// Followed describes the newest stream of a Dataplane's proxy, and what it was sent. False: there
// is none here.
func (s *Server) Followed(dataplane catalog.Key) (StreamStatus, []SentResource, bool) {
	s.mu.Lock()
	var newest *stream
	for _, st := range s.streams {
		if st.info.Client.Dataplane == dataplane && (newest == nil || st.number > newest.number) {
			newest = st
		}
	}
	s.mu.Unlock()
	if newest == nil {
		return StreamStatus{}, nil, false
	}
	newest.mu.Lock()
	defer newest.mu.Unlock()
	var sent []SentResource
	newest.session.Sent(func(ref delta.Ref, version string, named bool) {
		sent = append(sent, SentResource{ref, version, named})
	})
	return StreamStatus{newest.info, newest.session.Status()}, sent, true
}
