package app

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/controller/drain"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/identity/access"
	"github.com/proxima-mesh/proxima/internal/keyring"
)

// ClusterDomain of the names of Services.
const ClusterDomain = "cluster.local"

// RunControlPlane runs a control plane, in the role of cfg, until ctx ends, and calls ready
// once it serves. Its state is durable when it returns.
func RunControlPlane(ctx context.Context, cfg ControlPlaneConfig, ready func(Serving)) error {
	if err := errors.Join(checkXDS(&cfg), checkRegistries(&cfg), checkPulsar(&cfg)); err != nil {
		return err
	}
	switch {
	case cfg.Store == StoreKubernetes && cfg.Preset == PresetPlannerOnly:
		return runPlannerOnly(ctx, cfg, ready)
	case cfg.Store == StoreKubernetes && cfg.role() == RoleGlobal:
		return runClusterGlobal(ctx, cfg, ready)
	case cfg.Store == StoreKubernetes:
		return runClusterPlane(ctx, cfg, ready)
	case cfg.role() == RoleGlobal:
		return runGlobal(ctx, cfg, ready)
	}
	cp, err := newStandalone(ctx, cfg)
	if err != nil {
		return err
	}
	defer cp.close()
	return run(ctx, cp.election, append(cp.components(), announce(ready, cp.serving())))
}

// standalone is a control plane with a store of its own, in four parts. An arrow points
// from what is written or read to what reads it:
//
//	                requests                     streams of agents (views, demand, heartbeats)
//	                   │                                   │
//	┌ API ─────────────┴──────────────┐   ┌ instance ──────┴─────────────────────────────────┐
//	│ authentication, authorization   │   │                gRPC server                       │
//	│ registries (the one write path) │   │         ▲            │             │             │
//	│ clients of controllers ◄────────┼─┐ │       views       demand       suspicion         │
//	└───────┬─────────────────▲───────┘ │ │         ▲            │             │             │
//	        │ transactions    │ watches │ │         │            │             │             │
//	        ▼                 ├─────────┼─┼──►  catalog (tables) │             │             │
//	┌ storage ────────────────┴───────┐ │ └─────────┬────────────┼─────────────┼─────────────┘
//	│ store, keys, tokens, audit logs │ │           ▼            ▼             ▼
//	└─────────────────────────────────┘ │ ┌ leader ──────────────────────────────────────────┐
//	                                    └─┤ endpointslice, planner · endpoints · mirroring · │
//	                                      │ namespaces · garbage · leases · addresses        │
//	                                      └──────────────────────────────────────────────────┘
//
// Every instance runs the first three; it reads what leaders wrote from its tables alone,
// and so goes on without one. The fourth runs where the instance leads.
type standalone struct {
	cfg      ControlPlaneConfig
	log      *slog.Logger
	started  time.Time
	election election
	storage  *storage
	api      *api
	instance *instance
	others   *instances
	leader   *controllers
	// identities of workloads.
	identities *identities
	// proxies of workloads; nil: they are not served.
	proxies *proxies
	// registries for clients of their protocols; nil: they are not served.
	registries *registries
	// readers of the change feed by the protocol of Pulsar; nil: they are not served.
	readers *pulsarReaders
	// insights of proxies and certificates.
	insights *insights
	// zone is the connection to global; nil: this is not the control plane of a zone.
	zone *zoneLink
	// calls of agents.
	calls *agentCalls
	// names for machines without an agent.
	names directNames
	// complete is closed when the tables are filled and the kubeconfig is written.
	complete chan struct{}
}

// newStandalone opens and wires everything, and serves nothing yet.
func newStandalone(ctx context.Context, cfg ControlPlaneConfig) (*standalone, error) {
	open := openStore
	if cfg.ClusterKeyFile != "" || len(cfg.ClusterKeyCommand) > 0 {
		open = openShared
	}
	return newStandaloneOn(ctx, cfg, open, nil)
}

// newStandaloneOn is newStandalone with a store and, if it is not nil, an election of the
// caller's choice.
func newStandaloneOn(ctx context.Context, cfg ControlPlaneConfig, open storeOpener, e election) (cp *standalone, err error) {
	opened := &standalone{
		cfg: cfg, log: orDiscard(cfg.Logger), started: time.Now(), election: e, complete: make(chan struct{}),
	}
	defer func() {
		if err != nil {
			opened.close()
		}
	}()
	cp = opened
	if cp.storage, err = openStorage(ctx, cfg, open, cp.log); err != nil {
		return nil, err
	}
	if cp.api, err = newAPI(cfg, cp.storage, cp.log); err != nil {
		return nil, err
	}
	if cp.instance, err = newInstance(cfg, cp.storage, cp.api, cp.log); err != nil {
		return nil, err
	}
	cp.insights = newInsights(cp.api.client, cp.api.cached, true, cp.storage, cp.api, cp.log)
	cp.instance.insights = cp.insights
	if cp.identities, err = newIdentities(cfg, cp.storage, cp.api, cp.instance, cp.insights, cp.log); err != nil {
		return nil, err
	}
	if cp.proxies, err = newProxies(cfg, cp.storage, cp.api, cp.instance, cp.identities, cp.insights, cp.log); err != nil {
		return nil, err
	}
	if cp.proxies != nil {
		cp.identities.serveWorkloads(cp.proxies, workloadTable{cp.instance.catalog, string(cfg.site())}, cp.storage.tokens, string(cfg.site()))
	}
	if cp.names, err = listenDirect(cfg.DNSAddress, cp.instance.catalog, cp.storage.metrics, cp.log); err != nil {
		return nil, err
	}
	cp.others = newInstances(cfg, cp.started, cp.storage, cp.api, cp.instance, cp.log)
	if cp.registries, err = newRegistries(cfg, cp.storage, cp.api, cp.instance, cp.others, cp.log); err != nil {
		return nil, err
	}
	if cp.readers, err = newPulsar(cfg, cp.storage, cp.api, cp.instance, cp.others, cp.log); err != nil {
		return nil, err
	}
	if cp.others.ballots != nil {
		cp.instance.passReports(cp.storage.ca, cp.others.leaderAddress)
	}
	if e == nil {
		cp.election = cp.others.election()
	}
	cp.calls = &agentCalls{
		zone: string(cfg.site()), instance: instanceName(cp.api.address), heartbeat: cp.instance.heartbeat, catalog: cp.instance.catalog,
		proxies: cp.proxies, views: cp.instance.views, insights: cp.insights,
		others: cp.others.peers(cp.storage.ca), log: cp.log.With("component", "calls"),
	}
	cp.leader = newControllers(cfg, cp.storage, cp.api, cp.instance, cp.log)
	cp.insights.runs, cp.insights.client = cp.others.runs, cp.leader.client
	cp.instance.acks.runs = cp.others.runs
	cp.leader.secrets = cp.identities.external.source
	cp.leader.count = cp.calls.openAt
	cp.leader.registries, cp.others.registries = cp.registries, cp.registries
	if cfg.role() == RoleZone {
		if cp.zone, err = newZoneLink(ctx, cfg, cp.storage, cp.api, cp.instance, cp.leader.client, cp.log); err != nil {
			return nil, err
		}
		cp.zone.calls = cp.calls
		cp.identities.link.zone.Store(cp.zone)
	}
	cp.handle()
	return cp, nil
}

// components in the order in which they start. They end in reverse: first the last stage,
// then the API.
func (cp *standalone) components() []component {
	return slices.Concat(
		cp.storage.components(),
		cp.api.components(), // ends the first stage
		cp.instance.components(),
		cp.identities.components(),
		cp.insights.components(),
		cp.proxies.components(),
		cp.registries.components(),
		cp.readers.components(),
		cp.others.components(),
		cp.names.components(),
		cp.leader.components(),
		cp.api.followers(),
		cp.zone.components(),
		[]component{{Name: "kubeconfig", Ready: cp.complete, Run: publisher{
			cfg: cp.cfg, tables: cp.instance.catalog, unreadable: cp.api.server.Unreadable, ca: cp.storage.ca, url: cp.serving().API,
			complete: cp.complete, log: cp.log,
		}.Run}},
	)
}

// handle adds our own API to the Kubernetes one.
func (cp *standalone) handle() {
	s, a, i := cp.storage, cp.api, cp.instance
	certificates := access.NewCertificates(s.ca, s.tokens, s.policy(), i.grpcPort(), cp.log.With("component", "certificates"))
	tokens := access.TokenHandler(s.tokens, nil, cp.log.With("component", "tokens"))
	secrets := s.rotation(a.server).Handler(cp.log.With("component", "secrets"))
	a.server.Handle(identity.CertificatesPath, certificates)
	a.server.Handle(access.TokensPath, tokens)
	a.server.Handle(access.TokensPath+"/", tokens)
	a.server.Handle(keyring.StatusPath, secrets)
	a.server.Handle(keyring.StatusPath+"/", secrets)
	drains := &drain.Operator{Client: a.client, Catalog: i.catalog, Count: cp.calls.openAt}
	for path, handler := range admin.Handlers(admin.Config{
		ByAddress: seesToPermissions,
		Role:      string(cp.cfg.role()), Site: string(cp.cfg.site()), StoreName: storeName(cp.cfg.Store), Started: cp.started, DataDir: cp.cfg.DataDir,
		Store: s.store, Unreadable: a.server.Unreadable, Tables: i.catalog, Planner: cp.leader, Demand: i.demand, Streams: i.views, Views: i.builder, Refused: &i.refused,
		Suspicion: i.monitor, Leases: cp.leader, Tokens: s.tokens, Traces: s.traces.status, Audit: s.audit.States,
		InServiceRange: a.server.InServiceRange, Ranges: a.server.RangeUsage, Federation: cp.zone.admin(), Instances: cp.calls.others, Proxies: cp.calls, Drains: drains, Following: cp.proxies.status, Registries: cp.registries.status, Pulsar: cp.readers.status,
		RegistryTroubles: cp.registryTroubles, History: a.history, Sinks: a.adminSinks(), Redactions: a.adminRedactions(), Authorizer: a.authorizer, Cursors: s.cursors, Segments: s.segments(), Logger: cp.log,
		Sums: cp.leader.sums.Load, Problems: findProblems(),
	}) {
		a.server.Handle(path, handler)
	}
	cp.cfg.serveConsole(a.server.Handle)
}

func (cp *standalone) serving() Serving {
	s := Serving{API: "https://" + reachable(cp.api.address), DNS: cp.names.address(), XDS: cp.proxies.address()}
	if cp.instance.listener != nil {
		s.GRPC = reachable(cp.instance.listener.Addr())
	}
	return s
}

// close releases what newStandalone opened, the store last.
func (cp *standalone) close() {
	cp.names.close()
	cp.proxies.close()
	cp.registries.close()
	cp.readers.close()
	if cp.identities != nil {
		cp.identities.link.close()
	}
	if cp.instance != nil {
		cp.instance.close()
	}
	if cp.api != nil {
		cp.api.server.Close()
	}
	if cp.storage != nil {
		cp.storage.close()
	}
}
