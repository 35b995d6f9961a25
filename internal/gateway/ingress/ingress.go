// Package ingress is the zone ingress: it connects streams of other sites to local
// endpoints, and to services outside every mesh that those sites reach through this one.
//
// New returns the handler that a server.Server is configured with. The package has no
// client of tunnels, and imports none: whatever a peer asks for, nothing leaves for
// another site from here.
package ingress

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/proxima-mesh/proxima/internal/gateway/frame"
	"github.com/proxima-mesh/proxima/internal/gateway/proxyproto"
	"github.com/proxima-mesh/proxima/internal/gateway/record"
	"github.com/proxima-mesh/proxima/internal/gateway/server"
	"github.com/proxima-mesh/proxima/internal/gateway/stream"
)

// Route of a service.
type Route struct {
	// Endpoints in the order of attempts; each call may return another order. They are
	// of this site.
	Endpoints []netip.AddrPort
	// ProxyProtocol: the port asks for a header of the PROXY protocol, version 2.
	ProxyProtocol bool
	// TLS that is begun with endpoints, which have proxies; nil: they get the bytes as they are.
	TLS *tls.Config
	// Connect to a service outside every mesh, for sites that it is not reached from; nil:
	// the service has endpoints. An error is a *server.Refusal.
	Connect func(context.Context) (server.Upstream, error)
}

// Routes are the services of this site that others may use. Methods are called
// concurrently, and do not block.
type Routes interface {
	// Route returns the route of a service, whose TLS ends here; false: not served.
	Route(sni string) (Route, bool)
	// PassthroughRoute returns the route of a service whose endpoints terminate TLS of one of
	// these protocols (ALPN).
	PassthroughRoute(sni string, protocols []string) (Route, bool)
}

// Config of a handler. Routes is required.
type Config struct {
	Routes Routes
	// Own addresses that the ingress listens on; an endpoint with one of them is refused,
	// as it would lead in a circle.
	Own []netip.AddrPort
	// Buffers of the server; nil: a pool of the default size.
	Buffers *record.Pool
	// EndpointTimeout bounds connecting to one endpoint; default 1 s. Attempts bounds the
	// endpoints that are tried for a stream; default 3.
	EndpointTimeout time.Duration
	Attempts        int
}

// Handler connects streams to endpoints. It implements server.Handler.
type Handler struct{ cfg Config }

// New returns a handler.
func New(cfg Config) (*Handler, error) {
	if cfg.Routes == nil {
		return nil, errors.New("ingress: routes are required")
	}
	if cfg.Buffers == nil {
		cfg.Buffers = record.NewPool(0)
	}
	if cfg.EndpointTimeout <= 0 {
		cfg.EndpointTimeout = time.Second
	}
	if cfg.Attempts <= 0 {
		cfg.Attempts = 3
	}
	return &Handler{cfg: cfg}, nil
}

// Connect implements server.Handler.
func (h *Handler) Connect(ctx context.Context, c server.Call) (server.Upstream, error) {
	route, ok := h.cfg.Routes.Route(c.Peer.SNI)
	if !ok {
		return nil, notServed(c.Peer.SNI)
	}
	if route.Connect != nil {
		return route.Connect(ctx)
	}
	var header []byte
	if route.ProxyProtocol {
		var err error
		header, err = proxyproto.Append(nil, proxyproto.Header{
			Source: c.Stream.Client, Destination: c.Stream.Destination, Node: c.Stream.Node, Identity: c.Stream.Identity,
		})
		if err != nil {
			return nil, &server.Refusal{Reason: frame.Unspecified, Err: err}
		}
	}
	return h.connect(ctx, c.Peer.SNI, route, header)
}

// Passthrough implements server.Handler. The client is the other gateway or proxy:
// what its TLS carries is not seen here.
func (h *Handler) Passthrough(ctx context.Context, hello server.Hello) (server.Upstream, error) {
	route, ok := h.cfg.Routes.PassthroughRoute(hello.SNI, hello.Protocols)
	if !ok {
		return nil, notServed(hello.SNI)
	}
	var header []byte
	if route.ProxyProtocol {
		var err error
		if header, err = proxyproto.Append(nil, proxyproto.Header{Source: hello.Client}); err != nil {
			return nil, &server.Refusal{Reason: frame.Unspecified, Err: err}
		}
	}
	return h.connect(ctx, hello.SNI, route, header)
}

func notServed(sni string) error {
	err := fmt.Errorf("service %q is not served in this site: is it exported, and has it endpoints?", sni)
	return &server.Refusal{Reason: frame.NoRoute, Err: err}
}

// connect tries the endpoints in order.
func (h *Handler) connect(ctx context.Context, sni string, route Route, header []byte) (server.Upstream, error) {
	var errs []error
	for _, to := range route.Endpoints[:min(len(route.Endpoints), h.cfg.Attempts)] {
		if slices.Contains(h.cfg.Own, to) {
			errs = append(errs, fmt.Errorf("endpoint %s is this ingress", to))
			continue
		}
		d := net.Dialer{Timeout: h.cfg.EndpointTimeout, KeepAliveConfig: keepAlive}
		conn, err := d.DialContext(ctx, "tcp", to.String())
		if err == nil && route.TLS != nil {
			var up *stream.TLS
			if up, err = stream.Client(ctx, conn, route.TLS, h.cfg.EndpointTimeout, h.cfg.Buffers); err == nil {
				return &secured{up}, nil
			}
		} else if err == nil {
			return &upstream{TCP: stream.NewTCP(conn, h.cfg.Buffers, frame.EndpointReset), header: header}, nil
		}
		errs = append(errs, err)
	}
	if len(errs) == 0 {
		return nil, &server.Refusal{Reason: frame.Unreachable, Err: fmt.Errorf("service %q has no endpoint", sni)}
	}
	return nil, &server.Refusal{Reason: frame.Unreachable, Err: errors.Join(errs...)}
}

// keepAlive finds out within half a minute that the endpoint's machine is gone.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}

// upstream is a connection to an endpoint.
type upstream struct {
	*stream.TCP
	header []byte
}

// Begin implements server.Upstream.
func (u *upstream) Begin() error {
	if len(u.header) == 0 {
		return nil
	}
	_, err := u.NetConn().Write(u.header)
	return err
}

// Finish implements server.Upstream.
func (u *upstream) Finish(clean bool) {
	if !clean {
		u.Reset(frame.Unspecified, "")
		return
	}
	_ = u.Close() // both directions have ended
}

// secured is a connection to the proxy of an endpoint.
type secured struct{ *stream.TLS }

// Begin implements server.Upstream.
func (*secured) Begin() error { return nil }

// Finish implements server.Upstream.
func (s *secured) Finish(clean bool) {
	if !clean {
		s.Reset(frame.Unspecified, "")
	}
	s.Close()
	s.Free()
}

var _ server.Handler = (*Handler)(nil)
