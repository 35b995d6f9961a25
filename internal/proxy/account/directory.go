package account

import (
	"net/netip"
	"slices"
	"sync"

	"github.com/proxima-mesh/proxima/internal/kernel/conntrack"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// Directory knows which service ports answer at which addresses, and where their endpoints
// are: as the mode has them, and endpoints that it had until recently. Safe for concurrent
// use.
type Directory struct {
	mu     sync.Mutex
	states map[proxy.PortName]*proxy.PortState
	fronts map[conntrack.Frontend]front
	// departed endpoints still have flows. They are forgotten in the second call of Age.
	departed, older map[departure]locality.Zone
	// stopped: nobody asks any more.
	stopped bool
	// local reports whether an address is one of this machine's.
	local func(netip.Addr) bool
}

// front is an address of a service port.
type front struct {
	port proxy.PortName
	// outside: the address is not the cluster's own, so that the policy for external traffic
	// holds; the one of this machine always uses all endpoints.
	outside bool
}

type departure struct {
	port     proxy.PortName
	endpoint netip.AddrPort
}

// NewDirectory makes an empty one. local reports whether an address is one of this
// machine's, for policies that treat local clients apart; it may block.
func NewDirectory(local func(netip.Addr) bool) *Directory {
	return &Directory{
		states: map[proxy.PortName]*proxy.PortState{}, fronts: map[conntrack.Frontend]front{},
		departed: map[departure]locality.Zone{}, older: map[departure]locality.Zone{}, local: local,
	}
}

// Update takes changes that are in place.
func (d *Directory) Update(changes []proxy.Change) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopped {
		return
	}
	for _, c := range changes {
		old := d.states[c.Name]
		if old != nil {
			for at := range frontsOf(old) {
				if d.fronts[at].port == c.Name {
					delete(d.fronts, at)
				}
			}
		}
		d.depart(c.Name, old, c.State)
		if c.State == nil {
			delete(d.states, c.Name)
			continue
		}
		d.states[c.Name] = c.State
		for at, outside := range frontsOf(c.State) {
			d.fronts[at] = front{c.Name, outside}
		}
	}
}

// depart notes endpoints that a state had and the next one does not.
func (d *Directory) depart(name proxy.PortName, old, now *proxy.PortState) {
	if old == nil {
		return
	}
	for _, lists := range listsOf(old) {
		for _, t := range lists {
			if _, stays := zoneIn(now, t.Addr); !stays {
				d.departed[departure{name, t.Addr}] = t.Zone
			}
		}
	}
}

// Age forgets endpoints that departed before the last call but one.
func (d *Directory) Age() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.older, d.departed = d.departed, map[departure]locality.Zone{}
}

// Stop forgets everything, for good: flows cannot be read.
func (d *Directory) Stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stopped = true
	d.states, d.fronts, d.departed, d.older = nil, nil, nil, nil
}

// Has reports whether there is such a service port.
func (d *Directory) Has(name proxy.PortName) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.states[name] != nil
}

// Serves reports whether a service port has endpoints, so that its connections are
// translated.
func (d *Directory) Serves(name proxy.PortName) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.states[name]
	return s != nil && slices.ContainsFunc(listsOf(s), func(list []proxy.Target) bool { return len(list) > 0 })
}

// Find implements Finder.
func (d *Directory) Find(to conntrack.Frontend, endpoint, client netip.AddrPort) (at Place, ok bool) {
	f, service, zone, ok := d.find(to, endpoint)
	if !ok {
		return at, false
	}
	return Place{Port: f.port, Family: proxy.FamilyOf(to.Addr.Addr()), Zone: zone, Kept: d.kept(service, f.outside, client.Addr())}, true
}

func (d *Directory) find(to conntrack.Frontend, endpoint netip.AddrPort) (f front, s *proxy.Service, zone locality.Zone, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f, ok = d.fronts[to]
	nodePort := false
	if !ok {
		// Node ports answer at every address of the machine.
		to.Addr = netip.AddrPortFrom(conntrack.Unspecified(to.Addr.Addr()), to.Addr.Port())
		if f, nodePort = d.fronts[to]; !nodePort {
			return f, nil, "", false
		}
	}
	state := d.states[f.port]
	zone, known := zoneIn(state, endpoint)
	if !known {
		if zone, known = d.departed[departure{f.port, endpoint}]; !known {
			zone, known = d.older[departure{f.port, endpoint}]
		}
	}
	// Otherwise it is another program's translation, with a port of the same number.
	return f, state.Service, zone, known || !nodePort
}

// kept reports whether a policy Local chose the endpoint.
func (d *Directory) kept(s *proxy.Service, outside bool, client netip.Addr) bool {
	if !outside {
		return s.InternalLocal
	}
	return s.ExternalLocal && !d.local(client)
}

// frontsOf a state, and whether the policy for external traffic holds there.
func frontsOf(s *proxy.PortState) map[conntrack.Frontend]bool {
	out := make(map[conntrack.Frontend]bool, len(s.Service.ClusterIPs)+2)
	add := func(a netip.Addr, port uint16, outside bool) {
		at := conntrack.Frontend{Protocol: s.Port.Protocol, Addr: netip.AddrPortFrom(a.Unmap(), port)}
		out[at] = outside
	}
	for _, a := range s.Service.ClusterIPs {
		add(a, s.Port.Port, false)
		if s.Port.NodePort != 0 {
			add(conntrack.Unspecified(a.Unmap()), s.Port.NodePort, true)
		}
	}
	for _, list := range [][]netip.Addr{s.Service.ExternalIPs, s.Service.LoadBalancerIPs} {
		for _, a := range list {
			add(a, s.Port.Port, true)
		}
	}
	return out
}

func listsOf(s *proxy.PortState) [][]proxy.Target {
	return [][]proxy.Target{s.IPv4.Cluster, s.IPv4.Local, s.IPv6.Cluster, s.IPv6.Local, s.IPv4.Fallback, s.IPv6.Fallback}
}

// zoneIn a state of an endpoint; s may be nil.
func zoneIn(s *proxy.PortState, endpoint netip.AddrPort) (zone locality.Zone, ok bool) {
	if s == nil {
		return "", false
	}
	for i, list := range listsOf(s) {
		at := -1
		if i < 4 { // sorted by address
			if n, found := slices.BinarySearchFunc(list, endpoint, byAddr); found {
				at = n
			}
		} else {
			at = slices.IndexFunc(list, func(t proxy.Target) bool { return t.Addr == endpoint })
		}
		if at >= 0 {
			return list[at].Zone, true
		}
	}
	return "", false
}

func byAddr(t proxy.Target, addr netip.AddrPort) int { return t.Addr.Compare(addr) }
