package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	federationv1 "github.com/proxima-mesh/proxima/api/federation/v1"
	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/garbage"
	"github.com/proxima-mesh/proxima/internal/controller/namespace"
	"github.com/proxima-mesh/proxima/internal/delta/stream"
	"github.com/proxima-mesh/proxima/internal/federation/local"
	"github.com/proxima-mesh/proxima/internal/federation/observed"
	"github.com/proxima-mesh/proxima/internal/federation/secrets"
	fedstream "github.com/proxima-mesh/proxima/internal/federation/stream"
	"github.com/proxima-mesh/proxima/internal/federation/zones"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/identity/access"
	"github.com/proxima-mesh/proxima/internal/identity/sealed"
	"github.com/proxima-mesh/proxima/internal/keyring"
	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/scavenge"
	"github.com/proxima-mesh/proxima/internal/version"
)

// global is the control plane that those of zones connect to. It plans nothing and serves
// no agents: it has the policies, the zones, and an inventory of what the zones have.
//
//	requests ──► API ──► store ──► zones.Zones ◄── gRPC ── control planes of zones
type global struct {
	cfg      ControlPlaneConfig
	log      *slog.Logger
	started  time.Time
	election election
	storage  *storage
	api      *api
	// instance has the gRPC port, and the tables of nodes and namespaces, which are few here.
	instance *instance
	others   *instances
	zones    *zones.Zones
	// refused are zones whose versions are too far from this one's.
	refused version.Refusals
	// observed in zones of policies.
	observed *observed.Recorder
	// kinds that are exchanged with zones.
	kinds []local.Kind
	// instances besides this one; nil: there are none.
	instances admin.Instances
	// roots of meshes, by which zones sign.
	roots *meshRoots
	// client of the leader.
	client   resource.Client
	complete chan struct{}
	// name of this instance; epoch of the objects, and run, as in zoneLink.
	name, epoch, run string
}

func runGlobal(ctx context.Context, cfg ControlPlaneConfig, ready func(Serving)) error {
	g, err := newGlobal(ctx, cfg)
	if err != nil {
		return err
	}
	defer g.close()
	return run(ctx, g.election, append(g.components(), announce(ready, g.serving())))
}

// newGlobal opens and wires everything, and serves nothing yet.
func newGlobal(ctx context.Context, cfg ControlPlaneConfig) (*global, error) {
	open := openStore
	if cfg.ClusterKeyFile != "" || len(cfg.ClusterKeyCommand) > 0 {
		open = openShared
	}
	return newGlobalOn(ctx, cfg, open)
}

// newGlobalOn is newGlobal with a store of the caller's choice.
func newGlobalOn(ctx context.Context, cfg ControlPlaneConfig, open storeOpener) (g *global, err error) {
	if cfg.GRPCPort == 0 {
		return nil, &problem.Error{
			Code: problem.Usage, Err: errors.New("zones connect to global over gRPC, which --grpc-port 0 turns off"), Hint: "choose a port",
		}
	}
	if cfg.DNSAddress != "" {
		return nil, &problem.Error{
			Code: problem.Usage, Err: errors.New("--dns-address: global has no Services"), Hint: "set it at the control planes of the zones",
		}
	}
	opened := &global{cfg: cfg, log: orDiscard(cfg.Logger), started: time.Now(), complete: make(chan struct{}), kinds: federated()}
	defer func() {
		if err != nil {
			opened.close()
		}
	}()
	g = opened
	if g.storage, err = openStorage(ctx, cfg, open, g.log); err != nil {
		return nil, err
	}
	g.epoch = g.storage.store.Epoch()
	if g.api, err = newAPI(cfg, g.storage, g.log); err != nil {
		return nil, err
	}
	g.instance = &instance{log: g.log, views: stream.NewServer(stream.ServerConfig{Log: g.log})}
	g.instance.catalog = catalog.New(catalog.Config{
		Client: g.api.client, Shared: true, Descriptors: []*resource.Descriptor{kind.Namespace, kind.Node, kind.Mesh},
		Epoch: g.epoch, Logger: g.log.With("component", "catalog"),
	})
	g.api.nodes.catalog, g.api.cordons.catalog, g.api.dryRuns.global = g.instance.catalog, g.instance.catalog, g
	g.api.shifts.global = true
	if err := g.instance.open(cfg, g.storage, g.api, "zones", grpc.UnknownServiceHandler(refuseNodes)); err != nil {
		return nil, err
	}
	g.others = newInstances(cfg, g.started, g.storage, g.api, g.instance, g.log)
	g.instances = g.others.peers(g.storage.ca)
	g.election = g.others.election()
	g.client = g.api.client
	if g.storage.shared() {
		g.client = resource.Wrap(g.api.client, resource.Intercept(inTerm))
	}
	g.name = instanceName(g.api.address)
	if err := g.newZones(g.others.list); err != nil {
		return nil, err
	}
	records := sealed.NewRecords(g.storage.store, g.storage.keys)
	if g.roots, err = newMeshRoots(cfg, records, g.api, g.instance, g.zones, g.log); err != nil {
		return nil, err
	}
	g.handle()
	return g, nil
}

// refuseNodes answers calls of services that global does not have: those of agents.
func refuseNodes(any, grpc.ServerStream) error {
	return status.Error(codes.PermissionDenied, access.GlobalServesZones)
}

// newZones makes the zones. others are all instances, as zones learn them; nil: they learn none.
func (g *global) newZones(others func() []fedstream.Instance) (err error) {
	running := version.Get().Version
	g.zones, err = zones.New(zones.Config{
		Client: g.api.client, Kinds: g.kinds, Namespace: access.SystemNamespace, StoreEpoch: g.epoch, Run: g.run,
		Instance: g.name, Version: running, Timeout: g.cfg.ZoneTimeout, Caller: access.CallerZone,
		CheckVersion: func(zone, theirs string) error { return g.refused.Check(running, "zone", zone, theirs, time.Now()) },
		Instances:    others,
		Registerer:   g.storage.metrics, Logger: g.log.With("component", "federation"),
	})
	if err != nil {
		return err
	}
	g.zones.Register(g.instance.server)
	g.observed = observed.NewRecorder(g.api.client, observedKinds(g.kinds))
	federationv1.RegisterPolicyStatusesServer(g.instance.server, &policyStatuses{zones: g.zones, recorder: g.observed})
	return nil
}

// components in the order in which they start.
func (g *global) components() []component {
	return slices.Concat(
		g.storage.components(),
		g.api.components(), // ends the first stage
		[]component{
			{Name: "catalog", Run: g.instance.catalog.Run},
			{Name: "memory", Run: func(ctx context.Context) error { return scavenge.Run(ctx, minReclaim) }},
			{Name: "zones", Run: g.zones.Run},
			{Name: "gRPC", Run: g.instance.serve},
		},
		g.others.components(),
		g.api.followers(),
		g.roots.components(),
		[]component{
			{Name: "namespace controller", Scope: leader, Run: g.runNamespaces},
			{Name: "garbage collector", Scope: leader, Run: g.runGarbage},
			{Name: "life of zones", Scope: leader, Run: g.leadZones},
			{Name: "secrets of zones", Scope: leader, Run: g.runSecrets},
			{Name: "kubeconfig", Ready: g.complete, Run: publisher{
				cfg: g.cfg, tables: g.instance.catalog, unreadable: g.api.server.Unreadable, ca: g.storage.ca, url: g.serving().API,
				complete: g.complete, log: g.log,
			}.Run},
		},
	)
}

func (g *global) runNamespaces(ctx context.Context) error {
	namespaces, err := namespace.New(g.client, g.api.direct, kind.All(), g.log.With("component", "namespace"))
	if err != nil {
		return err
	}
	return namespaces.Run(ctx)
}

func (g *global) runGarbage(ctx context.Context) error {
	return garbage.NewOwners(garbage.OwnersConfig{
		Client: g.client, Kinds: kind.All(), Logger: g.log.With("component", "garbage"),
	}).Run(ctx)
}

// runSecrets notes on secrets what of them goes to zones.
func (g *global) runSecrets(ctx context.Context) error {
	return secrets.New(secrets.Config{Client: g.client, System: access.SystemNamespace, Logger: g.log.With("component", "secrets")}).Run(ctx)
}

func (g *global) leadZones(ctx context.Context) error {
	return g.lead(ctx, g.alive)
}

// lead the zones; alive reports whether an instance runs.
func (g *global) lead(ctx context.Context, alive func(instance string) bool) error {
	return g.zones.Lead(ctx, zones.LeaderConfig{Client: g.client, RevokeTokens: g.revokeTokens, Forget: g.observed.Forget, Alive: alive})
}

// revokeTokens withdraws the tokens of a zone, and with them its certificates.
func (g *global) revokeTokens(ctx context.Context, zone string) error {
	all, err := g.storage.tokens.List(ctx)
	if err != nil {
		return err
	}
	for _, t := range all {
		if t.Kind != identity.Zone || t.Name != zone || !t.Revoked.IsZero() {
			continue
		}
		if _, err := g.storage.tokens.Revoke(ctx, t.ID); err != nil && !errors.Is(err, identity.ErrNoToken) {
			return err
		}
	}
	return nil
}

// alive reports whether an instance is in the list.
func (g *global) alive(instance string) bool {
	if g.others.members == nil {
		return false
	}
	for _, m := range g.others.members.List() {
		if m.Name == instance {
			return true
		}
	}
	return false
}

// handle adds our own API to the Kubernetes one.
func (g *global) handle() {
	s, a := g.storage, g.api
	certificates := access.NewCertificates(s.ca, s.tokens, s.policy(), g.instance.grpcPort(), g.log.With("component", "certificates"))
	tokens := access.TokenHandler(s.tokens, allowAtGlobal, g.log.With("component", "tokens"))
	rotation := s.rotation(a.server).Handler(g.log.With("component", "secrets"))
	handlers := map[string]http.Handler{
		identity.CertificatesPath: certificates, access.TokensPath: tokens, access.TokensPath + "/": tokens,
		keyring.StatusPath: rotation, keyring.StatusPath + "/": rotation,
	}
	for path, handler := range admin.GlobalHandlers(admin.Config{
		Role: string(RoleGlobal), StoreName: storeName(g.cfg.Store), Started: g.started, DataDir: g.cfg.DataDir,
		Store: s.store, Unreadable: g.api.server.Unreadable, Tables: g.instance.catalog, Tokens: s.tokens, Audit: s.audit.States, Federation: g, Instances: g.instances, Proxies: g, Checks: g,
		History: a.history, Sinks: a.adminSinks(), Redactions: a.adminRedactions(), Authorizer: a.authorizer, Cursors: s.cursors, Segments: s.segments(), Logger: g.log,
		Problems: findProblems(),
	}) {
		handlers[path] = handler
	}
	for path, handler := range handlers {
		a.server.Handle(path, handler)
	}
	g.cfg.serveConsole(a.server.Handle)
}

// allowAtGlobal refuses tokens for what joins the control plane of a zone.
func allowAtGlobal(k identity.Kind) error {
	if k == identity.Node || k == identity.Workload {
		return fmt.Errorf("global admits no %ss: make the token at the control plane of the zone that the %s is in", k, k)
	}
	return nil
}

// State implements admin.Federation.
func (g *global) State(ctx context.Context) (*admin.FederationStatus, error) {
	all, err := zoneStates(ctx, g.api.client)
	for _, r := range g.refused.List(time.Now()) {
		for i := range all {
			if all[i].Name == r.Name {
				all[i].Refused = r.Reason
			}
		}
	}
	if err != nil {
		return nil, err
	}
	links := g.zones.Links()
	for i := range all {
		if l, ok := links[all[i].Name]; ok {
			all[i].Link = syncLink(&l, meshv1alpha1.SyncToZone)
		}
	}
	s := &admin.FederationStatus{Zones: all}
	addGateways(ctx, s, g.api.client, "")
	return s, nil
}

// Confirm implements admin.Federation.
func (g *global) Confirm(ctx context.Context, zone, typ, token string) (int, error) {
	n, err := g.zones.Confirm(ctx, zone, typ, token)
	var elsewhere *zones.NotHereError
	if errors.As(err, &elsewhere) {
		err = &elsewhereError{err}
	}
	return n, err
}

func (g *global) serving() Serving {
	return Serving{API: "https://" + reachable(g.api.address), GRPC: reachable(g.instance.listener.Addr())}
}

// close releases what newGlobal opened, the store last.
func (g *global) close() {
	if g.instance != nil {
		g.instance.close()
	}
	if g.api != nil {
		g.api.server.Close()
	}
	if g.storage != nil {
		g.storage.close()
	}
}
