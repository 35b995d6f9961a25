package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/proxima-mesh/proxima/internal/diag"
	"github.com/proxima-mesh/proxima/internal/gateway/egress"
	"github.com/proxima-mesh/proxima/internal/gateway/ingress"
	"github.com/proxima-mesh/proxima/internal/gateway/outbound"
	"github.com/proxima-mesh/proxima/internal/gateway/record"
	"github.com/proxima-mesh/proxima/internal/gateway/server"
	"github.com/proxima-mesh/proxima/internal/gateway/site"
	"github.com/proxima-mesh/proxima/internal/gateway/tunnel"
	"github.com/proxima-mesh/proxima/internal/identity/mesh"
	"github.com/proxima-mesh/proxima/internal/identity/workload"
	"github.com/proxima-mesh/proxima/internal/listener"
	"github.com/proxima-mesh/proxima/internal/machine"
	"github.com/proxima-mesh/proxima/internal/node"
	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/modes"
	viewwire "github.com/proxima-mesh/proxima/internal/view/wire"
)

// GatewayConfig makes an agent a gateway between sites: it carries no traffic of its
// machine then, and serves the streams of other sites (ingress) or of this one (egress).
type GatewayConfig struct {
	Egress bool
	// Address and Port that it listens on; an invalid address: on all, and the address by
	// which this machine reaches the control plane is the one that others learn.
	Address netip.Addr
	Port    int
	// AdvertisedAddress (an IP address or a DNS name) and AdvertisedPort by which it is
	// reached from elsewhere; empty: Address and Port.
	AdvertisedAddress string
	AdvertisedPort    int
	// InCluster: it is a pod of a cluster, whose control plane keeps its object.
	InCluster bool
	// Envoy listens in place of this process; nil: this process listens.
	Envoy *GatewayEnvoy
}

// role is the label of metrics and logs.
func (c *GatewayConfig) role() string {
	if c.Egress {
		return "egress"
	}
	return "ingress"
}

func (c *GatewayConfig) identity() mesh.Kind {
	if c.Egress {
		return mesh.EgressID
	}
	return mesh.IngressID
}

// gateway is the part of an agent that serves streams:
//
//	view ──► agent (choice of endpoints) ──► site.Ingress ──► ingress.Handler ─┐
//	   └───► outbound.Router ──────────────► site.Egress ───► egress.Handler ──┴─ server.Server
type gateway struct {
	cfg      GatewayConfig
	log      *slog.Logger
	ids      *gatewayIdentities
	ingress  *site.Ingress
	egress   *site.Egress
	router   *outbound.Router // of an egress
	client   *tunnel.Client   // of an egress
	buffers  *record.Pool
	listener net.Listener
	server   *server.Server
	envoy    *gatewayEnvoy // nil: this process listens
}

// gatewayIdentities are the certificates of a gateway, as site.Identities. They are known
// once the agent has joined.
type gatewayIdentities struct {
	*nodeIdentity
	role mesh.Kind
}

// Own implements site.Identities.
func (g *gatewayIdentities) Own(meshName string) (*mesh.SVID, error) {
	svid, _, err := g.manager.Current(workload.Subject{Mesh: meshName, Gateway: g.role})
	return svid, err
}

// Zone implements site.Identities.
func (g *gatewayIdentities) Zone() string { return g.manager.Zone() }

// cluster is what the agent says of itself to the control plane; empty: it is no gateway, or its Envoy
// says it.
func (g *gateway) cluster() string {
	switch {
	case g == nil || g.cfg.Envoy != nil:
		return ""
	case g.cfg.Egress:
		return viewwire.EgressCluster
	}
	return viewwire.IngressCluster
}

// newGateway makes what an agent needs before it has joined.
func (a *agent) newGateway() *gateway {
	cfg := *a.cfg.Gateway
	g := &gateway{
		cfg: cfg, log: a.log.With("component", cfg.role()), ids: &gatewayIdentities{role: cfg.identity()}, buffers: record.NewPool(0),
	}
	if !cfg.Egress {
		g.ingress = site.NewIngress(g.ids, a.outside(g.buffers))
		return g
	}
	g.client = tunnel.NewClient(tunnel.Config{Buffers: g.buffers, Registerer: a.registry, Logger: g.log})
	g.router = outbound.New(outbound.Config{Client: g.client, Site: g.ids.Zone, Logger: g.log})
	g.egress = site.NewEgress(g.ids, g.router)
	return g
}

// mode in the place of a data path.
func (g *gateway) mode() modes.Mode {
	if g.egress != nil {
		return gatewayMode{g.egress}
	}
	return gatewayMode{g.ingress}
}

// apply an update of the view.
func (g *gateway) apply(u node.Update) {
	switch {
	case g == nil:
	case g.egress != nil:
		g.router.Apply(u)
	default:
		g.ingress.SetOffers(u)
	}
}

// openGateway listens, when the agent has its identities.
func (a *agent) openGateway() (err error) {
	g := a.gateway
	g.ids.nodeIdentity = a.identity
	host := ""
	if g.cfg.Address.IsValid() {
		host = g.cfg.Address.String()
	}
	address := net.JoinHostPort(host, strconv.Itoa(g.cfg.Port))
	limit := listener.DescriptorShare(maxGatewayConnections, gatewayShare)
	if g.cfg.Envoy != nil {
		g.listener, err = a.listenBehindEnvoy(address, limit)
	} else if g.listener, err = listen(g.cfg.role(), "--"+g.cfg.role()+"-port", address, limit, g.log); err == nil {
		g.cfg.Port = int(g.listener.Addr().(*net.TCPAddr).AddrPort().Port())
	}
	if err != nil {
		return err
	}
	if !g.cfg.Address.IsValid() {
		if own := machine.Addresses(a.cfg.Server); len(own) > 0 {
			g.cfg.Address = own[0]
		}
	}
	if !g.cfg.Address.IsValid() {
		return &problem.Error{
			Code: problem.ListenFailed, Err: fmt.Errorf("%s: this machine has no address by which it reaches %s", g.cfg.role(), a.cfg.Server),
			Hint: "give the address that others reach it by with --listen-address",
		}
	}
	handler, authority, certificate, err := g.handler(a)
	if err != nil {
		return err
	}
	g.server, err = server.New(server.Config{
		Role: g.cfg.role(), Authority: authority, Handler: handler, GetCertificate: certificate, Buffers: g.buffers,
		Advertised: g.object().address(), Fronted: g.cfg.Envoy != nil, Registerer: a.registry, Logger: g.log,
	})
	return err
}

const (
	maxGatewayConnections = 100_000
	// gatewayShare of the file descriptors: each connection has an endpoint.
	gatewayShare = 0.45
)

// maxAttempts of endpoints for a stream.
const maxAttempts = 3

func (g *gateway) handler(a *agent) (server.Handler, server.Authority, getCertificate, error) {
	if g.egress != nil {
		cfg := egress.Config{
			Targets: g.egress, Tunnel: g.client, Credentials: g.egress.Credentials, Buffers: g.buffers,
			External: a.outside(g.buffers),
		}
		if g.envoy != nil {
			cfg.Front = g.envoy.connectOutside
		}
		h, err := egress.New(cfg)
		return h, g.egress, g.egress.Certificate, err
	}
	h, err := ingress.New(ingress.Config{
		Routes: g.ingress, Own: []netip.AddrPort{netip.AddrPortFrom(g.cfg.Address, uint16(g.cfg.Port))},
		Buffers: g.buffers, Attempts: maxAttempts,
	})
	return h, g.ingress, g.ingress.Certificate, err
}

// gatewayGrace is how long open streams may finish when the gateway ends.
const gatewayGrace = 10 * time.Second

// serve until ctx ends. Clients are told then that no further stream is accepted.
func (g *gateway) serve(ctx context.Context) error {
	served := make(chan error, 1)
	go func() { served <- g.server.Serve(g.listener) }()
	g.log.Info("streams are served", "address", g.listener.Addr().String(), "advertised", g.object().address())
	var err error
	select {
	case <-ctx.Done():
	case err = <-served:
		served <- nil
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), gatewayGrace)
	defer cancel()
	g.server.Shutdown(grace)
	if g.envoy != nil {
		g.envoy.outside.Close()
	}
	if g.client != nil {
		g.client.Close()
	}
	return errors.Join(err, <-served)
}

// gatewayComponents serve, and tell others where.
func (a *agent) gatewayComponents() ([]component, error) {
	g := a.gateway
	if g == nil {
		return nil, nil
	}
	out := []component{{Name: g.cfg.role(), Run: g.serve}}
	if !g.cfg.InCluster {
		registration, err := a.registration()
		if err != nil {
			return nil, err
		}
		out = append(out, component{Name: g.cfg.role() + " object", Run: registration.run})
	}
	if g.router != nil {
		out = append(out, component{Name: "routes to other sites", Run: g.router.Run})
	}
	return out, nil
}

// clusterGatewayComponents are the view alone: the control plane keeps the object of a gateway in
// a cluster, and knows of its pod.
func (a *agent) clusterGatewayComponents() ([]component, error) {
	return a.viewComponents(func(u node.Update) {
		a.learnZone()
		a.apply(u)
	})
}

func (g *gateway) close() {
	if g != nil && g.listener != nil {
		_ = g.listener.Close()
	}
}

// gatewayMode is a gateway in the place of a data path: there is nothing in the kernel.
type gatewayMode struct{ proxy.Mode }

// Trace implements modes.Mode.
func (gatewayMode) Trace(*diag.Trace, diag.Connection, *proxy.PortState, []*proxy.PortState) {}

// Dump implements modes.Mode.
func (gatewayMode) Dump(context.Context) (modes.Kernel, error) { return modes.Kernel{}, nil }
