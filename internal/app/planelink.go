package app

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"github.com/proxima-mesh/proxima/internal/delta/stream"
	"github.com/proxima-mesh/proxima/internal/identity"
)

// planeLink is how a machine that has joined a control plane reaches its gRPC port.
type planeLink struct {
	renewer *identity.Renewer
	// server (HOST:PORT) of the API.
	server string
	// serves is what the port is for, for messages.
	serves string
	// others returns all addresses of the port, of which the given one is known from the
	// certificate; nil: there is no other.
	others func(joined string) []string

	mu sync.Mutex
	// at is the address that was dialled last, and last the connection.
	at   string
	last net.Conn
}

// address of the gRPC port, as the machine has learnt it when it joined.
func (l *planeLink) address() (string, error) {
	c := l.renewer.Credentials()
	if c == nil {
		return "", l.renewer.Problem()
	}
	if c.GRPCAddress == "" {
		return "", fmt.Errorf("control plane %s serves no %s: it runs with --grpc-port 0", c.Server, l.serves)
	}
	host, port, err := net.SplitHostPort(c.GRPCAddress)
	if err != nil {
		return "", fmt.Errorf("address of the %s: %w", l.serves, err)
	}
	if host == "" { // the same as the API's
		if host, _, err = net.SplitHostPort(c.Server); err != nil {
			return "", err
		}
	}
	return net.JoinHostPort(host, port), nil
}

// connect makes a connection, which dials when it is used. A machine without credentials
// learns the address when it has joined.
func (l *planeLink) connect() (*grpc.ClientConn, error) {
	options := append(stream.DialOptions(),
		grpc.WithTransportCredentials(planeCredentials{credentials.NewTLS(nil), l}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: 10 * time.Second, Timeout: 5 * time.Second, PermitWithoutStream: true,
		}),
	)
	if l.others != nil {
		return grpc.NewClient("passthrough:///"+l.server, append(options, grpc.WithContextDialer(l.dialAny))...)
	}
	if l.renewer.Credentials() != nil {
		address, err := l.address()
		if err != nil {
			return nil, err
		}
		return grpc.NewClient("passthrough:///"+address, options...)
	}
	dial := func(ctx context.Context, _ string) (net.Conn, error) {
		address, err := l.address()
		if err != nil {
			return nil, err
		}
		return (&net.Dialer{}).DialContext(ctx, "tcp", address)
	}
	return grpc.NewClient("passthrough:///"+l.server, append(options, grpc.WithContextDialer(dial))...)
}

// dialAny connects to one of several instances. After the one that was used before, which has
// ended or did not answer, it is another one's turn.
func (l *planeLink) dialAny(ctx context.Context, _ string) (net.Conn, error) {
	joined, err := l.address()
	if err != nil {
		return nil, err
	}
	conn, err := dialFirst(ctx, l.order(l.others(joined)))
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.at, l.last = conn.address, conn
	return conn, nil
}

// order in which addresses are tried.
func (l *planeLink) order(all []string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(all, l.at); i >= 0 {
		return slices.Concat(all[i+1:], all[:i+1])
	}
	return all
}

// instance that was dialled last; empty: none yet.
func (l *planeLink) instance() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.at
}

// leave an instance that does not answer, if there are others.
func (l *planeLink) leave() {
	joined, err := l.address()
	if err != nil || l.others == nil || len(l.others(joined)) < 2 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last != nil {
		_ = l.last.Close()
	}
}

// planeCredentials check the server against the address that was dialled.
type planeCredentials struct {
	credentials.TransportCredentials
	link *planeLink
}

// ClientHandshake implements credentials.TransportCredentials.
func (c planeCredentials) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	address, err := c.link.address()
	if err != nil {
		return nil, nil, err
	}
	if one, ok := raw.(*instanceConn); ok {
		address = one.address
	}
	return credentials.NewTLS(c.link.renewer.TLSConfig(HostOf(address))).ClientHandshake(ctx, authority, raw)
}

// Clone implements credentials.TransportCredentials.
func (c planeCredentials) Clone() credentials.TransportCredentials { return c }
