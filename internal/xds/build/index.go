package build

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	mcsv1beta1 "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/catalog"
)

// indexes say which proxies and addresses a change concerns, so that it costs these and not all
// that there are.
type indexes struct {
	// vips are the Services by virtual address; the ports of a name below "mesh" are others.
	vips map[netip.Addr]frontend
	// addresses are those of vips, by Service.
	addresses map[catalog.Key]map[netip.Addr]struct{}
	// workloads counts the Dataplanes and Pods that have an address.
	workloads map[netip.Addr]int
	// named are the proxies by the Services whose ports they have or would have, and accounts
	// by service account; wide are those that have all Services.
	named    map[catalog.Key]*dependents
	accounts map[account]map[*Proxy]struct{}
	wide     map[*Proxy]struct{}
}

func newIndexes() indexes {
	return indexes{
		vips: map[netip.Addr]frontend{}, addresses: map[catalog.Key]map[netip.Addr]struct{}{}, workloads: map[netip.Addr]int{},
		named: map[catalog.Key]*dependents{}, accounts: map[account]map[*Proxy]struct{}{}, wide: map[*Proxy]struct{}{},
	}
}

// setVIP notes what answers at a virtual address; the zero value: nothing does.
func (x *indexes) setVIP(a netip.Addr, to frontend) {
	if was, ok := x.vips[a]; ok {
		put(x.addresses, was.service, a, false)
		delete(x.vips, a)
	}
	if to != (frontend{}) {
		x.vips[a] = to
		put(x.addresses, to.service, a, true)
	}
}

// countWorkload notes that a workload has an address, or has it no more. It reports whether the
// address has become one of a workload, or ceased to be.
func (x *indexes) countWorkload(a netip.Addr, by int) bool {
	was := x.workloads[a] > 0
	x.workloads[a] += by
	is := x.workloads[a] > 0
	if !is {
		delete(x.workloads, a)
	}
	return was != is
}

// storeWorkloads keeps the addresses of workloads. Those that have become addresses of workloads,
// or have ceased to be, are added to changed.
func (x *indexes) storeWorkloads(d *catalog.Delta, changed map[netip.Addr]struct{}) {
	count := func(all []netip.Addr, by int) {
		for _, a := range all {
			if x.countWorkload(a, by) {
				changed[a] = struct{}{}
			}
		}
	}
	for _, c := range d.Dataplanes {
		count(dataplaneAddresses(c.New), 1)
		count(dataplaneAddresses(c.Old), -1)
	}
	for _, c := range d.Pods {
		for _, p := range []*corev1.Pod{c.New, c.Old} {
			switch {
			case p == nil:
			case p == c.New:
				count(podIPs(p), 1)
			default:
				count(podIPs(p), -1)
			}
		}
	}
}

// name the Services on which the eager set of a proxy depends.
func (x *indexes) name(p *Proxy, services map[catalog.Key]struct{}) {
	for _, d := range p.named {
		if !has(services, d.service) {
			if d.remove(p); len(d.proxies) == 0 {
				delete(x.named, d.service)
			}
		}
	}
	p.named = nil
	if len(services) > 0 {
		p.named = make([]*dependents, 0, len(services))
	}
	for key := range services {
		d := x.named[key]
		if d == nil {
			d = &dependents{service: key}
			x.named[key] = d
		}
		d.add(p)
		p.named = append(p.named, d)
	}
}

// dependents are the proxies whose eager sets depend on a Service, in the order of their numbers.
type dependents struct {
	service catalog.Key
	proxies []*Proxy
}

func (d *dependents) find(p *Proxy) (int, bool) {
	return slices.BinarySearchFunc(d.proxies, p.number, func(p *Proxy, number uint64) int { return cmp.Compare(p.number, number) })
}

func (d *dependents) add(p *Proxy) {
	if i, found := d.find(p); !found {
		d.proxies = slices.Insert(d.proxies, i, p)
	}
}

func (d *dependents) remove(p *Proxy) {
	if i, found := d.find(p); found {
		d.proxies = slices.Delete(d.proxies, i, i+1)
	}
}

// dependents of a Service, which are not to be changed.
func (x *indexes) dependents(service catalog.Key) []*Proxy {
	if d := x.named[service]; d != nil {
		return d.proxies
	}
	return nil
}

func (x *indexes) add(p *Proxy) { put(x.accounts, p.account, p, true) }

func (x *indexes) remove(p *Proxy) {
	x.name(p, nil)
	put(x.accounts, p.account, p, false)
	delete(x.wide, p)
}

// concerned are the proxies whose eager sets may be others after a change of Services, or of what
// has the name of one.
func (x *indexes) concerned(services map[catalog.Key]struct{}) map[*Proxy]struct{} {
	out := map[*Proxy]struct{}{}
	if len(services) > 0 {
		maps.Copy(out, x.wide)
	}
	for key := range services {
		for _, p := range x.dependents(key) {
			out[p] = struct{}{}
		}
	}
	return out
}

// servicesIn are the Services of a change that eager sets depend on, by their own names and by
// those of imports.
func servicesIn(d *catalog.Delta) map[catalog.Key]struct{} {
	out := map[catalog.Key]struct{}{}
	for _, c := range d.Services {
		out[c.Key] = struct{}{}
		for _, s := range []*corev1.Service{c.Old, c.New} {
			if s != nil && s.Labels[mcsv1beta1.LabelServiceName] != "" {
				out[catalog.Key{Namespace: c.Key.Namespace, Name: s.Labels[mcsv1beta1.LabelServiceName]}] = struct{}{}
			}
		}
	}
	for _, c := range d.ServiceImports {
		out[c.Key] = struct{}{}
	}
	for _, c := range d.ExternalServices {
		out[c.Key] = struct{}{}
	}
	for _, c := range d.VirtualIPs {
		for _, v := range []*meshv1alpha1.VirtualIP{c.Old, c.New} {
			if v != nil {
				out[catalog.Key{Namespace: v.Spec.Namespace, Name: v.Spec.Service}] = struct{}{}
			}
		}
	}
	return out
}

// policed reports whether policies or routes changed themselves, not only what they are about.
func policed(d *catalog.Delta) bool {
	return len(d.TrafficPermissions)+len(d.BackendPolicies)+len(d.WorkloadPolicies)+len(d.ProxyPatches)+
		len(d.HTTPRoutes)+len(d.GRPCRoutes)+len(d.TCPRoutes)+len(d.ReferenceGrants) > 0
}
