package topology

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/planner"
	"github.com/proxima-mesh/proxima/internal/planner/hint"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/topology/trafficplan"
)

// kubeProxy is how kube-proxy divides the connections of a group of ports: evenly among the
// endpoints that are hinted to the zone of the client, or among all.
type kubeProxy struct {
	topology *planner.Topology
	// endpoints that are ready, by zone; masks are their hints. nil: there are none to follow.
	endpoints []int
	masks     []hint.Mask
}

// kubeProxyOf a candidate. Hints are followed where the Service asks Kubernetes for them, by
// its annotation or by spec.trafficDistribution: others are this control plane's own. As
// kube-proxy does (pkg/proxy/topology.go), it ignores all hints if an endpoint has none.
func kubeProxyOf(snapshot *catalog.Snapshot, key resource.Key, u *candidate, mode Mode) *kubeProxy {
	k := &kubeProxy{topology: u.in.topology}
	asks := mode.Kind == Auto || mode.Kind == Distribution && distributes(mode.Name)
	complete := asks && u.in.topology.Len() <= hint.MaxZones
	seen := map[string]bool{}
	for _, slice := range snapshot.SlicesOf(key) {
		if slice.AddressType != u.group.Name.Family {
			continue
		}
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			if len(e.Addresses) == 0 || !trafficplan.Ready(e) || seen[e.Addresses[0]] {
				continue
			}
			at, ok := u.in.topology.Index(trafficplan.ZoneOf(e))
			if _, ours := u.group.Group.Zones[e.Addresses[0]]; !ours || !ok {
				continue // of other ports
			}
			seen[e.Addresses[0]] = true
			mask, hinted := maskOf(u.in.topology, e)
			complete = complete && hinted
			k.endpoints, k.masks = append(k.endpoints, at), append(k.masks, mask)
		}
	}
	if !complete {
		k.masks = nil
	}
	return k
}

// distributes reports whether a value of spec.trafficDistribution gives hints.
func distributes(value string) bool {
	switch value {
	case corev1.ServiceTrafficDistributionPreferClose, corev1.ServiceTrafficDistributionPreferSameZone,
		corev1.ServiceTrafficDistributionPreferSameNode:
		return true
	}
	return false
}

// maskOf the hints of an endpoint; hinted is false if it has none for a zone that there is.
func maskOf(t *planner.Topology, e *discoveryv1.Endpoint) (mask hint.Mask, hinted bool) {
	if e.Hints == nil {
		return 0, false
	}
	for _, z := range e.Hints.ForZones {
		if at, ok := t.Index(locality.Zone(z.Name)); ok && at < hint.MaxZones {
			mask |= 1 << at
		}
	}
	return mask, mask != 0
}

// share of the traffic of a zone that goes to another.
func (k *kubeProxy) share(from, to int) float64 {
	all, named, allThere, namedThere := 0, 0, 0, 0
	for i, at := range k.endpoints {
		all++
		if at == to {
			allThere++
		}
		if k.masks != nil && k.masks[i].Has(from) {
			named++
			if at == to {
				namedThere++
			}
		}
	}
	switch {
	case named > 0:
		return float64(namedThere) / float64(named)
	case all > 0:
		return float64(allThere) / float64(all)
	}
	return 0
}

// metrics of what it makes of the demand of a solution.
func (k *kubeProxy) metrics(s *solution) planner.Metrics {
	demand := make([]float64, len(s.problem.Demand))
	for i, d := range s.problem.Demand {
		if s.problem.NoNodes == nil || !s.problem.NoNodes[i] {
			demand[i] = d
		}
	}
	return hint.Score(k.topology, demand, k.endpoints, k.masks)
}
