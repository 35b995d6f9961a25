package app

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/demand"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/kubeclient"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/memory"
	"github.com/proxima-mesh/proxima/internal/resource/metered"
	"github.com/proxima-mesh/proxima/internal/scavenge"
	memorystore "github.com/proxima-mesh/proxima/internal/store/memory"
	"github.com/proxima-mesh/proxima/internal/summary"
	"github.com/proxima-mesh/proxima/internal/topology"
	"github.com/proxima-mesh/proxima/internal/version"
)

// StoreKubernetes is the store of a control plane in Kubernetes: the cluster's API.
const StoreKubernetes = "kubernetes"

// Preset of a control plane in Kubernetes.
type Preset string

// The presets.
const (
	// PresetPlannerOnly observes a cluster, plans in memory, and answers questions.
	PresetPlannerOnly Preset = "planner-only"
	// PresetKubeProxyReplacement plans, and serves the agents that take kube-proxy's place.
	PresetKubeProxyReplacement Preset = "kube-proxy-replacement"
	// PresetZone is that, and the cluster is one zone of several.
	PresetZone Preset = "zone"
	// PresetGlobal is the control plane of the zones: it has neither nodes nor plans.
	PresetGlobal Preset = "global"
)

// clusterKinds are what planner-only reads of a cluster, by get, list and watch. It writes
// nothing there.
func clusterKinds() []*resource.Descriptor {
	return []*resource.Descriptor{kind.Namespace, kind.Node, kind.Service, kind.EndpointSlice}
}

// plannerOnly is a control plane beside the one of a Kubernetes cluster, which only reads:
//
//	API of the cluster ──► catalog (tables) ──► planner ──► plans in memory ──┐
//	                           ▲                                              │
//	                           └──────────────────────────────────────────────┘
//	questions (status, explain, simulate) are answered from the tables, over TLS
type plannerOnly struct {
	cfg     ControlPlaneConfig
	log     *slog.Logger
	started time.Time
	storage *storage
	// epoch is the UID of a namespace that lives as long as the cluster.
	epoch   string
	reads   clusterReads
	catalog *catalog.Catalog
	demand  *demand.Aggregator
	planner *topology.Controller
	sums    *summary.Table
	api     *ownPaths
	// changes are the change feed; nil: there is none.
	changes *clusterFeed
	// complete is closed when the tables are filled.
	complete chan struct{}
}

func runPlannerOnly(ctx context.Context, cfg ControlPlaneConfig, ready func(Serving)) error {
	p, err := newPlannerOnly(ctx, cfg)
	if err != nil {
		return err
	}
	defer p.api.close()
	defer p.changes.close()
	return run(ctx, unopposed{}, append(p.components(), announce(ready, Serving{API: "https://" + reachable(p.api.listener.Addr())})))
}

// newPlannerOnly wires everything and serves nothing yet. It blocks for one request to the
// cluster.
func newPlannerOnly(ctx context.Context, cfg ControlPlaneConfig) (*plannerOnly, error) {
	p := &plannerOnly{
		cfg: cfg, log: orDiscard(cfg.Logger), started: time.Now(), complete: make(chan struct{}),
	}
	var err error
	if p.storage, err = openNothing(ctx, cfg, p.log); err != nil {
		return nil, err
	}
	client, err := p.clients(cfg.Cluster)
	if err != nil {
		return nil, err
	}
	if p.epoch, err = epochOf(ctx, client); err != nil {
		return nil, explainCluster(cfg.Cluster, err)
	}
	p.catalog = catalog.New(catalog.Config{
		Client: client, Descriptors: append(clusterKinds(), kind.TrafficPlan), Epoch: p.epoch, Logger: p.log.With("component", "catalog"),
	})
	// No agent reports here: demand is what the CPU of nodes suggests, as outside until then.
	p.demand = demand.NewAggregator(demand.Config{
		World: demand.FromCatalog(p.catalog), Logger: p.log.With("component", "demand"), Registerer: p.storage.metrics,
	})
	p.planner = topology.New(topology.Config{
		Client: client, Catalog: p.catalog, Demand: p.demand, DefaultMode: cfg.DefaultTopologyMode, PlansAlone: true,
		Heuristics: topology.Own{Set: cfg.Heuristics}, Logger: p.log.With("component", "topology"),
	})
	p.sums = summary.New(summary.Config{Catalog: p.catalog, Tallier: p.planner.Tallier(), Logger: p.log.With("component", "summaries")})
	p.storage.metrics.MustRegister(p.planner)
	if p.api, err = newOwnPaths(cfg, p.storage, p.catalog.Synced, p.log); err != nil {
		return nil, err
	}
	if p.changes, err = openClusterFeed(ctx, cfg, p.storage, &api{}, clusterKinds(), p.log); err != nil {
		return nil, err
	}
	p.handle()
	return p, nil
}

// openNothing is the storage of a control plane whose state is in a cluster: the authority is in
// the data directory; there are no tokens, and none is revoked.
func openNothing(ctx context.Context, cfg ControlPlaneConfig, log *slog.Logger) (*storage, error) {
	s := &storage{log: log, dataDir: cfg.DataDir, metrics: prometheus.NewRegistry(), store: memorystore.New(memorystore.Options{})}
	s.metrics.MustRegister(goMetrics(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	var err error
	if s.ca, err = identity.Open(filepath.Join(cfg.DataDir, "pki")); err != nil {
		return nil, err
	}
	s.tokens = identity.NewTokens(s.store, s.ca.Pin())
	s.revocations, err = identity.NewRevocations(ctx, s.store, cfg.RenewExpired, log.With("component", "revocations"))
	return s, err
}

// clients of the cluster, which only reads, and of plans, which are in memory.
func (p *plannerOnly) clients(cfg *rest.Config) (resource.Client, error) {
	reader, err := kubeclient.New(clusterREST(cfg), clusterKinds())
	if err != nil {
		return nil, err
	}
	meter := metered.New(metered.Config{Registerer: p.storage.metrics})
	cluster := resource.Wrap(kubeclient.NewStreamed(reader, strip), meter.Wrap, resource.Intercept(p.reads.note))
	return resource.NewRouter(cluster, resource.Override{Kind: kind.TrafficPlan, Client: memory.New(kind.TrafficPlan)})
}

func (p *plannerOnly) components() []component {
	return append([]component{
		{Name: "API", Run: p.api.run},
		{Name: "catalog", Run: p.catalog.Run},
		{Name: "demand", Run: p.demand.Run},
		{Name: "planner", Run: p.planner.Run},
		{Name: "summaries", Run: p.sums.Run},
		{Name: "memory", Run: func(ctx context.Context) error { return scavenge.Run(ctx, minReclaim) }},
		{Name: "first lists", Run: p.awaitTables, Ready: p.complete},
	}, p.changes.components()...)
}

// awaitTables leaves a kubeconfig at once, as status says what the tables wait for.
func (p *plannerOnly) awaitTables(ctx context.Context) error {
	if err := p.api.writeKubeconfig(); err != nil {
		return err
	}
	if p.catalog.WaitSynced(ctx) == nil {
		close(p.complete)
		p.log.Info("the cluster was read", "took", time.Since(p.started).Round(time.Millisecond),
			"services", p.catalog.Snapshot().Services.Len(), "nodes", p.catalog.Snapshot().Nodes.Len())
	}
	<-ctx.Done()
	return nil
}

// handle adds the questions that are answered.
func (p *plannerOnly) handle() {
	config := admin.Config{
		ByAddress: seesToPermissions,
		Role:      string(RoleStandalone), Preset: string(PresetPlannerOnly), Site: string(locality.Local),
		StoreName: StoreKubernetes, Started: p.started,
		Store: clusterStore{Store: p.storage.store, epoch: p.epoch, reads: &p.reads}, Tables: p.catalog, Planner: p.planner, Demand: p.demand,
		Streams: nobody{}, Refused: &version.Refusals{}, Suspicion: nobody{}, Leases: nobody{}, Tokens: nobody{}, Audit: noAudit,
		InServiceRange: nowhere, Logger: p.log,
		Sums: func() *summary.Table { return p.sums }, Problems: findProblems(),
		Authorizer: newClusterAccess(p.api.authorizer, accessReviews{p.cfg.Cluster}), AnyInstance: fromCluster,
	}
	p.changes.serve(&config)
	for path, handler := range admin.PlannerHandlers(config) {
		p.api.mux.Handle(path, handler)
	}
	p.cfg.serveConsole(p.api.mux.Handle)
}

// strip takes from an object what no plan and no answer depends on.
func strip(obj resource.Object) {
	obj.SetManagedFields(nil)
	if a := obj.GetAnnotations(); a[corev1.LastAppliedConfigAnnotation] != "" {
		delete(a, corev1.LastAppliedConfigAnnotation)
		obj.SetAnnotations(a)
	}
	if n, ok := obj.(*corev1.Node); ok {
		n.Spec.PodCIDR, n.Spec.PodCIDRs = "", nil
		n.Status = corev1.NodeStatus{
			Allocatable: n.Status.Allocatable, Addresses: n.Status.Addresses,
			NodeInfo:   corev1.NodeSystemInfo{MachineID: n.Status.NodeInfo.MachineID},
			Conditions: slices.DeleteFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type != corev1.NodeReady }),
		}
		for i := range n.Status.Conditions { // heartbeats are no changes
			n.Status.Conditions[i].LastHeartbeatTime = metav1.Time{}
		}
	}
}

// clusterREST is the configuration of a client of the cluster. The name before the slash becomes
// the field manager of what is written.
func clusterREST(cfg *rest.Config) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.UserAgent = "proxima/" + version.Get().Version
	cfg.QPS = -1 // a few watches, and bursts of plans
	return cfg
}

// epochOf a cluster: the UID of the namespace kube-system, by which clusters are told apart; of
// default, in an API that has none.
func epochOf(ctx context.Context, client resource.Client) (string, error) {
	obj, err := client.Get(ctx, kind.Namespace, resource.Key{Name: metav1.NamespaceSystem})
	if apierrors.IsNotFound(err) {
		obj, err = client.Get(ctx, kind.Namespace, resource.Key{Name: metav1.NamespaceDefault})
	}
	if err != nil {
		return "", err
	}
	return string(obj.GetUID()), nil
}

// explainCluster adds what to do where the API of the cluster cannot be read.
func explainCluster(cfg *rest.Config, err error) error {
	code, hint := problem.APIUnreachable, "check that it runs, and the server in the kubeconfig"
	switch {
	case apierrors.IsUnauthorized(err):
		code, hint = problem.APIUnauthorized, "check the user of the kubeconfig, or the service account of the pod"
	case apierrors.IsForbidden(err):
		code, hint = problem.APIUnauthorized, needsToRead
	}
	return &problem.Error{Code: code, Err: fmt.Errorf("the API of the cluster, %s: %w", cfg.Host, err), Hint: hint}
}

// needsToRead is what the user of planner-only may have to be granted.
const needsToRead = "grant get, list and watch of namespaces, nodes and services, and of endpointslices in discovery.k8s.io"

// clusterReads notes which kinds cannot be read, and why. The zero value is ready for use.
type clusterReads struct {
	// writes are let through; else they are refused, as nothing of the role makes any.
	writes bool

	mu     sync.Mutex
	failed map[string]error // by resource
}

// note implements resource.Interceptor.
func (r *clusterReads) note(ctx context.Context, call resource.Call, next func(context.Context) error) error {
	if call.Verb.Writes() && r.writes {
		return next(ctx)
	}
	if call.Verb.Writes() {
		return apierrors.NewMethodNotSupported(call.Kind.GroupResource(), string(call.Verb))
	}
	err := next(ctx)
	if call.Verb == resource.VerbGet || ctx.Err() != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		delete(r.failed, call.Kind.Resource)
		return nil
	}
	if r.failed == nil {
		r.failed = map[string]error{}
	}
	r.failed[call.Kind.Resource] = err
	return err
}

// problem in words; nil: every kind can be read.
func (r *clusterReads) problem() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var texts []string
	for _, name := range slices.Sorted(maps.Keys(r.failed)) {
		text := fmt.Sprintf("%s cannot be read: %v", name, r.failed[name])
		switch {
		case apierrors.IsForbidden(r.failed[name]) && !r.writes:
			text += ": " + needsToRead
		case apierrors.IsNotFound(r.failed[name]):
			text += ": apply the custom resource definitions of this version"
		}
		texts = append(texts, text)
	}
	if texts == nil {
		return nil
	}
	return fmt.Errorf("the API of the cluster: %s", strings.Join(texts, "; "))
}
