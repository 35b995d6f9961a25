package topology

import (
	"context"
	"log/slog"
	"maps"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/clock"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/backend"
	"github.com/proxima-mesh/proxima/internal/controller/changes"
	"github.com/proxima-mesh/proxima/internal/controller/endpointslice"
	"github.com/proxima-mesh/proxima/internal/controller/loop"
	"github.com/proxima-mesh/proxima/internal/demand"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/planner/estimate"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/topology/trafficplan"
)

// Demand estimates where the traffic of a service port starts. It must not block. A
// *demand.Aggregator is one.
type Demand interface {
	// Shares of zones in ascending order, of one address family or, for AnyFamily, of both. prior
	// is what to believe as long as nothing is measured; zones with noNodes have no demand.
	Shares(port proxy.PortName, family proxy.Family, zones []locality.Zone, prior []float64, noNodes []bool) demand.Estimate
}

// Reporter is a Demand that says at once that nothing is known of a port, so that Shares are the prior. It must not block. A
// *demand.Aggregator is one.
type Reporter interface {
	// Reported: something is known of the demand of a port.
	Reported(port proxy.PortName) bool
}

// Unmeasured is the Demand of those who measure nothing: the prior.
type Unmeasured struct{}

// Shares implements Demand.
func (Unmeasured) Shares(_ proxy.PortName, _ proxy.Family, zones []locality.Zone, prior []float64, noNodes []bool) demand.Estimate {
	return demand.Estimate{Shares: estimate.Unreported(len(zones), prior, noNodes)}
}

// Reported implements Reporter.
func (Unmeasured) Reported(proxy.PortName) bool { return false }

// Config of a Controller.
type Config struct {
	// Client to write plans, conditions and events with.
	Client resource.Client
	// Catalog to follow. It must hold Services, EndpointSlices, Nodes, ZoneCosts, Plans, Namespaces,
	// Meshes, the objects behind Heuristics, and, where there are other sites, ServiceExports
	// and gateways.
	Catalog *catalog.Catalog
	// Demand; nil: Unmeasured.
	Demand Demand
	// Warm says whether Demand has heard of enough nodes to be believed; until then the
	// demand that plans record holds. It must not block; nil: it has.
	Warm func() bool
	// Heuristics that Services may name; nil: none.
	Heuristics Heuristics
	// DefaultMode of Services that say nothing, and whose namespace and Mesh say nothing;
	// empty: none. It must pass CheckDefault.
	DefaultMode string
	// PlansAlone are written: no condition, no Event and no status. It is for those who may only
	// read what they plan for, and keep their plans elsewhere.
	PlansAlone bool
	// ForeignSlices says that the EndpointSlices are another controller's, which decides about
	// hints and asks for none: a plan is in effect by weights alone.
	ForeignSlices bool
	// Site of this control plane, where there are others; empty: it is the only one.
	Site   locality.Site
	Clock  clock.WithTicker // nil: the real one
	Logger *slog.Logger     // nil: silence
}

// Controller plans Services. Make it with New. Its methods are safe for concurrent
// use. Of several instances on one store only the leader runs it; on the others it
// answers Explain and Simulate from the catalog.
type Controller struct {
	config Config
	clock  clock.WithTicker
	log    *slog.Logger
	demand Demand
	model  *model
	// plans writes TrafficPlans, status conditions of Services, policies the statuses of
	// ZoneCosts and TopologyHeuristics.
	plans, status, policies *loop.Loop
	memory                  sync.Pool // of *plans
	// advised are Services whose hints are to be written again.
	advised changes.Feed[resource.Key]

	// mu guards what follows. Nothing is called while it is held.
	mu      sync.Mutex
	entries map[resource.Key]*entry
	hints   map[resource.Key]*hinting
	// changed are Services whose heuristic is another than when it was evaluated.
	changed map[resource.Key]struct{}
	// kept are Services whose hints stay as they are until the tables are filled.
	kept map[resource.Key]struct{}
}

// basis are the tables, besides those that all readers wait for, that say what the mode and the
// hints of a Service are.
var basis = []catalog.Kind{catalog.ZoneCosts, catalog.Heuristics, catalog.Plans, catalog.ServiceExports, catalog.ZoneIngresses, catalog.ZoneEgresses}

var _ endpointslice.Advisor = (*Controller)(nil)

// New makes a controller; Run starts it.
func New(config Config) *Controller {
	c := &Controller{
		config: config, clock: config.Clock, log: config.Logger, demand: config.Demand, model: newModel(config.Site),
		entries: map[resource.Key]*entry{}, hints: map[resource.Key]*hinting{}, changed: map[resource.Key]struct{}{}, kept: map[resource.Key]struct{}{},
	}
	c.memory.New = func() any { return &plans{} }
	if c.clock == nil {
		c.clock = clock.RealClock{}
	}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	if c.demand == nil {
		c.demand = Unmeasured{}
	}
	// Endpoints change in windows of the EndpointSlice controller: plans follow at once.
	c.plans = loop.New(loop.Config{What: "service", Sync: c.plan, Window: -1, Clock: c.clock, Logger: c.log})
	c.status = loop.New(loop.Config{What: "service", Sync: c.writeConditions, Window: statusWindow, Clock: c.clock, Logger: c.log})
	c.policies = loop.New(loop.Config{What: "policy", Sync: c.writePolicyStatus, Window: statusWindow, Clock: c.clock, Logger: c.log})
	return c
}

// Run writes plans and, unless PlansAlone, conditions until ctx ends, and returns nil then.
// It must be called once.
func (c *Controller) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() {
		_ = c.plans.Run(ctx, c.config.Catalog, c.dispatch, // it returns nil
			append([]catalog.Kind{catalog.Services, catalog.Slices, catalog.Nodes, catalog.Meshes, catalog.Namespaces, catalog.Dataplanes},
				basis...)...)
	})
	if !c.config.PlansAlone {
		c.runStatuses(ctx, &running)
	}
	ticker := c.clock.NewTicker(demand.Interval)
	defer ticker.Stop()
	cold := c.cold()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
			was := cold
			cold = c.cold()
			c.step(cold != was)
		}
	}
}

// runStatuses writes conditions of Services, and the statuses of policies, in the background.
func (c *Controller) runStatuses(ctx context.Context, running *sync.WaitGroup) {
	running.Go(func() {
		_ = c.status.Run(ctx, c.config.Catalog, c.dispatchStatus, // it returns nil
			catalog.Services, catalog.Plans, catalog.ZoneCosts, catalog.Heuristics)
	})
	running.Go(func() {
		_ = c.policies.Run(ctx, c.config.Catalog, c.dispatchPolicies, // it returns nil
			catalog.ZoneCosts, catalog.Heuristics, catalog.Services)
	})
}

// step has every plan compared with the demand as it is now. basis says that conditions
// name another source of the demand than before.
func (c *Controller) step(basis bool) {
	c.mu.Lock()
	keys := make([]resource.Key, 0, len(c.entries))
	for key, e := range c.entries {
		if e.mode.Kind == Planned {
			keys = append(keys, key)
		}
	}
	c.mu.Unlock()
	for _, key := range keys {
		c.plans.Add(key)
		if basis {
			c.status.Add(key)
		}
	}
}

// dispatch queues the Services whose plan may be another after a delta.
func (c *Controller) dispatch(d catalog.Delta) {
	c.mu.Lock()
	kept := c.kept
	c.kept = map[resource.Key]struct{}{}
	c.mu.Unlock()
	for key := range kept {
		defer c.advised.Publish(key) // the model is that of the delta then
	}
	was := c.modes(d.After).several
	plans, ratios := c.model.apply(&d)
	if plans {
		c.dispatchCosts(d.After)
	}
	modes := c.modes(d.After)
	if plans && was != modes.several {
		for key, service := range d.After.Services.All() {
			c.modeChanged(key, service)
		}
		c.dispatchUses(d.After)
	}
	c.dispatchModes(&d)
	for _, change := range d.Services {
		if !sameForPlans(change.Old, change.New) {
			c.replan(change.Key)
		}
	}
	for _, change := range d.Slices {
		for _, slice := range []*discoveryv1.EndpointSlice{change.Old, change.New} {
			if slice == nil {
				continue
			}
			key := trafficplan.ServiceOf(slice)
			if service, ok := d.After.Services.Get(key); ok && modes.Of(service).planned() {
				c.replan(key)
			}
		}
	}
	c.dispatchWeights(&d)
	for _, change := range d.Plans {
		plan := change.New
		if plan == nil {
			plan = change.Old
		}
		c.replan(resource.Key{Namespace: plan.Namespace, Name: plan.Spec.Service})
	}
	c.dispatchSites(&d)
	for _, change := range d.Heuristics {
		if change.Old == nil || change.New == nil || change.Old.Generation != change.New.Generation {
			c.heuristicChanged(d.After, meshv1alpha1.TopologyHeuristicPrefix+change.Key.Name)
		}
	}
	if plans || ratios {
		c.dispatchAll(d.After, plans)
	}
}

// dispatchWeights queues the Services of Dataplanes with another weight than before.
func (c *Controller) dispatchWeights(d *catalog.Delta) {
	if d.Before == nil || d.Before.Services.Len() == 0 {
		return // all are queued
	}
	modes := c.modes(d.After)
	for _, change := range d.Dataplanes {
		if change.Old == nil || change.New == nil || backend.WeightOf(change.Old) == backend.WeightOf(change.New) {
			continue // its slices change
		}
		backend.Behind(d.After, change.New, func(key resource.Key) {
			if service, ok := d.After.Services.Get(key); ok && modes.Of(service).planned() {
				c.replan(key)
			}
		})
	}
}

// sameForPlans: of a Service, annotations matter to plans, its ports by its slices, and
// whether it has a selector.
func sameForPlans(a, b *corev1.Service) bool {
	return a != nil && b != nil && maps.Equal(a.Annotations, b.Annotations) && selects(a) == selects(b) && a.UID == b.UID
}

// dispatchAll queues every Service with a mode, as Nodes or ZoneCosts changed.
func (c *Controller) dispatchAll(snapshot *catalog.Snapshot, plans bool) {
	modes := c.modes(snapshot)
	for key, service := range snapshot.Services.All() {
		switch mode := modes.Of(service); {
		case mode.Kind == Distribution:
		case mode.Kind == Planned && !plans:
		default:
			if mode.planned() {
				c.replan(key)
			}
			c.advised.Publish(key)
			c.status.Add(key)
		}
	}
}

// replan has the plan of a Service evaluated, as something else than demand has changed.
func (c *Controller) replan(key resource.Key) {
	c.setClean(key, false)
	c.plans.Add(key)
}

// Subscribe implements endpointslice.Advisor: Services whose hints may be others, as
// nodes, costs, demand or a heuristic have changed.
func (c *Controller) Subscribe() *changes.Subscription[resource.Key] { return c.advised.Subscribe() }

// heuristicChanged queues the Services that name a heuristic, as it is new, gone or
// different.
func (c *Controller) heuristicChanged(snapshot *catalog.Snapshot, name string) {
	modes := c.modes(snapshot)
	for key, service := range snapshot.Services.All() {
		if mode := modes.Of(service); mode.Kind != Custom || mode.Name != name {
			continue
		}
		c.mu.Lock()
		c.changed[key] = struct{}{}
		c.mu.Unlock()
		c.replan(key)
		c.advised.Publish(key)
		c.status.Add(key)
	}
}
