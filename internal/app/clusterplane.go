package app

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/endpoints/request"
	typedauthentication "k8s.io/client-go/kubernetes/typed/authentication/v1"
	"k8s.io/client-go/rest"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/cluster"
	"github.com/proxima-mesh/proxima/internal/delta/stream"
	"github.com/proxima-mesh/proxima/internal/demand"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/identity/access"
	"github.com/proxima-mesh/proxima/internal/kubeclient"
	"github.com/proxima-mesh/proxima/internal/kubeclient/lease"
	"github.com/proxima-mesh/proxima/internal/kubernetes/inject"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/metered"
	"github.com/proxima-mesh/proxima/internal/topology/ruleset"
	"github.com/proxima-mesh/proxima/internal/topology/trafficplan"
	"github.com/proxima-mesh/proxima/internal/tracing"
	"github.com/proxima-mesh/proxima/internal/view"
)

// planeKinds are what a control plane in Kubernetes follows: those of the cluster, and of ours
// those that plans and views depend on, which are CRDs there.
func planeKinds() []*resource.Descriptor {
	return append(clusterKinds(), kind.Pod, kind.Mesh, kind.ZoneCosts, kind.TopologyHeuristic, kind.TrafficPlan, kind.IPAddressPool)
}

// clusterPlane is the control plane of a Kubernetes cluster: its API has the objects, its
// controllers do what they do, and ours plan and serve agents:
//
//	API of the cluster ──► catalog (tables) ──► views ──► agents (gRPC)
//	       ▲                   │                             │ demand, heartbeats
//	       │ TrafficPlans,     ▼                             ▼
//	       └─ conditions ── planner of the leader ◄──── demand
//
// Every replica runs all but the planner, which runs where the Lease is held.
type clusterPlane struct {
	cfg     ControlPlaneConfig
	log     *slog.Logger
	started time.Time
	storage *storage
	epoch   string
	reads   clusterReads
	// cluster is the API itself; client is it, measured, with what is kept in memory instead.
	cluster *kubeclient.Client
	client  resource.Client
	// run identifies this process.
	run   string
	api   *api
	paths *ownPaths
	// extension is what the API server of the cluster calls; nil: nothing.
	extension *clusterExtension
	instance  *instance
	leader    *controllers
	election  election
	// planning is the replica that plans, if it is another one; nil: that is not known here.
	planning admin.Instances
	// meshes are what it has where meshes have certificates: as one zone of several, and where Pods have
	// sidecars; nil: they have none.
	meshes *clusterMeshes
	// zone is what it has as one of several; nil: it stands alone.
	zone *clusterZone
	// pods are followed from when on they are needed.
	pods *clusterPods
	// registries that are served; nil: none are.
	registries *clusterRegistries
	// changes are the change feed; nil: there is none.
	changes *clusterFeed
	// complete is closed when the tables are filled.
	complete chan struct{}
}

func runClusterPlane(ctx context.Context, cfg ControlPlaneConfig, ready func(Serving)) error {
	p, err := newClusterPlane(ctx, cfg)
	if err != nil {
		return err
	}
	defer p.close()
	return run(ctx, p.election, append(p.components(), announce(ready, p.serving())))
}

// newClusterPlane wires everything and serves nothing yet. It blocks for some requests to the
// cluster.
func newClusterPlane(ctx context.Context, cfg ControlPlaneConfig) (cp *clusterPlane, err error) {
	p := &clusterPlane{
		cfg: cfg, log: orDiscard(cfg.Logger), started: time.Now(), complete: make(chan struct{}), run: rand.Text(),
		pods: newClusterPods(),
	}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	if err := shareAuthority(ctx, cfg); err != nil {
		return nil, err
	}
	if p.storage, err = openNothing(ctx, cfg, p.log); err != nil {
		return nil, err
	}
	if err := p.openMeshes(ctx); err != nil {
		return nil, err
	}
	if err := p.newClient(); err != nil {
		return nil, err
	}
	if p.epoch, err = epochOf(ctx, p.client); err != nil {
		return nil, explainCluster(cfg.Cluster, err)
	}
	if err := p.newParts(); err != nil {
		return nil, err
	}
	if err := errors.Join(p.newMeshes(ctx), p.newZone(ctx)); err != nil {
		return nil, err
	}
	if err := p.newRegistries(); err != nil {
		return nil, err
	}
	if p.changes, err = openClusterFeed(ctx, cfg, p.storage, p.api, p.fedKinds(), p.log); err != nil {
		return nil, err
	}
	if p.election, err = newLeaseElection(cfg, p.paths.address(cfg), p.instance.grpcAddress(cfg), p.storage.metrics, p.log); err != nil {
		return nil, err
	}
	if other, ok := p.election.(interface{ Other() string }); ok {
		p.instance.passReports(p.storage.ca, func() string { return addressIn(other.Other()) })
		p.planning = leaderPeer(other.Other, p.storage.ca)
	}
	p.handle()
	p.extension, err = p.newExtension()
	return p, err
}

// newClient of the cluster.
func (p *clusterPlane) newClient() error {
	cfg := clusterREST(p.cfg.Cluster)
	kinds := append(p.kinds(), kind.Event, kind.ServiceCIDR)
	if p.zone != nil {
		kinds = append(kinds, kind.ConfigMap)
		for _, k := range p.zone.kinds { // those that are not in the tables
			if k.Descriptor != kind.GlobalSecret && !slices.Contains(kinds, k.Descriptor) {
				kinds = append(kinds, k.Descriptor)
			}
		}
	}
	if p.servesProxies() {
		kinds = append(kinds, kind.DataplaneInsight)
	}
	if p.cfg.Registries.on() {
		kinds = append(kinds, kind.Lease)
		for _, k := range registryKinds() {
			if !slices.Contains(kinds, k) {
				kinds = append(kinds, k)
			}
		}
	}
	client, err := kubeclient.New(cfg, kinds)
	if err != nil {
		return err
	}
	p.cluster = client
	meter := metered.New(metered.Config{Registerer: p.storage.metrics})
	p.reads.writes = true
	p.client = resource.Wrap(kubeclient.NewStreamed(client, newStripper().strip), meter.Wrap, resource.Intercept(p.reads.note))
	if p.meshes == nil {
		return nil
	}
	others, named, err := newClusterSecrets(p.cfg, meter.Wrap, resource.Intercept(p.reads.note))
	if p.zone != nil {
		p.zone.secrets = named
	}
	if err == nil {
		p.client, err = resource.NewRouter(p.client, others...)
	}
	return err
}

// kinds that are followed.
func (p *clusterPlane) kinds() []*resource.Descriptor {
	all := planeKinds()
	if p.zone != nil {
		all = append(all, zoneKinds()...)
	}
	if p.servesProxies() {
		all = append(all, p.meshes.proxyKinds()...)
	}
	return all
}

// fedKinds are those of the change feed: what is followed.
func (p *clusterPlane) fedKinds() []*resource.Descriptor {
	if p.cfg.Registries.on() {
		return append(p.kinds(), registryKinds()...)
	}
	return p.kinds()
}

// servesProxies reports whether Pods have sidecars here.
func (p *clusterPlane) servesProxies() bool { return p.meshes != nil && p.cfg.XDSPort != 0 }

// newParts makes the tables, the API, what serves agents, and the planner.
func (p *clusterPlane) newParts() (err error) {
	p.storage.traces, err = newTraces(p.cfg.Traces, planeService, p.cfg.APIAddress, tracing.Config{Epoch: p.epoch, Rootless: true, Annotate: true}, p.storage.metrics, p.log)
	if err != nil {
		return err
	}
	i := &instance{log: p.log, weights: &trafficplan.Table{}}
	p.instance = i
	i.catalog = catalog.New(catalog.Config{
		Client: p.client, Descriptors: p.kinds(), Epoch: p.epoch, Tracer: p.storage.traces.tracer(), Logger: p.log.With("component", "catalog"),
		Later: p.pods.later(p.meshes != nil || p.cfg.Registries.on()),
	})
	if p.paths, err = newOwnPaths(p.cfg, p.storage, func() bool { return i.catalog.Synced() && p.registries.synced() }, p.log); err != nil {
		return err
	}
	i.acks = newAcknowledgements(instanceName(p.paths.listener.Addr()), i.catalog, p.log)
	p.api = &api{
		address: p.paths.listener.Addr(), client: p.client, cached: p.client, meshes: &meshUpdates{},
		sessions: access.NewSessions(p.storage.revocations, p.log.With("component", "sessions")),
	}
	i.demand = demand.NewAggregator(demand.Config{
		World: demand.FromCatalog(i.catalog), Logger: p.log.With("component", "demand"), Registerer: p.storage.metrics,
	})
	i.builder = view.NewBuilder(view.BuilderConfig{
		Site: p.cfg.site(), Run: p.run, Weights: i.weights.Weights, Split: i.weights.Split,
		Own: i.weights.Own, ReadySince: i.weights.ReadySince, Tracer: p.storage.traces.tracer(), Logger: p.log.With("component", "views"),
		HasSidecar: func(pod *corev1.Pod) bool { s, err := inject.SidecarOf(pod); return s != nil && err == nil },
	})
	i.views = stream.NewServer(stream.ServerConfig{Admit: i.admitOwnNode(i.builder.Assign), Log: p.log.With("component", "views")})
	i.newMonitor(p.storage.metrics)
	if p.cfg.GRPCPort != 0 {
		if err := i.listen(p.cfg, p.storage, p.api); err != nil {
			return err
		}
	}
	p.leader = &controllers{
		cfg: p.cfg, log: p.log, client: p.storage.traces.wrap(p.client), cached: p.storage.traces.wrap(p.client), api: p.api, instance: i, metrics: p.storage.metrics,
		rules: ruleset.New(ruleset.Config{Catalog: i.catalog, Demand: i.demand}),
	}
	p.leader.reader = p.leader.newPlanner()
	p.storage.metrics.MustRegister(p.leader)
	return nil
}

func (p *clusterPlane) components() []component {
	return slices.Concat(
		[]component{
			{Name: "sessions", Run: p.api.sessions.Run},
			{Name: "API", Run: p.paths.run},
		},
		p.instance.components(),
		p.storage.traces.components(),
		p.extension.components(),
		[]component{
			{Name: "planner", Scope: leader, Run: p.leader.runPlans},
			{Name: "load balancers", Scope: leader, Run: func(ctx context.Context) error { return p.leader.runClusterLoadBalancers(ctx, p.cluster) }},
			{Name: "pods", Run: func(ctx context.Context) error { return p.pods.await(ctx, p.instance.catalog) }},
		},
		p.meshes.components(p.storage),
		p.instance.modes.components(),
		p.sidecarComponents(),
		p.zoneComponents(),
		p.registries.components(),
		p.changes.components(),
		[]component{
			{Name: "first lists", Run: p.awaitTables, Ready: p.complete},
		},
	)
}

// awaitTables leaves a kubeconfig at once, as status says what the tables wait for.
func (p *clusterPlane) awaitTables(ctx context.Context) error {
	if err := p.paths.writeKubeconfig(); err != nil {
		return err
	}
	if p.instance.catalog.WaitSynced(ctx) == nil && p.registries.wait(ctx) == nil {
		close(p.complete)
	}
	<-ctx.Done()
	return nil
}

// handle adds the questions that are answered, and certificates of nodes.
func (p *clusterPlane) handle() {
	i := p.instance
	handlers := admin.PlannerHandlers
	var calls admin.Proxies
	if p.zone != nil {
		handlers, calls = admin.ClusterZoneHandlers, p.zone.link.calls
	}
	config := admin.Config{
		ByAddress: seesToPermissions,
		Role:      string(p.cfg.role()), Preset: string(p.cfg.Preset), Site: string(p.cfg.site()), StoreName: StoreKubernetes, Started: p.started,
		Store: clusterStore{Store: p.storage.store, epoch: p.epoch, reads: &p.reads}, Tables: i.catalog, Planner: p.leader, Demand: i.demand,
		Streams: i.views, Refused: &i.refused, Suspicion: i.monitor, Leases: nobody{}, Tokens: nobody{}, Traces: p.storage.traces.status, Audit: noAudit,
		InServiceRange: nowhere, Federation: p.zone.federation(), Proxies: calls, Following: p.following, Registries: p.registries.status, Logger: p.log,
		Sums: p.leader.sums.Load, Problems: findProblems(), Planning: p.planning,
		Authorizer: newClusterAccess(p.paths.authorizer, accessReviews{p.cfg.Cluster}), AnyInstance: fromCluster,
	}
	p.changes.serve(&config)
	for path, handler := range handlers(config) {
		p.paths.mux.Handle(path, handler)
	}
	p.cfg.serveConsole(p.paths.mux.Handle)
	log := p.log.With("component", "certificates")
	issue := access.NewCertificates(p.storage.ca, p.storage.tokens, p.storage.policy(), i.grpcPort(), log)
	p.paths.mux.Handle(identity.CertificatesPath, p.ofNodes(issue))
	accounts := &access.ServiceAccounts{
		Reviewer: p.reviewer(), Namespace: p.cfg.Namespace, Name: p.cfg.AgentServiceAccount, Next: p.paths.authenticator, Logger: log,
	}
	if p.zone != nil {
		accounts.Gateways = p.cfg.GatewayServiceAccount
	}
	p.paths.authenticator = accounts
}

// ofNodes lets nodes of the cluster get certificates: one that was deleted renews none.
func (p *clusterPlane) ofNodes(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, _ := request.UserFrom(r.Context())
		name, _ := identity.NodeName(who.GetName(), who.GetGroups())
		if !p.instance.catalog.Listed(catalog.ZoneIngresses, catalog.ZoneEgresses) {
			refuseRequest(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable,
				"the cluster is still being read; try again in a moment")
			return
		}
		tables := p.instance.catalog.Snapshot()
		_, ok := tables.Nodes.Get(resource.Key{Name: name})
		switch gateway := p.isGateway(tables, name); {
		case ok && gateway:
			refuseRequest(w, http.StatusForbidden, metav1.StatusReasonForbidden,
				fmt.Sprintf("there is a Node and a gateway's pod with the name %q: rename the pod", name))
			return
		case !ok && !gateway:
			refuseRequest(w, http.StatusForbidden, metav1.StatusReasonForbidden,
				fmt.Sprintf("there is no Node %q in the cluster, and no gateway", name))
			return
		}
		if ok && p.cfg.AgentsByAggregatedAPI && !fromCluster(r.Context()) {
			refuseRequest(w, http.StatusForbidden, metav1.StatusReasonForbidden,
				"agents join and renew at the API server of the cluster alone: run them with --join-by-aggregated-api")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// isGateway reports whether there is a pod of a gateway with that name.
func (p *clusterPlane) isGateway(tables *catalog.Snapshot, name string) bool {
	pod, ok := tables.Pods.Get(resource.Key{Namespace: p.cfg.Namespace, Name: name})
	return p.zone != nil && ok && pod.Spec.ServiceAccountName == p.cfg.GatewayServiceAccount
}

func (p *clusterPlane) serving() Serving {
	s := Serving{API: "https://" + reachable(p.paths.listener.Addr())}
	if p.instance.listener != nil {
		s.GRPC = reachable(p.instance.listener.Addr())
	}
	if p.meshes != nil {
		s.XDS = p.meshes.proxies.address()
	}
	return s
}

// following sums up the proxies; nil: they are not served.
func (p *clusterPlane) following() *admin.ProxiesStatus {
	if p.meshes == nil {
		return nil
	}
	return p.meshes.sidecars(p.instance.catalog.Snapshot())
}

func (p *clusterPlane) close() {
	if p.instance != nil {
		p.instance.close()
	}
	if p.paths != nil {
		p.paths.close()
	}
	p.changes.close()
	p.meshes.close()
	p.registries.close()
}

// runPlans runs the planner alone: in a cluster the EndpointSlices are another controller's.
func (c *controllers) runPlans(ctx context.Context) error {
	plans := c.newPlanner()
	c.planner.Store(plans)
	defer c.planner.Store(nil)
	return run(ctx, nil, []component{
		{Name: "planner", Run: plans.Run},
		{Name: "summaries", Run: func(ctx context.Context) error { return c.runSums(ctx, plans) }},
	})
}

// reviewer of tokens; tests have their own.
func (p *clusterPlane) reviewer() access.TokenReviewer {
	if p.cfg.reviewer != nil {
		return p.cfg.reviewer
	}
	return tokenReviews{p.cfg.Cluster}
}

// tokenReviews asks the API of the cluster.
type tokenReviews struct{ cfg *rest.Config }

// ReviewToken implements access.TokenReviewer.
func (t tokenReviews) ReviewToken(
	ctx context.Context, token string, audiences []string,
) (status authenticationv1.TokenReviewStatus, err error) {
	client, err := typedauthentication.NewForConfig(clusterREST(t.cfg))
	if err != nil {
		return status, err
	}
	review, err := client.TokenReviews().Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: audiences},
	}, metav1.CreateOptions{})
	if err != nil {
		return status, err
	}
	return review.Status, nil
}

// leaseName of the election, in the control plane's own namespace.
const leaseName = "proxima-control-plane"

// newLeaseElection by the Lease. api and grpc are the addresses by which others reach this instance.
func newLeaseElection(cfg ControlPlaneConfig, api, grpc string, metrics prometheus.Registerer, log *slog.Logger) (election, error) {
	if cfg.ballot != nil {
		return cfg.ballot, nil
	}
	e, err := lease.New(lease.Config{
		REST: clusterREST(cfg.Cluster), Lease: resource.Key{Namespace: cfg.Namespace, Name: leaseName},
		Identity: holderIdentity(instanceIdentity(), api, grpc),
		Logger:   log.With("component", "election"),
	})
	if err != nil {
		return nil, err
	}
	cluster.MeasureLeadership(metrics, e.Leads, e.Vacant)
	return e, nil
}
