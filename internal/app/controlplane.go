package app

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	grpcstatus "google.golang.org/grpc/status"
	"k8s.io/utils/clock"

	"github.com/proxima-mesh/proxima/internal/apiserver"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/endpoints"
	"github.com/proxima-mesh/proxima/internal/controller/endpointslice"
	"github.com/proxima-mesh/proxima/internal/controller/garbage"
	"github.com/proxima-mesh/proxima/internal/controller/ipam"
	"github.com/proxima-mesh/proxima/internal/controller/mirroring"
	"github.com/proxima-mesh/proxima/internal/controller/namespace"
	"github.com/proxima-mesh/proxima/internal/controller/nodename"
	"github.com/proxima-mesh/proxima/internal/delta/stream"
	"github.com/proxima-mesh/proxima/internal/demand"
	"github.com/proxima-mesh/proxima/internal/demand/wire"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/identity/access"
	"github.com/proxima-mesh/proxima/internal/keyring"
	"github.com/proxima-mesh/proxima/internal/listener"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/metered"
	"github.com/proxima-mesh/proxima/internal/topology"
	"github.com/proxima-mesh/proxima/internal/topology/ruleset"
	"github.com/proxima-mesh/proxima/internal/topology/trafficplan"
	"github.com/proxima-mesh/proxima/internal/version"
	"github.com/proxima-mesh/proxima/internal/view"
	viewwire "github.com/proxima-mesh/proxima/internal/view/wire"
)

// ClusterDomain of the names of Services.
const ClusterDomain = "cluster.local"

// ControlPlaneConfig is what a control plane is told.
type ControlPlaneConfig struct {
	// Store as --store names it: memory, sqlite:FILE or postgres://….
	Store   string
	DataDir string
	// APIAddress (HOST:PORT) of the API; port 0: any free one.
	APIAddress string
	// GRPCPort of node views, on the API's host; 0: off.
	GRPCPort int
	// ServiceCIDRs at the first start; from then on the stored ones hold.
	ServiceCIDRs []netip.Prefix
	// MaxEndpointsPerSlice, 0: 100.
	MaxEndpointsPerSlice int
	// MaxMirroredPerSubset of an Endpoints object, 0: 1000.
	MaxMirroredPerSubset int
	// MaxTerminatedPods are kept; 0: 12500, negative: all.
	MaxTerminatedPods int
	// Wrap, if not nil, surrounds everything that controllers read and write: to
	// limit, count or refuse it.
	Wrap resource.Wrapper
	// Limits of requests to the API; zero fields: the defaults.
	Limits apiserver.Limits
	// RenewExpired is how long after its end a node's or zone's certificate can be
	// renewed by proof of its key; 0: not at all.
	RenewExpired time.Duration
	// MachineID of this machine; empty: machine.ID.
	MachineID string
	Logger    *slog.Logger
}

// Serving tells where a role serves.
type Serving struct {
	// API is the URL of the API, as clients on this machine use it.
	API string
	// GRPC (host:port) of node views; empty: off.
	GRPC string
	// Node and Mode of the agent, where there is one.
	Node, Mode string
	// DNS (host:port) of names; empty: off.
	DNS string
}

// controlPlane is a control plane while it runs.
type controlPlane struct {
	cfg     ControlPlaneConfig
	log     *slog.Logger
	started time.Time
	store   store.Store
	keys    *keyring.Ring
	metrics *prometheus.Registry
	ca      *identity.Authority
	tokens  *identity.Tokens
	audit   *auditLogs
	api     *apiserver.Server
	apiAddr net.Addr
	grpc    net.Listener
	// revocations withdraw credentials, and sessions end what was begun with them.
	revocations *identity.Revocations
	sessions    *access.Sessions
	// holders tell machines of one node name apart.
	holders *access.Holders
	// running is what start made; nil until then.
	running atomic.Pointer[running]
}

// running is what follows the API once it serves.
type running struct {
	catalog *catalog.Catalog
	views   *stream.Server
	demand  *demand.Aggregator
	plans   *topology.Controller

	detection *detection
}

// RunControlPlane runs a control plane until ctx ends, and calls ready once it
// serves. Its state is durable when it returns.
func RunControlPlane(ctx context.Context, cfg ControlPlaneConfig, ready func(Serving)) error {
	cp, err := newControlPlane(ctx, cfg)
	if err != nil {
		return err
	}
	defer cp.close()
	parts := newParts(ctx)
	if err := cp.start(parts); err != nil {
		parts.end()
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	ready(cp.serving())
	return parts.wait(ctx)
}

// newControlPlane opens everything and serves nothing yet.
func newControlPlane(ctx context.Context, cfg ControlPlaneConfig) (cp *controlPlane, err error) {
	cp = &controlPlane{cfg: cfg, log: orDiscard(cfg.Logger), started: time.Now()}
	opened := cp // a return of nil sets cp
	defer func() {
		if err != nil {
			opened.close()
		}
	}()
	if cp.cfg.MachineID, err = machineID(cfg.MachineID); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.DataDir, 0o700); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	// The store is opened first: it makes sure that nobody else uses the data.
	kept, err := openStore(ctx, cfg.Store, cfg.DataDir, cp.log)
	if err != nil {
		return nil, err
	}
	measured := metered.New(kept)
	cp.store, cp.metrics = measured, prometheus.NewRegistry()
	cp.metrics.MustRegister(measured)
	if cp.ca, err = identity.Open(filepath.Join(cfg.DataDir, "pki")); err != nil {
		return nil, err
	}
	if cp.keys, err = openKeys(ctx, cp.store, cfg.DataDir, cp.log); err != nil {
		return nil, err
	}
	cp.tokens = identity.NewTokens(cp.store, cp.ca.Pin())
	if err = cp.openRevocations(ctx); err != nil {
		return nil, err
	}
	cp.audit = newAuditLogs(cfg.DataDir, cp.log.With("part", "audit"))
	cp.metrics.MustRegister(cp.audit)

	apiListener, err := listen("API", "--api-address", cfg.APIAddress, listener.DescriptorShare(maxAPIConnections, apiShare), cp.log)
	if err != nil {
		return nil, err
	}
	cp.apiAddr = apiListener.Addr()
	if cfg.GRPCPort != 0 {
		address, err := beside(cp.apiAddr.String(), cfg.GRPCPort)
		if err == nil {
			cp.grpc, err = listen("node views", "--grpc-port", address, listener.DescriptorShare(maxViewConnections, viewShare), cp.log)
		}
		if err != nil {
			apiListener.Close()
			return nil, err
		}
	}
	if err := cp.newAPI(apiListener); err != nil {
		apiListener.Close()
		return nil, err
	}
	return cp, nil
}

func (cp *controlPlane) newAPI(listener net.Listener) error {
	pair, err := serverCertificate(cp.ca, listener.Addr(), ClusterDomain, cp.cfg.ServiceCIDRs)
	if err != nil {
		return err
	}
	tokens := access.TokenHandler(cp.tokens, cp.log.With("part", "tokens"))
	rotation := &keyring.Rotation{Ring: cp.keys, Store: cp.store, Prefixes: sealedPrefixes(), Rewrite: cp.rewrite}
	secrets := rotation.Handler(cp.log.With("part", "secrets"))
	cp.api, err = apiserver.New(apiserver.Config{
		Store: cp.store, Kinds: kind.All(), Listener: listener,
		CertPEM: pair.Cert, KeyPEM: pair.Key, ClientCAPEM: cp.ca.PEM(),
		Authenticator: access.NewAuthenticator(cp.tokens, cp.ca.Pool(), cp.policy(), cp.log.With("part", "authentication")),
		Authorizer:    access.NewAuthorizer(),
		Logger:        cp.log.With("part", "api"), Version: version.Get().Version,
		ServiceCIDRs: cp.cfg.ServiceCIDRs, Writes: cp.writePolicy(), Limits: cp.cfg.Limits,
		ExtraHandlers: map[string]http.Handler{
			identity.CertificatesPath: access.NewCertificates(cp.ca, cp.tokens, cp.policy(), cp.grpcPort(), cp.log.With("part", "certificates")),
			access.TokensPath:         tokens,
			access.TokensPath + "/":   tokens,
			StatusPath:                statusHandler{cp: cp},
			DemandPath:                demandHandler{cp: cp},
			ExplainServicePath:        askHandler{cp, explainService},
			SimulatePath:              askHandler{cp, simulate},
			BackupPath:                backupHandler{cp: cp},
			BackupKeysPath:            backupHandler{cp: cp, withKeys: true},
			keyring.StatusPath:        secrets,
			keyring.StatusPath + "/":  secrets,
		},
		LongRunning: []string{BackupPath, BackupKeysPath}, Transformer: cp.keys.Transformers(sealedGroups()...), Metrics: cp.metrics,
		Guard: cp.sessions.Guard, NodeDeletion: nodeDeletion,
		Audit: cp.audit.write, AuditReads: []string{BackupPath, BackupKeysPath},
	})
	return err
}

// start runs the parts, and returns when the API and the views serve.
func (cp *controlPlane) start(parts *parts) error {
	parts.run("API", cp.api.Run)
	parts.run("revocations", cp.revocations.Run)
	parts.run("sessions", cp.sessions.Run)
	select {
	case <-cp.api.Ready():
	case <-parts.ctx.Done():
		parts.wg.Wait()
		return context.Cause(parts.ctx)
	}
	through, err := cp.newManagers(parts)
	if err != nil {
		return err
	}
	client, kinds := through.all, kind.All()
	world := catalog.New(catalog.Config{
		Client: client, Descriptors: kinds, Epoch: cp.store.Epoch(), Logger: cp.log.With("part", "catalog"),
	})
	parts.run("catalog", world.Run)
	measured := demand.NewAggregator(demand.Config{World: demand.FromCatalog(world), Logger: cp.log.With("part", "demand")})
	cp.metrics.MustRegister(measured)
	parts.run("demand", measured.Run)
	rules := ruleset.New(ruleset.Config{Catalog: world, Demand: measured})
	plans := topology.New(topology.Config{
		Client: client, Catalog: world, Demand: measured, Warm: measured.Warm, Heuristics: rules, Logger: cp.log.With("part", "topology"),
	})
	cp.metrics.MustRegister(plans)
	slices := endpointslice.New(endpointslice.Config{
		Client: client, Catalog: world, Slices: kind.EndpointSlice, Advisor: plans,
		Options: endpointslice.Options{MaxEndpoints: cp.cfg.MaxEndpointsPerSlice},
		Logger:  cp.log.With("part", "endpointslice"),
	})
	parts.run("endpointslice controller", slices.Run)
	parts.run("topology", plans.Run)
	objects := endpoints.New(endpoints.Config{
		Client: client, Catalog: world, Endpoints: kind.Endpoints, Logger: cp.log.With("part", "endpoints"),
	})
	parts.run("endpoints controller", objects.Run)
	mirror := mirroring.New(mirroring.Config{
		Client: client, Catalog: world, Slices: kind.EndpointSlice, MaxAddresses: cp.cfg.MaxMirroredPerSubset,
		Logger: cp.log.With("part", "mirroring"),
	})
	parts.run("mirroring controller", mirror.Run)
	spaces, err := namespace.New(through.remembered, through.direct, kinds, cp.log.With("part", "namespace"))
	if err != nil {
		return err
	}
	parts.run("namespace controller", spaces.Run)
	owners := garbage.NewOwners(garbage.OwnersConfig{Client: client, Kinds: kinds, Logger: cp.log.With("part", "garbage")})
	parts.run("garbage collector", owners.Run)
	pods := garbage.NewPods(garbage.PodsConfig{
		Client: client, PodKind: kind.Pod, NodeKind: kind.Node, TerminatedThreshold: cp.cfg.MaxTerminatedPods,
		Logger: cp.log.With("part", "garbage"),
	})
	parts.run("pod garbage collector", pods.Run)
	names := nodename.New(nodename.Config{
		Client: client, Attempts: cp.holders.Attempts, Logger: cp.log.With("part", "node names"), Clock: clock.RealClock{},
	})
	parts.run("node names", names.Run)
	repair := ipam.NewRepair(ipam.RepairConfig{
		Client: client, Services: kind.Service, IPAddresses: kind.IPAddress, ServiceCIDRs: kind.ServiceCIDR,
		Logger: cp.log.With("part", "addresses"),
	})
	parts.run("address repair", repair.Run)
	parts.run("compaction", func(ctx context.Context) error { return compact(ctx, cp.store, cp.log) })
	parts.run("memory", giveBack(planeWorth))

	weights := &trafficplan.Table{}
	builder := view.NewBuilder(view.BuilderConfig{Run: rand.Text(), Weights: weights.Weights, Logger: cp.log.With("part", "views")})
	living := cp.newDetection(through.remembered, world, cp.publishTo(builder))
	living.start(parts)
	views, err := cp.startViews(parts, builder, weights, world, measured, living)
	if err != nil {
		return err
	}
	cp.running.Store(&running{catalog: world, views: views, demand: measured, plans: plans, detection: living})
	if err := world.WaitSynced(parts.ctx); err != nil {
		return context.Cause(parts.ctx)
	}
	return writeKubeconfig(filepath.Join(cp.cfg.DataDir, "kubeconfig"), cp.serving().API, cp.ca)
}

// startViews builds the zones' views and serves them.
func (cp *controlPlane) startViews(
	parts *parts, builder *view.Builder, plans *trafficplan.Table, world *catalog.Catalog, measured *demand.Aggregator, living *detection,
) (*stream.Server, error) {
	log := cp.log.With("part", "views")
	sub := world.Subscribe(catalog.Services, catalog.Slices, catalog.Nodes, catalog.Dataplanes, catalog.Plans)
	parts.run("views", func(ctx context.Context) error {
		defer sub.Close()
		return view.Follow(ctx, sub, builder, plans)
	})
	views := stream.NewServer(stream.ServerConfig{Admit: admitOwnNode(builder.Assign), Log: log})
	if cp.grpc == nil {
		return views, nil
	}
	return views, cp.serveViews(parts, views, measured, living)
}

// admitOwnNode lets a node follow views in its own name only.
func admitOwnNode(next func(context.Context, *core.Node) (stream.Admission, error)) func(context.Context, *core.Node) (stream.Admission, error) {
	return func(ctx context.Context, n *core.Node) (stream.Admission, error) {
		if err := isNode(ctx, n.GetId(), "follow the view"); err != nil {
			return stream.Admission{}, err
		}
		return next(ctx, n)
	}
}

// isNode refuses everybody but a node to do something in its name.
func isNode(ctx context.Context, name, what string) error {
	p, _ := peer.FromContext(ctx)
	if p == nil {
		return grpcstatus.Error(codes.Unauthenticated, "no peer")
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.VerifiedChains) == 0 {
		return grpcstatus.Error(codes.Unauthenticated, "a client certificate is needed")
	}
	subject := identity.SubjectOf(info.State.VerifiedChains[0][0])
	if own, ok := identity.NodeName(subject.User, subject.Groups); !ok || own != name {
		return grpcstatus.Errorf(codes.PermissionDenied, "%s may not %s of node %q", subject.User, what, name)
	}
	return nil
}

// serveViews carries node views, reports of demand and heartbeats over mTLS: only certificates
// of our authority get in.
func (cp *controlPlane) serveViews(parts *parts, views *stream.Server, measured *demand.Aggregator, living *detection) error {
	pair, err := serverCertificate(cp.ca, cp.grpc.Addr(), ClusterDomain, nil)
	if err != nil {
		return err
	}
	cert, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		return err
	}
	server := grpc.NewServer(append(stream.ServerOptions(),
		grpc.Creds(cp.sessions.Credentials(credentials.NewTLS(&tls.Config{
			MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert},
			ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: cp.ca.Pool(),
		}))),
		// A peer that vanished is noticed within 15 s; clients may ask as often. An
		// agent's connection always carries its stream, so others are idle.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 10 * time.Second, Timeout: 5 * time.Second, MaxConnectionIdle: 5 * time.Minute}),
		grpc.ConnectionTimeout(10*time.Second), // for the TLS handshake
		// An agent has a stream for its view and one for reports.
		grpc.MaxConcurrentStreams(16), grpc.MaxHeaderListSize(16<<10),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
	)...)
	views.Register(server, viewwire.GRPCService, viewwire.Method)
	wire.NewServer(measured, func(ctx context.Context, node string) error {
		return isNode(ctx, node, "report the demand")
	}).Register(server)
	living.streams.Register(server)
	parts.run("gRPC", func(ctx context.Context) error {
		stop := context.AfterFunc(ctx, server.Stop)
		defer stop()
		if err := server.Serve(cp.grpc); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			return err
		}
		return nil
	})
	return nil
}

func (cp *controlPlane) serving() Serving {
	s := Serving{API: "https://" + reachable(cp.apiAddr)}
	if cp.grpc != nil {
		s.GRPC = reachable(cp.grpc.Addr())
	}
	return s
}

// reachable is an address by which this machine reaches a listener.
func reachable(addr net.Addr) string {
	host, port, err := net.SplitHostPort(addr.String())
	if err != nil {
		return addr.String()
	}
	if ip, err := netip.ParseAddr(host); err == nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}

// grpcPort is the address that joining nodes are told; its host is empty, as
// they have reached this machine by one that works for them.
func (cp *controlPlane) grpcPort() string {
	if cp.grpc == nil {
		return ""
	}
	_, port, _ := net.SplitHostPort(cp.grpc.Addr().String())
	return ":" + port
}

// close releases what newControlPlane opened.
func (cp *controlPlane) close() {
	if cp.api != nil {
		cp.api.Close()
	}
	if cp.grpc != nil {
		cp.grpc.Close()
	}
	if cp.audit != nil {
		cp.audit.close()
	}
	if cp.store != nil {
		if err := cp.store.Close(); err != nil {
			cp.log.Error("the store did not close cleanly; what was acknowledged is on disk", "error", err)
		}
	}
}
