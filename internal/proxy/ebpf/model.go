package ebpf

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"slices"
	"time"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// Why an address passes. The text completes "the layer passes the address: …".
type Why string

// Reasons. Translated: it does not pass.
const (
	Translated     Why = ""
	NoEndpoint     Why = "its list is empty: the mode below refuses or drops"
	Ambiguous      Why = "several service ports claim it"
	SourceRanges   Why = "it has source ranges, which are compared with packets"
	HashedClients  Why = "a hash of the client's address decides"
	ManyConsumers  Why = "clients of other namespaces have routes of their own"
	OtherSite      Why = "an endpoint is of another site, whose tunnel has to know the address that was asked for"
	OwnLoopback    Why = "an endpoint is at a loopback or link-local address, which is another one in each network namespace"
	MasqueradeAll  Why = "all connections are masqueraded (--masquerade-all)"
	MeshesApart    Why = "the Service is for workloads of some meshes, which are told apart by packets"
	ClosedMeshes   Why = "a mesh of this node is closed, and what its workloads reach is compared with packets"
	TooMany        Why = "the list has more endpoints than fit"
	NotTCP         Why = "only TCP is translated"
	NotVirtual     Why = "no service port has it"
	AddressIsLocal Why = "it is a loopback or link-local address"
)

// listKey names a list of endpoints: of one service port, family, and traffic policy.
type listKey struct {
	port   proxy.PortName
	family proxy.Family
	local  bool
}

// id is the same in every process and generation, so that clients that are remembered stay. Nobody can
// name a Service so that it has the id of another one.
func (k listKey) id() uint64 {
	var b []byte
	for _, s := range []string{k.port.Namespace, k.port.Name, k.port.Port} {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(s)))
		b = append(b, s...)
	}
	b = append(b, byte(k.family), 0)
	if k.local {
		b[len(b)-1] = 1
	}
	sum := sha256.Sum256(b)
	return binary.LittleEndian.Uint64(sum[:])
}

// list of endpoints that connections are sent to.
type list struct {
	targets []proxy.Target
	// sticky is for how long a client is remembered; 0: it is not.
	sticky time.Duration
}

func (l *list) equal(o *list) bool {
	return l.sticky == o.sticky && slices.EqualFunc(l.targets, o.targets, func(a, b proxy.Target) bool {
		return a.Addr == b.Addr && weight(a) == weight(b)
	})
}

// claim of a service port: an address, and what connections to it get.
type claim struct {
	at   netip.AddrPort
	list listKey
	why  Why
}

// port is what a service port wants.
type port struct {
	state  *proxy.PortState
	claims []claim
	lists  map[listKey]*list
	tally  *tally
}

// tally of a service port: the sums of what lists counted that are gone, IPv4 and IPv6.
type tally struct{ sums [2]uint64 }

// meshes is what of an isolation matters here.
type meshes struct {
	active bool
	// closed sources, and closed cgroups.
	sources map[netip.Addr]bool
	cgroups map[proxy.Cgroup]bool
}

func (m *meshes) take(c proxy.Isolation) {
	if c.Reset || m.sources == nil {
		m.sources, m.cgroups = map[netip.Addr]bool{}, map[proxy.Cgroup]bool{}
	}
	m.active = c.Active
	for a, s := range c.Sources {
		delete(m.sources, a)
		if s.Closed {
			m.sources[a] = true
		}
	}
	for g, s := range c.Cgroups {
		delete(m.cgroups, g)
		if s.Closed {
			m.cgroups[g] = true
		}
	}
}

func (m *meshes) closed() bool { return m.active && len(m.sources)+len(m.cgroups) > 0 }

// model is what the maps should have. It does no I/O.
type model struct {
	masqueradeAll bool
	nodeAddresses []netip.Addr
	meshes        meshes

	ports  map[proxy.PortName]*port
	claims map[netip.AddrPort][]claim
}

func newModel(masqueradeAll bool) *model {
	return &model{masqueradeAll: masqueradeAll, ports: map[proxy.PortName]*port{}, claims: map[netip.AddrPort][]claim{}}
}

// delta is what a change touched.
type delta struct {
	lists     map[listKey]struct{}
	addresses map[netip.AddrPort]struct{}
}

func newDelta() *delta {
	return &delta{lists: map[listKey]struct{}{}, addresses: map[netip.AddrPort]struct{}{}}
}

// set the state of a service port; nil: it has gone.
func (m *model) set(name proxy.PortName, state *proxy.PortState, d *delta) {
	old := m.ports[name]
	if old == nil && state == nil {
		return
	}
	if old != nil && state != nil && old.state.Equal(state) {
		old.state = state
		return
	}
	next := &port{state: state, tally: &tally{}}
	if state != nil {
		m.plan(next)
	}
	m.replace(name, old, next, d)
}

// again plans all service ports that match, after something else than their state changed.
func (m *model) again(match func(*proxy.PortState) bool, d *delta) {
	for name, p := range m.ports {
		if match(p.state) {
			next := &port{state: p.state, tally: &tally{}}
			m.plan(next)
			m.replace(name, p, next, d)
		}
	}
}

func (m *model) replace(name proxy.PortName, old, next *port, d *delta) {
	if old != nil {
		next.tally = old.tally
		for _, c := range old.claims {
			list := slices.DeleteFunc(m.claims[c.at], func(o claim) bool { return o.list.port == name })
			if len(list) == 0 {
				delete(m.claims, c.at)
			} else {
				m.claims[c.at] = list
			}
			d.addresses[c.at] = struct{}{}
		}
		for k, l := range old.lists {
			if now := next.lists[k]; now == nil || !now.equal(l) {
				d.lists[k] = struct{}{}
			}
		}
	}
	for _, c := range next.claims {
		m.claims[c.at] = append(m.claims[c.at], c)
		d.addresses[c.at] = struct{}{}
	}
	for k := range next.lists {
		if old == nil || old.lists[k] == nil {
			d.lists[k] = struct{}{}
		}
	}
	if next.state == nil {
		delete(m.ports, name)
	} else {
		m.ports[name] = next
	}
}

// list of a key; nil: it is not used.
func (m *model) list(k listKey) *list {
	if p := m.ports[k.port]; p != nil {
		return p.lists[k]
	}
	return nil
}

// want is the list that connections to an address get, or why they pass.
func (m *model) want(at netip.AddrPort) (listKey, Why) {
	claims := m.claims[at]
	switch {
	case len(claims) == 0:
		return listKey{}, NotVirtual
	case len(claims) > 1:
		return claims[0].list, Ambiguous
	}
	return claims[0].list, claims[0].why
}

// plan the addresses and lists of a service port. Only TCP has any.
func (m *model) plan(p *port) {
	s := p.state
	if s.Port.Protocol != proxy.TCP {
		return
	}
	svc := s.Service
	seen := map[netip.AddrPort]bool{}
	add := func(a netip.Addr, number uint16, local bool, why Why) {
		at := netip.AddrPortFrom(a.Unmap(), number)
		if !a.IsValid() || number == 0 || seen[at] {
			return
		}
		seen[at] = true
		k := listKey{s.Name, proxy.FamilyOf(a), local}
		why = cmp.Or(why, m.passes(s, k, at.Addr()))
		p.claims = append(p.claims, claim{at, k, why})
		if why == Translated && p.lists[k] == nil {
			if p.lists == nil {
				p.lists = map[listKey]*list{}
			}
			targets, _ := s.For(at.Addr()).List(local)
			p.lists[k] = &list{targets: targets, sticky: svc.AffinityTimeout}
		}
	}
	scoped := Translated
	if m.meshes.active && svc.Scope.Mesh != "" {
		scoped = MeshesApart
	}
	families := map[proxy.Family]bool{}
	for _, a := range svc.ClusterIPs {
		add(a, s.Port.Port, svc.InternalLocal, scoped)
		families[proxy.FamilyOf(a)] = true
	}
	for _, a := range svc.LoadBalancerIPs {
		restricted := Translated
		if _, all := svc.SourcesOf(a.Unmap().Is4()); !all {
			restricted = SourceRanges
		}
		add(a, s.Port.Port, false, restricted)
	}
	for _, a := range svc.ExternalIPs {
		add(a, s.Port.Port, false, Translated)
	}
	if s.Port.NodePort != 0 {
		for _, a := range m.nodeAddresses {
			if families[proxy.FamilyOf(a)] {
				add(a, s.Port.NodePort, false, Translated)
			}
		}
	}
}

// passes says why connections to an address and list pass, whatever its kind.
func (m *model) passes(s *proxy.PortState, k listKey, at netip.Addr) Why {
	targets, _ := s.For(at).List(k.local)
	switch {
	case m.masqueradeAll:
		return MasqueradeAll
	case m.meshes.closed():
		return ClosedMeshes
	case at.IsLoopback() || at.IsLinkLocalUnicast():
		return AddressIsLocal
	case s.SourceHash:
		return HashedClients
	case len(s.Consumers) > 0:
		return ManyConsumers
	case len(targets) == 0:
		return NoEndpoint
	case len(targets) > maxEndpoints:
		return TooMany
	}
	for _, t := range targets {
		a := t.Addr.Addr()
		switch {
		case t.Zone == proxy.OtherSitesZone:
			return OtherSite
		case a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsUnspecified() || proxy.FamilyOf(a) != k.family:
			return OwnLoopback
		}
	}
	return Translated
}
