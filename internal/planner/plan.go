package planner

import "slices"

// Rule says why a zone's traffic goes where it goes.
type Rule uint8

const (
	// RuleNoEndpoints: the service has none, so there is nowhere to go.
	RuleNoEndpoints Rule = iota
	// RuleHome: all traffic stays in its zone.
	RuleHome
	// RuleNoDemandHome: there is no traffic; if some comes it stays in its zone.
	RuleNoDemandHome
	// RuleNoDemandAll: there is no traffic, and no endpoint in the zone; if some
	// comes it goes to all endpoints alike.
	RuleNoDemandAll
	// RuleRegion: what the zone's own endpoints cannot take stays in the region.
	RuleRegion
	// RuleWorld: what the region's endpoints cannot take leaves it, within the site.
	RuleWorld
	// RuleSite: what the site's endpoints cannot take leaves it.
	RuleSite
	// RuleCost: what leaves the zone goes where the cost matrix makes it cheapest.
	RuleCost
)

var ruleNames = [...]string{"NoEndpoints", "Home", "NoDemandHome", "NoDemandAll", "Region", "World", "Site", "Cost"}

func (r Rule) String() string { return ruleNames[r] }

// Plan says which share of the traffic of each zone goes to which zone. It is
// what a Solver wrote last, and safe to read from many goroutines until then.
// The zero Plan is one that a Solver can write.
//
// Flows are integers: units of demand times weight sum times denominator of the
// limit factor. In this unit a zone's demand, its limit, and the margins of the
// matrix are exact.
type Plan struct {
	topology    *Topology
	params      Params
	factor      Factor
	lightlyUsed bool
	weight      []int64
	weightSum   int64
	sinks       []int   // zones with weight, ascending: only they get anything, and where there are many zones they are few
	total       int64   // demand of all zones, scaled
	demand      []int64 // by source, scaled
	limit       []int64 // by destination, scaled; without what is fixed there
	fixed       []int64 // by destination, scaled: load that is not planned
	allFixed    int64
	load        []int64 // by destination, scaled
	// parts is the matrix: flow where there is demand, else the proportions in which
	// demand would be sent if some appeared. rows are its sums by source.
	parts []int64
	rows  []int64
	rules []Rule
	cost  float64
	home  int64
}

func (p *Plan) reset(t *Topology) {
	n := len(t.zones)
	p.topology = t
	p.weight = resize(p.weight, n)
	p.demand = resize(p.demand, n)
	p.limit = resize(p.limit, n)
	p.fixed = resize(p.fixed, n)
	p.load = resize(p.load, n)
	p.parts = resize(p.parts, n*n)
	p.rows = resize(p.rows, n)
	if cap(p.rules) < n {
		p.rules = make([]Rule, n)
	}
	p.rules = p.rules[:n]
	clear(p.rules)
	p.total, p.allFixed, p.home, p.cost = 0, 0, 0, 0
}

// resize returns a slice of n zeros, in the memory of s if it is large enough.
func resize(s []int64, n int) []int64 {
	if cap(s) < n {
		return make([]int64, n)
	}
	s = s[:n]
	clear(s)
	return s
}

// Clone returns a copy that no Solver writes to.
func (p *Plan) Clone() *Plan {
	c := *p
	c.weight, c.demand, c.limit, c.load = slices.Clone(p.weight), slices.Clone(p.demand), slices.Clone(p.limit), slices.Clone(p.load)
	c.fixed = slices.Clone(p.fixed)
	c.sinks = slices.Clone(p.sinks)
	c.parts, c.rows, c.rules = slices.Clone(p.parts), slices.Clone(p.rows), slices.Clone(p.rules)
	return &c
}

// Topology the plan is for.
func (p *Plan) Topology() *Topology { return p.topology }

// Params the plan was made with.
func (p *Plan) Params() Params { return p.params }

// Factor is the limit that applied, as a multiple of the mean load; lightlyUsed
// says that it is above 1+ε because the endpoints have little to do.
func (p *Plan) Factor() (f Factor, lightlyUsed bool) { return p.factor, p.lightlyUsed }

// HasEndpoints says whether there is anywhere to send to.
func (p *Plan) HasEndpoints() bool { return p.weightSum > 0 }

// Share of the traffic from a zone that goes to another, by index. The shares
// from a zone sum to 1, whether it has traffic or not, unless there is no endpoint.
func (p *Plan) Share(from, to int) float64 {
	if p.rows[from] == 0 {
		return 0
	}
	return float64(p.parts[from*len(p.rows)+to]) / float64(p.rows[from])
}

// Rule that decided over a zone's traffic.
func (p *Plan) Rule(from int) Rule { return p.rules[from] }

// Flow returns the exact amounts of the matrix, Flow(from, to) of Demand(from),
// in units of which Total are all traffic. It is 0 where there is no demand.
func (p *Plan) Flow(from, to int) int64 {
	if p.demand[from] == 0 {
		return 0
	}
	return p.parts[from*len(p.rows)+to]
}

// Demand of a zone in the unit of Flow.
func (p *Plan) Demand(from int) int64 { return p.demand[from] }

// Total is the demand of all zones in the unit of Flow.
func (p *Plan) Total() int64 { return p.total }

// Limit of a zone's endpoints together, in the unit of Flow, less what is fixed there. No Load
// is above it.
func (p *Plan) Limit(to int) int64 { return p.limit[to] }

// Fixed load of a zone's endpoints, which is not planned, in the unit of Flow.
func (p *Plan) Fixed(to int) int64 { return p.fixed[to] }

// Load planned for a zone's endpoints together, in the unit of Flow.
func (p *Plan) Load(to int) int64 { return p.load[to] }

// Overload is the load of a zone's endpoints, planned and fixed, as a multiple of the mean,
// 0 for a zone without.
func (p *Plan) Overload(to int) float64 {
	if p.total == 0 || p.weight[to] == 0 {
		return 0
	}
	return float64(p.load[to]+p.fixed[to]) / float64(p.total+p.allFixed) * float64(p.weightSum) / float64(p.weight[to])
}

// Metrics of the plan for the demand it was made for.
func (p *Plan) Metrics() Metrics {
	m := Metrics{InZone: 1}
	if p.total == 0 || p.weightSum == 0 {
		return m
	}
	m.InZone = float64(p.home) / float64(p.total)
	m.Cost = p.cost
	for j := range p.load {
		m.Worst = max(m.Worst, p.Overload(j))
	}
	return m
}

// measure fills in loads, cost and in-zone share from the finished matrix.
func (p *Plan) measure() {
	n := len(p.rows)
	cost := 0.0
	for i := range p.rows {
		if p.demand[i] == 0 {
			continue
		}
		row := p.parts[i*n : (i+1)*n]
		for _, j := range p.sinks {
			if x := row[j]; x != 0 {
				p.load[j] += x
				cost += float64(x) * p.topology.cost[i*n+j]
			}
		}
		p.home += row[i]
	}
	if p.total > 0 {
		p.cost = cost / float64(p.total)
	}
}
