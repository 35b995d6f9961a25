package trafficplan

import (
	"maps"
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

// Plan is the plan of a Service, if there is one, together with the endpoints that the
// Service has now and their own weights. It is immutable. A nil Plan has no weights.
type Plan struct {
	groups []group
	// own weights of ready endpoints by Dataplane, where one of the Service's is not
	// DefaultWeight: those that are not. Nil: all are. Not by address, as workloads of one
	// machine may share that.
	own map[catalog.Key]uint32
}

// maxOwnWeight of an endpoint in a view where endpoints have weights of their own, which
// range over three orders of magnitude besides the shares of zones.
const maxOwnWeight = 1 << 16

// group is a group of the plan that has weights.
type group struct {
	plan *plannerv1alpha1.PortGroup
	// endpoints that are ready now, in the order of the plan's zones: those in that zone
	// or, where endpoints have weights of their own, those that serve that zone. Others are
	// not counted, as they get nothing.
	endpoints []int64
	// weights are the sums of the own weights of those endpoints, and highest the highest of
	// them, by zone.
	weights []int64
	highest []uint32
}

// Of reads the plan of a Service, and the weights of its endpoints, from a snapshot; nil: it
// has no plan, and all its endpoints are alike.
func Of(snapshot *catalog.Snapshot, service resource.Key) *Plan {
	return of(snapshot, service, func(slice *discoveryv1.EndpointSlice) []uint32 { return OwnWeights(snapshot, slice) })
}

func of(snapshot *catalog.Snapshot, service resource.Key, ownWeights func(*discoveryv1.EndpointSlice) []uint32) *Plan {
	p := &Plan{}
	planned := false
	for _, object := range snapshot.PlansOf(service) {
		planned = true
		for i := range object.Spec.Groups {
			if g := &object.Spec.Groups[i]; g.Outcome.Weighs() {
				n := len(g.Zones)
				p.groups = append(p.groups, group{g, make([]int64, n), make([]int64, n), make([]uint32, n)})
			}
		}
	}
	p.count(snapshot, service, ownWeights)
	if !planned && p.own == nil {
		return nil
	}
	return p
}

// count the endpoints of each group by zone, each address once.
func (p *Plan) count(snapshot *catalog.Snapshot, service resource.Key, ownWeights func(*discoveryv1.EndpointSlice) []uint32) {
	type counted struct {
		group    *group
		endpoint identity
	}
	seen := map[counted]struct{}{}
	for _, slice := range snapshot.SlicesOf(service) {
		own := ownWeights(slice)
		g := p.groupOf(slice)
		if g == nil && own == nil {
			continue
		}
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			if !Ready(e) || len(e.Addresses) == 0 {
				continue
			}
			weight := DefaultWeight
			if own != nil {
				weight = own[i]
			}
			if weight != DefaultWeight {
				if p.own == nil {
					p.own = map[catalog.Key]uint32{}
				}
				p.own[targetKey(slice.Namespace, e.TargetRef)] = weight
			}
			if g == nil {
				continue
			}
			if _, twice := seen[counted{g, identityOf(e)}]; twice {
				continue
			}
			seen[counted{g, identityOf(e)}] = struct{}{}
			g.add(e, weight)
		}
	}
}

func (g *group) add(e *discoveryv1.Endpoint, weight uint32) {
	count := func(at int) {
		g.endpoints[at]++
		g.weights[at] += int64(weight)
		g.highest[at] = max(g.highest[at], weight)
	}
	if g.plan.Endpoints != nil {
		for at, w := range g.weightsOf(e) {
			if w > 0 {
				count(at)
			}
		}
	} else if at, ok := zoneIndex(g.plan, ZoneOf(e)); ok {
		count(at)
	}
}

// Own weights of a slice's endpoints, one for each, relative to all slices of the Service;
// nil: all endpoints of the Service are alike.
func (p *Plan) Own(slice *discoveryv1.EndpointSlice) []uint32 {
	if p == nil || p.own == nil {
		return nil
	}
	weights := make([]uint32, len(slice.Endpoints))
	for i := range slice.Endpoints {
		weights[i] = p.ownOf(slice.Namespace, &slice.Endpoints[i])
	}
	return weights
}

func (p *Plan) ownOf(namespace string, e *discoveryv1.Endpoint) uint32 {
	if e.TargetRef != nil && e.TargetRef.Kind == "Dataplane" {
		if w, ok := p.own[targetKey(namespace, e.TargetRef)]; ok {
			return w
		}
	}
	return DefaultWeight
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
	return maps.Equal(p.own, other.own) && slices.EqualFunc(p.groups, other.groups, func(a, b group) bool {
		return a.plan == b.plan && slices.Equal(a.endpoints, b.endpoints) && slices.Equal(a.weights, b.weights)
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
	switch {
	case g.plan.Endpoints != nil:
		return p.byAddress(g, from, slice)
	case p.own != nil:
		return p.byWeight(g, from, slice)
	}
	return g.byZone(from, slice)
}

// byWeight divides the share of each zone among its endpoints by their own weights.
func (p *Plan) byWeight(g *group, from int, slice *discoveryv1.EndpointSlice) []uint32 {
	each, highest := make([]float64, len(g.plan.Zones)), 0.0
	for _, share := range g.plan.Zones[from].To {
		if to, ok := zoneIndex(g.plan, locality.Zone(share.Zone)); ok && g.weights[to] > 0 {
			each[to] = share.Share / float64(g.weights[to])
			highest = max(highest, each[to]*float64(g.highest[to]))
		}
	}
	if highest == 0 {
		return nil
	}
	weights := make([]uint32, len(slice.Endpoints))
	for i := range slice.Endpoints {
		e := &slice.Endpoints[i]
		if to, ok := zoneIndex(g.plan, ZoneOf(e)); ok && Ready(e) && each[to] > 0 {
			weights[i] = uint32(max(1, math.Round(each[to]*float64(p.ownOf(slice.Namespace, e))/highest*maxOwnWeight)))
		}
	}
	return weights
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

// byAddress looks weights up, and multiplies them by the endpoints' own. An endpoint that
// the plan does not list yet gets nothing.
func (p *Plan) byAddress(g *group, from int, slice *discoveryv1.EndpointSlice) []uint32 {
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
			if p.own != nil {
				weights[i] *= p.ownOf(slice.Namespace, e)
			}
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
