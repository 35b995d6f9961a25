package sites

import (
	"cmp"
	"slices"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
)

// GoesBefore reports whether a, and not b, has a host that both name: global's go before a
// zone's own, then the older one.
func GoesBefore(a, b *meshv1alpha1.ExternalService) bool {
	own := func(e *meshv1alpha1.ExternalService) int {
		if e.Labels[meshv1alpha1.LabelOrigin] == meshv1alpha1.OriginZone {
			return 1
		}
		return 0
	}
	return cmp.Or(
		cmp.Compare(own(a), own(b)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
		cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name),
	) < 0
}

// ShareHost reports whether two ExternalServices, which may be nil, name one host.
func ShareHost(a, b *meshv1alpha1.ExternalService) bool {
	return a != nil && b != nil && slices.ContainsFunc(a.Spec.Hosts, func(h string) bool { return slices.Contains(b.Spec.Hosts, h) })
}

// hosts that an ExternalService of a mesh has.
func (t *Table) hosts(of name, e *meshv1alpha1.ExternalService, meshName string) []string {
	var out []string
	for _, host := range e.Spec.Hosts {
		first := true
		for other := range t.claims[host] {
			rival, itsMesh := t.external(other)
			if other != of && rival != nil && itsMesh == meshName && GoesBefore(rival, e) {
				first = false
			}
		}
		if first {
			out = append(out, host)
		}
	}
	return out
}

// claim notes who names the hosts of an ExternalService that was and is now, each of which
// may be nil, and whom that concerns.
func (t *Table) claim(key name, was, now *meshv1alpha1.ExternalService, changed map[name]struct{}) {
	if was != nil {
		t.claimants(was, changed)
		for _, host := range was.Spec.Hosts {
			if delete(t.claims[host], key); len(t.claims[host]) == 0 {
				delete(t.claims, host)
			}
		}
	}
	if now == nil {
		return
	}
	for _, host := range now.Spec.Hosts {
		if t.claims[host] == nil {
			t.claims[host] = map[name]struct{}{}
		}
		t.claims[host][key] = struct{}{}
	}
	t.claimants(now, changed)
}

// claimants of the hosts of an ExternalService.
func (t *Table) claimants(e *meshv1alpha1.ExternalService, changed map[name]struct{}) {
	for _, host := range e.Spec.Hosts {
		for other := range t.claims[host] {
			changed[other] = struct{}{}
		}
	}
}
