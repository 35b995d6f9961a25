package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/gateway/outbound"
	"github.com/proxima-mesh/proxima/internal/gateway/tunnel"
	"github.com/proxima-mesh/proxima/internal/listener"
	"github.com/proxima-mesh/proxima/internal/machine"
	"github.com/proxima-mesh/proxima/internal/node"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// nodeTunnel is an agent's way to other sites:
//
//	view ──► outbound.Router ◄── nodeIdentity
//	              │ routes
//	mode ──► tunnel.Server ── tunnel.Client ──► ingresses of other sites
//
// To the mode it is one endpoint of the Services that other sites offer: an address of
// this node, or of its loopback interface where the mode connects by itself.
type nodeTunnel struct {
	log    *slog.Logger
	port   int
	router *outbound.Router
	client *tunnel.Client
	server *tunnel.Server
	// announcer is the mode, if it connects by itself; else the kernel redirects.
	announcer proxy.Announcer

	wanted chan struct{} // closed when another site offers something
	want   sync.Once

	mu   sync.Mutex
	open uint16 // the port that is listened on; 0: none
	at   []netip.AddrPort
}

// maxTunnelConnections open at a time.
const maxTunnelConnections = 64 << 10

// openTunnel makes the tunnel; it listens when there is something to reach.
func (a *agent) openTunnel() {
	if a.cfg.TunnelPort == 0 || a.identity == nil || a.gateway != nil {
		return
	}
	log := a.log.With("component", "tunnel")
	t := &nodeTunnel{log: log, port: a.cfg.TunnelPort, wanted: make(chan struct{})}
	t.client = tunnel.NewClient(tunnel.Config{Registerer: a.registry, Logger: log})
	t.router = outbound.New(outbound.Config{
		Node: a.cfg.Name, Identities: a.identity, Client: t.client, Site: a.identity.manager.Zone, Logger: log,
		External: a.outside(nil),
	})
	cfg := tunnel.ServerConfig{Client: t.client, Router: t.router, Logger: log}
	if announcer, ok := a.mode.(proxy.Announcer); ok {
		t.announcer, cfg.Origin = announcer, t.router.Announced
	}
	t.server = tunnel.NewServer(cfg)
	a.tunnel = t
}

// shownFailures of services, in the status.
const shownFailures = 10

// status for the agent's; nil: there is no tunnel.
func (t *nodeTunnel) status() *admin.TunnelStatus {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	s := &admin.TunnelStatus{Port: t.open}
	t.mu.Unlock()
	failures := t.client.Failures()
	for _, f := range failures[:min(len(failures), shownFailures)] {
		s.Failures = append(s.Failures, admin.TunnelFailure{
			Service: f.SNI, At: f.At, Count: f.Count, Reason: f.Reason.String(), Error: f.Err.Error(),
		})
	}
	return s
}

// apply an update of the view.
func (t *nodeTunnel) apply(u node.Update) {
	if t == nil {
		return
	}
	t.router.Apply(u)
	if len(u.Remotes) > 0 {
		t.want.Do(func() { close(t.wanted) })
	}
}

// tunnelComponents carry connections to other sites.
func (a *agent) tunnelComponents() []component {
	if a.tunnel == nil {
		return nil
	}
	return []component{
		{Name: "routes to other sites", Run: a.tunnel.router.Run},
		{Name: "tunnel", Run: a.runTunnel},
	}
}

// tunnelRetry is the pause after the tunnel's port could not be opened.
const tunnelRetry = 10 * time.Second

func (a *agent) runTunnel(ctx context.Context) error {
	t := a.tunnel
	defer t.client.Close()
	select {
	case <-ctx.Done():
		return nil
	case <-t.wanted:
	}
	for ctx.Err() == nil {
		listeners, err := t.listen(ctx)
		if err == nil {
			a.useTunnel()
			return t.serve(ctx, listeners)
		}
		t.log.Error("no tunnel: services of other sites cannot be reached from this node; it is tried again",
			"port", t.port, "error", err, "hint", "choose another port with --tunnel-port")
		select {
		case <-ctx.Done():
		case <-time.After(tunnelRetry):
		}
	}
	return nil
}

// listen opens the port: on all addresses where the kernel redirects to it, else on the
// loopback interface alone. If it is taken, any free one serves: no other machine uses it.
func (t *nodeTunnel) listen(ctx context.Context) ([]net.Listener, error) {
	hosts := []string{"0.0.0.0", "::"}
	if t.announcer != nil {
		hosts = []string{"127.0.0.1", "::1"}
	}
	out, err := t.listenOn(ctx, hosts, t.port)
	if errors.Is(err, syscall.EADDRINUSE) {
		if out, err = t.listenOn(ctx, hosts, 0); err == nil {
			t.log.Info("the port of the tunnel is in use, another one was chosen", "wanted", t.port, "port", listenedPort(out[0]))
		}
	}
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.open = listenedPort(out[0])
	if t.announcer != nil {
		for _, l := range out {
			t.at = append(t.at, l.Addr().(*net.TCPAddr).AddrPort())
		}
	}
	return out, nil
}

// listenOn hosts, one of each family, with one port; a family that this machine lacks is
// left out.
func (t *nodeTunnel) listenOn(ctx context.Context, hosts []string, port int) ([]net.Listener, error) {
	var out []net.Listener
	for i, host := range hosts {
		// Apart, as the kernel keeps the original destination by the socket's family.
		network := []string{"tcp4", "tcp6"}[i]
		l, err := (&net.ListenConfig{KeepAlive: -1}).Listen(ctx, network, net.JoinHostPort(host, strconv.Itoa(port)))
		if err != nil && i > 0 && !errors.Is(err, syscall.EADDRINUSE) {
			continue // no IPv6 here
		}
		if err != nil {
			for _, l := range out {
				_ = l.Close()
			}
			return nil, fmt.Errorf("tunnel: %w", err)
		}
		out = append(out, l)
		port = int(listenedPort(l))
	}
	return out, nil
}

func listenedPort(l net.Listener) uint16 { return l.Addr().(*net.TCPAddr).AddrPort().Port() }

// serve until ctx ends; connections then get the time that those of the mode get.
func (t *nodeTunnel) serve(ctx context.Context, listeners []net.Listener) error {
	if t.announcer != nil {
		t.announcer.AnnounceTo(t.at, t.router.Announce)
	}
	t.log.Info("services of other sites are reached by the tunnel", "port", t.open)
	var running sync.WaitGroup
	errs := make([]error, len(listeners))
	for i, l := range listeners {
		limited := listener.Limit(l, listener.Config{
			Name: "tunnel", MaxConnections: listener.DescriptorShare(maxTunnelConnections, tunnelShare), Logger: t.log,
		})
		running.Go(func() { errs[i] = t.server.Serve(ctx, limited) })
	}
	running.Wait()
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), modeGrace)
	defer cancel()
	t.server.Close(grace)
	return errors.Join(errs...)
}

// tunnelShare of the file descriptors at each listener: a connection has two.
const tunnelShare = 0.1

// addresses at which the mode finds the tunnel, one per family; nil: it is not open.
func (t *nodeTunnel) addresses(server string) []netip.AddrPort {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open == 0 || t.at != nil {
		return slices.Clone(t.at)
	}
	var out []netip.AddrPort
	for _, addr := range machine.Addresses(server) {
		same := func(o netip.AddrPort) bool { return o.Addr().Is4() == addr.Is4() }
		if !addr.IsLoopback() && !slices.ContainsFunc(out, same) {
			out = append(out, netip.AddrPortFrom(addr, t.open))
		}
	}
	return out
}

// useTunnel makes the tunnel an endpoint of what other sites offer.
func (a *agent) useTunnel() { a.setFacts(func(*node.Facts) {}) }
