package trafficplan

import (
	"math"
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"

	plannerv1alpha1 "github.com/proxima-mesh/proxima/api/planner/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/sites"
)

// maxWeight of an endpoint in a view. Shares are carried to within 1/8192 of the
// largest one of the zone.
const maxWeight = 4096

// Plan is the plan of a Service together with the endpoints that the Service has now.
// It is immutable. A nil Plan has no weights.
type Plan struct {
	groups []group
}

// group is a group of the plan that has weights.
type group struct {
	plan *plannerv1alpha1.PortGroup
	// endpoints that are ready now, in the order of the plan's zones: those in that zone
	// or, where endpoints have weights of their own, those that serve that zone. Others are
	// not counted, as they get nothing.
	endpoints []int64
}

// Of reads the plan of a Service from a snapshot; nil: it has none.
func Of(snapshot *catalog.Snapshot, service resource.Key) *Plan {
	var p *Plan
	for _, object := range snapshot.PlansOf(service) {
		if p == nil {
			p = &Plan{}
		}
		for i := range object.Spec.Groups {
			if g := &object.Spec.Groups[i]; g.Outcome.Weighs() {
				p.groups = append(p.groups, group{g, make([]int64, len(g.Zones))})
			}
		}
	}
	if p != nil {
		p.count(snapshot, service)
	}
	return p
}

// count the endpoints of each group by zone, each address once.
func (p *Plan) count(snapshot *catalog.Snapshot, service resource.Key) {
	type counted struct {
		group   *group
		address string
	}
	seen := map[counted]struct{}{}
	for _, slice := range snapshot.SlicesOf(service) {
		g := p.groupOf(slice)
		if g == nil {
			continue
		}
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			if !Ready(e) || len(e.Addresses) == 0 {
				continue
			}
			if _, twice := seen[counted{g, e.Addresses[0]}]; twice {
				continue
			}
			seen[counted{g, e.Addresses[0]}] = struct{}{}
			g.add(e)
		}
	}
}

func (g *group) add(e *discoveryv1.Endpoint) {
	if g.plan.Endpoints != nil {
		for at, w := range g.weightsOf(e) {
			if w > 0 {
				g.endpoints[at]++
			}
		}
	} else if at, ok := zoneIndex(g.plan, ZoneOf(e)); ok {
		g.endpoints[at]++
	}
}

// weightsOf an endpoint by zone; nil: the plan does not list it.
func (g *group) weightsOf(e *discoveryv1.Endpoint) []uint32 {
	at, ok := slices.BinarySearchFunc(g.plan.Endpoints, e.Addresses[0], func(w plannerv1alpha1.WeightedEndpoint, address string) int {
		return strings.Compare(w.Address, address)
	})
	if !ok || len(g.plan.Endpoints[at].Weights) != len(g.plan.Zones) {
		return nil
	}
	return g.plan.Endpoints[at].Weights
}

// same says whether all endpoints have the weights that they have under another plan.
func (p *Plan) same(other *Plan) bool {
	if p == nil || other == nil {
		return p == other
	}
	return slices.EqualFunc(p.groups, other.groups, func(a, b group) bool {
		return a.plan == b.plan && slices.Equal(a.endpoints, b.endpoints)
	})
}

// groupOf a slice: the first that has one of its ports.
func (p *Plan) groupOf(slice *discoveryv1.EndpointSlice) *group {
	for _, port := range slice.Ports {
		for i := range p.groups {
			g := &p.groups[i]
			if g.plan.AddressType == string(slice.AddressType) && slices.Contains(g.plan.Ports, PortName(port)) {
				return g
			}
		}
	}
	return nil
}

func zoneIndex(g *plannerv1alpha1.PortGroup, zone locality.Zone) (int, bool) {
	return slices.BinarySearchFunc(g.Zones, string(zone), func(z plannerv1alpha1.SourceZone, name string) int {
		return strings.Compare(z.Name, name)
	})
}

// Weights of a slice's endpoints for connections from a zone, one for each, relative to
// all slices of the Service; 0 for those that get nothing. Nil: the plan says nothing of
// this zone and slice, or what it says leaves no endpoint.
func (p *Plan) Weights(zone locality.Zone, slice *discoveryv1.EndpointSlice) []uint32 {
	if p == nil {
		return nil
	}
	g := p.groupOf(slice)
	if g == nil {
		return nil
	}
	from, ok := zoneIndex(g.plan, zone)
	if !ok {
		return nil
	}
	if g.plan.Endpoints != nil {
		return g.byAddress(from, slice)
	}
	return g.byZone(from, slice)
}

// byZone divides the share of each zone among its endpoints. Zones that have a share and
// no endpoint any more are left out, so the others get it in proportion.
func (g *group) byZone(from int, slice *discoveryv1.EndpointSlice) []uint32 {
	each := make([]float64, len(g.plan.Zones))
	for _, share := range g.plan.Zones[from].To {
		if to, ok := zoneIndex(g.plan, locality.Zone(share.Zone)); ok && g.endpoints[to] > 0 {
			each[to] = share.Share / float64(g.endpoints[to])
		}
	}
	byZone := Proportions(each)
	if byZone == nil {
		return nil
	}
	weights := make([]uint32, len(slice.Endpoints))
	for i := range slice.Endpoints {
		e := &slice.Endpoints[i]
		if to, ok := zoneIndex(g.plan, ZoneOf(e)); ok && Ready(e) {
			weights[i] = byZone[to]
		}
	}
	return weights
}

// byAddress looks weights up. An endpoint that the plan does not list yet gets nothing.
func (g *group) byAddress(from int, slice *discoveryv1.EndpointSlice) []uint32 {
	if g.endpoints[from] == 0 {
		return nil
	}
	weights := make([]uint32, len(slice.Endpoints))
	for i := range slice.Endpoints {
		e := &slice.Endpoints[i]
		if !Ready(e) || len(e.Addresses) == 0 {
			continue
		}
		if list := g.weightsOf(e); list != nil {
			weights[i] = list[from]
		}
	}
	return weights
}

// splitUnit is what the shares of a Split are parts of.
const splitUnit = 1 << 16

// Split is how the connections of a zone to a port are divided between this site and others;
// nil: the plan does not say, or all stay. Zones without endpoints are left out, as in
// Weights. Where the families of the port have different plans, that of IPv4 holds.
func (p *Plan) Split(zone locality.Zone, port string) *sites.Split {
	if p == nil {
		return nil
	}
	for i := range p.groups {
		if g := &p.groups[i]; g.plan.Endpoints == nil && slices.Contains(g.plan.Ports, port) {
			if from, ok := zoneIndex(g.plan, zone); ok {
				return g.split(from)
			}
		}
	}
	return nil
}

func (g *group) split(from int) *sites.Split {
	s := &sites.Split{}
	here := 0.0
	for _, share := range g.plan.Zones[from].To {
		if site, ok := plannerv1alpha1.SiteOf(share.Zone); ok {
			if s.Sites == nil {
				s.Sites = map[string]uint32{}
			}
			s.Sites[site] = uint32(max(1, math.Round(share.Share*splitUnit)))
		} else if to, ok := zoneIndex(g.plan, locality.Zone(share.Zone)); ok && g.endpoints[to] > 0 {
			here += share.Share
		}
	}
	if s.Sites == nil {
		return nil
	}
	s.Here = uint32(math.Round(here * splitUnit))
	return s
}

// Proportions are weights as views carry them: small whole numbers, exact if they are
// such, else in proportion to the highest. What is above 0 is never 0. Nil: all are 0.
func Proportions(weights []float64) []uint32 {
	highest := 0.0
	for _, w := range weights {
		highest = max(highest, w)
	}
	if highest == 0 {
		return nil
	}
	unit := maxWeight / highest
	if highest <= maxWeight && !slices.ContainsFunc(weights, func(w float64) bool { return w != math.Trunc(w) }) {
		unit = 1
	}
	out, divisor := make([]uint32, len(weights)), uint32(0)
	for i, w := range weights {
		if w > 0 {
			out[i] = uint32(max(1, math.Round(min(w*unit, maxWeight))))
			divisor = gcd(out[i], divisor)
		}
	}
	for i := range out {
		out[i] /= max(1, divisor)
	}
	return out
}

func gcd(a, b uint32) uint32 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
