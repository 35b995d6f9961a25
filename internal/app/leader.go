package app

import (
	"context"
	"log/slog"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"github.com/proxima-mesh/proxima/internal/controller/drain"
	"github.com/proxima-mesh/proxima/internal/controller/endpoints"
	"github.com/proxima-mesh/proxima/internal/controller/endpointslice"
	"github.com/proxima-mesh/proxima/internal/controller/external"
	"github.com/proxima-mesh/proxima/internal/controller/garbage"
	"github.com/proxima-mesh/proxima/internal/controller/health"
	"github.com/proxima-mesh/proxima/internal/controller/ipam"
	"github.com/proxima-mesh/proxima/internal/controller/loadbalancer"
	"github.com/proxima-mesh/proxima/internal/controller/mirroring"
	"github.com/proxima-mesh/proxima/internal/controller/multicluster"
	"github.com/proxima-mesh/proxima/internal/controller/namespace"
	"github.com/proxima-mesh/proxima/internal/controller/policystatus"
	"github.com/proxima-mesh/proxima/internal/controller/tagged"
	"github.com/proxima-mesh/proxima/internal/controller/virtualip"
	"github.com/proxima-mesh/proxima/internal/controller/zoneshift"
	"github.com/proxima-mesh/proxima/internal/demand"
	"github.com/proxima-mesh/proxima/internal/identity/credential"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/summary"
	"github.com/proxima-mesh/proxima/internal/topology"
	"github.com/proxima-mesh/proxima/internal/topology/ruleset"
)

// controllers are those of the leader. Each is made when a term begins, so that nothing of
// an earlier term is left in it.
type controllers struct {
	cfg      ControlPlaneConfig
	log      *slog.Logger
	client   resource.Client
	cached   resource.Client
	api      *api
	instance *instance
	metrics  prometheus.Registerer
	rules    *ruleset.Rules
	// secrets that external services refer to.
	secrets *credential.Source
	// registries that are served; nil: none are. It is set before a term begins.
	registries *registries
	// count asks agents for open connections; it is set before a term begins.
	count drain.Counter
	// reader answers questions about plans while this instance does not lead.
	reader *topology.Controller
	// planner, sums and leases of the present term; nil: this instance does not lead.
	planner atomic.Pointer[topology.Controller]
	sums    atomic.Pointer[summary.Table]
	leases  atomic.Pointer[health.Controller]
}

func newControllers(cfg ControlPlaneConfig, s *storage, a *api, i *instance, log *slog.Logger) *controllers {
	c := &controllers{
		cfg: cfg, log: log, client: s.traces.wrap(a.client), cached: s.traces.wrap(a.cached), api: a, instance: i, metrics: s.metrics,
		rules: ruleset.New(ruleset.Config{Catalog: i.catalog, Demand: i.demand}),
	}
	if s.shared() {
		c.client, c.cached = resource.Wrap(c.client, resource.Intercept(inTerm)), resource.Wrap(c.cached, resource.Intercept(inTerm))
	}
	c.reader = c.newPlanner()
	s.metrics.MustRegister(c)
	return c
}

func (c *controllers) components() []component {
	return []component{
		{Name: "slices and plans", Scope: leader, Run: c.runPlanning},
		{Name: "endpoints controller", Scope: leader, Run: c.runEndpoints},
		{Name: "mirroring controller", Scope: leader, Run: c.runMirroring},
		{Name: "namespace controller", Scope: leader, Run: c.runNamespaces},
		{Name: "garbage collector", Scope: leader, Run: c.runGarbage},
		{Name: "pod garbage collector", Scope: leader, Run: c.runPods},
		{Name: "health controller", Scope: leader, Run: c.runLeases},
		{Name: "drain controller", Scope: leader, Run: c.runDrains},
		{Name: "zone shift controller", Scope: leader, Run: c.runShifts},
		{Name: "status of policies", Scope: leader, Run: c.runPolicyStatus},
		{Name: "address repair", Scope: leader, Run: c.runRepair},
		{Name: "export controller", Scope: leader, Run: c.runExports},
		{Name: "import controller", Scope: leader, Run: c.runImports},
		{Name: "service tag controller", Scope: leader, Run: c.runTagged},
		{Name: "registered services", Scope: leader, Run: c.runRegistered},
		{Name: "metadata of dubbo", Scope: leader, Run: c.runDubbo},
		{Name: "names of meshes", Scope: leader, Run: c.runVirtualIPs},
		{Name: "external service controller", Scope: leader, Run: c.runExternals},
		{Name: "load balancer controller", Scope: leader, Run: c.runLoadBalancers},
	}
}

func (c *controllers) newPlanner() *topology.Controller {
	return topology.New(topology.Config{
		Client: c.client, Catalog: c.instance.catalog, Demand: c.instance.demand, Warm: c.instance.demand.Warm,
		Heuristics: topology.Own{Set: c.cfg.Heuristics, Other: c.rules}, DefaultMode: c.cfg.DefaultTopologyMode,
		Site: c.otherSites(), ForeignSlices: c.cfg.Cluster != nil, Logger: c.log.With("component", "topology"),
	})
}

// otherSites is the name of this site, if there are others.
func (c *controllers) otherSites() locality.Site {
	if c.cfg.role() == RoleZone {
		return c.cfg.site()
	}
	return ""
}

// runPlanning runs the planner and the EndpointSlice controller, which gets hints from it
// and subscribes to its changes.
func (c *controllers) runPlanning(ctx context.Context) error {
	plans := c.newPlanner()
	c.planner.Store(plans)
	defer c.planner.Store(nil)
	slices := endpointslice.New(endpointslice.Config{
		Client: c.client, Catalog: c.instance.catalog, Slices: kind.EndpointSlice, Advisor: plans,
		Options: endpointslice.Options{MaxEndpoints: c.cfg.MaxEndpointsPerSlice},
		Logger:  c.log.With("component", "endpointslice"),
	})
	return run(ctx, nil, []component{
		{Name: "endpointslice controller", Run: slices.Run},
		{Name: "planner", Run: plans.Run},
		{Name: "summaries", Run: func(ctx context.Context) error { return c.runSums(ctx, plans) }},
	})
}

// runSums keeps sums of what the planner of this term plans.
func (c *controllers) runSums(ctx context.Context, plans *topology.Controller) error {
	sums := summary.New(summary.Config{Catalog: c.instance.catalog, Tallier: plans.Tallier(), Logger: c.log.With("component", "summaries")})
	c.sums.Store(sums)
	defer c.sums.Store(nil)
	return sums.Run(ctx)
}

func (c *controllers) runEndpoints(ctx context.Context) error {
	return endpoints.New(endpoints.Config{
		Client: c.client, Catalog: c.instance.catalog, Endpoints: kind.Endpoints, Logger: c.log.With("component", "endpoints"),
	}).Run(ctx)
}

func (c *controllers) runMirroring(ctx context.Context) error {
	return mirroring.New(mirroring.Config{
		Client: c.client, Catalog: c.instance.catalog, Slices: kind.EndpointSlice, MaxAddresses: c.cfg.MaxMirroredPerSubset,
		Logger: c.log.With("component", "mirroring"),
	}).Run(ctx)
}

func (c *controllers) runNamespaces(ctx context.Context) error {
	namespaces, err := namespace.New(c.cached, c.api.direct, kind.All(), c.log.With("component", "namespace"))
	if err != nil {
		return err
	}
	return namespaces.Run(ctx)
}

func (c *controllers) runGarbage(ctx context.Context) error {
	return garbage.NewOwners(garbage.OwnersConfig{
		Client: c.client, Kinds: kind.All(), Logger: c.log.With("component", "garbage"),
	}).Run(ctx)
}

func (c *controllers) runPods(ctx context.Context) error {
	return garbage.NewPods(garbage.PodsConfig{
		Client: c.client, PodKind: kind.Pod, NodeKind: kind.Node, TerminatedThreshold: c.cfg.MaxTerminatedPods,
		Logger: c.log.With("component", "garbage"),
	}).Run(ctx)
}

// runLeases marks nodes and workloads whose leases ran out.
func (c *controllers) runLeases(ctx context.Context) error {
	leases := health.New(health.Config{
		Client: c.cached, Nodes: kind.Node, Leases: kind.Lease, Dataplanes: kind.Dataplane,
		Logger: c.log.With("component", "health"), Monitor: c.instance.monitor,
		Keep: func(dead []resource.Key) map[resource.Key]string {
			return health.LastEndpoints(c.instance.catalog.Snapshot(), dead)
		},
	})
	if err := c.metrics.Register(leases); err != nil {
		return err
	}
	defer c.metrics.Unregister(leases)
	c.leases.Store(leases)
	defer c.leases.Store(nil)
	return leases.Run(ctx)
}

// runDrains follows the drains of nodes.
func (c *controllers) runDrains(ctx context.Context) error {
	drains := drain.New(drain.Config{
		Client: c.client, Catalog: c.instance.catalog, Count: c.count, Logger: c.log.With("component", "drain"),
	})
	if err := c.metrics.Register(drains); err != nil {
		return err
	}
	defer c.metrics.Unregister(drains)
	return drains.Run(ctx)
}

// runShifts puts ZoneShifts into effect, and ends them.
func (c *controllers) runShifts(ctx context.Context) error {
	shifts := zoneshift.New(zoneshift.Config{Client: c.client, Catalog: c.instance.catalog, Logger: c.log.With("component", "zone shifts")})
	if err := c.metrics.Register(shifts); err != nil {
		return err
	}
	defer c.metrics.Unregister(shifts)
	return shifts.Run(ctx)
}

// runPolicyStatus says in the status of policies of traffic, and of routes, what becomes of them.
func (c *controllers) runPolicyStatus(ctx context.Context) error {
	return policystatus.New(policystatus.Config{
		Client: c.client, Catalog: c.instance.catalog, Zone: string(c.cfg.site()), Proxies: c.instance.acks, Changes: c.instance.acks,
		Logger: c.log.With("component", "status of policies"),
	}).Run(ctx)
}

func (c *controllers) runRepair(ctx context.Context) error {
	return ipam.NewRepair(ipam.RepairConfig{
		Client: c.client, Services: kind.Service, IPAddresses: kind.IPAddress, ServiceCIDRs: kind.ServiceCIDR,
		Logger: c.log.With("component", "addresses"),
	}).Run(ctx)
}

// runExports keeps what this zone exports.
func (c *controllers) runExports(ctx context.Context) error {
	config := c.multicluster("exports")
	if c.otherSites() != "" {
		config.Demand = exportedDemand{c.instance.demand, c}
	}
	return multicluster.NewExports(config).Run(ctx)
}

// exportedDemand is the demand of this zone as other zones need it for their plans.
type exportedDemand struct {
	*demand.Aggregator
	of *controllers
}

// Wanted: Services that are planned.
func (d exportedDemand) Wanted(s *corev1.Service) bool {
	modes := topology.ModesOf(d.of.instance.catalog.Snapshot(), d.of.cfg.DefaultTopologyMode)
	return modes.AcrossSites().Of(s).Kind == topology.Planned
}

// runImports keeps what all zones export to this one.
func (c *controllers) runImports(ctx context.Context) error {
	return multicluster.NewImports(c.multicluster("imports")).Run(ctx)
}

// runVirtualIPs gives names below "mesh" their addresses.
func (c *controllers) runVirtualIPs(ctx context.Context) error {
	if len(c.cfg.MeshCIDRs) == 0 {
		<-ctx.Done()
		return nil
	}
	return virtualip.New(virtualip.Config{
		Client: c.client, Catalog: c.instance.catalog, Ranges: c.cfg.MeshCIDRs, Logger: c.log.With("component", "virtual IPs"),
	}).Run(ctx)
}

// runTagged keeps the Services of service tags.
func (c *controllers) runTagged(ctx context.Context) error {
	return tagged.New(tagged.Config{
		Client: c.client, Catalog: c.instance.catalog, Logger: c.log.With("component", "service tags"),
	}).Run(ctx)
}

// runExternals keeps the names and addresses of services outside every mesh.
func (c *controllers) runExternals(ctx context.Context) error {
	return external.New(external.Config{
		Client: c.client, Catalog: c.instance.catalog, Site: string(c.cfg.site()), Logger: c.log.With("component", "external services"), Secrets: c.secrets,
	}).Run(ctx)
}

// runLoadBalancers gives Services of type LoadBalancer their addresses.
func (c *controllers) runLoadBalancers(ctx context.Context) error {
	return loadbalancer.New(loadbalancer.Config{
		Client: c.client, Catalog: c.instance.catalog, InServiceRange: c.api.server.InServiceRange, Classless: true,
		Logger: c.log.With("component", "load balancers"),
	}).Run(ctx)
}

func (c *controllers) multicluster(component string) multicluster.Config {
	return multicluster.Config{
		Client: c.client, Catalog: c.instance.catalog, Site: string(c.cfg.site()), Logger: c.log.With("component", component),
	}
}

// plans is the planner of the present term, or one that only reads.
func (c *controllers) plans() *topology.Controller {
	if p := c.planner.Load(); p != nil {
		return p
	}
	return c.reader
}

// Explain implements admin.Planner.
func (c *controllers) Explain(service resource.Key) (*topology.Report, bool) {
	return c.plans().Explain(service)
}

// Modes implements admin.Planner.
func (c *controllers) Modes() []topology.ModeCount { return c.plans().Modes() }

// Simulate implements admin.Planner.
func (c *controllers) Simulate(change topology.Change) (*topology.Simulation, error) {
	return c.plans().Simulate(change)
}

// Survey implements admin.Planner.
func (c *controllers) Survey(question topology.SurveyQuestion) (*topology.Survey, error) {
	return c.plans().Survey(question)
}

// State implements admin.Leases.
func (c *controllers) State() health.State {
	if l := c.leases.Load(); l != nil {
		return l.State()
	}
	return health.State{Reason: "another instance follows the leases"}
}

// Describe implements prometheus.Collector: the metrics of the planner.
func (c *controllers) Describe(to chan<- *prometheus.Desc) { c.reader.Describe(to) }

// Collect implements prometheus.Collector.
func (c *controllers) Collect(to chan<- prometheus.Metric) { c.plans().Collect(to) }
