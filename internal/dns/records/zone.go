// Package records holds what a node knows of the names of Services: the records of
// the Kubernetes DNS specification, as data.
//
// It owns the translation of Services and endpoints into names. A feed calls
// Apply; package dns asks Service, Reverse and HasNamespace. It does not depend on
// packets.
package records

import (
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// Name is a Service that the data path does not carry, but that has a name: a
// headless one, an external name, or one of another proxy.
type Name struct {
	Name proxy.ServiceName
	// ExternalName is where an external name leads.
	ExternalName string
	// ClusterIPs of another proxy's Service; a Service with neither is headless.
	ClusterIPs []netip.Addr
	// Ports of a Service with ClusterIPs.
	Ports []proxy.Port
	// Scope is which workloads resolve it.
	Scope proxy.Scope
}

// Headless reports whether the name stands for endpoints.
func (n *Name) Headless() bool { return n.ExternalName == "" && len(n.ClusterIPs) == 0 }

// Slice is a part of the endpoints of a headless Service.
type Slice struct {
	Name    proxy.SliceName
	Service proxy.ServiceName
	Ports   []proxy.SlicePort
	Targets []Target
	// Cluster is the site that they are in, for endpoints of an imported Service: hostnames
	// are below it then (KEP-1645, "DNS"). Empty: they are below the Service.
	Cluster string
}

// Target is a ready endpoint: an address, or a domain name (of a slice of
// addressType FQDN).
type Target struct {
	Addr     netip.Addr
	Domain   string
	Hostname string // empty: none was given
	// Machine that a loopback address is on; empty: not known.
	Machine string
}

// Update is a change of what names there are. A nil value is a removal. With
// Reset it is everything there is. The objects must not be changed any more.
type Update struct {
	Reset    bool
	Services map[proxy.ServiceName]*proxy.Service
	Names    map[proxy.ServiceName]*Name
	Slices   map[proxy.SliceName]*Slice
	// Endpoints of Services that the data path carries; they stay shared with it.
	Endpoints map[proxy.SliceName]*proxy.Slice
	// VirtualIPs are the names below "mesh". One without addresses has those of its Service.
	VirtualIPs map[proxy.ServiceName]*proxy.VirtualIP
	// Hosts are names of services outside every mesh, by the Service with their virtual IPs.
	Hosts map[proxy.ServiceName]*Outside
}

// Zone is safe for concurrent use; readers wait for a change no longer than it
// takes to swap a few map entries. The zero value is not usable; see New.
type Zone struct {
	generation atomic.Uint64
	ready      atomic.Bool

	mu        sync.RWMutex
	services  map[proxy.ServiceName]*proxy.Service
	names     map[proxy.ServiceName]*Name
	slices    map[proxy.SliceName]*Slice
	endpoints map[proxy.SliceName]*proxy.Slice
	// endpointsAt are the endpoints by ready address; nil: nobody has needed it yet.
	endpointsAt map[netip.Addr][]*proxy.Slice
	slicesOf    map[proxy.ServiceName]map[proxy.SliceName]*Slice
	entries     map[proxy.ServiceName]*Entry // of names; those of services are made when they are asked for
	namespaces  map[string]map[scopeKey]int  // Services in each, by their scope
	reverse     map[netip.Addr][]pointer     // mostly one
	// virtual are the names below "mesh", virtualAt those with an address.
	virtual   map[proxy.ServiceName]*proxy.VirtualIP
	virtualAt map[netip.Addr]proxy.ServiceName
	// outside are the services outside every mesh that have hosts, hosts those by name.
	outside map[proxy.ServiceName]*Outside
	hosts   map[string][]proxy.ServiceName
}

// pointer is a name that an address leads back to.
type pointer struct {
	service  proxy.ServiceName
	hostname string // empty: the Service itself
}

// New makes an empty zone.
func New() *Zone {
	return &Zone{
		services: map[proxy.ServiceName]*proxy.Service{}, names: map[proxy.ServiceName]*Name{},
		endpoints: map[proxy.SliceName]*proxy.Slice{},
		slices:    map[proxy.SliceName]*Slice{}, slicesOf: map[proxy.ServiceName]map[proxy.SliceName]*Slice{},
		entries: map[proxy.ServiceName]*Entry{}, namespaces: map[string]map[scopeKey]int{},
		reverse: map[netip.Addr][]pointer{},
		virtual: map[proxy.ServiceName]*proxy.VirtualIP{}, virtualAt: map[netip.Addr]proxy.ServiceName{},
		outside: map[proxy.ServiceName]*Outside{}, hosts: map[string][]proxy.ServiceName{},
	}
}

// Ready reports whether a whole state has been applied.
func (z *Zone) Ready() bool { return z.ready.Load() }

// Generation changes with every Apply: what was read at one generation holds
// until the next.
func (z *Zone) Generation() uint64 { return z.generation.Load() }

// Apply takes an update in. Its cost is that of the Services it concerns.
func (z *Zone) Apply(u Update) {
	z.mu.Lock()
	defer z.mu.Unlock()
	touched := make(map[proxy.ServiceName]known, len(u.Services)+len(u.Names)+len(u.Slices))
	if u.Reset {
		z.clear(touched)
		z.ready.Store(true)
	}
	if len(z.services) == 0 { // maps need not grow
		z.services = make(map[proxy.ServiceName]*proxy.Service, len(u.Services))
	}
	if len(z.reverse) == 0 {
		z.reverse = make(map[netip.Addr][]pointer, len(u.Services))
	}
	for name, s := range u.Services {
		z.touch(name, touched)
		set(z.services, name, s)
	}
	for name, n := range u.Names {
		z.touch(name, touched)
		set(z.names, name, n)
	}
	for name, s := range u.Slices {
		z.setSlice(name, s, touched)
	}
	for name, s := range u.Endpoints {
		z.setEndpoints(name, s)
	}
	for name, was := range touched {
		z.rebuild(name, was)
	}
	z.setVirtualIPs(u)
	z.setHosts(u)
	z.generation.Add(1)
}

// known is what a name stands for: a Service that the data path carries, or an
// entry, or nothing.
type known struct {
	service *proxy.Service
	entry   *Entry
}

func (z *Zone) known(name proxy.ServiceName) known {
	if s := z.services[name]; s != nil {
		return known{service: s}
	}
	return known{entry: z.entries[name]}
}

// touch remembers what a name stood for before a change.
func (z *Zone) touch(name proxy.ServiceName, touched map[proxy.ServiceName]known) {
	if _, ok := touched[name]; !ok {
		touched[name] = z.known(name)
	}
}

func set[K comparable, V any](m map[K]*V, key K, value *V) {
	if value == nil {
		delete(m, key)
		return
	}
	m[key] = value
}

// clear forgets everything but the entries, which rebuild will look at.
func (z *Zone) clear(touched map[proxy.ServiceName]known) {
	for name := range z.services {
		z.touch(name, touched)
	}
	for name := range z.entries {
		z.touch(name, touched)
	}
	clear(z.services)
	clear(z.names)
	clear(z.slices)
	clear(z.slicesOf)
	clear(z.endpoints)
	z.endpointsAt = nil // it is made again when it is needed
}

func (z *Zone) setSlice(name proxy.SliceName, s *Slice, touched map[proxy.ServiceName]known) {
	if old := z.slices[name]; old != nil {
		z.touch(old.Service, touched)
		if of := z.slicesOf[old.Service]; len(of) > 1 {
			delete(of, name)
		} else {
			delete(z.slicesOf, old.Service)
		}
		delete(z.slices, name)
	}
	if s == nil {
		return
	}
	z.touch(s.Service, touched)
	z.slices[name] = s
	if z.slicesOf[s.Service] == nil {
		z.slicesOf[s.Service] = make(map[proxy.SliceName]*Slice, 1)
	}
	z.slicesOf[s.Service][name] = s
}

// rebuild makes the entry of a name from what is known of it, where was is what it
// stood for.
func (z *Zone) rebuild(name proxy.ServiceName, was known) {
	set(z.entries, name, z.build(name))
	is := z.known(name)
	z.point(name, was, false)
	z.point(name, is, true)
	z.count(name.Namespace, is, +1)
	z.count(name.Namespace, was, -1)
}

// count a Service of a namespace.
func (z *Zone) count(namespace string, k known, by int) {
	if k == (known{}) {
		return
	}
	key := keyOf(k.scope())
	if z.namespaces[namespace] == nil {
		z.namespaces[namespace] = make(map[scopeKey]int, 1)
	}
	of := z.namespaces[namespace]
	if of[key] += by; of[key] == 0 {
		delete(of, key)
	}
	if len(of) == 0 {
		delete(z.namespaces, namespace)
	}
}

func (k known) scope() proxy.Scope {
	if k.service != nil {
		return k.service.Scope
	}
	return k.entry.Scope
}

// scopeKey is a scope as a key: the meshes it is exported to are separated by commas.
type scopeKey struct{ mesh, exported string }

func keyOf(s proxy.Scope) scopeKey { return scopeKey{s.Mesh, strings.Join(s.Exported, ",")} }

func (k scopeKey) allows(mesh string) bool {
	return proxy.Scope{Mesh: k.mesh, Exported: strings.Split(k.exported, ",")}.Allows(mesh)
}

// build returns nil if there is no such name, or it is a carried Service's. While a
// Service turns from one sort into another both may be known for a moment; the
// virtual address counts.
func (z *Zone) build(name proxy.ServiceName) *Entry {
	n := z.names[name]
	if n == nil || z.services[name] != nil {
		return nil
	}
	return n.Entry(maps.Values(z.slicesOf[name]))
}

// Entry of the name, with the slices of its endpoints if it is headless.
func (n *Name) Entry(parts iter.Seq[*Slice]) *Entry {
	var e *Entry
	switch {
	case n.ExternalName != "":
		e = &Entry{Name: n.Name, Alias: n.ExternalName}
	case n.Headless():
		e = headless(n.Name, parts)
	default:
		e = virtual(n.Name, n.ClusterIPs, n.Ports)
	}
	e.Scope = n.Scope
	return e
}

// EntryOf a Service that the data path carries.
func EntryOf(s *proxy.Service) *Entry {
	e := virtual(s.Name, s.ClusterIPs, s.Ports)
	e.Scope = s.Scope
	return e
}

// point makes the addresses lead back to the name, or no more.
func (z *Zone) point(name proxy.ServiceName, k known, add bool) {
	each := func(addrs []netip.Addr, p pointer) {
		for _, a := range addrs {
			list := z.reverse[a]
			i := slices.Index(list, p)
			switch {
			case add && i < 0:
				z.reverse[a] = append(list, p)
			case !add && i >= 0 && len(list) == 1:
				delete(z.reverse, a)
			case !add && i >= 0:
				z.reverse[a] = slices.Delete(list, i, i+1)
			}
		}
	}
	switch {
	case k.service != nil:
		each(k.service.ClusterIPs, pointer{service: name})
		return
	case k.entry == nil:
		return
	case !k.entry.Headless:
		each(k.entry.V4, pointer{service: name})
		each(k.entry.V6, pointer{service: name})
		return
	}
	for hostname, h := range k.entry.Hosts {
		if strings.Contains(hostname, ".") {
			continue // of an import, which has no name in the cluster domain
		}
		each(h.V4, pointer{service: name, hostname: hostname})
		each(h.V6, pointer{service: name, hostname: hostname})
	}
}
