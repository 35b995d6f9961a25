package topology

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/clock"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/endpointslice"
	"github.com/proxima-mesh/proxima/internal/controller/loop"
	"github.com/proxima-mesh/proxima/internal/demand"
	"github.com/proxima-mesh/proxima/internal/planner"
	estimate "github.com/proxima-mesh/proxima/internal/planner/demand"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// Demand estimates where the traffic of a service port starts. It must not block, as
// it is asked under a lock, and not call back. A *demand.Aggregator is one.
type Demand interface {
	// Shares of zones in ascending order. prior is what to believe as long as nothing is
	// measured; zones with noNodes have no demand.
	Shares(port proxy.PortName, zones []string, prior []float64, noNodes []bool) demand.Estimate
}

// Unmeasured is the Demand of those who measure nothing: the prior.
type Unmeasured struct{}

// Shares implements Demand.
func (Unmeasured) Shares(_ proxy.PortName, zones []string, prior []float64, noNodes []bool) demand.Estimate {
	return demand.Estimate{Shares: estimate.New(zones).Shares(prior, noNodes)}
}

// Config of a Controller.
type Config struct {
	// Client to write conditions and events with.
	Client resource.Client
	// Catalog that conditions are compared with. It must follow Services,
	// EndpointSlices, Nodes and ZoneCosts.
	Catalog *catalog.Catalog
	// Demand; nil: Unmeasured.
	Demand Demand
	// Warm says whether Demand has heard of enough nodes to be believed; until then plans
	// of an earlier process hold. It must not block or call back; nil: it has.
	Warm func() bool
	// Heuristics that Services may name; nil: none.
	Heuristics Heuristics
	// Requeue has the EndpointSlice controller look at a Service again; nil: nobody
	// writes hints.
	Requeue func(service resource.Key)
	Clock   clock.WithTicker // nil: the real one
	Logger  *slog.Logger     // nil: silence
}

// Controller plans Services. Make it with New. Its methods are safe for concurrent
// use.
type Controller struct {
	config Config
	clock  clock.WithTicker
	log    *slog.Logger
	demand Demand
	status *loop.Loop
	// stating: the loop of conditions runs.
	stating atomic.Bool

	mu       sync.RWMutex
	primed   bool // a first delta was planned
	snapshot *catalog.Snapshot
	nodes    map[string]facts
	atlas    atlas
	solver   planner.Solver
	scratch  planner.Plan
	entries  map[resource.Key]*entry
	// pending are Services whose plans changed since the last delta; interrupt ends the
	// wait for the next one.
	pending   map[resource.Key]struct{}
	interrupt context.CancelFunc
	// rulingTime bounds how long a delta waits for heuristics.
	rulingTime time.Duration

	hintMu sync.Mutex // never held while mu is asked for
	hints  map[resource.Key]*hinting
}

var _ endpointslice.Advisor = (*Controller)(nil)

// New makes a controller. It plans what goes through a Source; Run adds demand and
// conditions.
func New(config Config) *Controller {
	c := &Controller{
		config: config, clock: config.Clock, log: config.Logger, demand: config.Demand,
		nodes: map[string]facts{}, entries: map[resource.Key]*entry{}, pending: map[resource.Key]struct{}{},
		hints: map[resource.Key]*hinting{}, rulingTime: rulingTime,
		atlas: atlas{cluster: clusterOf(nil), costs: map[string]*meshv1alpha1.ZoneCosts{}, made: map[string]*planner.Topology{}, unusable: map[string]string{}},
	}
	if c.clock == nil {
		c.clock = clock.RealClock{}
	}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	if c.demand == nil {
		c.demand = Unmeasured{}
	}
	c.status = loop.New(loop.Config{
		What: "service", Sync: c.state, Window: statusWindow, Clock: c.clock, Logger: c.log,
	})
	return c
}

// Run follows the demand and writes conditions until ctx ends, and returns nil then.
// It must be called once.
func (c *Controller) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() {
		_ = c.status.Run(ctx, c.config.Catalog, c.dispatch, catalog.Services) // it returns nil
	})
	ticker := c.clock.NewTicker(demand.Interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
			c.step(c.clock.Now())
		}
	}
}

// Subscription delivers what changed, such as a *catalog.Subscription of Services,
// EndpointSlices, Nodes and ZoneCosts.
type Subscription interface {
	Next(ctx context.Context) (catalog.Delta, error)
}

// Source is a subscription that is planned before it is read: when a delta comes out
// of it, Weights are those of its snapshot. Slices whose weights changed are in it too,
// as changes from what they are to what they are.
type Source struct {
	c   *Controller
	sub Subscription
}

// Source puts the planner before the reader of a subscription, whose first Next must
// be still to come. There may be one.
func (c *Controller) Source(sub Subscription) *Source { return &Source{c, sub} }

// Next blocks until something changed: in the catalog, or in plans alone. It is for
// one goroutine at a time.
func (s *Source) Next(ctx context.Context) (catalog.Delta, error) {
	wait, cancel := context.WithCancel(ctx)
	defer cancel()
	s.c.await(cancel)
	d, err := s.sub.Next(wait)
	if err != nil && wait.Err() != nil && ctx.Err() == nil {
		// A plan was in a hurry. Nothing is lost: the subscription keeps what it has.
		s.c.mu.RLock()
		d = catalog.Delta{Before: s.c.snapshot, After: s.c.snapshot}
		s.c.mu.RUnlock()
		err = nil
	}
	if err != nil {
		return d, err
	}
	s.c.plan(&d)
	return d, nil
}

// await lets a changed plan end the wait for a delta.
func (c *Controller) await(cancel context.CancelFunc) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.interrupt = cancel
	if len(c.pending) > 0 {
		cancel()
	}
}

// work is what follows from a change, once the lock is free.
type work struct {
	// plans whose weights changed, Services whose hints are to be looked at, those whose
	// conditions may differ, and those whose heuristic is to be asked.
	plans, hints, states, rules map[resource.Key]struct{}
}

func newWork() *work {
	return &work{map[resource.Key]struct{}{}, map[resource.Key]struct{}{}, map[resource.Key]struct{}{}, map[resource.Key]struct{}{}}
}

// rule has the heuristic of a Service be asked. The controller's lock is held.
func (w *work) rule(e *entry) {
	e.turn++
	w.rules[e.key], w.states[e.key] = struct{}{}, struct{}{}
}

// plan takes a delta in and adds the slices whose weights changed with it.
func (c *Controller) plan(d *catalog.Delta) {
	w := newWork()
	c.mu.Lock()
	c.snapshot = d.After
	touched := c.look(d, w)
	now := c.clock.Now()
	for key := range touched {
		e := c.entries[key]
		if e != nil && c.replan(e, now) {
			w.plans[key] = struct{}{}
		}
		if e != nil && e.mode.Kind == Custom {
			w.rule(e)
		}
		w.states[key] = struct{}{}
	}
	if !c.primed {
		c.primed = true
		for key := range c.entries {
			w.hints[key] = struct{}{}
		}
	}
	for key := range c.pending {
		w.plans[key] = struct{}{}
	}
	clear(c.pending)
	c.mu.Unlock()
	c.ruleAll(w)
	addSlices(d, w.plans)
	c.follow(w)
}

// look finds the Services that a delta concerns.
func (c *Controller) look(d *catalog.Delta, w *work) (touched map[resource.Key]struct{}) {
	touched = map[resource.Key]struct{}{}
	replanAll, ratios := c.lookAround(d)
	for _, change := range d.Services {
		c.lookAt(change, touched, w)
	}
	for key, e := range c.entries {
		if !replanAll && !ratios {
			break
		}
		switch {
		case e.mode.Kind == Custom:
			w.hints[key] = struct{}{}
			w.rule(e)
		case e.mode.Kind != Planned:
			w.hints[key] = struct{}{}
		case replanAll:
			touched[key], w.hints[key] = struct{}{}, struct{}{}
		}
	}
	for _, change := range d.Slices {
		for _, slice := range []*discoveryv1.EndpointSlice{change.Old, change.New} {
			if slice == nil {
				continue
			}
			if key := serviceOf(slice); c.entries[key] != nil {
				touched[key] = struct{}{}
			}
		}
	}
	return touched
}

// lookAround takes nodes and costs in. replan: plans depend on what changed; ratios:
// the heuristic does.
func (c *Controller) lookAround(d *catalog.Delta) (replan, ratios bool) {
	if nodesOf(c.nodes, *d) {
		next := clusterOf(c.nodes)
		replan, ratios = !next.samePlans(c.atlas.cluster), !next.sameRatios(c.atlas.cluster)
		c.atlas.cluster = next
	}
	for _, change := range d.ZoneCosts {
		replan = true
		c.atlas.take(change.Key.Name, change.New)
	}
	if replan {
		c.atlas.forget()
	}
	return replan, ratios
}

// lookAt takes a Service in. Of its fields, annotations matter here, and whether it has
// a selector.
func (c *Controller) lookAt(change catalog.Change[*corev1.Service], touched map[resource.Key]struct{}, w *work) {
	was := c.entries[change.Key]
	if was != nil && change.New != nil && change.Old != nil && maps.Equal(change.New.Annotations, change.Old.Annotations) && selects(change.New) == selects(change.Old) {
		return // such as our own conditions coming back
	}
	var is *entry
	if change.New != nil {
		planned := was != nil && was.mode.Kind == Planned
		ruled := was != nil && was.mode.Kind == Custom
		is = entryFor(change.New, was)
		if was == nil && is != nil && c.cold() {
			is.recalled = recall(change.New)
		}
		if planned && (is == nil || is.mode.Kind != Planned) || ruled && (is == nil || is.mode.Kind != Custom) {
			w.plans[change.Key] = struct{}{} // its weights are gone
		}
	}
	if is == nil {
		delete(c.entries, change.Key)
		if was != nil {
			w.states[change.Key] = struct{}{}
		}
		return
	}
	c.entries[change.Key] = is
	touched[change.Key] = struct{}{}
}

// addSlices has a delta name all slices of some Services.
func addSlices(d *catalog.Delta, services map[resource.Key]struct{}) {
	if len(services) == 0 {
		return
	}
	there := make(map[resource.Key]struct{}, len(d.Slices))
	for _, change := range d.Slices {
		there[change.Key] = struct{}{}
	}
	for service := range services {
		for key, slice := range d.After.SlicesOf(service) {
			if _, ok := there[key]; !ok {
				d.Slices = append(d.Slices, catalog.Change[*discoveryv1.EndpointSlice]{Key: key, Old: slice, New: slice})
			}
		}
	}
}

// follow does what follows. No lock is held.
func (c *Controller) follow(w *work) {
	for key := range w.hints {
		c.requeue(key)
	}
	for key := range w.states {
		c.restate(key)
	}
}

func (c *Controller) requeue(key resource.Key) {
	if c.config.Requeue != nil {
		c.config.Requeue(key)
	}
}

// Recheck has the Services that name a heuristic looked at again, as it is new, gone
// or different.
func (c *Controller) Recheck(name string) {
	w := newWork()
	c.mu.Lock()
	for key, e := range c.entries {
		if e.mode.Kind == Custom && e.mode.Name == name {
			e.stale()
			w.hints[key], w.states[key] = struct{}{}, struct{}{}
		}
	}
	c.mu.Unlock()
	for key := range w.hints {
		if c.rule(key) {
			c.publish(key)
		}
	}
	c.follow(w)
}

// stepsAtOnce Services are stepped without letting others have the lock: some
// milliseconds.
const stepsAtOnce = 512

func planned(entries map[resource.Key]*entry) []resource.Key {
	keys := make([]resource.Key, 0, len(entries))
	for key, e := range entries {
		if e.mode.Kind == Planned {
			keys = append(keys, key)
		}
	}
	return keys
}

// step compares every plan with the demand as it is now.
func (c *Controller) step(now time.Time) {
	type moved struct {
		key      resource.Key
		name     unitName
		topology *planner.Topology
		demand   []float64
	}
	var measured []moved
	w := newWork()
	c.mu.Lock()
	stepped := 0
	for _, key := range planned(c.entries) {
		// Views wait for the lock, too.
		if stepped++; stepped%stepsAtOnce == 0 {
			c.mu.Unlock()
			c.mu.Lock()
		}
		e := c.entries[key]
		if e == nil {
			continue
		}
		for name, u := range e.units {
			if u.published == nil || !u.published.HasEndpoints() {
				continue
			}
			since, held := u.since, u.held
			if c.solve(u, now, false) {
				c.pending[key] = struct{}{}
			}
			if !u.since.Equal(since) || u.held != held {
				w.states[key] = struct{}{}
			}
			if u.measured {
				measured = append(measured, moved{key, name, u.topology, u.problem.Demand})
			}
		}
	}
	if len(c.pending) > 0 && c.interrupt != nil {
		c.interrupt()
	}
	c.mu.Unlock()
	for _, m := range measured {
		if c.reconsider(m.key, m.name, m.topology, m.demand) {
			w.hints[m.key], w.states[m.key] = struct{}{}, struct{}{}
		}
	}
	c.follow(w)
}
