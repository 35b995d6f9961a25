package spiffe

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"

	"github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/proxima-mesh/proxima/internal/identity/mesh"
)

// Identities hands out what a node has. Channels are closed when there is something
// else. No method blocks.
type Identities interface {
	// Current certificate of a workload; an error if there is none that holds. The
	// channel is nil where nothing is kept for the workload.
	Current(w Workload) (*mesh.SVID, <-chan struct{}, error)
	// Trust is the roots of all meshes.
	Trust() (*mesh.Trust, <-chan struct{})
}

// Config configures a Server. Identities and Attestor are required.
type Config struct {
	Identities Identities
	Attestor   Attestor
	Logger     *slog.Logger // nil: silence
}

const (
	// maxStreams of a connection: there is one for each method that a workload uses.
	maxStreams = 16
	// maxMessage that is read: requests are empty.
	maxMessage = 4 << 10
	// securityHeader has to be in each call (SPIFFE Workload Endpoint, 5.2): programs
	// that are made to send requests to a socket cannot set it.
	securityHeader = "workload.spiffe.io"
)

// Server serves the Workload API.
type Server struct {
	workload.UnimplementedSpiffeWorkloadAPIServer
	config Config
}

// NewServer makes a server.
func NewServer(c Config) *Server {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &Server{config: c}
}

// Serve serves a listener of Listen until ctx ends, and closes it. It returns nil then.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	server := grpc.NewServer(
		grpc.Creds(&peerCredentials{users: map[uint32]int{}}), grpc.MaxConcurrentStreams(maxStreams), grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxHeaderListSize(16<<10),
		grpc.ChainUnaryInterceptor(checkUnary), grpc.ChainStreamInterceptor(checkStream),
	)
	workload.RegisterSpiffeWorkloadAPIServer(server, s)
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	err := server.Serve(l)
	if ctx.Err() != nil || errors.Is(err, grpc.ErrServerStopped) {
		return nil
	}
	return fmt.Errorf("serve the Workload API: %w", err)
}

func checkUnary(ctx context.Context, r any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if err := checkHeader(ctx); err != nil {
		return nil, err
	}
	return next(ctx, r)
}

func checkStream(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	if err := checkHeader(stream.Context()); err != nil {
		return err
	}
	return next(srv, stream)
}

func checkHeader(ctx context.Context) error {
	md, _ := metadata.FromIncomingContext(ctx)
	if v := md.Get(securityHeader); len(v) != 1 || v[0] != "true" {
		return status.Errorf(codes.InvalidArgument, "metadata %s: true is missing", securityHeader)
	}
	return nil
}

// caller is the workload at the other end.
func (s *Server) caller(ctx context.Context) (Workload, error) {
	p, _ := peer.FromContext(ctx)
	if p == nil {
		return Workload{}, status.Error(codes.PermissionDenied, "no caller")
	}
	info, ok := p.AuthInfo.(processInfo)
	if !ok {
		return Workload{}, status.Error(codes.PermissionDenied, "the caller's process is not known")
	}
	if !info.process.same() {
		return Workload{}, status.Error(codes.PermissionDenied, "the process that made the connection has ended")
	}
	w, err := s.config.Attestor.Attest(ctx, info.process)
	switch {
	case err == nil:
		return w, nil
	case errors.Is(err, ErrNoWorkload):
		s.config.Logger.Debug("a process without identity called the Workload API", "process", info.process.String(), "error", err)
		// The specification requires this code if there is no identity.
		return Workload{}, status.Error(codes.PermissionDenied, ErrNoWorkload.Error())
	}
	s.config.Logger.Warn("a process could not be attested", "process", info.process.String(), "error", err)
	return Workload{}, status.Error(codes.Unavailable, "the process could not be attested now: try again")
}

// FetchX509SVID implements the Workload API: the caller's certificate and key, and all
// roots, again whenever one of them changes.
func (s *Server) FetchX509SVID(_ *workload.X509SVIDRequest, stream grpc.ServerStreamingServer[workload.X509SVIDResponse]) error {
	return s.follow(stream.Context(), func(svid *mesh.SVID, trust *mesh.Trust) error {
		message, err := svidResponse(svid, trust)
		if err != nil {
			return err
		}
		return stream.Send(message)
	})
}

// FetchX509Bundles implements the Workload API: the roots that the caller's mesh has to
// do with, again whenever they change.
func (s *Server) FetchX509Bundles(_ *workload.X509BundlesRequest, stream grpc.ServerStreamingServer[workload.X509BundlesResponse]) error {
	return s.follow(stream.Context(), func(svid *mesh.SVID, trust *mesh.Trust) error {
		out := &workload.X509BundlesResponse{Bundles: map[string][]byte{}}
		for _, b := range visible(svid.Mesh, trust) {
			out.Bundles[b.Domain.IDString()] = concat(b.Roots)
		}
		return stream.Send(out)
	})
}

// follow sends what the caller may have, until the stream ends. A caller whose
// certificate is not there yet waits; one that is no workload any more is refused.
func (s *Server) follow(ctx context.Context, send func(*mesh.SVID, *mesh.Trust) error) error {
	for {
		w, err := s.caller(ctx)
		if err != nil {
			return err
		}
		trust, trustChanged := s.config.Identities.Trust()
		svid, changed, err := s.config.Identities.Current(w)
		if err != nil && changed == nil {
			return status.Errorf(codes.PermissionDenied, "no certificate is kept for workload %s", w)
		}
		if _, known := bundleOf(svid, trust); err == nil && known {
			if err := send(svid, trust); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case <-changed:
		case <-trustChanged:
		}
	}
}

func bundleOf(svid *mesh.SVID, trust *mesh.Trust) (mesh.Bundle, bool) {
	if svid == nil {
		return mesh.Bundle{}, false
	}
	return trust.Bundle(svid.Mesh)
}

// visible bundles for workloads of a mesh: its own, those that it is exported to, whose
// clients it serves, and those that are exported to it, which it calls.
func visible(meshName string, trust *mesh.Trust) []mesh.Bundle {
	own, ok := trust.Bundle(meshName)
	if !ok {
		return nil
	}
	out := []mesh.Bundle{own}
	for _, name := range trust.Meshes() {
		other, _ := trust.Bundle(name)
		if name != meshName && (slices.Contains(own.ExportedTo, name) || slices.Contains(other.ExportedTo, meshName)) {
			out = append(out, other)
		}
	}
	return out
}

func svidResponse(svid *mesh.SVID, trust *mesh.Trust) (*workload.X509SVIDResponse, error) {
	key, err := x509.MarshalPKCS8PrivateKey(svid.Key)
	if err != nil {
		return nil, status.Error(codes.Internal, "the key cannot be encoded")
	}
	bundles := visible(svid.Mesh, trust)
	out := &workload.X509SVIDResponse{
		Svids: []*workload.X509SVID{{
			SpiffeId: svid.ID.String(), X509Svid: concat(svid.Chain), X509SvidKey: key, Bundle: concat(bundles[0].Roots),
		}},
		FederatedBundles: map[string][]byte{},
	}
	for _, b := range bundles[1:] {
		out.FederatedBundles[b.Domain.IDString()] = concat(b.Roots)
	}
	return out, nil
}

// concat DER certificates, as the specification has them.
func concat(certs []*x509.Certificate) []byte {
	var out []byte
	for _, c := range certs {
		out = append(out, c.Raw...)
	}
	return out
}
