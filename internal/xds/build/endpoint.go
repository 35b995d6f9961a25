package build

import (
	"cmp"
	"maps"
	"math/bits"
	"net/netip"
	"slices"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpoint "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// totalWeight that localities share. Envoy is exact to 1 in it, and gRPC needs weights.
const totalWeight = 10_000

// matchMTLS is the key by which an endpoint's metadata choose TLS (transport_socket_matches).
const matchMTLS = "mtls"

// assignment is what the endpoints of a service port are made of.
type assignment struct {
	name string
	site locality.Site
	// choice of the family that proxies use.
	choice *proxy.Choice
	// beyond is what is offered from outside this site; nil: nothing.
	beyond *beyond
	// local: only the endpoints of the node count.
	local bool
	// live reports whether an endpoint has a proxy; nil: that is of no concern.
	live func(netip.AddrPort) bool
	// healthy: draining endpoints are as good as others, for clients that know no degraded ones.
	healthy bool
	// prefer is what a policy says of localities.
	prefer preferences
	// overProvisioning factor, in percent; 0: the default.
	overProvisioning uint32
}

// loadAssignment puts the chosen endpoints first, and those that others are to use next.
func loadAssignment(a *assignment) *endpoint.ClusterLoadAssignment {
	out := &endpoint.ClusterLoadAssignment{
		ClusterName: a.name,
		Policy:      &endpoint.ClusterLoadAssignment_Policy{OverprovisioningFactor: wrapperspb.UInt32(cmp.Or(a.overProvisioning, overProvisioning))},
	}
	priority := uint32(0)
	for _, groups := range a.levels() {
		if len(groups) > 0 {
			out.Endpoints = append(out.Endpoints, localities(groups, priority)...)
			priority++
		}
	}
	return out
}

// group is endpoints of one locality, with their weight among those of one priority.
type group struct {
	locality  *core.Locality
	weight    uint64
	endpoints []*endpoint.LbEndpoint
}

// levels are the endpoints by priority. Empty ones are left out of the result.
func (a *assignment) levels() [][]group {
	first, next := a.choice.Cluster, a.choice.Fallback
	if a.local {
		first, next = a.choice.Local, nil
	}
	first, next = a.prefer.Order(a.choice.Why, first, next, a.site)
	beyond := a.prefer.leaving(a.beyond)
	draining := a.choice.Why == proxy.TerminatingFallback && !a.healthy
	here, rest := a.own(first, draining), a.own(next, draining)
	if beyond == nil || len(beyond.ways) == 0 {
		return [][]group{here, rest}
	}
	total := uint64(0)
	for i := range here {
		total += here[i].weight
	}
	split := beyond.split
	used, last := beyond.away(func(w *way) uint64 { return uint64(w.weight) })
	switch {
	case len(here) == 0 || a.choice.Why == proxy.TerminatingFallback, split.Away > 0 && split.Here == 0:
		return [][]group{used, here, rest, last}
	case beyond.remote.Spread: // an instance elsewhere counts as much as one here on average
		all, _ := beyond.away(func(w *way) uint64 { return uint64(w.instances) * total })
		return [][]group{append(scaled(here, uint64(len(first))), all...), rest}
	case split.Away > 0:
		used, last = beyond.away(func(w *way) uint64 { return uint64(w.weight) * total })
		return [][]group{append(scaled(here, uint64(split.Here)), used...), rest, last}
	}
	return [][]group{here, rest, used, last}
}

func scaled(groups []group, by uint64) []group {
	for i := range groups {
		groups[i].weight *= by
	}
	return groups
}

// own are targets of this site, by zone.
func (a *assignment) own(targets []proxy.Target, draining bool) []group {
	zones := map[locality.Zone]*group{}
	for _, t := range targets {
		g := zones[t.Zone]
		if g == nil {
			g = &group{locality: &core.Locality{Zone: string(t.Zone), SubZone: string(a.site)}}
			zones[t.Zone] = g
		}
		g.weight += uint64(max(t.Weight, 1))
		g.endpoints = append(g.endpoints, a.endpoint(t, draining))
	}
	var out []group
	for _, zone := range slices.Sorted(maps.Keys(zones)) {
		if a.prefer.weight != nil {
			a.weighAgain(zones[zone].endpoints, only(targets, func(t proxy.Target) bool { return t.Zone == zone }))
		}
		out = append(out, *zones[zone])
	}
	return out
}

// away are the gateways that lead out of this site, by site. last are those without weight.
func (t *beyond) away(weight func(*way) uint64) (used, last []group) {
	for i := range t.ways {
		w := &t.ways[i]
		g := group{locality: &core.Locality{Zone: string(proxy.OtherSitesZone), SubZone: string(w.site)}, weight: weight(w)}
		match := map[string]*structpb.Value{matchTunnel: structpb.NewStringValue(w.gateway())}
		if w.proxied {
			match = map[string]*structpb.Value{matchMTLS: structpb.NewBoolValue(true)}
		}
		for _, at := range w.gateways {
			e := lbEndpoint(at)
			e.LoadBalancingWeight = wrapperspb.UInt32(max(w.instances, 1))
			e.Metadata = socketMatch(match)
			g.endpoints = append(g.endpoints, e)
		}
		if g.weight > 0 {
			used = append(used, g)
		} else {
			g.weight = uint64(max(w.instances, 1))
			last = append(last, g)
		}
	}
	return used, last
}

// localities of one priority.
func localities(groups []group, priority uint32) []*endpoint.LocalityLbEndpoints {
	weights := make([]uint64, len(groups))
	for i := range groups {
		weights[i] = groups[i].weight
	}
	var out []*endpoint.LocalityLbEndpoints
	for i, share := range apportion(weights) {
		out = append(out, &endpoint.LocalityLbEndpoints{
			Locality: groups[i].locality, Priority: priority, LoadBalancingWeight: wrapperspb.UInt32(share), LbEndpoints: groups[i].endpoints,
		})
	}
	return out
}

// apportion divides totalWeight in proportion, at least 1 for each (Hamilton's method). Of more
// parts than that each gets 1.
func apportion(parts []uint64) []uint32 {
	out := make([]uint32, len(parts))
	total := uint64(0)
	for i, p := range parts {
		total += p
		out[i] = 1
	}
	if len(parts) > totalWeight || total == 0 {
		return out
	}
	left := uint64(totalWeight - len(parts))
	given := uint64(0)
	rest := make([]uint64, len(parts))
	order := make([]int, len(parts))
	for i, p := range parts {
		high, low := bits.Mul64(left, p)
		share, r := bits.Div64(high, low, total)
		rest[i], order[i] = r, i
		out[i] += uint32(share)
		given += share
	}
	slices.SortStableFunc(order, func(x, y int) int { return cmp.Compare(rest[y], rest[x]) })
	for _, i := range order[:left-given] {
		out[i]++
	}
	return out
}

// weighAgain the endpoints of a zone by what the client prefers. They are in the order of the targets.
func (a *assignment) weighAgain(all []*endpoint.LbEndpoint, targets []proxy.Target) {
	weights := make([]uint64, len(targets))
	for i, t := range targets {
		weights[i] = uint64(max(t.Weight, 1)) * uint64(a.prefer.weight(t))
	}
	for i, w := range weigh(weights) {
		all[i].LoadBalancingWeight = wrapperspb.UInt32(w)
	}
}

func (a *assignment) endpoint(t proxy.Target, draining bool) *endpoint.LbEndpoint {
	e := lbEndpoint(t.Addr)
	e.LoadBalancingWeight = wrapperspb.UInt32(max(t.Weight, 1))
	if draining {
		e.HealthStatus = core.HealthStatus_DEGRADED
	}
	if a.live != nil {
		e.Metadata = socketMatch(map[string]*structpb.Value{matchMTLS: structpb.NewBoolValue(a.live(t.Addr))})
	}
	return e
}

// socketMatch chooses a transport socket of the cluster (transport_socket_matches).
func socketMatch(fields map[string]*structpb.Value) *core.Metadata {
	return &core.Metadata{FilterMetadata: map[string]*structpb.Struct{"envoy.transport_socket_match": {Fields: fields}}}
}
