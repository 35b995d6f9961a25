// Package external connects to services outside every mesh: it resolves their hosts and
// begins their TLS, for a node, an egress or an ingress.
//
// Enter at New and Dialer.Connect; Of reads a service from what a view has of it. The
// package decides nothing about who may connect.
package external

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/proxima-mesh/proxima/internal/gateway/frame"
	"github.com/proxima-mesh/proxima/internal/gateway/record"
	"github.com/proxima-mesh/proxima/internal/gateway/stream"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// Service is a port of a service outside every mesh.
type Service struct {
	Targets []Target
	// Secret is the TLS that is begun with what Config.Credentials has; nil: TLS.
	Secret *Secret
	// TLS that is begun; nil: none. ServerName is the host of the target if it is empty.
	TLS *tls.Config
	// Unusable is why no connection may be made, as its TLS cannot be as it should; nil:
	// connections are made.
	Unusable error
}

// Target is one place where a service is.
type Target struct {
	// Host is a DNS name or an address.
	Host string
	Port uint16
	// Weight among the targets; 0 is taken for 1.
	Weight uint32
	// Near targets are tried before the others.
	Near bool
}

// Resolver of hosts; a *net.Resolver is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Config of a Dialer. Nothing is required.
type Config struct {
	// Resolver; nil: that of the system.
	Resolver Resolver
	// Virtual reports whether an address is a virtual IP of an external service: connecting to
	// it would lead back here. Nil: none is known.
	Virtual func(netip.Addr) bool
	// Credentials out of Secrets for a service of a generation, or why there are none now. It
	// must not block. Nil: there are none.
	Credentials func(service proxy.ServiceName, generation uint64) (*Credentials, error)
	// Buffers; nil: a pool of the default size.
	Buffers *record.Pool
	// ConnectTimeout bounds connecting to one address, and its handshake; default 3 s.
	ConnectTimeout time.Duration
}

// Dialer connects to services. Safe for concurrent use.
type Dialer struct{ cfg Config }

// New returns a dialer.
func New(cfg Config) *Dialer {
	if cfg.Resolver == nil {
		cfg.Resolver = net.DefaultResolver
	}
	if cfg.Buffers == nil {
		cfg.Buffers = record.NewPool(0)
	}
	if cfg.ConnectTimeout <= 0 {
		cfg.ConnectTimeout = 3 * time.Second
	}
	return &Dialer{cfg: cfg}
}

// Upstream is a connection to a service.
type Upstream interface {
	stream.Stream
	// Begin does nothing: the service is ready for bytes.
	Begin() error
	// Finish ends the use. clean: both directions have ended.
	Finish(clean bool)
}

// Connect connects to one target of a service: they are tried in an order at random by
// weight. It blocks until TLS has begun. An error names every attempt.
func (d *Dialer) Connect(ctx context.Context, s *Service) (Upstream, error) {
	if s.Unusable != nil {
		return nil, s.Unusable
	}
	config := s.TLS
	if s.Secret != nil {
		var err error
		if config, err = s.Secret.config(d.cfg.Credentials); err != nil {
			return nil, fmt.Errorf("external service %s: %w", s.Secret.Service, err)
		}
	}
	errs := []error{}
	for _, t := range order(s.Targets) {
		addrs, err := d.resolve(ctx, t.Host)
		if err != nil {
			errs = append(errs, fmt.Errorf("resolve %s: %w", t.Host, err))
			continue
		}
		for _, addr := range addrs {
			up, err := d.begin(ctx, config, t.Host, netip.AddrPortFrom(addr.Unmap(), t.Port))
			if err == nil {
				return up, nil
			}
			errs = append(errs, fmt.Errorf("%s: %w", net.JoinHostPort(t.Host, strconv.Itoa(int(t.Port))), err))
		}
	}
	if len(errs) == 0 {
		errs = append(errs, errors.New("there is no address to connect to"))
	}
	return nil, fmt.Errorf("external service: %w", errors.Join(errs...))
}

// order is at random by weight, near targets first.
func order(targets []Target) []Target {
	out := make([]Target, 0, len(targets))
	for _, near := range []bool{true, false} {
		var left []Target
		for _, t := range targets {
			if t.Near == near {
				left = append(left, t)
			}
		}
		for len(left) > 0 {
			i := draw(left)
			out = append(out, left[i])
			left = append(left[:i], left[i+1:]...)
		}
	}
	return out
}

func draw(targets []Target) int {
	sum := uint64(0)
	for _, t := range targets {
		sum += uint64(max(t.Weight, 1))
	}
	at := rand.Uint64N(sum)
	for i, t := range targets {
		w := uint64(max(t.Weight, 1))
		if at < w {
			return i
		}
		at -= w
	}
	return len(targets) - 1
}

func (d *Dialer) resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	if addr, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{addr}, nil
	}
	addrs, err := d.cfg.Resolver.LookupNetIP(ctx, "ip", host)
	if err == nil && d.cfg.Virtual != nil && slices.ContainsFunc(addrs, func(a netip.Addr) bool { return d.cfg.Virtual(a.Unmap()) }) {
		return nil, errCircle
	}
	return addrs, err
}

// errCircle: the resolver answers to this process as it does to workloads.
var errCircle = errors.New("the name resolves to the virtual IP of the external service: " +
	"this machine's DNS is captured by an agent, or points at one; run this process with CAP_NET_ADMIN, or name other resolvers with --dns-upstream")

// keepAlive finds out within half a minute that the other machine is gone.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}

// begin connects to one address.
func (d *Dialer) begin(ctx context.Context, config *tls.Config, host string, to netip.AddrPort) (Upstream, error) {
	dialer := net.Dialer{Timeout: d.cfg.ConnectTimeout, KeepAliveConfig: keepAlive}
	conn, err := dialer.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return nil, err
	}
	if config == nil {
		return &Plain{stream.NewTCP(conn, d.cfg.Buffers, frame.EndpointReset)}, nil
	}
	if config.ServerName == "" {
		config = config.Clone()
		config.ServerName = host
	}
	secure, err := stream.Client(ctx, conn, config, d.cfg.ConnectTimeout, d.cfg.Buffers)
	if err != nil {
		return nil, err
	}
	return &secured{secure}, nil
}

// Plain is a connection whose bytes pass as they are.
type Plain struct{ *stream.TCP }

// Begin implements Upstream.
func (*Plain) Begin() error { return nil }

// Finish implements Upstream.
func (p *Plain) Finish(clean bool) {
	if !clean {
		p.Reset(frame.Unspecified, "")
		return
	}
	_ = p.Close() // both directions have ended
}

// secured is a connection with TLS.
type secured struct{ *stream.TLS }

// Begin implements Upstream.
func (*secured) Begin() error { return nil }

// Finish implements Upstream.
func (s *secured) Finish(clean bool) {
	if !clean {
		s.Reset(frame.Unspecified, "")
	}
	s.Close()
	s.Free()
}
