package topology

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	plannerv1alpha1 "github.com/proxima-mesh/proxima/api/planner/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/loop"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/planner"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/topology/trafficplan"
)

// entry is what the planner remembers of a planned Service besides the plan itself. Only
// the worker of its key changes it, under the controller's lock; others read it there.
type entry struct {
	mode  Mode
	units []*unit
	rule  evaluations
	// clean: nothing that the plan depends on has changed since it was evaluated, but
	// demand.
	clean bool
}

// unit is what the planner remembers of a group of ports.
type unit struct {
	name trafficplan.Name
	// in and group for which the plan was found to be what its inputs give; group nil: for
	// none yet.
	in    input
	group *plannerv1alpha1.PortGroup

	republisher planner.Republisher
	// now is what the plan gives for the present demand, gap how much worse that is than
	// the best plan, in points; limit is that of the best plan.
	now   planner.Metrics
	gap   float64
	limit float64
	rate  float64 // connections per second; 0: not measured
	// utilisation of the endpoints of the most loaded zone; 0: not known.
	utilisation float64
	// capacity of an endpoint, in connections per second; 0: not stated.
	capacity float64
	// long connections that the plan cannot move, and mixed units that its demand is counted in;
	// empty: there are none. They are messages of conditions, which stay while they do.
	long, mixed string
	published   time.Time
	replans     [planner.LastingGap + 1]uint64
	// silent: nothing was known of its demand when it was looked at last. As long as that is so, what it gives stays.
	silent bool
}

// plan brings the plan of a Service in the catalog up to its inputs, if it is to be
// published again.
func (c *Controller) plan(ctx context.Context, key resource.Key) (err error) {
	// Noted before the snapshot is read, so a change after it is not missed.
	clean := c.setClean(key, true)
	defer func() {
		if err != nil {
			c.setClean(key, false)
		}
	}()
	snapshot := c.config.Catalog.Snapshot()
	parts := partsOf(snapshot, key)
	expected := c.plans.Expectations(key)
	if !loop.Observed(expected, snapshot.Plans.Revision(), parts...) {
		return loop.ErrStale
	}
	service, ok := snapshot.Services.Get(key)
	if !ok || !c.modeOf(snapshot, service).planned() || policyLocal(service) {
		c.forget(key)
		if err := c.write(ctx, key, nil, parts, nil); err != nil || ok {
			return err
		}
		c.plans.Forget(key)
		return nil
	}
	if clean && c.stands(key, service) {
		return nil
	}
	next, publish := c.evaluate(snapshot, service, parts)
	if err := c.write(ctx, key, service, parts, next); err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.changed[key] = struct{}{} // a rule that was evaluated is evaluated again
		return err
	}
	c.mu.Lock()
	publish()
	c.mu.Unlock()
	if c.modeOf(snapshot, service).Kind == Custom {
		c.status.Add(key) // the condition says whether the rule could be evaluated
	}
	return nil
}

// setClean notes whether the plan of a Service is evaluated for all but demand, and
// returns what was noted before; an unknown Service is not.
func (c *Controller) setClean(key resource.Key, clean bool) (was bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.entries[key]; e != nil {
		was, e.clean = e.clean, clean
	}
	return was
}

// partsOf the plan of a Service.
func partsOf(snapshot *catalog.Snapshot, key resource.Key) []*plannerv1alpha1.TrafficPlan {
	var parts []*plannerv1alpha1.TrafficPlan
	for _, part := range snapshot.PlansOf(key) {
		parts = append(parts, part)
	}
	return parts
}

func (c *Controller) forget(key resource.Key) {
	c.mu.Lock()
	_, known := c.entries[key]
	delete(c.entries, key)
	delete(c.changed, key)
	c.mu.Unlock()
	if known {
		c.status.Add(key)
	}
}

// stands says whether the plan of a Service is still the one to have where only demand
// has changed; false: it is to be evaluated.
func (c *Controller) stands(key resource.Key, service *corev1.Service) bool {
	c.mu.Lock()
	e := c.entries[key]
	c.mu.Unlock()
	if e == nil || e.mode.Kind != Planned {
		return false
	}
	memory := c.memory.Get().(*plans)
	defer c.memory.Put(memory)
	now := c.clock.Now()
	for _, u := range e.units {
		if u.group == nil {
			return false // it was published by the last evaluation
		}
		if was := u.in.params.Utilisation; c.states(service) && c.stated(service, was) != was {
			return false
		}
		silent := c.silent(serviceName(service), u.group.Ports, &u.in)
		if silent && u.silent {
			republisher := u.republisher
			if republisher.Step(now, false, u.gap) != planner.Keep {
				return false
			}
			c.mu.Lock()
			u.republisher = republisher
			c.mu.Unlock()
			continue
		}
		demand := c.estimate(serviceName(service), familyOf(u.name.Family), u.group.Ports, &u.in, u.group)
		problem := u.in.problem(&demand)
		memory.again()
		best, err := memory.solveProblem(u.in.topology, &problem)
		if err != nil {
			return false
		}
		metrics, gap, limit := compare(u.group, &u.in, demand, best.plan)
		republisher := u.republisher
		if republisher.Step(now, false, gap) != planner.Keep {
			return false
		}
		c.mu.Lock()
		u.republisher, u.now, u.gap, u.limit, u.rate = republisher, metrics, gap, limit, demand.rate
		u.silent = silent && !demand.held
		u.utilisation = u.in.utilisation(u.capacity, &demand, metrics.Worst)
		c.mu.Unlock()
		c.noteLong(key, service, u, u.group, &u.in)
		c.noteMixed(key, service, u)
		if demand.measured {
			c.reconsider(key, u.name, u.in.topology, demand.shares)
		}
	}
	return true
}

// compare what a plan gives for a demand with the best plan: its metrics, how much worse
// they are in points, and the limit.
func compare(g *plannerv1alpha1.PortGroup, in *input, demand estimated, best *planner.Plan) (metrics planner.Metrics, gap, limit float64) {
	factor, _ := best.Factor()
	metrics, limit = best.Metrics(), factor.Float()
	if demand.of(g) {
		return metrics, 0, limit
	}
	now := under(g, in, &demand)
	return now, planner.Gap(in.topology, now, metrics, limit), limit
}

// evaluate says which plan a Service should have: the one that it has, unless the rules
// of planner.Republisher want another. Nil: none. publish is to be called, with the
// controller's lock, once the plan is written.
func (c *Controller) evaluate(
	snapshot *catalog.Snapshot, service *corev1.Service, parts []*plannerv1alpha1.TrafficPlan,
) (next *plannerv1alpha1.TrafficPlanSpec, publish func()) {
	mode := c.modeOf(snapshot, service)
	c.mu.Lock()
	key := resource.KeyOf(service)
	e := c.entries[key]
	if e == nil || e.mode.Kind != mode.Kind {
		e = &entry{}
		c.entries[key] = e
	}
	e.mode = mode
	c.mu.Unlock()

	var was *plannerv1alpha1.TrafficPlanSpec
	groups := map[trafficplan.Name]*plannerv1alpha1.PortGroup{}
	for i, part := range parts {
		if part.Spec.Mode != mode.Name {
			continue
		}
		if i == 0 {
			was = &part.Spec
		}
		for k := range part.Spec.Groups {
			groups[trafficplan.NameOf(&part.Spec.Groups[k])] = &part.Spec.Groups[k]
		}
	}
	spec := &plannerv1alpha1.TrafficPlanSpec{Service: service.Name, Version: 1, Mode: mode.Name}
	for _, part := range parts {
		spec.Version = max(spec.Version, part.Spec.Version+1)
	}
	params := c.paramsOf(service, parts)
	spec.Parameters = params.api()
	if mode.Kind == Custom {
		spec.Groups, publish = c.evaluateRule(e, snapshot, service, groups)
		if spec.Groups == nil {
			return nil, publish
		}
		return spec, publish
	}
	changed := was == nil || was.Parameters != spec.Parameters
	var publishUnits []func()
	var units []*unit
	for _, g := range c.groupsOf(snapshot, service) {
		next, u, publishUnit := c.evaluateGroup(e, service, g, groups[g.Name], params, changed)
		spec.Groups = append(spec.Groups, *next)
		units, publishUnits = append(units, u), append(publishUnits, publishUnit)
	}
	return spec, func() {
		e.units = units
		for _, publish := range publishUnits {
			publish()
		}
	}
}

// evaluateGroup does so for one group; was is its present plan or nil, changed says that
// its parameters are others.
func (c *Controller) evaluateGroup(
	e *entry, service *corev1.Service, g *group, was *plannerv1alpha1.PortGroup, params Params, changed bool,
) (*plannerv1alpha1.PortGroup, *unit, func()) {
	now := c.clock.Now()
	u := &unit{name: g.Name}
	if i := slices.IndexFunc(e.units, func(u *unit) bool { return u.name == g.Name }); i >= 0 {
		u = e.units[i]
	} else if was != nil {
		u.published = was.Published.Time
		u.republisher = planner.Resume(now, u.published, reasonOf(was.Reason))
	}
	in, err := c.model.inputOf(params, g)
	if err != nil {
		// Without a plan traffic goes by hints, or to all endpoints.
		is := unplanned(g.Group, plannerv1alpha1.OutcomeTooManyZones)
		is.Published = metav1.NewTime(now)
		return is, u, func() { *u = unit{name: g.Name} }
	}
	memory := c.memory.Get().(*plans)
	defer c.memory.Put(memory)
	memory.again()
	s, err := c.solve(serviceName(service), g.Group, &in, was, memory)
	if err != nil {
		// Inputs are checked where they come in, so this is a fault of the planner. The old
		// plan stays.
		c.log.Error("service is not planned", "service", resource.KeyOf(service), "ports", g.Name.Ports, "error", err)
		if was == nil {
			was = unplanned(g.Group, plannerv1alpha1.OutcomeNoEndpoints)
		}
		return was, u, func() {}
	}
	checked := was != nil && u.in.frame == in.frame && u.group == was && sameCounts(was, g.Group)
	different := changed || was == nil || !checked && !c.follows(was, g.Group, &in, s.demand)
	metrics, gap := s.plan.Metrics(), 0.0
	factor, _ := s.plan.Factor()
	limit := factor.Float()
	if !different {
		metrics, gap, limit = compare(was, &in, s.demand, s.plan)
	}
	if s.demand.measured {
		c.reconsider(resource.KeyOf(service), g.Name, in.topology, s.demand.shares)
	}
	republisher := u.republisher
	reason := republisher.Step(now, different, gap)
	is := was
	if reason != planner.Keep {
		is = s.group(g.Group, &in)
		is.Reason, is.Published = plannerv1alpha1.PublishReason(reason.String()), metav1.NewTime(now)
		metrics, gap = s.plan.Metrics(), 0
	}
	return is, u, func() {
		u.in, u.group, u.republisher, u.silent = in, is, republisher, false
		u.now, u.gap, u.limit, u.rate = metrics, gap, limit, s.demand.rate
		u.capacity, u.utilisation = params.Capacity, in.utilisation(params.Capacity, &s.demand, metrics.Worst)
		if reason != planner.Keep {
			u.published = now
			u.replans[reason]++
			u.group = nil // the one in the table is a copy
		}
	}
}

// noteLong looks for long connections that a plan cannot move, and has the condition written
// when they are new or gone.
func (c *Controller) noteLong(key resource.Key, service *corev1.Service, u *unit, g *plannerv1alpha1.PortGroup, in *input) {
	v, ok := c.volumeOf(serviceName(service), familyOf(u.name.Family), g.Ports)
	if !ok {
		return
	}
	var long *Long
	if lastsLong(&v) {
		long = flowsOf(&v, in).long(&v, shareOf(g, in), u.long != "")
	}
	if (long != nil) == (u.long != "") {
		return
	}
	c.mu.Lock()
	u.long = ""
	if long != nil {
		u.long = long.text()
	}
	c.mu.Unlock()
	c.status.Add(key)
}

// unplanned is a group without a plan.
func unplanned(g *trafficplan.Group, outcome plannerv1alpha1.Outcome) *plannerv1alpha1.PortGroup {
	return &plannerv1alpha1.PortGroup{AddressType: string(g.Name.Family), Ports: g.Ports, Outcome: outcome}
}

// familyOf an address type.
func familyOf(t discoveryv1.AddressType) proxy.Family {
	switch t {
	case discoveryv1.AddressTypeIPv4:
		return proxy.IPv4
	case discoveryv1.AddressTypeIPv6:
		return proxy.IPv6
	}
	return proxy.AnyFamily
}

func serviceName(service *corev1.Service) proxy.ServiceName {
	return proxy.ServiceName{Namespace: service.Namespace, Name: service.Name}
}

// solution is the best plan of a group for a demand.
type solution struct {
	plan    *planner.Plan
	problem planner.Problem
	demand  estimated
}

// solve a group for the demand as it is now.
func (c *Controller) solve(service proxy.ServiceName, g *trafficplan.Group, in *input, was *plannerv1alpha1.PortGroup, memory *plans) (*solution, error) {
	return memory.solve(in, c.estimate(service, familyOf(g.Name.Family), g.Ports, in, was))
}

// plans are memory for the solutions of one Service after the other: with 100 zones a plan has 80 kB. Nil is none: each solution has
// its own.
type plans struct {
	solver planner.Solver
	all    []*planner.Plan
	used   int
}

// again gives the memory of all solutions back.
func (m *plans) again() { m.used = 0 }

func (m *plans) solve(in *input, demand estimated) (*solution, error) {
	problem := in.problem(&demand)
	s, err := m.solveProblem(in.topology, &problem)
	if err != nil {
		return nil, fmt.Errorf("solve: %w", err)
	}
	s.demand = demand
	return s, nil
}

// solveProblem without saying of which demand it is.
func (m *plans) solveProblem(t *planner.Topology, p *planner.Problem) (*solution, error) {
	if m == nil {
		m = &plans{}
	}
	if m.used == len(m.all) {
		m.all = append(m.all, &planner.Plan{})
	}
	s := &solution{plan: m.all[m.used], problem: *p}
	m.used++
	return s, m.solver.Solve(t, p, s.plan)
}

func solveFor(in *input, demand estimated) (*solution, error) { return (*plans)(nil).solve(in, demand) }

// follows says whether a plan is what its inputs give, for the demand that it was made
// for. If that was guessed and still is, the guess is an input like any other.
func (c *Controller) follows(was *plannerv1alpha1.PortGroup, g *trafficplan.Group, in *input, now estimated) bool {
	demand := estimated{shares: recorded(was, in), fixed: recordedFixed(was, in), measured: was.DemandSource == plannerv1alpha1.DemandMeasured}
	if !demand.measured && !now.measured {
		demand = now
	}
	memory := c.memory.Get().(*plans)
	defer c.memory.Put(memory)
	memory.again()
	s, err := memory.solve(in, demand)
	if err != nil {
		return false
	}
	is := s.group(g, in)
	return is.Outcome == was.Outcome && slices.Equal(is.Ports, was.Ports) && equality.Semantic.DeepEqual(is.Zones, was.Zones)
}

func sameCounts(was *plannerv1alpha1.PortGroup, g *trafficplan.Group) bool {
	zones := 0
	for i := range was.Zones {
		z := &was.Zones[i]
		if z.Endpoints > 0 {
			zones++
		}
		if g.Endpoints[locality.Zone(z.Name)] != z.Endpoints || g.Weights[locality.Zone(z.Name)] != z.Weight {
			return false
		}
	}
	return zones == len(g.Endpoints)
}

// group is the solution as it is published.
func (s *solution) group(g *trafficplan.Group, in *input) *plannerv1alpha1.PortGroup {
	t := in.topology
	limit, _ := s.plan.Factor()
	m := s.plan.Metrics()
	out := &plannerv1alpha1.PortGroup{
		AddressType: string(g.Name.Family), Ports: g.Ports, Outcome: plannerv1alpha1.OutcomePlanned, DemandSource: s.demand.source(),
		Expected: &plannerv1alpha1.Expectation{
			InZone: rounded(m.InZone), Cost: rounded(m.Cost), Busiest: rounded(m.Worst), Limit: rounded(limit.Float()),
		},
		Zones: make([]plannerv1alpha1.SourceZone, t.Len()),
	}
	if !s.plan.HasEndpoints() {
		out.Outcome, out.Expected = plannerv1alpha1.OutcomeNoEndpoints, nil
	}
	for from := range t.Len() {
		z := &out.Zones[from]
		z.Name, z.Endpoints, z.Demand = string(t.Zone(from).Name), in.count[from], s.problem.Demand[from]
		if g.Weights != nil {
			z.Weight = in.weight[from]
		}
		if s.problem.Fixed != nil {
			z.Fixed = s.problem.Fixed[from]
		}
		z.Reason = plannerv1alpha1.ZoneReason(s.plan.Rule(from).String())
		n := 0
		for to := range t.Len() {
			if s.plan.Share(from, to) > 0 {
				n++
			}
		}
		z.To = make([]plannerv1alpha1.ZoneShare, 0, n)
		for to := range t.Len() {
			if share := s.plan.Share(from, to); share > 0 {
				z.To = append(z.To, plannerv1alpha1.ZoneShare{Zone: string(t.Zone(to).Name), Share: max(resolution, rounded(share))})
			}
		}
		if n == 0 {
			z.To = nil
		}
	}
	return out
}

// resolution of shares in a plan. Views carry 1/8192.
const (
	resolution = 1e-6
	perUnit    = 1e6
)

func rounded(x float64) float64 { return math.Round(x*perUnit) / perUnit }

// under is what a plan gives for another demand.
func under(g *plannerv1alpha1.PortGroup, in *input, e *estimated) planner.Metrics {
	t, demand := in.topology, e.shares
	m := planner.Metrics{InZone: 1}
	total, home, cost, endpoints := 0.0, 0.0, 0.0, int64(0)
	load := make([]float64, t.Len())
	for _, z := range g.Zones {
		from, ok := t.Index(locality.Zone(z.Name))
		if !ok || !(demand[from] > 0) {
			continue
		}
		total += demand[from]
		for _, share := range z.To {
			to, ok := t.Index(locality.Zone(share.Zone))
			if !ok {
				continue
			}
			x := demand[from] * share.Share
			load[to] += x
			cost += x * t.Cost(from, to)
			if to == from {
				home += x
			}
		}
	}
	for _, w := range in.weight {
		endpoints += w
	}
	if total == 0 || endpoints == 0 {
		return m
	}
	m.InZone, m.Cost = home/total, cost/total
	loads := total
	for to, x := range e.fixed {
		load[to], loads = load[to]+x, loads+x
	}
	for to, w := range in.weight {
		if w > 0 {
			m.Worst = max(m.Worst, load[to]/loads*float64(endpoints)/float64(w))
		}
	}
	return m
}

func reasonOf(reason plannerv1alpha1.PublishReason) planner.Reason {
	for r := planner.EndpointsChanged; r <= planner.LastingGap; r++ {
		if r.String() == string(reason) {
			return r
		}
	}
	return planner.EndpointsChanged
}

// estimated demand of a group.
type estimated struct {
	// shares of zones, in the order of the topology.
	shares []float64
	// fixed load of zones that is not planned, as multiples of all demand; nil: none.
	fixed []float64
	rate  float64 // load per second, as demand.Estimate has it; 0: not measured
	// load per second of all endpoints: the rate, that of other sites, what is fixed, and all of
	// the other family, whose endpoints are the same workloads.
	load float64
	// measured: else it is guessed from the CPU of nodes.
	measured bool
	// borrowed: the family has no traffic, so the shares are those of the other one, measured.
	borrowed bool
	// held: it is that of the present plan, as too few agents have reported since this
	// process began.
	held bool
}

func (e *estimated) source() plannerv1alpha1.DemandSource {
	if e.measured || e.held {
		return plannerv1alpha1.DemandMeasured
	}
	return plannerv1alpha1.DemandGuessed
}

// of a plan: it was made for this demand.
func (e *estimated) of(g *plannerv1alpha1.PortGroup) bool {
	for i := range g.Zones {
		fixed := 0.0
		if e.fixed != nil && i < len(e.fixed) {
			fixed = e.fixed[i]
		}
		if g.Zones[i].Fixed != fixed {
			return false
		}
	}
	return slices.EqualFunc(g.Zones, e.shares, func(z plannerv1alpha1.SourceZone, share float64) bool { return z.Demand == share })
}

// estimate the demand of ports of a family that are planned together; it adds up, with that of
// other sites. was is their present plan, or nil.
func (c *Controller) estimate(service proxy.ServiceName, family proxy.Family, ports []string, in *input, was *plannerv1alpha1.PortGroup) (e estimated) {
	if was != nil && was.DemandSource == plannerv1alpha1.DemandMeasured && c.cold() {
		e.shares, e.fixed = recorded(was, in), recordedFixed(was, in)
		for i, share := range e.shares {
			e.held = e.held || share > 0 && !in.noNodes[i]
		}
		if e.held {
			return e
		}
	}
	cluster := in.cluster
	e.shares = make([]float64, in.topology.Len())
	names := make([]proxy.PortName, 0, len(ports)+len(in.elsewhere.local))
	for _, port := range ports {
		names = append(names, proxy.PortName{ServiceName: service, Port: port})
	}
	other := 0.0
	for k, name := range append(names, in.elsewhere.local...) {
		d := c.demand.Shares(name, family, cluster.names, cluster.prior, cluster.noNodes)
		other += d.Other
		weigh := d.Rate
		switch {
		case d.Measured && d.Rate > 0:
			e.measured = true
			e.rate += d.Rate
		case d.Other > 0:
			e.borrowed = true
			weigh = minRate * max(1, d.Other)
		case k > 0:
			continue // known is more than believed
		default:
			weigh = minRate
		}
		for i, share := range d.Shares {
			e.shares[in.at[i]] += share * weigh
		}
		for i, fixed := range d.Fixed {
			if e.fixed == nil {
				e.fixed = make([]float64, in.topology.Len())
			}
			e.fixed[in.at[i]] += fixed * weigh
		}
	}
	e.borrowed = e.borrowed && !e.measured
	e.measured = e.measured || e.borrowed
	rest := in.elsewhere.add(e.shares, in, other)
	total := 0.0
	for _, x := range e.shares {
		total += x
	}
	e.load = total + other + rest
	for _, x := range e.fixed {
		e.load += x
	}
	for i, x := range e.shares {
		if total > 0 {
			e.shares[i] = x / total
		}
		if total > 0 && e.fixed != nil {
			e.fixed[i] = min(e.fixed[i]/total, maxFixed)
		}
	}
	return e
}

// silent: nothing is known of the demand of ports, here and elsewhere, so that an estimate says what it said before.
func (c *Controller) silent(service proxy.ServiceName, ports []string, in *input) bool {
	demand, ok := c.demand.(Reporter)
	if !ok || len(in.elsewhere.sites) > 0 || len(in.elsewhere.local) > 0 {
		return false
	}
	return !slices.ContainsFunc(ports, func(port string) bool {
		return demand.Reported(proxy.PortName{ServiceName: service, Port: port})
	})
}

// minRate, in connections per second, weighs a belief against what is measured at
// another port: next to nothing.
const minRate = 1e-6

// maxFixed load of a zone, as a multiple of all demand: beyond it nothing is planned there
// anyway.
const maxFixed = 1e6

// recordedFixed is the fixed load that a plan was made with, in the order of a topology; nil:
// none.
func recordedFixed(g *plannerv1alpha1.PortGroup, in *input) (fixed []float64) {
	for i := range g.Zones {
		at, ok := in.topology.Index(locality.Zone(g.Zones[i].Name))
		if !ok || g.Zones[i].Fixed == 0 {
			continue
		}
		if fixed == nil {
			fixed = make([]float64, in.topology.Len())
		}
		fixed[at] = g.Zones[i].Fixed
	}
	return fixed
}

// recorded is the demand that a plan was made for, in the order of a topology.
func recorded(g *plannerv1alpha1.PortGroup, in *input) []float64 {
	shares := make([]float64, in.topology.Len())
	for i := range g.Zones {
		if at, ok := in.topology.Index(locality.Zone(g.Zones[i].Name)); ok {
			shares[at] = g.Zones[i].Demand
		}
	}
	return shares
}

// cold: estimates are of too few agents to replace what plans record.
func (c *Controller) cold() bool { return c.config.Warm != nil && !c.config.Warm() }

// noteMixed looks for demand in different units, and has the condition written when that begins
// or ends.
func (c *Controller) noteMixed(key resource.Key, service *corev1.Service, u *unit) {
	units, ok := c.unitsOf(serviceName(service), strings.Split(u.name.Ports, ","))
	if !ok || units.Mixed == (u.mixed != "") {
		return
	}
	c.mu.Lock()
	u.mixed = ""
	if units.Mixed {
		u.mixed = mixedText(units)
	}
	c.mu.Unlock()
	c.status.Add(key)
}
