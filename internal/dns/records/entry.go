package records

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"
	"strings"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// Entry is what a Service's name and the names below it stand for. It is never
// changed.
type Entry struct {
	Name proxy.ServiceName
	// Scope is which workloads resolve it.
	Scope proxy.Scope
	// Alias is the domain name that the Service is another name for; everything
	// else is empty then.
	Alias    string
	Headless bool
	Host                      // of the Service itself
	Hosts    map[string]*Host // of a headless Service, by hostname, or "hostname.cluster"
	// Ports by "_port._protocol"; unnamed ones have no name.
	Ports map[string][]Port
}

// Host is the addresses of a name.
type Host struct{ V4, V6 []netip.Addr }

// Port is where a named port is served.
type Port struct {
	Number uint16
	// Hostname below the Service; empty: the Service itself.
	Hostname string
}

// Empty reports whether a headless Service has no ready endpoint.
func (e *Entry) Empty() bool { return e.Headless && len(e.V4)+len(e.V6) == 0 }

func (h *Host) add(a netip.Addr) {
	list := &h.V4
	if a.Is6() {
		list = &h.V6
	}
	if !slices.Contains(*list, a) {
		*list = append(*list, a)
	}
}

func (h *Host) sort() {
	slices.SortFunc(h.V4, netip.Addr.Compare)
	slices.SortFunc(h.V6, netip.Addr.Compare)
}

func virtual(name proxy.ServiceName, ips []netip.Addr, ports []proxy.Port) *Entry {
	e := &Entry{Name: name, Ports: map[string][]Port{}}
	for _, ip := range ips {
		e.add(ip)
	}
	for _, p := range ports {
		if p.Name != "" {
			label := portLabel(p.Name, p.Protocol)
			e.Ports[label] = append(e.Ports[label], Port{Number: p.Port})
		}
	}
	return e
}

func headless(name proxy.ServiceName, parts iter.Seq[*Slice]) *Entry {
	e := &Entry{Name: name, Headless: true, Hosts: map[string]*Host{}, Ports: map[string][]Port{}}
	all := make(map[netip.Addr]struct{})
	for s := range parts {
		for i := range s.Targets {
			t := &s.Targets[i]
			if t.Domain != "" {
				// A name can be another name for one only: the first, so that all
				// nodes say the same.
				if e.Alias == "" || t.Domain < e.Alias {
					e.Alias = t.Domain
				}
				continue
			}
			hostname := t.Hostname
			if hostname == "" {
				hostname = GeneratedHostname(t.Addr)
			}
			if s.Cluster != "" {
				hostname += "." + s.Cluster
			}
			all[t.Addr] = struct{}{}
			if e.Hosts[hostname] == nil {
				e.Hosts[hostname] = &Host{}
			}
			e.Hosts[hostname].add(t.Addr)
			e.addPorts(s.Ports, hostname)
		}
	}
	if len(all) == 0 && e.Alias != "" {
		return &Entry{Name: name, Alias: e.Alias}
	}
	e.Alias = ""
	for a := range all {
		if a.Is4() {
			e.V4 = append(e.V4, a)
		} else {
			e.V6 = append(e.V6, a)
		}
	}
	e.finish()
	return e
}

func (e *Entry) addPorts(ports []proxy.SlicePort, hostname string) {
	for _, p := range ports {
		if p.Name == "" {
			continue
		}
		label := portLabel(p.Name, p.Protocol)
		e.Ports[label] = append(e.Ports[label], Port{Number: p.Port, Hostname: hostname})
	}
}

// finish puts everything in order. One host may have come by several endpoints
// (IPv4 and IPv6, or one that moves between slices).
func (e *Entry) finish() {
	e.sort()
	for _, h := range e.Hosts {
		h.sort()
	}
	for label, ports := range e.Ports {
		slices.SortFunc(ports, func(a, b Port) int {
			return cmp.Or(strings.Compare(a.Hostname, b.Hostname), cmp.Compare(a.Number, b.Number))
		})
		e.Ports[label] = slices.Compact(ports)
	}
}

// GeneratedHostname names an endpoint that has no hostname: its address with
// dashes, as CoreDNS does it.
func GeneratedHostname(a netip.Addr) string {
	s := a.WithZone("").String()
	if a.Is4() {
		return strings.ReplaceAll(s, ".", "-")
	}
	s = strings.ReplaceAll(s, ":", "-")
	// A label must begin and end with a letter or a digit (RFC 1123).
	if strings.HasPrefix(s, "-") {
		s = "0" + s
	}
	if strings.HasSuffix(s, "-") {
		s += "0"
	}
	return s
}

func portLabel(name string, protocol proxy.Protocol) string {
	return "_" + strings.ToLower(name) + "._" + strings.ToLower(string(protocol))
}

// Service finds a Service; nil: there is none. Names are in lower case.
func (z *Zone) Service(name proxy.ServiceName) *Entry {
	z.mu.RLock()
	defer z.mu.RUnlock()
	if s := z.services[name]; s != nil {
		return EntryOf(s)
	}
	return z.entries[name]
}

// HasNamespace reports whether a namespace has any Service that workloads of a mesh see; an
// empty mesh sees all.
func (z *Zone) HasNamespace(namespace, mesh string) bool {
	z.mu.RLock()
	defer z.mu.RUnlock()
	for scope, n := range z.namespaces[namespace] {
		if n > 0 && scope.allows(mesh) {
			return true
		}
	}
	return false
}

// Reverse are the names of an address, as labels before the cluster domain:
// "web.default.svc", or "web-0.web.default.svc" for an endpoint. An address of a Service is no
// endpoint's. Sorted. Those that workloads of a mesh do not see are left out; known reports whether there are any
// at all.
func (z *Zone) Reverse(a netip.Addr, mesh string) (names []string, known bool) {
	z.rlockIndexed()
	defer z.mu.RUnlock()
	all := z.reverse[a]
	if !a.IsLoopback() && !slices.ContainsFunc(all, func(p pointer) bool { return p.hostname == "" }) {
		all = slices.Clip(all)
		for _, s := range z.endpointsAt[a] {
			p := pointer{service: s.Service, hostname: GeneratedHostname(a)}
			if z.services[s.Service] != nil && !slices.Contains(all, p) {
				all = append(all, p)
			}
		}
	}
	var out []string
	for _, p := range all {
		if !z.scope(p.service).Allows(mesh) {
			continue
		}
		name := p.service.Name + "." + p.service.Namespace + ".svc"
		if p.hostname != "" {
			name = p.hostname + "." + name
		}
		out = append(out, name)
	}
	slices.Sort(out)
	return out, len(all) > 0
}

// rlockIndexed locks the zone for reading, with the index of endpoints. It is made for the first
// who needs it, as most agents are never asked for names of endpoints.
func (z *Zone) rlockIndexed() {
	for {
		z.mu.RLock()
		if z.endpointsAt != nil {
			return
		}
		z.mu.RUnlock()
		z.mu.Lock()
		if z.endpointsAt == nil {
			z.endpointsAt = make(map[netip.Addr][]*proxy.Slice)
			for _, s := range z.endpoints {
				z.index(s)
			}
		}
		z.mu.Unlock()
	}
}

// setEndpoints keeps a slice of a Service with virtual IPs; nil: it is gone.
func (z *Zone) setEndpoints(name proxy.SliceName, s *proxy.Slice) {
	if old := z.endpoints[name]; old != nil && z.endpointsAt != nil {
		for a := range readyAddresses(old) {
			rest := slices.DeleteFunc(z.endpointsAt[a], func(one *proxy.Slice) bool { return one == old })
			if z.endpointsAt[a] = rest; len(rest) == 0 {
				delete(z.endpointsAt, a)
			}
		}
	}
	set(z.endpoints, name, s)
	if s != nil && z.endpointsAt != nil {
		z.index(s)
	}
}

func (z *Zone) index(s *proxy.Slice) {
	for a := range readyAddresses(s) {
		z.endpointsAt[a] = append(z.endpointsAt[a], s)
	}
}

func readyAddresses(s *proxy.Slice) iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		for _, e := range s.Endpoints {
			if e.Ready && !yield(e.Addr.Unmap()) {
				return
			}
		}
	}
}

// Endpoint of a Service with virtual IPs, by the hostname that its address makes; nil: it has
// no such ready endpoint.
func (z *Zone) Endpoint(service proxy.ServiceName, hostname string) *Host {
	a, err := netip.ParseAddr(strings.ReplaceAll(hostname, "-", "."))
	if err != nil {
		a, err = netip.ParseAddr(strings.ReplaceAll(hostname, "-", ":"))
	}
	if err != nil || GeneratedHostname(a) != hostname {
		return nil
	}
	z.rlockIndexed()
	defer z.mu.RUnlock()
	if z.services[service] == nil {
		return nil
	}
	for _, s := range z.endpointsAt[a] {
		if s.Service == service {
			h := &Host{}
			h.add(a)
			return h
		}
	}
	return nil
}

// scope of a Service that is known.
func (z *Zone) scope(name proxy.ServiceName) proxy.Scope {
	if s := z.services[name]; s != nil {
		return s.Scope
	}
	if e := z.entries[name]; e != nil {
		return e.Scope
	}
	return proxy.Scope{}
}
