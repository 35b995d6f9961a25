package topology

import (
	"cmp"
	"maps"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	plannerv1alpha1 "github.com/proxima-mesh/proxima/api/planner/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/controller/endpointslice"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/planner"
	"github.com/proxima-mesh/proxima/internal/planner/auto"
	"github.com/proxima-mesh/proxima/internal/planner/hint"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/topology/trafficplan"
)

// hintPlan is the hints of a group for those who know no weights. It is never changed;
// another one takes its place.
type hintPlan struct {
	topology *planner.Topology
	mode     HintMode
	fallback Fallback
	// zones of the endpoints by address, which it was made for.
	zones map[string]locality.Zone
	// hints by address: the zones that an endpoint names. Nil: none are given.
	hints  map[string][]locality.Zone
	reason HintReason
	// demand that it was made for, or looked at last with the same result, as shares.
	demand  []float64
	metrics planner.Metrics
}

// HintReason says what became of the search for hints.
type HintReason string

const (
	// HintsFound: the hints are those of the search.
	HintsFound HintReason = "Found"
	// HintsNotWanted: the Service asks for none.
	HintsNotWanted HintReason = "NotWanted"
	// HintsTooManyZones: there are more zones than can be planned for.
	HintsTooManyZones HintReason = "TooManyZones"
	// HintsNoEndpoints: no endpoint is ready.
	HintsNoEndpoints HintReason = "NoEndpoints"
	// HintsNoZone: an endpoint has no zone.
	HintsNoZone HintReason = "NoZone"
	// HintsZoneLimit: there are more zones than hints are planned for.
	HintsZoneLimit HintReason = "ZoneLimit"
	// HintsNotFound: no hints keep the limit.
	HintsNotFound HintReason = "NotFound"
	// HintsFailed: the search refused its input.
	HintsFailed HintReason = "Failed"
)

// text of a reason for which hints were not planned.
func (r HintReason) text() string {
	switch r {
	case HintsNotWanted:
		return "not wanted"
	case HintsTooManyZones:
		return "there are more zones than can be planned for"
	case HintsNoEndpoints:
		return "there is no ready endpoint"
	case HintsNoZone:
		return "an endpoint has no zone"
	case HintsZoneLimit:
		return "there are more zones than hints are planned for"
	case HintsFailed:
		return "the search failed"
	}
	return "none were found"
}

// planned gives the integral hints that come nearest to the plan.
func (a *advice) planned(_ *corev1.Service, family discoveryv1.AddressType, all []endpointslice.HintSlice) {
	parts := make([]trafficplan.Part, 0, len(all))
	for _, s := range all {
		parts = append(parts, trafficplan.Part{Family: family, Ports: s.Ports, Endpoints: s.Endpoints})
	}
	is := outcome{mode: Planned}
	byPort := map[string]*hintPlan{}
	kept := map[trafficplan.Name]*hintPlan{}
	for _, g := range trafficplan.Groups(parts) {
		p := a.search(g, previous(all))
		kept[g.Name] = p
		is.hinted = is.hinted || p.hints != nil
		for _, port := range g.Ports {
			byPort[port] = p
		}
	}
	a.keep(family, kept)
	a.outcomes[family] = is
	for _, s := range all {
		var p *hintPlan
		for _, port := range s.Ports {
			p = cmp.Or(p, byPort[trafficplan.PortName(port)])
		}
		for i := range s.Endpoints {
			s.Hints[i] = p.of(&s.Endpoints[i], s.Changed)
		}
	}
}

// of an endpoint. Those that are not ready are no reason to write a slice.
func (p *hintPlan) of(e *discoveryv1.Endpoint, changed bool) *discoveryv1.EndpointHints {
	switch {
	case !trafficplan.Ready(e) && changed, p == nil, len(e.Addresses) == 0:
		return nil
	case !trafficplan.Ready(e):
		return e.Hints
	}
	zones := p.hints[e.Addresses[0]]
	if len(zones) == 0 {
		return nil
	}
	return apiHints(e.Hints, &auto.Hints{ForZones: zones})
}

// keep replaces what is known of one family's hints.
func (a *advice) keep(family discoveryv1.AddressType, groups map[trafficplan.Name]*hintPlan) {
	changed := false
	a.c.mu.Lock()
	for name := range a.state.groups {
		if name.Family == family && groups[name] == nil {
			delete(a.state.groups, name)
			changed = true
		}
	}
	for name, p := range groups {
		changed = changed || a.state.groups[name] != p
		a.state.groups[name] = p
	}
	a.c.mu.Unlock()
	if changed {
		a.c.status.Add(resource.KeyOf(a.service))
	}
}

// previous are the zone hints that endpoints have now, by address.
func previous(all []endpointslice.HintSlice) map[string][]locality.Zone {
	out := map[string][]locality.Zone{}
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
func (a *advice) search(g *trafficplan.Group, now map[string][]locality.Zone) *hintPlan {
	in, err := a.c.model.input(a.params, g)
	a.c.mu.Lock()
	was := a.state.groups[g.Name]
	a.c.mu.Unlock()
	p := &hintPlan{mode: a.params.Hints, fallback: a.params.Fallback, zones: g.Zones, reason: HintsFound}
	if err == nil {
		p.topology = in.topology
	}
	if was != nil && was.topology == p.topology && was.mode == p.mode && was.fallback == p.fallback && maps.Equal(was.zones, p.zones) {
		return was
	}
	if err == nil {
		p.demand = a.demandFor(g, &in)
	}
	switch {
	case p.mode == HintsNone:
		p.reason = HintsNotWanted
	case err != nil:
		p.reason = HintsTooManyZones
	case g.Len() == 0:
		p.reason = HintsNoEndpoints
	case g.Endpoints[noZone] > 0:
		p.reason = HintsNoZone
	case len(in.cluster.zones) > hint.MaxZones || in.topology.Len() > hint.MaxZones:
		p.reason = HintsZoneLimit
	}
	if p.reason != HintsFound {
		p.fallBack()
		return p
	}
	p.find(now, was == nil)
	return p
}

// demandFor hints, as shares, is what a plan would be made for now.
func (a *advice) demandFor(g *trafficplan.Group, in *input) []float64 {
	var plan *plannerv1alpha1.PortGroup
	for _, group := range groupsIn(a.plan) {
		if trafficplan.NameOf(group) == g.Name {
			plan = group
		}
	}
	return shares(a.c.estimate(serviceName(a.service), familyOf(g.Name.Family), g.Ports, in, plan).shares)
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
	p.hints = map[string][]locality.Zone{}
	for address, zone := range p.zones {
		p.hints[address] = []locality.Zone{zone}
	}
}

// find searches hints, from those that there are now. A process that has just begun
// keeps these if they are nearly as good: a restart is no reason to move anything.
func (p *hintPlan) find(now map[string][]locality.Zone, fresh bool) {
	t := p.topology
	addresses := sortedKeys(p.zones)
	request := hint.Request{Demand: p.demand, Mode: p.mode.search(), Endpoints: p.endpoints(addresses), Previous: p.masks(addresses, now)}
	result, err := new(hint.Searcher).Search(t, &request)
	if err != nil || result.Masks == nil {
		p.reason = HintsNotFound
		if err != nil {
			p.reason = HintsFailed
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
	p.hints = make(map[string][]locality.Zone, len(addresses))
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
func (p *hintPlan) masks(addresses []string, hints map[string][]locality.Zone) []hint.Mask {
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

// reconsider looks whether the demand of a group has moved so far that other hints are
// worth the writes, and replaces them if so.
func (c *Controller) reconsider(key resource.Key, name trafficplan.Name, t *planner.Topology, demand []float64) {
	c.mu.Lock()
	var was *hintPlan
	if h := c.hints[key]; h != nil {
		was = h.groups[name]
	}
	c.mu.Unlock()
	demand = shares(demand)
	if was == nil || was.reason != HintsFound || was.topology != t || distance(was.demand, demand) < planner.GapForHints/100. {
		return
	}
	is := *was
	is.demand = demand
	addresses := sortedKeys(is.zones)
	is.find(was.hints, false)
	before := hint.Score(t, demand, is.endpoints(addresses), is.masks(addresses, was.hints))
	search := is.mode.search()
	gain := search.Value(before, t.MaxCost()) - search.Value(is.metrics, t.MaxCost())
	better := is.reason == HintsFound && gain > planner.GapForHints/100.
	if !better {
		is = *was
		is.demand, is.metrics = demand, before // not to be searched again for the same
	}
	c.mu.Lock()
	h := c.hints[key]
	current := h != nil && h.groups[name] == was // else the slices have changed meanwhile
	if current {
		h.groups[name] = &is
	}
	c.mu.Unlock()
	if current && better {
		c.advised.Publish(key)
		c.status.Add(key)
	}
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
