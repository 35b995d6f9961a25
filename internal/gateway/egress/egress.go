// Package egress is the zone egress: where a mesh has one, it is the only way to other
// sites and to external services.
//
// New returns the handler that a server.Server is configured with. A stream is
// accepted when the ingress of the other site, or the external service, has accepted
// it; its caller keeps the first bytes until then. The package never connects to
// endpoints of this site or to another egress.
package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/proxima-mesh/proxima/internal/gateway/external"
	"github.com/proxima-mesh/proxima/internal/gateway/frame"
	"github.com/proxima-mesh/proxima/internal/gateway/front"
	"github.com/proxima-mesh/proxima/internal/gateway/record"
	"github.com/proxima-mesh/proxima/internal/gateway/server"
	"github.com/proxima-mesh/proxima/internal/gateway/stream"
	"github.com/proxima-mesh/proxima/internal/gateway/tunnel"
)

// Target of a service: ingresses of other sites, or an external service.
type Target struct {
	// Ingresses of other sites that serve it.
	Ingresses []tunnel.Peer
	// External; nil: the service is one of the mesh. Outside is its port then, NAMESPACE/NAME:PORT.
	External *external.Service
	Outside  string
}

// Targets are what this egress may reach. Methods are called concurrently, and do not
// block.
type Targets interface {
	// Target returns that of a service; false: not one of those.
	Target(sni string) (Target, bool)
}

// Config of a handler. Targets, Tunnel and Credentials are required.
type Config struct {
	Targets Targets
	// Tunnel opens streams to ingresses.
	Tunnel *tunnel.Client
	// Credentials of the egress for a service. Ingresses let it open streams for
	// identities that it has authenticated.
	Credentials func(sni string) (*tunnel.Credentials, error)
	// External connects to external services; nil: a dialer with Resolver.
	External *external.Dialer
	// Front connects to external services in place of External, by Target.Outside; front.ErrAbsent: it
	// cannot, and External does. Nil: External does always.
	Front func(ctx context.Context, outside string) (server.Upstream, error)
	// Resolver of the hosts of external services; nil: that of the system.
	Resolver external.Resolver
	// Buffers of the server; nil: a pool of the default size.
	Buffers *record.Pool
	// ConnectTimeout bounds connecting to one address of an external service, and its
	// handshake; default 3 s.
	ConnectTimeout time.Duration
}

// Handler connects streams to what is outside the site. It implements server.Handler.
type Handler struct {
	cfg      Config
	external *external.Dialer
}

// New returns a handler.
func New(cfg Config) (*Handler, error) {
	if cfg.Targets == nil || cfg.Tunnel == nil || cfg.Credentials == nil {
		return nil, errors.New("egress: targets, tunnel and credentials are required")
	}
	if cfg.Buffers == nil {
		cfg.Buffers = record.NewPool(0)
	}
	if cfg.ConnectTimeout <= 0 {
		cfg.ConnectTimeout = 3 * time.Second
	}
	if cfg.External != nil {
		return &Handler{cfg, cfg.External}, nil
	}
	outside := external.New(external.Config{Resolver: cfg.Resolver, Buffers: cfg.Buffers, ConnectTimeout: cfg.ConnectTimeout})
	return &Handler{cfg, outside}, nil
}

// Connect implements server.Handler.
func (h *Handler) Connect(ctx context.Context, c server.Call) (server.Upstream, error) {
	target, ok := h.cfg.Targets.Target(c.Peer.SNI)
	switch {
	case !ok:
		return nil, noTarget(c.Peer.SNI)
	case target.External != nil:
		if h.cfg.Front != nil && target.External.Unusable == nil {
			up, err := h.cfg.Front(ctx, target.Outside)
			var refused *front.RefusedError
			switch {
			case err == nil:
				return up, nil
			case errors.As(err, &refused) && refused.Overloaded:
				return nil, &server.Refusal{Reason: frame.Overloaded, Err: err}
			case !errors.Is(err, front.ErrAbsent):
				return nil, &server.Refusal{Reason: frame.Unreachable, Err: err}
			}
		}
		up, err := h.external.Connect(ctx, target.External)
		if err != nil {
			return nil, &server.Refusal{Reason: frame.Unreachable, Err: err}
		}
		return up, nil
	}
	return h.tunnel(ctx, c, target.Ingresses)
}

// Passthrough implements server.Handler. TLS of a sidecar ends at the workload of the
// other site; an egress on its way carries it to an ingress as it is.
func (h *Handler) Passthrough(ctx context.Context, hello server.Hello) (server.Upstream, error) {
	sni := hello.SNI
	target, ok := h.cfg.Targets.Target(sni)
	if !ok || target.External != nil {
		return nil, noTarget(sni)
	}
	var errs []error
	for _, peer := range tunnel.Order(target.Ingresses) {
		if peer.Role != tunnel.RoleIngress {
			errs = append(errs, fmt.Errorf("peer %s is a %s, not an ingress", peer.Name, peer.Role))
			continue
		}
		conn, err := h.dial(ctx, peer.Address)
		if err == nil {
			return &external.Plain{TCP: stream.NewTCP(conn, h.cfg.Buffers, frame.Broken)}, nil // its TLS is not seen here
		}
		errs = append(errs, err)
	}
	return nil, unreachable(sni, errs)
}

func noTarget(sni string) error {
	err := fmt.Errorf("service %q is not reached through this egress: is it exported by another site, or an ExternalService?", sni)
	return &server.Refusal{Reason: frame.NoRoute, Err: err}
}

func unreachable(what string, errs []error) error {
	if len(errs) == 0 {
		errs = []error{errors.New("there is no address to connect to")}
	}
	return &server.Refusal{Reason: frame.Unreachable, Err: fmt.Errorf("%s: %w", what, errors.Join(errs...))}
}

// tunnel opens a stream to an ingress of another site, for the identity that was
// authenticated.
func (h *Handler) tunnel(ctx context.Context, c server.Call, ingresses []tunnel.Peer) (server.Upstream, error) {
	for _, p := range ingresses {
		if p.Role != tunnel.RoleIngress {
			return nil, &server.Refusal{Reason: frame.Unsupported, Err: fmt.Errorf("peer %s is a %s, not an ingress", p.Name, p.Role)}
		}
	}
	creds, err := h.cfg.Credentials(c.Peer.SNI)
	if err != nil {
		return nil, &server.Refusal{Reason: frame.Unauthorized, Err: fmt.Errorf("certificate of the egress: %w", err)}
	}
	conn, err := h.cfg.Tunnel.Open(ctx, tunnel.Request{SNI: c.Peer.SNI, Peers: ingresses, Stream: c.Stream, Credentials: creds}, nil)
	if err != nil {
		reason := frame.Unreachable
		var failure *tunnel.OpenError
		if errors.As(err, &failure) {
			reason = failure.Reason
		}
		if reason == frame.Draining || reason == frame.Broken {
			reason = frame.Unreachable // said of an ingress, not of this egress
		}
		return nil, &server.Refusal{Reason: reason, Err: err}
	}
	return &remote{conn}, nil
}

// keepAlive finds out within half a minute that the other machine is gone.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}

func (h *Handler) dial(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	d := net.Dialer{Timeout: h.cfg.ConnectTimeout, KeepAliveConfig: keepAlive}
	return d.DialContext(ctx, "tcp", to.String())
}

// remote is a stream to an ingress.
type remote struct{ *tunnel.Conn }

// Begin implements server.Upstream.
func (*remote) Begin() error { return nil }

var _ server.Handler = (*Handler)(nil)
