package credential

import (
	"context"
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	identityv1 "github.com/proxima-mesh/proxima/api/identity/v1"
	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
)

// ServerConfig of a Server. All is required.
type ServerConfig struct {
	// Caller is the node of the client certificate of a call; its errors should be gRPC
	// statuses.
	Caller func(ctx context.Context) (node string, err error)
	// Needs are the ExternalServices whose TLS refers to Secrets, and which a node itself
	// connects to, in order. changed is closed when they may be others. An error: they are
	// not known yet.
	Needs func(node string) (services []*meshv1alpha1.ExternalService, changed <-chan struct{}, err error)
	// Source of the values.
	Source *Source
}

// Server sends nodes what they need. Safe for concurrent use.
type Server struct{ cfg ServerConfig }

// NewServer makes a server.
func NewServer(c ServerConfig) *Server { return &Server{c} }

// External is the method of identityv1.IdentityServer. It returns when the stream ends.
func (s *Server) External(_ *identityv1.ExternalRequest, stream grpc.ServerStreamingServer[identityv1.ExternalResponse]) error {
	ctx := stream.Context()
	node, err := s.cfg.Caller(ctx)
	if err != nil {
		return err
	}
	var sent []*identityv1.ExternalCredentials
	first := true
	for {
		secrets := s.cfg.Source.Changed()
		services, changed, err := s.cfg.Needs(node)
		if err != nil {
			return status.Error(codes.Unavailable, err.Error())
		}
		now, err := s.credentials(ctx, services)
		if err != nil && !errors.Is(err, ErrNotRead) {
			return err
		}
		if err == nil && (first || !same(sent, now)) {
			if err := send(stream, now); err != nil {
				return err
			}
			sent, first = now, false
		}
		select {
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case <-secrets:
		case <-changed:
		}
	}
}

func (s *Server) credentials(ctx context.Context, services []*meshv1alpha1.ExternalService) ([]*identityv1.ExternalCredentials, error) {
	var out []*identityv1.ExternalCredentials
	for _, e := range services {
		c := &identityv1.ExternalCredentials{Namespace: e.Namespace, Name: e.Name, Generation: uint64(e.Generation)}
		m, err := s.cfg.Source.Of(ctx, e)
		switch {
		case ctx.Err() != nil:
			return nil, status.FromContextError(ctx.Err()).Err()
		case errors.Is(err, ErrNotRead):
			return nil, err
		case err != nil:
			c.Problem = err.Error()
		default:
			c.Roots, c.Certificate, c.Key = m.Roots, m.Certificate, m.Key
		}
		out = append(out, c)
	}
	return out, nil
}

func same(a, b []*identityv1.ExternalCredentials) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !proto.Equal(a[i], b[i]) {
			return false
		}
	}
	return true
}

func send(stream grpc.ServerStreamingServer[identityv1.ExternalResponse], all []*identityv1.ExternalCredentials) error {
	for _, c := range all {
		if err := stream.Send(&identityv1.ExternalResponse{Service: c}); err != nil {
			return err
		}
	}
	return stream.Send(&identityv1.ExternalResponse{})
}
