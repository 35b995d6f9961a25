package topology

import (
	"cmp"
	"maps"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/proxima-mesh/proxima/internal/controller/endpointslice"
	"github.com/proxima-mesh/proxima/internal/planner"
	"github.com/proxima-mesh/proxima/internal/planner/auto"
	"github.com/proxima-mesh/proxima/internal/planner/hint"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// hintPlan is the hints of a unit for those who know no weights. It is never changed;
// another one takes its place.
type hintPlan struct {
	topology *planner.Topology
	mode     HintMode
	fallback Fallback
	// zones of the endpoints by address, which it was made for.
	zones map[string]string
	// hints by address: the zones that an endpoint names. Nil: none were given, and why
	// says why.
	hints map[string][]string
	why   string
	// demand that it was made for, or looked at last with the same result, as shares.
	demand  []float64
	metrics planner.Metrics
}

// planned gives the integral hints that come nearest to the plan.
func (a *advice) planned(_ *corev1.Service, family discoveryv1.AddressType, all []endpointslice.HintSlice) {
	parts := make([]part, 0, len(all))
	for _, s := range all {
		parts = append(parts, part{family, s.Ports, s.Endpoints})
	}
	is := told{mode: Planned}
	byPort := map[string]*hintPlan{}
	kept := map[unitName]*hintPlan{}
	for _, g := range groups(parts) {
		p := a.search(g, previous(all))
		kept[g.name] = p
		is.hinted = is.hinted || p.hints != nil
		is.message += p.why
		for _, port := range g.ports {
			byPort[port] = p
		}
	}
	a.keep(family, kept)
	a.made[family] = is
	for _, s := range all {
		var p *hintPlan
		for _, port := range s.Ports {
			p = cmp.Or(p, byPort[portName(port)])
		}
		for i := range s.Endpoints {
			s.Hints[i] = p.of(&s.Endpoints[i], s.Changed)
		}
	}
}

// of an endpoint. Those that are not ready are no reason to write a slice.
func (p *hintPlan) of(e *discoveryv1.Endpoint, changed bool) *discoveryv1.EndpointHints {
	switch {
	case !usable(e) && changed, p == nil, len(e.Addresses) == 0:
		return nil
	case !usable(e):
		return e.Hints
	}
	zones := p.hints[e.Addresses[0]]
	if len(zones) == 0 {
		return nil
	}
	return apiHints(e.Hints, &auto.Hints{ForZones: zones})
}

// keep replaces what is known of one family's hints.
func (a *advice) keep(family discoveryv1.AddressType, plans map[unitName]*hintPlan) {
	changed := false
	a.c.hintMu.Lock()
	for name := range a.state.plans {
		if name.family == family && plans[name] == nil {
			delete(a.state.plans, name)
			changed = true
		}
	}
	for name, p := range plans {
		changed = changed || a.state.plans[name] != p
		a.state.plans[name] = p
	}
	a.c.hintMu.Unlock()
	if changed {
		a.c.restate(resource.KeyOf(a.service))
	}
}

// previous are the zone hints that endpoints have now, by address.
func previous(all []endpointslice.HintSlice) map[string][]string {
	out := map[string][]string{}
	for _, s := range all {
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			if len(e.Addresses) > 0 && e.Hints != nil {
				out[e.Addresses[0]] = autoHints(e.Hints).ForZones
			}
		}
	}
	return out
}

// search returns the hints of a group: those that were found before if nothing that
// they depend on is different, so that the answer to its own answer is the same.
func (a *advice) search(g *group, now map[string][]string) *hintPlan {
	u, cluster := a.c.problemOf(resource.KeyOf(a.service), a.params, g)
	a.c.hintMu.Lock()
	was := a.state.plans[g.name]
	a.c.hintMu.Unlock()
	p := &hintPlan{topology: u.topology, mode: a.params.Hints, fallback: a.params.Fallback, zones: g.zones}
	if was != nil && was.topology == p.topology && was.mode == p.mode && was.fallback == p.fallback && maps.Equal(was.zones, p.zones) {
		return was
	}
	p.demand = shares(u.problem.Demand)
	switch {
	case p.mode == HintsNone:
		p.why = "not wanted"
	case u.topology == nil:
		p.why = "there are more zones than can be planned for"
	case g.total() == 0:
		p.why = "there is no ready endpoint"
	case g.endpoints[noZone] > 0:
		p.why = "an endpoint has no zone"
	case len(cluster) > hint.MaxZones || u.topology.Len() > hint.MaxZones:
		p.why = "there are more zones than hints are planned for"
	}
	if p.why != "" {
		p.fallBack()
		return p
	}
	p.find(now, was == nil)
	return p
}

// fallBack gives the hints that the Service asks for where none can be planned.
func (p *hintPlan) fallBack() {
	if p.fallback != FallbackZone || p.mode == HintsNone {
		return
	}
	for _, zone := range p.zones {
		if zone == noZone {
			return // one endpoint without hints has all of them ignored
		}
	}
	p.hints = map[string][]string{}
	for address, zone := range p.zones {
		p.hints[address] = []string{zone}
	}
	p.why += ", so every endpoint is hinted to its own"
}

// find searches hints, from those that there are now. A process that has just begun
// keeps these if they are nearly as good: a restart is no reason to move anything.
func (p *hintPlan) find(now map[string][]string, fresh bool) {
	t := p.topology
	addresses := sortedKeys(p.zones)
	request := hint.Request{Demand: p.demand, Mode: p.mode.search(), Endpoints: p.endpoints(addresses), Previous: p.masks(addresses, now)}
	result, err := new(hint.Searcher).Search(t, &request)
	if err != nil || result.Masks == nil {
		p.why = "none were found"
		if err != nil {
			p.why = err.Error()
		}
		p.fallBack()
		return
	}
	masks := result.Masks
	p.metrics = result.Metrics
	if fresh && !slices.Contains(request.Previous, 0) {
		kept := hint.Score(t, p.demand, request.Endpoints, request.Previous)
		if p.mode.search().Value(kept, t.MaxCost())-p.mode.search().Value(result.Metrics, t.MaxCost()) <= planner.GapForHints/100. {
			masks, p.metrics = request.Previous, kept
		}
	}
	p.hints = make(map[string][]string, len(addresses))
	for i, address := range addresses {
		for _, zone := range masks[i].Zones() {
			p.hints[address] = append(p.hints[address], t.Zone(zone).Name)
		}
	}
}

func (p *hintPlan) endpoints(addresses []string) []int {
	out := make([]int, len(addresses))
	for i, address := range addresses {
		out[i], _ = p.topology.Index(p.zones[address])
	}
	return out
}

// masks of addresses, in their order; 0 for one whose hints cannot be used.
func (p *hintPlan) masks(addresses []string, hints map[string][]string) []hint.Mask {
	out := make([]hint.Mask, len(addresses))
	for i, address := range addresses {
		for _, zone := range hints[address] {
			if at, ok := p.topology.Index(zone); ok && at < hint.MaxZones {
				out[i] |= 1 << at
			}
		}
	}
	return out
}

// shares of a demand, summing to 1, or 0 if there is none.
func shares(demand []float64) []float64 {
	out, sum := make([]float64, len(demand)), 0.0
	for _, d := range demand {
		sum += d
	}
	for i, d := range demand {
		if sum > 0 {
			out[i] = d / sum
		}
	}
	return out
}

// problemOf is the problem of a group as it is about to be, with the zones of the
// cluster.
func (c *Controller) problemOf(key resource.Key, params Params, g *group) (*unit, []planner.Zone) {
	c.mu.Lock()
	defer c.mu.Unlock()
	u := &unit{unitName: g.name, service: proxy.ServiceName(key), portList: g.ports, counts: g.endpoints, params: params.planner()}
	if e := c.entries[key]; e != nil {
		u.recalled = e.recalled[u.title()]
	}
	t, _, err := c.atlas.topology(params.Costs, g.endpoints)
	if err == nil {
		u.topology = t
		c.frame(u)
		c.estimate(u)
	}
	return u, c.atlas.cluster.zones
}

// reconsider looks whether a unit's demand has moved so far that other hints are worth
// the writes, and replaces them if so. It says whether it did.
func (c *Controller) reconsider(key resource.Key, name unitName, t *planner.Topology, demand []float64) bool {
	c.hintMu.Lock()
	var was *hintPlan
	if h := c.hints[key]; h != nil {
		was = h.plans[name]
	}
	c.hintMu.Unlock()
	demand = shares(demand)
	if was == nil || was.why != "" || was.topology != t || distance(was.demand, demand) < planner.GapForHints/100. {
		return false
	}
	is := *was
	is.demand = demand
	addresses := sortedKeys(is.zones)
	is.find(was.hints, false)
	before := hint.Score(t, demand, is.endpoints(addresses), is.masks(addresses, was.hints))
	search, better := is.mode.search(), is.why == ""
	gain := search.Value(before, t.MaxCost()) - search.Value(is.metrics, t.MaxCost())
	if better = better && gain > planner.GapForHints/100.; !better {
		is = *was
		is.demand, is.metrics = demand, before // not to be searched again for the same
	}
	c.hintMu.Lock()
	defer c.hintMu.Unlock()
	if h := c.hints[key]; h == nil || h.plans[name] != was {
		return false // the slices have changed meanwhile
	} else {
		h.plans[name] = &is
	}
	return better
}

// distance between two demands: the share that has moved.
func distance(a, b []float64) float64 {
	if len(a) != len(b) {
		return 1
	}
	sum := 0.0
	for i := range a {
		sum += math.Abs(a[i] - b[i])
	}
	return sum / 2
}
