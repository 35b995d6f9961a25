package app

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"k8s.io/utils/clock"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/health"
	"github.com/proxima-mesh/proxima/internal/controller/nodename"
	"github.com/proxima-mesh/proxima/internal/delta/stream"
	"github.com/proxima-mesh/proxima/internal/demand"
	"github.com/proxima-mesh/proxima/internal/demand/wire"
	"github.com/proxima-mesh/proxima/internal/identity/access"
	"github.com/proxima-mesh/proxima/internal/listener"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/scavenge"
	"github.com/proxima-mesh/proxima/internal/topology/trafficplan"
	"github.com/proxima-mesh/proxima/internal/version"
	"github.com/proxima-mesh/proxima/internal/view"
	viewwire "github.com/proxima-mesh/proxima/internal/view/wire"
	"github.com/proxima-mesh/proxima/internal/witness"
	"github.com/proxima-mesh/proxima/internal/xds/build"
)

// instance is what every instance of a control plane runs next to its API: the tables,
// and what serves agents from them. Nothing of it depends on which instance leads.
type instance struct {
	log     *slog.Logger
	catalog *catalog.Catalog
	// demand that agents report here.
	demand *demand.Aggregator
	// builder of the zones' views, weights from plans, and views of the streams.
	builder *view.Builder
	weights *trafficplan.Table
	views   *stream.Server
	// refused are agents whose versions are too far from this one's.
	refused version.Refusals
	// monitor of the machines whose heartbeats come here.
	monitor   *health.Monitor
	heartbeat *witness.Server
	// names of nodes; nil: another API decides over them.
	names *nodename.Controller
	// reports of demand; relay passes them on. nil: there are none, or this is the only instance.
	reports *wire.Server
	relay   *wire.Relay
	// acks are what proxies have taken of policies, here and at other instances.
	acks *acknowledgements
	// listener and server of gRPC; nil: off.
	listener net.Listener
	server   *grpc.Server
	// insights of gateways, set before components run. Nil: there are none.
	insights *insights
	// modes of agents for the labels of their Nodes, set before components run. Nil: agents write them.
	modes *modeLabels
	// proxies are the resources of proxies, set before components run. Nil: proxies are not served.
	proxies *build.Builder
	// room between two collections, as in scavenge.RunPaced.
	room uint64
}

func newInstance(cfg ControlPlaneConfig, s *storage, a *api, log *slog.Logger) (*instance, error) {
	i := &instance{log: log, weights: &trafficplan.Table{}}
	i.catalog = catalog.New(catalog.Config{
		Client: a.client, Shared: true, Descriptors: kind.All(), Epoch: s.store.Epoch(), Tracer: s.traces.tracer(), Logger: log.With("component", "catalog"),
	})
	i.acks = newAcknowledgements(instanceName(a.address), i.catalog, log)
	a.nodes.catalog, a.members.catalog, a.tags.catalog = i.catalog, i.catalog, i.catalog
	a.cordons.catalog, a.shifts.catalog = i.catalog, i.catalog
	i.demand = demand.NewAggregator(demand.Config{
		World: demand.FromCatalog(i.catalog), Logger: log.With("component", "demand"), Registerer: s.metrics,
	})
	i.builder = view.NewBuilder(view.BuilderConfig{
		Site: cfg.site(), Run: rand.Text(), Weights: i.weights.Weights, Split: i.weights.Split,
		Own: i.weights.Own, ReadySince: i.weights.ReadySince, Tracer: s.traces.tracer(), Logger: log.With("component", "views"),
	})
	i.views = stream.NewServer(stream.ServerConfig{Admit: i.admitOwnNode(i.builder.Assign), Log: log.With("component", "views")})
	if cfg.Registries.on() {
		i.room = registryRoom
	}
	i.newMonitor(s.metrics)
	i.names = nodename.New(nodename.Config{
		Client: a.client, Attempts: a.holders.Attempts, Logger: log.With("component", "node names"), Clock: clock.RealClock{},
	})
	if cfg.GRPCPort == 0 {
		return i, nil
	}
	return i, i.listen(cfg, s, a)
}

func (i *instance) components() []component {
	out := []component{
		{Name: "catalog", Run: i.catalog.Run},
		{Name: "demand", Run: i.demand.Run},
		{Name: "views", Run: i.followTables},
		{Name: "suspicion", Run: i.monitor.Run},
		{Name: "memory", Run: func(ctx context.Context) error { return scavenge.RunPaced(ctx, minReclaim, i.room) }},
	}
	if i.names != nil {
		out = append(out, component{Name: "node names", Run: i.names.Run})
	}
	if i.server != nil {
		out = append(out, component{Name: "gRPC", Run: i.serve})
	}
	return out
}

// minReclaim is the least memory (bytes) that a control plane collects for.
const minReclaim = 40 << 20

// registryRoom (bytes) is the room between two collections where registries are served: registrations come in thousands, and
// collections were some 30 % of what they cost in a profile. Without registries there is none, for the memory of
// proxies that connect.
const registryRoom = 128 << 20

// followTables keeps the views up to date with the catalog.
func (i *instance) followTables(ctx context.Context) error {
	sub := i.catalog.Subscribe(view.Tables()...)
	defer sub.Close()
	return view.Follow(ctx, sub, i.builder, i.weights)
}

// newMonitor makes the monitor of machines and the server of their heartbeats.
func (i *instance) newMonitor(registerer prometheus.Registerer) {
	log := i.log.With("component", "health")
	i.monitor = health.NewMonitor(health.MonitorConfig{
		Send: func(p health.Probe) bool { return i.heartbeat.Send(p) },
		Publish: func(nodes []string) {
			if err := i.builder.SetSuspects(nodes); err != nil {
				log.Error("suspect nodes are not in the views", "error", err)
			}
			if i.proxies != nil {
				i.proxies.SetSuspects(nodes)
			}
		},
		Logger:     log,
		Registerer: registerer,
	})
	i.heartbeat = witness.NewServer(witness.ServerConfig{
		Admit: func(ctx context.Context, node string) error {
			return access.RequireNode(ctx, node, "show the heartbeat")
		}, Log: log,
	}, i.monitor)
}

// admitOwnNode lets a node follow views in its own name only, if this version serves that of
// its agent.
func (i *instance) admitOwnNode(
	next func(context.Context, *core.Node) (stream.Admission, error),
) func(context.Context, *core.Node) (stream.Admission, error) {
	return func(ctx context.Context, n *core.Node) (stream.Admission, error) {
		if err := access.RequireNode(ctx, n.GetId(), "follow the view"); err != nil {
			return stream.Admission{}, err
		}
		err := i.refused.Check(version.Get().Version, "the agent of node", n.GetId(), n.GetUserAgentVersion(), time.Now())
		if err != nil {
			return stream.Admission{}, status.Error(codes.PermissionDenied, err.Error())
		}
		admission, err := next(ctx, n)
		if err == nil {
			if admission.Observer = i.insights.gateway(n); admission.Observer == nil {
				admission.Observer = i.modes.agent(n)
			}
		}
		return admission, err
	}
}

// listen opens the gRPC port. It carries views, reports of demand and heartbeats over
// mTLS: only certificates of our authority are admitted.
func (i *instance) listen(cfg ControlPlaneConfig, s *storage, a *api) error {
	if err := i.open(cfg, s, a, "node views"); err != nil {
		return err
	}
	i.views.Register(i.server, viewwire.GRPCService, viewwire.Method)
	i.reports = wire.NewServer(i.demand, func(ctx context.Context, node string) error {
		return access.RequireNode(ctx, node, "report the demand")
	})
	i.reports.Register(i.server)
	i.heartbeat.Register(i.server)
	return nil
}

// open opens the gRPC port, for services that are registered before it is served.
func (i *instance) open(cfg ControlPlaneConfig, s *storage, a *api, what string, options ...grpc.ServerOption) error {
	address, err := onPort(a.address.String(), cfg.GRPCPort)
	if err != nil {
		return err
	}
	limit := listener.DescriptorShare(maxViewConnections, viewShare)
	if i.listener, err = listen(what, "--grpc-port", address, limit, i.log); err != nil {
		return err
	}
	pair, err := serverCertificate(cfg, s.ca, i.listener.Addr(), nil)
	if err != nil {
		return err
	}
	cert, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		return err
	}
	i.server = grpc.NewServer(append(append(stream.ServerOptions(), options...),
		grpc.Creds(a.sessions.Credentials(credentials.NewTLS(&tls.Config{
			MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert},
			ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: s.ca.Pool(),
		}))),
		// A peer that vanished is noticed within 15 s; clients may ping at the same rate. An
		// agent's connection always carries its stream, so others are idle.
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: 10 * time.Second, Timeout: 5 * time.Second, MaxConnectionIdle: 5 * time.Minute,
		}),
		grpc.ConnectionTimeout(10*time.Second), // for the TLS handshake
		// An agent has a stream for its view and one for reports.
		grpc.MaxConcurrentStreams(16), grpc.MaxHeaderListSize(16<<10),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
	)...)
	return nil
}

// serve gRPC until ctx ends; streams are cut then.
func (i *instance) serve(ctx context.Context) error {
	stop := context.AfterFunc(ctx, i.server.Stop)
	defer stop()
	if err := i.server.Serve(i.listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil
}

// grpcPort is the address that joining nodes get; its host is empty, as they have reached
// this machine by one that works for them. Empty: off.
func (i *instance) grpcPort() string {
	if i.listener == nil {
		return ""
	}
	_, port, _ := net.SplitHostPort(i.listener.Addr().String())
	return ":" + port
}

func (i *instance) close() {
	if i.relay != nil {
		i.relay.Close()
	}
	if i.listener != nil {
		i.listener.Close()
	}
}
