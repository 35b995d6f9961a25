package isolation

import (
	"maps"
	"net/netip"

	"github.com/proxima-mesh/proxima/internal/dns/records"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// destinations are the addresses that workloads of closed meshes reach: endpoints of Services
// whose scope allows it, and workloads of the mesh. It counts why each is reached, so that a
// change costs what it changes.
type destinations struct {
	scopes  map[proxy.ServiceName]scopes
	parts   map[proxy.SliceName]part
	partsOf map[proxy.ServiceName]map[proxy.SliceName]struct{}
	members map[proxy.ServiceName]*proxy.Workload
	closed  map[string]bool
	refs    map[proxy.Reach]int
	touched map[proxy.Reach]bool // whether it was reached before
	reset   bool
}

// part of the endpoints of a Service.
type part struct {
	service proxy.ServiceName
	addrs   []netip.Addr
}

func newDestinations() destinations {
	return destinations{
		scopes: map[proxy.ServiceName]scopes{}, parts: map[proxy.SliceName]part{},
		partsOf: map[proxy.ServiceName]map[proxy.SliceName]struct{}{}, members: map[proxy.ServiceName]*proxy.Workload{},
		closed: map[string]bool{}, refs: map[proxy.Reach]int{}, touched: map[proxy.Reach]bool{},
	}
}

// take returns what changed since the last time, or everything.
func (d *destinations) take(all bool) (map[proxy.Reach]bool, bool) {
	all = all || d.reset
	out := make(map[proxy.Reach]bool, len(d.touched))
	for reach, was := range d.touched {
		if is := d.refs[reach] > 0; is != was {
			out[reach] = is
		}
	}
	if all {
		clear(out)
		for reach := range d.refs {
			out[reach] = true
		}
	}
	d.touched, d.reset = map[proxy.Reach]bool{}, false
	return out, all
}

func (d *destinations) count(mesh string, addrs []netip.Addr, by int) {
	for _, a := range addrs {
		reach := proxy.Reach{Mesh: mesh, Addr: a}
		if _, noted := d.touched[reach]; !noted {
			d.touched[reach] = d.refs[reach] > 0
		}
		if d.refs[reach] += by; d.refs[reach] == 0 {
			delete(d.refs, reach)
		}
	}
}

// close makes these the closed meshes.
func (d *destinations) close(closed map[string]bool) {
	for mesh := range d.closed {
		if !closed[mesh] {
			d.each(mesh, -1)
		}
	}
	for mesh := range closed {
		if !d.closed[mesh] {
			d.each(mesh, +1)
		}
	}
	d.closed = maps.Clone(closed)
}

// each counts everything that a mesh reaches.
func (d *destinations) each(mesh string, by int) {
	for _, p := range d.parts {
		if d.reaches(mesh, p.service) {
			d.count(mesh, p.addrs, by)
		}
	}
	for _, w := range d.members {
		if w.Mesh == mesh {
			d.count(mesh, w.Addrs, by)
		}
	}
}

func (d *destinations) reaches(mesh string, service proxy.ServiceName) bool {
	scope := d.scopes[service].now()
	return scope != nil && scope.Allows(mesh)
}

func (d *destinations) setWorkload(name proxy.ServiceName, w *proxy.Workload) {
	if old := d.members[name]; old != nil && d.closed[old.Mesh] {
		d.count(old.Mesh, old.Addrs, -1)
	}
	set(d.members, name, w)
	if w != nil && d.closed[w.Mesh] {
		d.count(w.Mesh, w.Addrs, +1)
	}
}

// scopes of a Service: as modes have it, and as DNS alone has it; nil: it is none of theirs.
type scopes struct{ service, name *proxy.Scope }

// now is the one that holds. While a Service turns from one into the other both are known for
// a moment.
func (s scopes) now() *proxy.Scope {
	if s.service != nil {
		return s.service
	}
	return s.name
}

func (d *destinations) setService(name proxy.ServiceName, s *proxy.Service) {
	next := scopes{name: d.scopes[name].name}
	if s != nil {
		next.service = &s.Scope
	}
	d.setScopes(name, next)
}

func (d *destinations) setName(name proxy.ServiceName, n *records.Name) {
	next := scopes{service: d.scopes[name].service}
	if n != nil {
		next.name = &n.Scope
	}
	d.setScopes(name, next)
}

func (d *destinations) setScopes(name proxy.ServiceName, next scopes) {
	d.countService(name, -1)
	if d.scopes[name] = next; next == (scopes{}) {
		delete(d.scopes, name)
	}
	d.countService(name, +1)
}

// countService counts the endpoints of a Service for the closed meshes that reach it.
func (d *destinations) countService(name proxy.ServiceName, by int) {
	for mesh := range d.closed {
		if !d.reaches(mesh, name) {
			continue
		}
		for slice := range d.partsOf[name] {
			d.count(mesh, d.parts[slice].addrs, by)
		}
	}
}

func (d *destinations) setSlice(name proxy.SliceName, next *part) {
	for mesh := range d.closed {
		if old, ok := d.parts[name]; ok && d.reaches(mesh, old.service) {
			d.count(mesh, old.addrs, -1)
		}
		if next != nil && d.reaches(mesh, next.service) {
			d.count(mesh, next.addrs, +1)
		}
	}
	if old, ok := d.parts[name]; ok {
		if delete(d.partsOf[old.service], name); len(d.partsOf[old.service]) == 0 {
			delete(d.partsOf, old.service)
		}
		delete(d.parts, name)
	}
	if next == nil {
		return
	}
	d.parts[name] = *next
	if d.partsOf[next.service] == nil {
		d.partsOf[next.service] = map[proxy.SliceName]struct{}{}
	}
	d.partsOf[next.service][name] = struct{}{}
}

func partOfSlice(s *proxy.Slice) *part {
	if s == nil {
		return nil
	}
	p := &part{service: s.Service, addrs: make([]netip.Addr, 0, len(s.Endpoints))}
	for i := range s.Endpoints {
		p.addrs = append(p.addrs, s.Endpoints[i].Addr)
	}
	return p
}

func partOfNames(s *records.Slice) *part {
	if s == nil {
		return nil
	}
	p := &part{service: s.Service}
	for i := range s.Targets {
		if a := s.Targets[i].Addr; a.IsValid() {
			p.addrs = append(p.addrs, a)
		}
	}
	return p
}

// sliceKey keeps slices of names apart from those of the same name that are proxied, while a
// Service turns from one into the other.
func sliceKey(name proxy.SliceName) proxy.SliceName {
	name.Name += "/names"
	return name
}
