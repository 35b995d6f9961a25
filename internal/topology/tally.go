package topology

import (
	"cmp"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	plannerv1alpha1 "github.com/proxima-mesh/proxima/api/planner/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/planner"
	"github.com/proxima-mesh/proxima/internal/planner/explain"
	"github.com/proxima-mesh/proxima/internal/planner/hint"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// Line sums up a Service, for lists of all of them. Rates are per second.
type Line struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Mode is the value that chose how the Service is routed, Level what named it; empty: nothing did.
	Mode  string `json:"mode,omitempty"`
	Level Level  `json:"level,omitempty"`
	// Planned: agents follow a TrafficPlan.
	Planned bool `json:"planned"`
	// Code is why it is routed as it is: the reason of the Service's condition, or one of the Line codes.
	// Why says the same in words.
	Code string `json:"code"`
	Why  string `json:"why,omitempty"`
	// Refused: the mode that the Service asks for is not in effect, for the reason Code.
	Refused bool `json:"refused,omitempty"`
	// Endpoints that are ready, and in how many zones.
	Endpoints int `json:"endpoints"`
	Zones     int `json:"zones"`
	// Demand in connections; Measured: by agents, else where it starts is estimated from the CPU of nodes, and Demand is 0.
	Demand   float64 `json:"demand"`
	Measured bool    `json:"measured"`
	// Routed is what the routing in effect makes of the demand.
	Routed
	// Ways to route that the Service could have, for the same demand.
	Ways Alternatives `json:"ways"`
	// Bytes both ways between clients and endpoints; Volume says how they are known, as demand.Volume has it.
	Bytes  float64 `json:"bytes"`
	Volume string  `json:"volume,omitempty"`
	// Cost in a month of what leaves its zone, and what the best plan would save of it; nil: no price or no
	// bytes are known.
	Cost     *float64 `json:"cost,omitempty"`
	Saving   *float64 `json:"saving,omitempty"`
	Currency string   `json:"currency,omitempty"`
	// ByZone are its endpoints, and Flows its connections between zones, ordered by zone.
	ByZone []ZoneLoad `json:"-"`
	Flows  []Flow     `json:"-"`
}

// Routed is what a way to route makes of the demand.
type Routed struct {
	// InZone is the share of the demand that stays in its zone; Worst the load of the most loaded endpoint, as a
	// multiple of the mean; 0: there is none.
	InZone float64 `json:"inZone"`
	Worst  float64 `json:"worst"`
}

// Alternatives are ways to route a Service.
type Alternatives struct {
	// Best plan. Even: all endpoints alike.
	Best Routed `json:"best"`
	Even Routed `json:"even"`
	// Auto is Kubernetes' heuristic, which gives no hints, so routes evenly, where its rules forbid them. SameZone is
	// trafficDistribution PreferSameZone: each zone uses its own endpoints if it has one.
	Auto     Routed `json:"auto"`
	SameZone Routed `json:"sameZone"`
}

// all the ways, in one order.
func (a *Alternatives) all() []*Routed { return []*Routed{&a.Best, &a.Even, &a.Auto, &a.SameZone} }

// ZoneLoad is the endpoints of a Service in a zone.
type ZoneLoad struct {
	Zone      locality.Zone `json:"zone"`
	Endpoints int64         `json:"endpoints"`
	// Load of one of them as a multiple of the mean of all.
	Load float64 `json:"load"`
}

// Flow of connections from clients in a zone to endpoints in one.
type Flow struct {
	From locality.Zone `json:"from"`
	To   locality.Zone `json:"to"`
	// Planned connections per second are what the routing in effect makes of the demand. Where that is not measured,
	// Guess has the shares of it instead: 1 for the whole demand of a Service.
	Planned float64 `json:"planned,omitempty"`
	Guess   float64 `json:"guess,omitempty"`
	// Measured connections per second, and bytes both ways; 0: none, or they are not counted.
	Measured float64 `json:"measured,omitempty"`
	Bytes    float64 `json:"bytes,omitempty"`
	// Cost of the bytes in a month, in the currency of the Line.
	Cost float64 `json:"cost,omitempty"`
}

// Codes of a Line besides the reasons of conditions.
const (
	// LineEven: nothing asks for a mode, so connections go to all endpoints alike.
	LineEven = "Even"
	// LineDistribution: spec.trafficDistribution gives hints.
	LineDistribution = "TrafficDistribution"
	// LineExternalName, LineHeadless and LineAPI: there is nothing to route.
	LineExternalName = "ExternalName"
	LineHeadless     = "Headless"
	LineAPI          = "API"
	// LinePending: the mode has not been looked at yet.
	LinePending = "Pending"
)

// Tally is a Service prepared for sums: all but its demand, which changes with each report of an agent. It is of one
// snapshot, belongs to one goroutine, and shares the snapshot's objects.
type Tally struct {
	c       *Controller
	memory  *plans // of the Tallier
	service proxy.ServiceName
	line    Line
	groups  []tallied
}

// tallied is a group of ports of a Tally.
type tallied struct {
	family proxy.Family
	ports  []string
	in     input
	plan   *plannerv1alpha1.PortGroup
	// targets are the zones with endpoints, and share is that of the connections of a zone that go to one of them now, at
	// [from*len(targets)+k]. Where there are many zones, few of them are targets.
	targets []int
	share   []float64
	base    *kubeProxy
	ruled   *RulingReport
	price   *prices
	// demand at the time when the metrics were worked out, and what the routing in effect makes of it.
	demand estimated
	now    planner.Metrics
	ways   Alternatives
	// best are the shares of the best plan for it, as share has them; nil: no price is known.
	best []float64
}

// Tallier prepares Services for sums, from what deltas say of Nodes and costs. For one goroutine. Make it with Controller.Tallier.
type Tallier struct {
	c      *Controller
	model  *model
	memory plans
}

// Tallier of the plans of a controller.
func (c *Controller) Tallier() *Tallier { return &Tallier{c: c, model: newModel(c.config.Site)} }

// Apply a delta of Nodes and ZoneCosts. all: each Service has to be prepared anew.
func (r *Tallier) Apply(d *catalog.Delta) (all bool) {
	plans, ratios := r.model.apply(d)
	return plans || ratios
}

// Tally prepares a Service. Its cost is that of its endpoints and of a plan. ok is false if there is no Service of that
// name.
func (r *Tallier) Tally(snapshot *catalog.Snapshot, key resource.Key) (t *Tally, ok bool) {
	service, ok := snapshot.Services.Get(key)
	if !ok {
		return nil, false
	}
	c, m := r.c, r.model
	cluster, _ := m.current()
	mode := Modes{snapshot: snapshot, fallback: c.config.DefaultMode, several: len(cluster.names) > 1}.Of(service)
	parts := partsOf(snapshot, key)
	t = &Tally{c: c, memory: &r.memory, service: proxy.ServiceName(key), line: Line{
		Namespace: key.Namespace, Name: key.Name, Mode: mode.Name, Level: mode.Level,
	}}
	if t.line.Code = codeOf(key, service); t.line.Code != "" {
		return t, true
	}
	params := c.paramsOf(service, parts)
	r.memory.again()
	endpoints, zones := 0, map[locality.Zone]bool{}
	ruled := map[string]*RulingReport{}
	candidates := c.candidatesIn(snapshot, m, mode, service, parts, &r.memory)
	if mode.Kind == Custom {
		for _, r := range rulingReports(snapshot, key, groupsIn(parts), candidates) {
			ruled[r.Family] = &r
		}
	}
	for _, u := range candidates {
		if u.group.Len() == 0 {
			continue
		}
		endpoints = max(endpoints, u.group.Len())
		for zone := range u.group.Group.Endpoints {
			zones[zone] = true
		}
		g := tallied{
			family: familyOf(u.group.Name.Family), ports: u.group.Group.Ports, in: u.in, price: m.priced(params.Costs, &u.in, nil),
		}
		if u.inEffect() {
			g.plan, t.line.Planned = u.plan, true
		}
		g.ruled = ruled[string(u.group.Name.Family)]
		g.base = kubeProxyOf(snapshot, key, u, mode)
		g.route()
		g.measure(u.best)
		t.groups = append(t.groups, g)
	}
	t.line.Endpoints, t.line.Zones = endpoints, len(zones)
	t.line.Code, t.line.Why, t.line.Refused = c.reasonOf(mode, service, &t.line)
	return t, true
}

// codeOf a Service that is not routed among zones; empty: it may be.
func codeOf(key resource.Key, service *corev1.Service) string {
	switch notCompared(key, service) {
	case reasonExternal:
		return LineExternalName
	case reasonHeadless:
		return LineHeadless
	case reasonAPI:
		return LineAPI
	case reasonPolicyLocal:
		return ReasonPolicyLocal
	}
	return ""
}

// reasonOf what holds for a Service with endpoints.
func (c *Controller) reasonOf(mode Mode, service *corev1.Service, l *Line) (code, why string, refused bool) {
	switch {
	case l.Endpoints == 0:
		return ReasonNoEndpoints, "no endpoint is ready", false
	case mode.Kind == Distribution && mode.Name == "":
		return LineEven, "", false
	case mode.Kind == Distribution:
		return LineDistribution, "", false
	case c.config.PlansAlone && l.Planned:
		return ReasonPlanned, "", false
	}
	cond := meta.FindStatusCondition(service.Status.Conditions, ConditionPlan)
	switch {
	case cond != nil:
		return cond.Reason, cond.Message, cond.Status == "False"
	case l.Planned:
		return ReasonPlanned, "", false
	}
	return LinePending, "its EndpointSlices have not been looked at yet", false
}

// among the targets, shares of the connections of each zone.
func (g *tallied) among(share func(from, to int) float64) []float64 {
	n := g.in.topology.Len()
	out := make([]float64, n*len(g.targets))
	for from := range n {
		for k, to := range g.targets {
			out[from*len(g.targets)+k] = share(from, to)
		}
	}
	return out
}

// route works out where connections go now.
func (g *tallied) route() {
	for to, count := range g.in.count {
		if count > 0 {
			g.targets = append(g.targets, to)
		}
	}
	switch {
	case g.plan != nil:
		g.share = make([]float64, g.in.topology.Len()*len(g.targets))
		for from, to := range sharesIn(g.plan, &g.in) {
			if k := slices.Index(g.targets, to.zone); k >= 0 {
				g.share[from*len(g.targets)+k] = to.share
			}
		}
	case g.ruled != nil:
		g.share = make([]float64, g.in.topology.Len()*len(g.targets))
	default:
		g.share = g.among(g.base.share)
	}
	if g.plan != nil || g.ruled == nil {
		return
	}
	for _, z := range g.ruled.Zones {
		from, ok := g.in.topology.Index(z.Name)
		if !ok {
			continue
		}
		if !z.Weighed {
			for k, to := range g.targets {
				g.share[from*len(g.targets)+k] = g.base.share(from, to)
			}
		}
		for _, s := range z.To {
			to, ok := g.in.topology.Index(cmp.Or(s.Zone, noZone))
			if k := slices.Index(g.targets, to); ok && k >= 0 {
				g.share[from*len(g.targets)+k] = s.Share
			}
		}
	}
}

// measure what the routing in effect makes of the demand of the best plan.
func (g *tallied) measure(best *solution) {
	if g.demand = best.demand; g.price != nil {
		g.best = g.among(best.plan.Share)
	}
	switch {
	case g.plan != nil:
		g.now, _, _ = compare(g.plan, &g.in, best.demand, best.plan)
	case g.ruled != nil:
		g.now = g.ruled.Metrics
	default:
		g.now = g.base.metrics(best)
	}
	g.ways.Best = routed(best.plan.Metrics())
	even, own := *g.base, *g.base
	even.masks = nil
	g.ways.Even = routed(even.metrics(best))
	own.masks = nil
	if g.in.topology.Len() <= hint.MaxZones {
		for _, at := range own.endpoints {
			own.masks = append(own.masks, 1<<at)
		}
	}
	g.ways.SameZone, g.ways.Auto = routed(own.metrics(best)), g.ways.Even
	if with := compared(g.in.cluster.ratios, g.in.topology, g.in.count); with != nil {
		if k := explain.KubernetesOf(g.in.topology, &best.problem, with); k != nil {
			g.ways.Auto = routed(k.Metrics)
		}
	}
}

func routed(m planner.Metrics) Routed { return Routed{InZone: m.InZone, Worst: m.Worst} }

// shifted demand, as a part of all, from which on metrics are worked out anew.
const shifted = 1e-3

// follow the demand as it is now. Its cost is that of an estimate, and that of a plan where demand has moved.
func (g *tallied) follow(t *Tally) {
	now := t.c.estimate(t.service, g.family, g.ports, &g.in, g.plan)
	was := &g.demand
	off := 0.0
	for i := range now.shares {
		off += math.Abs(now.shares[i]-was.shares[i]) / 2
	}
	if off < shifted && now.measured == was.measured && slices.Equal(now.fixed, was.fixed) {
		was.rate, was.load = now.rate, now.load
		return
	}
	t.memory.again()
	if s, err := t.memory.solve(&g.in, now); err == nil {
		g.measure(s)
	}
}

// Idle reports whether nothing is known of the demand, and nothing was known when it was summed up last: a sum would say the same.
func (t *Tally) Idle() bool {
	for i := range t.groups {
		g := &t.groups[i]
		if g.demand.measured || g.demand.held || !t.c.silent(t.service, g.ports, &g.in) && t.c.estimate(t.service, g.family, g.ports, &g.in, g.plan).measured {
			return false
		}
	}
	return true
}

// Sum of the Service with the demand as it is now. The caller owns it.
func (t *Tally) Sum() Line {
	l := t.line
	sum := &flowSum{}
	weight, cost, saving := 0.0, 0.0, 0.0
	l.Measured = len(t.groups) > 0
	for i := range t.groups {
		t.groups[i].follow(t)
		l.Measured = l.Measured && t.groups[i].demand.measured
	}
	loads := map[locality.Zone]*ZoneLoad{}
	for i := range t.groups {
		g := &t.groups[i]
		demand := &g.demand
		l.Demand += demand.rate
		// Groups without connections count only where none has any.
		of := demand.rate
		if of == 0 {
			of = 1e-9
		}
		weight += of
		l.InZone, l.Worst = l.InZone+of*g.now.InZone, max(l.Worst, g.now.Worst)
		theirs := g.ways.all()
		for k, way := range l.Ways.all() {
			way.InZone, way.Worst = way.InZone+of*theirs[k].InZone, max(way.Worst, theirs[k].Worst)
		}
		g.flows(sum, len(t.groups))
		g.loads(loads)
		t.volume(g, &l, sum, &cost, &saving)
	}
	for _, way := range append(l.Ways.all(), &l.Routed) {
		if way.InZone /= weight; weight == 0 {
			way.InZone = 1 // nothing leaves its zone
		}
	}
	if l.Currency != "" {
		l.Cost, l.Saving = &cost, &saving
	}
	l.Flows = sum.list()
	for _, zone := range sortedKeys(loads) {
		l.ByZone = append(l.ByZone, *loads[zone])
	}
	return l
}

// flows that are planned, of one of some groups.
func (g *tallied) flows(sum *flowSum, groups int) {
	n, demand := g.in.topology.Len(), &g.demand
	// Shares are of all demand, the rate is of that of this site.
	own := 0.0
	for from := range n {
		if !isSite(g.in.topology.Zone(from).Name) {
			own += demand.shares[from]
		}
	}
	for from := range n {
		share := demand.shares[from] / own
		if !(share > 0) || isSite(g.in.topology.Zone(from).Name) {
			continue
		}
		for k, to := range g.targets {
			x := share * g.share[from*len(g.targets)+k]
			if x == 0 {
				continue
			}
			f := Flow{From: g.in.topology.Zone(from).Name, To: g.in.topology.Zone(to).Name}
			switch {
			case demand.rate > 0:
				f.Planned = x * demand.rate
			case demand.measured:
				continue
			default:
				f.Guess = x / float64(groups)
			}
			sum.add(f)
		}
	}
}

// loads of the endpoints by zone.
func (g *tallied) loads(of map[locality.Zone]*ZoneLoad) {
	n, all := g.in.topology.Len(), int64(0)
	for _, w := range g.in.weight {
		all += w
	}
	for k, to := range g.targets {
		if isSite(g.in.topology.Zone(to).Name) {
			continue
		}
		load := 0.0
		for from := range n {
			load += g.demand.shares[from] * g.share[from*len(g.targets)+k]
		}
		if g.in.weight[to] > 0 {
			load *= float64(all) / float64(g.in.weight[to])
		}
		zone := g.in.topology.Zone(to).Name
		l := of[zone]
		if l == nil {
			l = &ZoneLoad{Zone: zone}
			of[zone] = l
		}
		l.Endpoints, l.Load = max(l.Endpoints, g.in.count[to]), max(l.Load, load)
	}
}

// volume adds what agents have counted, and what it costs.
func (t *Tally) volume(g *tallied, l *Line, sum *flowSum, cost, saving *float64) {
	v, ok := t.c.volumeOf(t.service, g.family, g.ports)
	if !ok || len(v.Ways) == 0 {
		return
	}
	l.Volume = v.Bytes
	for i := range v.Ways {
		w := &v.Ways[i]
		sum.add(Flow{From: w.From, To: cmp.Or(w.To, noZone), Measured: w.Opened, Bytes: w.BytesIn + w.BytesOut})
		l.Bytes += w.BytesIn + w.BytesOut
	}
	if g.price == nil || l.Currency != "" && l.Currency != g.price.currency {
		return
	}
	fl := flowsOf(&v, &g.in)
	if fl.total == 0 {
		return
	}
	l.Currency = g.price.currency
	for i := range v.Ways {
		w := &v.Ways[i]
		from, ok := g.in.topology.Index(w.From)
		if !ok || w.Kept {
			continue
		}
		to, ok := g.in.topology.Index(w.To)
		if !ok {
			to = g.in.topology.Len()
		}
		month := g.price.month(from, to, w.BytesIn+w.BytesOut)
		sum.add(Flow{From: w.From, To: cmp.Or(w.To, noZone), Cost: month})
		*cost += month
	}
	*saving += moneyOf(g.price, fl, &v, &g.in, func(from, to int) float64 {
		if k := slices.Index(g.targets, to); k >= 0 {
			return g.best[from*len(g.targets)+k]
		}
		return 0
	}).Saving()
}

// flowSum adds flows up by their zones.
type flowSum struct{ all []Flow }

func (s *flowSum) add(f Flow) { s.all = append(s.all, f) }

// list of the sums, ordered.
func (s *flowSum) list() []Flow {
	slices.SortFunc(s.all, func(a, b Flow) int {
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To))
	})
	out := s.all[:0]
	for _, f := range s.all {
		last := len(out) - 1
		if last < 0 || out[last].From != f.From || out[last].To != f.To {
			out = append(out, f)
			continue
		}
		l := &out[last]
		l.Planned, l.Guess, l.Measured = l.Planned+f.Planned, l.Guess+f.Guess, l.Measured+f.Measured
		l.Bytes, l.Cost = l.Bytes+f.Bytes, l.Cost+f.Cost
	}
	return slices.Clip(slices.Clone(out))
}
