package loadbalancer

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/addresspool"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// owners is which Service has which address of the pools. Safe for concurrent use.
type owners struct {
	mu sync.Mutex
	of map[netip.Addr]resource.Key
	// has are the addresses of each Service, in the order in which it got them.
	has map[resource.Key][]netip.Addr
}

func newOwners() *owners {
	return &owners{of: map[netip.Addr]resource.Key{}, has: map[resource.Key][]netip.Addr{}}
}

// take an address for a Service; false: another one has it.
func (o *owners) take(a netip.Addr, key resource.Key) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if owner, taken := o.of[a]; taken {
		return owner == key
	}
	o.of[a] = key
	o.has[key] = append(o.has[key], a)
	return true
}

// free what a Service has besides keep, and report whether there was anything.
func (o *owners) free(key resource.Key, keep []netip.Addr) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	had := len(o.has[key])
	o.has[key] = slices.DeleteFunc(o.has[key], func(a netip.Addr) bool {
		if slices.Contains(keep, a) {
			return false
		}
		delete(o.of, a)
		return true
	})
	left := len(o.has[key])
	if left == 0 {
		delete(o.has, key)
	}
	return left < had
}

// search an address of ranges that no Service has, and take it.
func (o *owners) search(ranges []addresspool.Range, v4 bool, key resource.Key, usable func(netip.Addr) bool) (netip.Addr, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	a, ok := addresspool.Search(ranges, v4, key.String(), len(o.of)+maxUnusable, func(a netip.Addr) bool {
		_, taken := o.of[a]
		return !taken && usable(a)
	})
	if ok {
		o.of[a] = key
		o.has[key] = append(o.has[key], a)
	}
	return a, ok
}

// maxUnusable bounds a search among addresses that belong to service ranges.
const maxUnusable = 1024

// rangesOf a pool. What cannot be read is left out: the API refuses it.
func rangesOf(p *meshv1alpha1.IPAddressPool) []addresspool.Range {
	var out []addresspool.Range
	for _, text := range p.Spec.Addresses {
		if r, err := addresspool.ParseRange(text); err == nil {
			out = append(out, r)
		}
	}
	return out
}

func inOneOf(ranges []addresspool.Range, a netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(r addresspool.Range) bool { return r.Contains(a) })
}

// poolsFor a Service, by name: the one that it names, or all that give addresses without
// being named. why says why there is none.
func poolsFor(s *catalog.Snapshot, service *corev1.Service) (pools []*meshv1alpha1.IPAddressPool, why string) {
	allowed := func(p *meshv1alpha1.IPAddressPool) bool {
		return len(p.Spec.Namespaces) == 0 || slices.Contains(p.Spec.Namespaces, service.Namespace)
	}
	if name := service.Annotations[meshv1alpha1.AnnotationAddressPool]; name != "" {
		p, ok := s.AddressPools.Get(resource.Key{Name: name})
		switch {
		case !ok:
			return nil, fmt.Sprintf("annotation %s: there is no IPAddressPool %q", meshv1alpha1.AnnotationAddressPool, name)
		case !allowed(p):
			return nil, fmt.Sprintf("annotation %s: IPAddressPool %q is not for namespace %s", meshv1alpha1.AnnotationAddressPool, name, service.Namespace)
		}
		return []*meshv1alpha1.IPAddressPool{p}, ""
	}
	for _, p := range s.AddressPools.All() {
		if allowed(p) && (p.Spec.AutoAssign == nil || *p.Spec.AutoAssign) {
			pools = append(pools, p)
		}
	}
	if pools == nil {
		why = fmt.Sprintf("no IPAddressPool gives addresses to namespace %s: create one, or name one by the annotation %s",
			service.Namespace, meshv1alpha1.AnnotationAddressPool)
	}
	return pools, why
}

// poolIngress are the addresses of pools that a Service has or gets, one for each of its IP
// families. What it has stays, also when its pool is gone: clients use it.
func (c *Controller) poolIngress(s *catalog.Snapshot, service *corev1.Service) ingress {
	pools, why := poolsFor(s, service)
	var ranges []addresspool.Range
	for _, p := range pools {
		ranges = append(ranges, rangesOf(p)...)
	}
	var wanted netip.Addr
	if text := service.Spec.LoadBalancerIP; text != "" {
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return ingress{reason: ReasonNoAddress, message: fmt.Sprintf("spec.loadBalancerIP %q is no IP address", text)}
		}
		wanted = addr.Unmap()
	}
	out := ingress{reason: ReasonAssigned}
	var missing []string
	for _, family := range service.Spec.IPFamilies {
		v4 := family == corev1.IPv4Protocol
		a, problem := c.poolAddress(service, v4, wanted, ranges)
		if problem != "" {
			missing = append(missing, problem)
			continue
		}
		out.addresses = append(out.addresses, a)
	}
	switch {
	case len(missing) > 0 && why != "":
		out.reason, out.message = ReasonNoPool, why
	case len(missing) > 0:
		out.reason, out.message = ReasonNoAddress, strings.Join(missing, "; ")
	default:
		out.message = "addresses of IPAddressPools; routes to them are made by others"
		for _, a := range out.addresses {
			if !inOneOf(ranges, a) {
				out.message = fmt.Sprintf("%s is in no pool of the Service any more; it stays as long as the Service does", a)
			}
		}
	}
	return out
}

// poolAddress of one family: the one that is wanted, the one that the Service has, or a free
// one.
func (c *Controller) poolAddress(service *corev1.Service, v4 bool, wanted netip.Addr, ranges []addresspool.Range) (a netip.Addr, problem string) {
	key := resource.KeyOf(service)
	family := "IPv6"
	if v4 {
		family = "IPv4"
	}
	if wanted.IsValid() && wanted.Is4() == v4 {
		switch {
		case slices.Contains(statusAddresses(service), wanted) && c.owners.take(wanted, key):
			return wanted, "" // also if its pool is gone
		case !inOneOf(ranges, wanted):
			return a, fmt.Sprintf("spec.loadBalancerIP %s is in no IPAddressPool of the Service", wanted)
		case c.InServiceRange(wanted):
			return a, fmt.Sprintf("spec.loadBalancerIP %s is in a range of virtual IPs", wanted)
		case !c.owners.take(wanted, key):
			return a, fmt.Sprintf("spec.loadBalancerIP %s is that of another Service", wanted)
		}
		return wanted, ""
	}
	for _, had := range statusAddresses(service) {
		if had.Is4() == v4 && c.owners.take(had, key) {
			return had, ""
		}
	}
	a, ok := c.owners.search(ranges, v4, key, func(a netip.Addr) bool { return !c.InServiceRange(a) })
	if !ok {
		return a, fmt.Sprintf("no %s address of the IPAddressPools is free", family)
	}
	return a, ""
}
