package health

import (
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/backend"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// LastEndpoints names those of some Dataplanes without which a Service would have no ready
// endpoint of some address family, with that Service (NAMESPACE/NAME). It is pure.
func LastEndpoints(s *catalog.Snapshot, dead []resource.Key) map[resource.Key]string {
	gone := make(map[resource.Key]bool, len(dead))
	for _, key := range dead {
		gone[key] = true
	}
	out := map[resource.Key]string{}
	judged := map[resource.Key]map[resource.Key]bool{} // what each Service would lose
	for _, key := range dead {
		dp, ok := s.Dataplanes.Get(key)
		if !ok {
			continue
		}
		backend.Behind(s, dp, func(service resource.Key) {
			if judged[service] == nil {
				judged[service] = lastOf(s, service, gone)
			}
			if _, known := out[key]; !known && judged[service][key] {
				out[key] = service.String()
			}
		})
	}
	return out
}

// lastOf a Service are its ready endpoints among those that are gone, in families that
// have no other.
func lastOf(s *catalog.Snapshot, service resource.Key, gone map[resource.Key]bool) map[resource.Key]bool {
	lost := map[discoveryv1.AddressType][]resource.Key{}
	left := map[discoveryv1.AddressType]bool{}
	for _, slice := range s.SlicesOf(service) {
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			if e.Conditions.Ready != nil && !*e.Conditions.Ready {
				continue
			}
			if r := e.TargetRef; r != nil && r.Kind == dataplaneKind && gone[resource.Key{Namespace: r.Namespace, Name: r.Name}] {
				lost[slice.AddressType] = append(lost[slice.AddressType], resource.Key{Namespace: r.Namespace, Name: r.Name})
			} else {
				left[slice.AddressType] = true
			}
		}
	}
	last := map[resource.Key]bool{}
	for family, keys := range lost {
		for _, key := range keys {
			last[key] = last[key] || !left[family]
		}
	}
	return last
}
