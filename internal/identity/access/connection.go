package access

import (
	"context"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/proxima-mesh/proxima/internal/identity"
)

// admitTimeout bounds the store read that an admission may need.
const admitTimeout = 5 * time.Second

// refusalTime is from the refusal of a client without a certificate to the end of its connection, so that it reads why.
const refusalTime = time.Second

// Credentials are the credentials of a gRPC server that closes connections, and
// with them their streams, when the client's certificate is withdrawn or runs out.
// A client that has renewed its certificate comes back with the new one. next must
// verify client certificates.
func (s *Sessions) Credentials(next credentials.TransportCredentials) credentials.TransportCredentials {
	return sessionCredentials{next, s}
}

type sessionCredentials struct {
	credentials.TransportCredentials
	sessions *Sessions
}

// ServerHandshake implements credentials.TransportCredentials.
func (s sessionCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := s.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	state, ok := info.(credentials.TLSInfo)
	if !ok || len(state.State.VerifiedChains) == 0 { // handlers that require a certificate refuse it
		from := raw.RemoteAddr().String()
		c := &sessionConn{Conn: conn}
		c.closed = func() { s.sessions.nameless.CompareAndDelete(from, c) }
		s.sessions.nameless.Store(from, c)
		return c, info, nil
	}
	leaf := state.State.VerifiedChains[0][0]
	ctx, cancel := context.WithTimeout(context.Background(), admitTimeout)
	defer cancel()
	closed, err := s.sessions.Open(ctx, identity.SubjectOf(leaf), leaf.NotAfter, func(error) { _ = conn.Close() })
	if err != nil {
		s.sessions.log.Info("connection refused", "user", leaf.Subject.CommonName, "reason", err, "from", raw.RemoteAddr())
		_ = conn.Close() // the error before it counts
		return nil, nil, err
	}
	return &sessionConn{Conn: conn, closed: closed}, info, nil
}

// Refuse ends the connection of a gRPC call, a second later, if its client gave no certificate; it does not block. A client gives none
// if the handshake asks for those of other authorities alone, and would have none for as long as it keeps the connection, whatever is
// admitted meanwhile: that of a mesh, say, whose roots are not known yet when a control plane has just started.
func (s *Sessions) Refuse(ctx context.Context) {
	at, _ := peer.FromContext(ctx)
	if at == nil {
		return
	}
	if c, ok := s.nameless.Load(at.Addr.String()); ok {
		time.AfterFunc(refusalTime, func() { _ = c.(*sessionConn).Close() })
	}
}

// Clone implements credentials.TransportCredentials.
func (s sessionCredentials) Clone() credentials.TransportCredentials {
	return sessionCredentials{s.TransportCredentials.Clone(), s.sessions}
}

// sessionConn ends its session when it is closed.
type sessionConn struct {
	net.Conn
	closed func()
	once   sync.Once
}

// Close implements net.Conn.
func (c *sessionConn) Close() error {
	c.once.Do(c.closed)
	return c.Conn.Close()
}
