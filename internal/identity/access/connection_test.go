package access

import (
	"context"
	"crypto/tls"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/proxima-mesh/proxima/internal/identity"
)

// Open streams end within 5 s of a revocation, of the deletion of the node and at
// the end of the certificate; new ones are refused.
func TestStreamsEnd(t *testing.T) {
	s := startServer(t)
	config := s.tls(t, net.IPv4(127, 0, 0, 1))
	config.ClientAuth, config.ClientCAs = tls.RequireAndVerifyClientCert, s.authority.Pool()
	open := make(chan struct{})
	server := grpc.NewServer(grpc.Creds(s.sessions.Credentials(credentials.NewTLS(config))),
		grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
			select {
			case open <- struct{}{}:
			case <-stream.Context().Done():
			}
			<-stream.Context().Done()
			return nil
		}))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})

	for _, tc := range []struct {
		name     string
		life     time.Duration
		withdraw func(t *testing.T, s identity.Subject)
	}{
		{"revoked", time.Hour, func(t *testing.T, subject identity.Subject) {
			if _, err := s.tokens.Revoke(t.Context(), subject.TokenID); err != nil {
				t.Error(err)
			}
		}},
		{"deleted", time.Hour, func(t *testing.T, _ identity.Subject) { s.deleteNode(t, "deleted") }},
		{"ran-out", 3 * time.Second, func(*testing.T, identity.Subject) {}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			_, info, err := s.tokens.Create(t.Context(), identity.Node, tc.name, time.Hour, "test")
			if err != nil {
				t.Fatal(err)
			}
			subject, err := info.Subject()
			if err != nil {
				t.Fatal(err)
			}
			pair, err := s.authority.IssueClient(subject, tc.life)
			if err != nil {
				t.Fatal(err)
			}
			cert, err := tls.X509KeyPair(pair.Cert, pair.Key)
			if err != nil {
				t.Fatal(err)
			}
			conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(
				&tls.Config{RootCAs: s.authority.Pool(), Certificates: []tls.Certificate{cert}})))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/test/Watch")
			if err != nil {
				t.Fatal(err)
			}
			<-open
			tc.withdraw(t, subject)
			start := time.Now()
			if err := stream.RecvMsg(new([]byte)); status.Code(err) != codes.Unavailable {
				t.Errorf("the stream ended with %v", err)
			}
			if took := time.Since(start); took > 5*time.Second {
				t.Errorf("it ended after %s", took)
			}
			if stream, err = conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/test/Watch"); err == nil {
				err = stream.RecvMsg(new([]byte))
			}
			if err == nil {
				t.Error("a new stream was admitted")
			}
		})
	}
}
