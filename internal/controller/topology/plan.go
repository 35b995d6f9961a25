package topology

import (
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/proxima-mesh/proxima/internal/planner"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// maxWeight of an endpoint in a view. Shares are carried to within 1/8192 of the
// largest one of the zone.
const maxWeight = 4096

// entry is a Service with a mode of its own. All of it is guarded by the
// controller's lock.
type entry struct {
	key  resource.Key
	mode Mode
	// params that hold. problems are those of the annotations, in which case params are
	// the last good ones.
	params   Params
	problems []string
	// warnings are what else there is to tell, such as costs that are not there.
	warnings []string
	units    map[unitName]*unit
	// recalled is what an earlier process knew of the demand, by the title of units.
	recalled map[string]map[string]float64
	// byPort finds the unit of a slice.
	byPort map[familyPort]*unit
	// selects: its EndpointSlices are the EndpointSlice controller's.
	selects bool
	// rulings of its heuristic; the map is never changed. turn counts what they may depend
	// on, so that an answer that comes late is not taken.
	rulings map[discoveryv1.AddressType]*ruling
	turn    int
}

// unit is what is planned together, and how it is planned.
type unit struct {
	unitName
	service  proxy.ServiceName
	portList []string

	// What the plan depends on besides demand.
	topology *planner.Topology
	params   planner.Params
	counts   map[string]int64
	// problem as it is now; its plan is the published one if the republisher said so.
	problem  planner.Problem
	at       []int // index in the topology of each of the cluster's zones
	measured bool
	rate     float64 // connections per second
	// recalled demand is planned for while held; known: the published plan was made for
	// demand that was measured, now or by an earlier process.
	recalled  map[string]float64
	held      bool
	known     bool
	published *planner.Plan
	// planned is the problem that the published plan was made for.
	planned planner.Problem
	weights [][]uint32 // of an endpoint, by zone of the source and of the endpoint
	// now is what the published plan makes of the present demand, gap how much worse
	// that is than the best plan, in points.
	now planner.Metrics
	gap float64

	republisher planner.Republisher
	reason      planner.Reason
	since       time.Time
	replans     [planner.LastingGap + 1]uint64
}

// entryFor says how a Service is to be routed. It keeps what is known of it if it was
// known before, and the last good parameters if the new ones cannot be used.
func entryFor(service *corev1.Service, was *entry) *entry {
	mode := ModeOf(service)
	if mode.Kind == Distribution {
		return nil
	}
	e := was
	if e == nil {
		e = &entry{key: resource.KeyOf(service), params: DefaultParams(), units: map[unitName]*unit{}}
	}
	if e.mode.Kind != mode.Kind {
		e.units, e.byPort, e.rulings = map[unitName]*unit{}, nil, nil
	}
	e.mode, e.selects = mode, selects(service)
	e.stale()
	params, problems := ParamsOf(service.Annotations)
	if e.problems = problems; problems == nil {
		e.params = params
	}
	return e
}

// replan brings the units of a planned Service up to what the catalog holds. It says
// whether what views carry has changed.
func (c *Controller) replan(e *entry, now time.Time) (changed bool) {
	if e.mode.Kind != Planned {
		return false
	}
	var parts []part
	for _, slice := range c.snapshot.SlicesOf(e.key) {
		parts = append(parts, partOf(slice))
	}
	list := groups(parts)
	e.warnings = nil
	units := make(map[unitName]*unit, len(list))
	byPort := make(map[familyPort]*unit, len(list))
	for _, g := range list {
		u := e.units[g.name]
		if u == nil {
			u = &unit{unitName: g.name, service: proxy.ServiceName(e.key), portList: g.ports}
			u.recalled = e.recalled[u.title()]
		}
		units[g.name] = u
		for _, port := range g.ports {
			byPort[familyPort{g.name.family, port}] = u
		}
		// Slices join and part without an endpoint moving, so others may be of this unit now.
		changed = changed || e.units[g.name] == nil
		if c.place(e, u, g) {
			changed = c.solve(u, now, true) || changed
		}
	}
	changed = changed || len(units) != len(e.units)
	e.units, e.byPort = units, byPort
	return changed
}

// place notes where a unit's endpoints are and says whether that, or anything else
// that the plan depends on besides demand, is different.
func (c *Controller) place(e *entry, u *unit, g *group) (changed bool) {
	topology, problem, err := c.atlas.topology(e.params.Costs, g.endpoints)
	if problem != "" {
		e.warn(problem)
	}
	if err != nil {
		// More zones than can be planned: without a plan traffic goes by hints, or to all.
		e.warn(fmt.Sprintf("no plan: %v", err))
		changed = u.published != nil
		*u = unit{unitName: u.unitName, service: u.service, portList: u.portList}
		return changed
	}
	params := e.params.planner()
	// The atlas makes topologies anew when nodes or costs change, so one compare tells of
	// zones, costs, live nodes and the prior.
	if u.published != nil && u.topology == topology && u.params == params && maps.Equal(u.counts, g.endpoints) && slices.Equal(u.portList, g.ports) {
		return false
	}
	u.topology, u.params, u.counts, u.portList = topology, params, g.endpoints, g.ports
	c.frame(u)
	return true
}

// frame sets what of a unit's problem does not depend on demand. Lists are made anew, as
// older problems share them.
func (c *Controller) frame(u *unit) {
	t, cluster := u.topology, c.atlas.cluster
	noNodes, weight := make([]bool, t.Len()), make([]int64, t.Len())
	for i := range noNodes {
		noNodes[i] = true
	}
	u.at = make([]int, len(cluster.names))
	for i, zone := range cluster.names {
		u.at[i], _ = t.Index(zone)
		noNodes[u.at[i]] = cluster.noNodes[i]
	}
	for zone, n := range u.counts {
		at, _ := t.Index(zone)
		weight[at] = n
	}
	u.problem = planner.Problem{Weight: weight, NoNodes: noNodes, Params: u.params}
}

func (e *entry) warn(problem string) {
	if !slices.Contains(e.warnings, problem) {
		e.warnings = append(e.warnings, problem)
	}
}

// solve plans a unit for the demand as it is now and publishes the plan if it is time
// to. different says that anything but demand has changed. It says whether what views
// carry has changed.
func (c *Controller) solve(u *unit, now time.Time, different bool) (changed bool) {
	c.estimate(u)
	plan := &c.scratch
	if err := c.solver.Solve(u.topology, &u.problem, plan); err != nil {
		// Inputs are checked where they come in, so this is a mistake of ours. The old plan
		// goes on, for the endpoints that it knows.
		c.log.Error("service is not planned anew", "service", u.service, "ports", u.ports, "error", err)
		return false
	}
	different = different || u.published == nil
	limit, _ := plan.Factor()
	u.now, u.gap = plan.Metrics(), 0
	if !different {
		u.now = u.published.Under(u.problem.Demand)
		u.gap = planner.Gap(u.topology, u.now, plan.Metrics(), limit.Float())
	}
	reason := u.republisher.Step(now, different, u.gap)
	if reason == planner.Keep {
		return false
	}
	u.now, u.gap = plan.Metrics(), 0
	weights := weightsOf(plan, u.problem.Weight)
	changed = u.published == nil || !sameZones(u.published.Topology(), u.topology) || !slices.EqualFunc(weights, u.weights, slices.Equal)
	u.published, u.planned, u.weights = plan.Clone(), u.problem, weights
	u.known = u.measured || u.held
	u.reason, u.since = reason, now
	u.replans[reason]++
	return changed
}

// estimate fills in the problem. Ports that are planned together add up.
func (c *Controller) estimate(u *unit) {
	cluster := c.atlas.cluster
	demand := make([]float64, u.topology.Len())
	u.rate, u.measured = 0, false
	if c.hold(u, demand) {
		u.problem.Demand = demand
		return
	}
	for k, port := range u.portList {
		e := c.demand.Shares(proxy.PortName{ServiceName: u.service, Port: port}, cluster.names, cluster.prior, cluster.noNodes)
		weigh := e.Rate
		if !e.Measured || e.Rate <= 0 {
			if k > 0 {
				continue // known is more than believed
			}
			weigh = minRate
		} else {
			u.measured = true
			u.rate += e.Rate
		}
		for i, share := range e.Shares {
			demand[u.at[i]] += share * weigh
		}
	}
	u.problem.Demand = demand
}

// minRate, in connections per second, weighs a belief beside what is measured at
// another port: next to nothing.
const minRate = 1e-6

func sameZones(a, b *planner.Topology) bool {
	if a == b {
		return true
	}
	if a.Len() != b.Len() {
		return false
	}
	for i := range a.Len() {
		if a.Zone(i).Name != b.Zone(i).Name {
			return false
		}
	}
	return true
}

// weightsOf endpoints, by zone of the source and of the endpoint: proportional to the
// share that one endpoint gets, as small as they can be. A share above 0 is never 0.
func weightsOf(p *planner.Plan, endpoints []int64) [][]uint32 {
	weights := make([][]uint32, len(endpoints))
	each := make([]float64, len(endpoints))
	for from := range weights {
		for to, n := range endpoints {
			each[to] = 0
			if n > 0 {
				each[to] = p.Share(from, to) / float64(n)
			}
		}
		if weights[from] = carriedWeights(each); weights[from] == nil {
			weights[from] = make([]uint32, len(endpoints))
		}
	}
	return weights
}

func gcd(a, b uint32) uint32 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// Weights are what the view of a zone carries for a slice's endpoints: one for each, 0
// for those that get nothing. Nil: the zone or the Service is not planned. It fits
// view.BuilderConfig.
func (c *Controller) Weights(zone string, slice *discoveryv1.EndpointSlice) []uint32 {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if e := c.entries[serviceOf(slice)]; e != nil && e.mode.Kind == Custom {
		return e.rulings[slice.AddressType].of(zone, slice)
	}
	u := c.unitOf(slice)
	if u == nil || u.published == nil || !u.published.HasEndpoints() {
		return nil
	}
	t := u.published.Topology()
	from, ok := t.Index(zone)
	if !ok {
		return nil
	}
	weights := make([]uint32, len(slice.Endpoints))
	for i := range slice.Endpoints {
		e := &slice.Endpoints[i]
		if !usable(e) {
			continue
		}
		to, ok := t.Index(zoneOf(e))
		if !ok {
			return nil
		}
		weights[i] = u.weights[from][to]
	}
	return weights
}

func (c *Controller) unitOf(slice *discoveryv1.EndpointSlice) *unit {
	e := c.entries[serviceOf(slice)]
	if e == nil {
		return nil
	}
	for _, port := range slice.Ports {
		if u := e.byPort[familyPort{slice.AddressType, portName(port)}]; u != nil {
			return u
		}
	}
	return nil
}

func serviceOf(slice *discoveryv1.EndpointSlice) resource.Key {
	return resource.Key{Namespace: slice.Namespace, Name: slice.Labels[discoveryv1.LabelServiceName]}
}
