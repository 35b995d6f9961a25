package build

import (
	"cmp"
	"maps"
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
	// local: only the endpoints of the node count.
	local bool
	// live reports whether an endpoint has a proxy.
	live func(netip.AddrPort) bool
	// healthy: draining endpoints are as good as others, for clients that know no degraded ones.
	healthy bool
	// overProvisioning factor, in percent; 0: the default.
	overProvisioning uint32
}

// loadAssignment puts the chosen endpoints first, and those that others are to use next.
func loadAssignment(a *assignment) *endpoint.ClusterLoadAssignment {
	out := &endpoint.ClusterLoadAssignment{
		ClusterName: a.name,
		Policy:      &endpoint.ClusterLoadAssignment_Policy{OverprovisioningFactor: wrapperspb.UInt32(cmp.Or(a.overProvisioning, overProvisioning))},
	}
	first, next := a.choice.Cluster, a.choice.Fallback
	if a.local {
		first, next = a.choice.Local, nil
	}
	draining := a.choice.Why == proxy.TerminatingFallback && !a.healthy
	priority := uint32(0)
	for _, targets := range [][]proxy.Target{first, next} {
		localities := a.localities(targets, priority, draining)
		out.Endpoints = append(out.Endpoints, localities...)
		if len(localities) > 0 {
			priority++
		}
	}
	return out
}

// localities of targets, by zone.
func (a *assignment) localities(targets []proxy.Target, priority uint32, draining bool) []*endpoint.LocalityLbEndpoints {
	zones := map[locality.Zone][]proxy.Target{}
	sums := map[locality.Zone]uint64{}
	total := uint64(0)
	for _, t := range targets {
		weight := uint64(max(t.Weight, 1))
		zones[t.Zone] = append(zones[t.Zone], t)
		sums[t.Zone] += weight
		total += weight
	}
	names := slices.Sorted(maps.Keys(zones))
	shares := apportion(names, sums, total)
	var out []*endpoint.LocalityLbEndpoints
	for _, zone := range names {
		l := &endpoint.LocalityLbEndpoints{
			Locality: &core.Locality{Zone: string(zone), SubZone: string(a.site)}, Priority: priority,
			LoadBalancingWeight: wrapperspb.UInt32(shares[zone]),
		}
		for _, t := range zones[zone] {
			l.LbEndpoints = append(l.LbEndpoints, a.endpoint(t, draining))
		}
		out = append(out, l)
	}
	return out
}

// apportion divides totalWeight in proportion, at least 1 for each (Hamilton's method).
func apportion(zones []locality.Zone, sums map[locality.Zone]uint64, total uint64) map[locality.Zone]uint32 {
	out := make(map[locality.Zone]uint32, len(zones))
	if len(zones) == 0 || len(zones) > totalWeight {
		return out
	}
	left := uint64(totalWeight - len(zones))
	given := uint64(0)
	rest := make(map[locality.Zone]uint64, len(zones))
	for _, z := range zones {
		share := left * sums[z] / total
		rest[z] = left * sums[z] % total
		out[z] = uint32(share) + 1
		given += share
	}
	byRest := slices.Clone(zones)
	slices.SortStableFunc(byRest, func(x, y locality.Zone) int { return cmp.Compare(rest[y], rest[x]) })
	for _, z := range byRest[:left-given] {
		out[z]++
	}
	return out
}

func (a *assignment) endpoint(t proxy.Target, draining bool) *endpoint.LbEndpoint {
	e := lbEndpoint(t.Addr)
	e.LoadBalancingWeight = wrapperspb.UInt32(max(t.Weight, 1))
	if draining {
		e.HealthStatus = core.HealthStatus_DEGRADED
	}
	if a.live(t.Addr) {
		e.Metadata = &core.Metadata{FilterMetadata: map[string]*structpb.Struct{
			"envoy.transport_socket_match": {Fields: map[string]*structpb.Value{matchMTLS: structpb.NewBoolValue(true)}},
		}}
	}
	return e
}
