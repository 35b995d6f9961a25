// Package server is the server side of tunnels: what a zone ingress and a zone egress
// have in common.
//
// A Server accepts connections with mTLS, authorizes each connection and, as a
// connection outlives a change of policy, each stream; it asks a Handler for the
// other side of a stream, and carries the bytes. Nothing is passed on before the
// stream was accepted. Enter at New. The package never chooses an endpoint or a peer:
// see packages ingress and egress.
package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/proxima-mesh/proxima/internal/gateway/frame"
	"github.com/proxima-mesh/proxima/internal/gateway/record"
	"github.com/proxima-mesh/proxima/internal/gateway/stream"
)

// Peer is the authenticated other end of a connection.
type Peer struct {
	// Identity is the SPIFFE ID in its certificate.
	Identity    string
	Certificate *x509.Certificate
	Address     netip.AddrPort
	// SNI that the connection is for.
	SNI string
}

// Authority authenticates and authorizes. Its methods are called concurrently, and
// must not block for long.
type Authority interface {
	// VerifyPeer authenticates a chain for the mesh that sni is of, and authorizes the
	// connection. It is called in every handshake, also when a session is resumed.
	VerifyPeer(sni string, chain []*x509.Certificate) error
	// AuthorizeStream is called for every stream, whose Identity is that of the program
	// for which it is opened.
	AuthorizeStream(p Peer, s frame.Stream) error
	// MayAssert reports whether a peer may open streams for other identities than its
	// own, as a zone egress may.
	MayAssert(p Peer, identity string) bool
}

// Call is a stream that asks for the other side.
type Call struct {
	Peer Peer
	// Stream as opened, with the identity that was authorized.
	Stream frame.Stream
}

// Upstream is the other side of a stream.
type Upstream interface {
	stream.Stream
	// Begin is called when the peer has been answered, before any byte is passed on.
	Begin() error
	// Finish ends the use. clean: both directions have ended.
	Finish(clean bool)
}

// Handler connects streams.
type Handler interface {
	// Connect returns the other side of a stream, or a *Refusal. ctx ends after
	// Config.ConnectTimeout and when the server is closed.
	Connect(ctx context.Context, c Call) (Upstream, error)
	// Passthrough returns the other side of a TLS connection that is not terminated
	// here, as it offers none of our protocols.
	Passthrough(ctx context.Context, hello Hello) (Upstream, error)
}

// Hello is what a client that nobody has authenticated asks for.
type Hello struct {
	SNI string
	// Protocols that it offers (ALPN).
	Protocols []string
	Client    netip.AddrPort
}

// Refusal is a stream that is not accepted.
type Refusal struct {
	Reason frame.Reason
	Err    error
}

// Error implements error.
func (r *Refusal) Error() string { return fmt.Sprintf("%s: %v", r.Reason, r.Err) }

// Unwrap returns the cause.
func (r *Refusal) Unwrap() error { return r.Err }

// TicketKeys are the keys by which session tickets are sealed. All instances
// behind one advertised address have the same.
type TicketKeys interface {
	// Keys returns the keys of an advertised address, and a channel that is closed when
	// there are others. The first one seals; it and the second one open.
	Keys(address string) (keys [][32]byte, changed <-chan struct{})
}

// keptTicketKeys is how many keys open tickets.
const keptTicketKeys = 2

// Config of a Server.
type Config struct {
	// Role is a label of metrics and logs: ingress or egress.
	Role      string
	Authority Authority
	Handler   Handler
	// GetCertificate returns the server's certificate.
	GetCertificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// TicketKeys of Advertised, the address that clients connect to; nil: keys
	// of this process alone.
	TicketKeys TicketKeys
	Advertised string
	// Buffers; nil: a pool of the default size.
	Buffers *record.Pool
	// Fronted: connections come from a proxy on this machine, and begin with its header of the PROXY
	// protocol, which says who the client is. The listener must be the proxy's alone.
	Fronted bool
	// Handshakes that compute at a time; default GOMAXPROCS. HandshakeQueue bounds
	// those that wait for their turn; default 1024. Connections beyond it are reset.
	Handshakes, HandshakeQueue int
	// HandshakeTimeout, default 10 s; ConnectTimeout for Connect and Passthrough, default
	// 10 s; IdleTimeout of connections without a stream, default 60 s: it must be greater
	// than that of clients.
	HandshakeTimeout, ConnectTimeout, IdleTimeout time.Duration
	// Registerer of metrics; nil: none.
	Registerer prometheus.Registerer
	// Logger; nil: discard.
	Logger *slog.Logger
}

func (c *Config) setDefaults() error {
	switch {
	case c.Role == "":
		return errors.New("gateway server: a role is required")
	case c.Authority == nil || c.Handler == nil || c.GetCertificate == nil:
		return fmt.Errorf("gateway server (%s): authority, handler and certificate are required", c.Role)
	}
	if c.Buffers == nil {
		c.Buffers = record.NewPool(0)
	}
	if c.Handshakes <= 0 {
		c.Handshakes = runtime.GOMAXPROCS(0)
	}
	if c.HandshakeQueue <= 0 {
		c.HandshakeQueue = 1024
	}
	for value, preset := range map[*time.Duration]time.Duration{
		&c.HandshakeTimeout: 10 * time.Second, &c.ConnectTimeout: 10 * time.Second, &c.IdleTimeout: time.Minute,
	} {
		if *value <= 0 {
			*value = preset
		}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Logger = c.Logger.With("role", c.Role)
	return nil
}

// Identity returns the SPIFFE ID of a leaf certificate: its only URI name (SPIFFE
// X509-SVID, 4.1).
func Identity(leaf *x509.Certificate) (string, error) {
	if len(leaf.URIs) != 1 || leaf.URIs[0].Scheme != "spiffe" || leaf.URIs[0].Host == "" {
		return "", fmt.Errorf("the certificate of %q has no SPIFFE ID: it needs exactly one URI name, with the scheme spiffe", leaf.Subject)
	}
	return leaf.URIs[0].String(), nil
}
