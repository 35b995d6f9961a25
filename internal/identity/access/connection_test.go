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
	// open is told of each stream that the server admits, by the name of its method.
	open := map[string]chan struct{}{"/test/revoked": make(chan struct{}), "/test/deleted": make(chan struct{}), "/test/ran-out": make(chan struct{})}
	server := grpc.NewServer(grpc.Creds(s.sessions.Credentials(credentials.NewTLS(config))),
		grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
			method, _ := grpc.MethodFromServerStream(stream)
			select {
			case open[method] <- struct{}{}:
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
			// The certificate may end before a busy machine has opened the stream; the next
			// one lives longer.
			method := "/test/" + tc.name
			var conn *grpc.ClientConn
			var ended chan error
			life := tc.life
			for ; ; life *= 2 {
				conn = s.dial(t, listener.Addr().String(), subject, life)
				stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
				if err == nil {
					ended = make(chan error, 1)
					go func() { ended <- stream.RecvMsg(new([]byte)) }()
					select {
					case <-open[method]:
					case err = <-ended:
					}
				}
				if err == nil {
					break
				}
				if tc.life == time.Hour || life > time.Minute {
					t.Fatalf("the stream was not opened with a certificate of %s: %v", life, err)
				}
			}
			tc.withdraw(t, subject)
			start := time.Now()
			if err := <-ended; status.Code(err) != codes.Unavailable {
				t.Errorf("the stream ended with %v", err)
			}
			within := 5 * time.Second
			if tc.life != time.Hour {
				within += life
			}
			if took := time.Since(start); took > within {
				t.Errorf("it ended after %s", took)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method)
			if err == nil {
				err = stream.RecvMsg(new([]byte))
			}
			if err == nil {
				t.Error("a new stream was admitted")
			}
		})
	}
}

// dial with a certificate for a subject, until the test ends.
func (s *server) dial(t *testing.T, address string, subject identity.Subject, life time.Duration) *grpc.ClientConn {
	t.Helper()
	pair, err := s.authority.IssueClient(subject, life)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(credentials.NewTLS(
		&tls.Config{RootCAs: s.authority.Pool(), Certificates: []tls.Certificate{cert}})))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}
