package app

import (
	"context"
	"crypto/rand"
	"errors"
	"net"
	"net/http"
	"slices"
	"time"

	"google.golang.org/grpc"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/cluster"
	"github.com/proxima-mesh/proxima/internal/delta/stream"
	"github.com/proxima-mesh/proxima/internal/federation/local"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/identity/access"
	"github.com/proxima-mesh/proxima/internal/identity/sealed"
	"github.com/proxima-mesh/proxima/internal/kubeclient"
	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/metered"
	"github.com/proxima-mesh/proxima/internal/scavenge"
)

// clusterGlobal is the global control plane in a Kubernetes cluster, whose API has the policies, the
// Zones, and the copies of what zones have:
//
//	kubectl ──► API of the cluster ──► zones.Zones ◄── gRPC ── control planes of zones
//	                  ▲                    │
//	                  └─ copies, statuses ─┘         records (a Secret): tokens, roots of meshes
//
// Every replica serves zones; what one does for all runs where the Lease is held.
type clusterGlobal struct {
	*global
	records   *clusterRecords
	reads     clusterReads
	paths     *ownPaths
	extension *clusterExtension
	// peers are the other replicas that zones are connected to.
	peers *peers
	// changes are the change feed; nil: there is none.
	changes *clusterFeed
}

func runClusterGlobal(ctx context.Context, cfg ControlPlaneConfig, ready func(Serving)) error {
	g, err := newClusterGlobal(ctx, cfg)
	if err != nil {
		return err
	}
	defer g.close()
	return run(ctx, g.election, append(g.components(), announce(ready, g.serving())))
}

// globalFederated are the kinds that a global control plane in a cluster exchanges. Of Secrets those
// that are GlobalSecrets are among them, as in clusterFederated. Not are the Services of zones: here they would be Services
// of the cluster, with names in its DNS and selectors that its controllers follow.
func globalFederated(unserved []*resource.Descriptor) []local.Kind {
	return without(federated(), append([]*resource.Descriptor{kind.Secret, kind.Service}, unserved...))
}

// newClusterGlobal wires everything and serves nothing yet. It blocks for some requests to the
// cluster.
func newClusterGlobal(ctx context.Context, cfg ControlPlaneConfig) (cg *clusterGlobal, err error) {
	if cfg.GRPCPort == 0 {
		return nil, &problem.Error{
			Code: problem.Usage, Err: errors.New("zones connect to global over gRPC, which --grpc-port 0 turns off"), Hint: "choose a port",
		}
	}
	g := &clusterGlobal{global: &global{
		cfg: cfg, log: orDiscard(cfg.Logger), started: time.Now(), complete: make(chan struct{}), run: rand.Text(),
	}}
	defer func() {
		if err != nil {
			g.close()
		}
	}()
	if err := shareAuthority(ctx, cfg); err != nil {
		return nil, err
	}
	if g.storage, err = openNothing(ctx, cfg, g.log); err != nil {
		return nil, err
	}
	unserved, err := unservedKinds(ctx, cfg.Cluster, g.log)
	if err != nil {
		return nil, err
	}
	g.kinds = globalFederated(unserved)
	if g.records, err = openClusterRecords(ctx, cfg, g.storage); err != nil {
		return nil, err
	}
	if err := g.records.use(ctx, cfg, g.storage); err != nil {
		return nil, err
	}
	if err := g.newClient(); err != nil {
		return nil, err
	}
	if g.epoch, err = epochOf(ctx, g.client); err != nil {
		return nil, explainCluster(cfg.Cluster, err)
	}
	if err := g.newParts(); err != nil {
		return nil, err
	}
	if g.election, err = newLeaseElection(cfg, g.paths.address(cfg), g.instance.grpcAddress(cfg), g.storage.metrics, g.log); err != nil {
		return nil, err
	}
	kinds := []*resource.Descriptor{kind.Namespace, kind.Zone, kind.ZoneInsight}
	for _, k := range g.kinds {
		kinds = append(kinds, k.Descriptor)
	}
	if g.changes, err = openClusterFeed(ctx, cfg, g.storage, g.api, kinds, g.log); err != nil {
		return nil, err
	}
	g.handle()
	rules := &clusterWrites{
		site: cfg.accessSite(), meshes: g.api.meshes, zones: &zoneDeletions{client: g.client}, dryRuns: &dryRuns{global: g.global},
	}
	g.extension, err = newClusterExtension(cfg, g.paths, rules, statusPaths(), ofUsers(onlyPaths(statusPaths(), g.paths.mux)), g.log)
	return g, err
}

// newClient of the cluster.
func (g *clusterGlobal) newClient() error {
	kinds := []*resource.Descriptor{kind.Namespace, kind.Zone, kind.ZoneInsight, kind.ConfigMap}
	for _, k := range g.kinds {
		if k.Descriptor != kind.GlobalSecret {
			kinds = append(kinds, k.Descriptor)
		}
	}
	client, err := kubeclient.New(clusterREST(g.cfg.Cluster), kinds)
	if err != nil {
		return err
	}
	meter := metered.New(metered.Config{Registerer: g.storage.metrics})
	g.reads.writes = true
	wrapped := resource.Wrap(kubeclient.NewStreamed(client, newStripper().strip), meter.Wrap, resource.Intercept(g.reads.note))
	others, _, err := newClusterSecrets(g.cfg, meter.Wrap, resource.Intercept(g.reads.note))
	if err == nil {
		g.client, err = resource.NewRouter(wrapped, others...)
	}
	return err
}

// newParts makes the tables, the API, and what serves zones.
func (g *clusterGlobal) newParts() (err error) {
	cfg, s := g.cfg, g.storage
	g.instance = &instance{log: g.log, views: stream.NewServer(stream.ServerConfig{Log: g.log})}
	g.instance.catalog = catalog.New(catalog.Config{
		Client: g.client, Descriptors: []*resource.Descriptor{kind.Namespace, kind.Mesh},
		Epoch: g.epoch, Logger: g.log.With("component", "catalog"),
	})
	if g.paths, err = newOwnPaths(cfg, s, g.instance.catalog.Synced, g.log); err != nil {
		return err
	}
	g.api = &api{
		address: g.paths.listener.Addr(), client: g.client, cached: g.client, meshes: &meshUpdates{},
		sessions: access.NewSessions(s.revocations, g.log.With("component", "sessions")),
	}
	if err := g.instance.open(cfg, s, g.api, "zones", grpc.UnknownServiceHandler(refuseNodes)); err != nil {
		return err
	}
	// Others reach this replica by its name.
	g.name = net.JoinHostPort(advertisedHost(cfg.AdvertiseAddress, g.api.address), portOf(g.api.address))
	g.peers = &peers{list: g.replicas, ca: s.ca, self: g.name}
	g.instances = g.peers
	// Zones connect to a Service, and so come to another replica by the same address.
	if err := g.newZones(nil); err != nil {
		return err
	}
	g.roots, err = newMeshRoots(cfg, sealed.NewRecords(g.records.records, unsealed{}), g.api, g.instance, g.zones, g.log)
	return err
}

// replicasTimeout bounds the read of who serves zones.
const replicasTimeout = 2 * time.Second

// replicas are this one, and those that have a connection of a zone, as the insights of zones say:
// nobody else can answer for a zone.
func (g *clusterGlobal) replicas() []cluster.Member {
	ctx, cancel := context.WithTimeout(context.Background(), replicasTimeout)
	defer cancel()
	out := []cluster.Member{{Name: g.name, API: g.name}}
	all, _, err := g.client.List(ctx, kind.ZoneInsight, resource.ListOptions{})
	if err != nil {
		g.log.Warn("other replicas not known, as the insights of zones cannot be read", "error", err)
	}
	for _, obj := range all {
		subscriptions := obj.(*meshv1alpha1.ZoneInsight).Status.Subscriptions
		if len(subscriptions) == 0 || subscriptions[len(subscriptions)-1].DisconnectTime != nil {
			continue
		}
		name := subscriptions[len(subscriptions)-1].Instance
		if !slices.ContainsFunc(out, func(m cluster.Member) bool { return m.Name == name }) {
			out = append(out, cluster.Member{Name: name, API: name})
		}
	}
	return out
}

// answers reports whether a replica does, which a pod that has gone does not.
func (g *clusterGlobal) answers(replica string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), replicasTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+replica+"/livez", nil)
	if err != nil {
		return false
	}
	resp, err := g.peers.Send(ctx, replica, r)
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// components in the order in which they start.
func (g *clusterGlobal) components() []component {
	return slices.Concat(
		g.records.components(g.storage),
		[]component{
			{Name: "sessions", Run: g.api.sessions.Run},
			{Name: "API", Run: g.paths.run},
			{Name: "catalog", Run: g.instance.catalog.Run},
			{Name: "memory", Run: func(ctx context.Context) error { return scavenge.Run(ctx, minReclaim) }},
			{Name: "zones", Run: g.zones.Run},
			{Name: "gRPC", Run: g.instance.serve},
		},
		g.extension.components(),
		g.roots.components(),
		g.changes.components(),
		[]component{
			{Name: "secrets of zones", Scope: leader, Run: g.runSecrets},
			{Name: "life of zones", Scope: leader, Run: func(ctx context.Context) error { return g.lead(ctx, g.answers) }},
			{Name: "first lists", Run: g.awaitTables, Ready: g.complete},
		},
	)
}

// awaitTables leaves a kubeconfig at once, as status says what the tables wait for.
func (g *clusterGlobal) awaitTables(ctx context.Context) error {
	if err := g.paths.writeKubeconfig(); err != nil {
		return err
	}
	if g.instance.catalog.WaitSynced(ctx) == nil {
		close(g.complete)
	}
	<-ctx.Done()
	return nil
}

// handle adds our own API.
func (g *clusterGlobal) handle() {
	s := g.storage
	tokens := access.TokenHandler(s.tokens, allowAtGlobal, g.log.With("component", "tokens"))
	config := admin.Config{
		Role: string(RoleGlobal), Preset: string(PresetGlobal), StoreName: StoreKubernetes, Started: g.started,
		Store: clusterStore{Store: s.store, epoch: g.epoch, reads: &g.reads}, Tables: g.instance.catalog, Tokens: s.tokens, Audit: noAudit,
		Federation: g, Instances: g.instances, Proxies: g, Checks: g, Logger: g.log, Problems: findProblems(),
	}
	config.Authorizer, config.AnyInstance = newClusterAccess(g.paths.authorizer, accessReviews{g.cfg.Cluster}), fromCluster
	g.changes.serve(&config)
	handlers := admin.GlobalHandlers(config)
	// The cluster is backed up as any other.
	delete(handlers, admin.BackupPath)
	delete(handlers, admin.BackupKeysPath)
	log := g.log.With("component", "certificates")
	handlers[identity.CertificatesPath] = access.NewCertificates(s.ca, s.tokens, s.policy(), g.instance.grpcPort(), log)
	handlers[access.TokensPath], handlers[access.TokensPath+"/"] = tokens, tokens
	for path, handler := range handlers {
		g.paths.mux.Handle(path, handler)
	}
	g.cfg.serveConsole(g.paths.mux.Handle)
}

// statusPaths are those that the aggregated API of global has.
func statusPaths() []string {
	return append(pathNames(admin.StatusPath, admin.ProblemsPath), feedPaths()...)
}

// ofUsers marks requests of users of the cluster.
func ofUsers(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), byCluster{}, true)))
	})
}

// close releases what newClusterGlobal opened.
func (g *clusterGlobal) close() {
	if g.instance != nil {
		g.instance.close()
	}
	if g.paths != nil {
		g.paths.close()
	}
	g.changes.close()
	g.records.close()
}
