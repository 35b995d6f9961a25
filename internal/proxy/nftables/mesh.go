//go:build linux

package nftables

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/proxima-mesh/proxima/internal/kernel/nfnl"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// Sets and chains that keep meshes apart. They exist only while that is asked for. A mesh has
// a number, which travels in the carrier from the rule that finds the source to the one that
// looks at the destination.
const (
	setMeshOf     = "mesh-of"     // address of a workload → mesh
	setMeshVIP    = "mesh-vip"    // mesh . cluster IP that it may use
	setMeshShared = "mesh-shared" // cluster IPs that all meshes may use
	setMeshClosed = "mesh-closed" // address of a workload of a closed mesh → mesh
	setMeshReach  = "mesh-reach"  // closed mesh . address that it reaches
	setMeshGroup  = "mesh-group"  // cgroup of a workload → mesh
	setMeshInside = "mesh-inside" // cgroup of a workload of a closed mesh → mesh

	chainMeshes  = "meshes"
	chainMember  = "mesh-member"
	chainClosed  = "meshes-closed"
	chainOutside = "mesh-outside"

	// What begins on the node is asked for its cgroup before its address.
	chainMeshesOut = "meshes-output"
	chainClosedOut = "meshes-closed-output"
)

// rtnUnicast is RTN_UNICAST of linux/rtnetlink.h.
const rtnUnicast = 1

// isolation is what the mode was told of meshes.
type isolation struct {
	active  bool
	node    proxy.Source
	sources map[netip.Addr]proxy.Source
	// closed counts the sources that are.
	closed  int
	cgroups map[proxy.Cgroup]proxy.Source
	reach   map[proxy.Reach]struct{}
	numbers map[string]uint32
}

// levels of cgroups that there are, the deepest first: the nearest counts.
func (i *isolation) levels() (all, closed []uint8) {
	in := func(match func(proxy.Source) bool) []uint8 {
		found := map[uint8]struct{}{}
		for g, s := range i.cgroups {
			if match(s) {
				found[g.Level] = struct{}{}
			}
		}
		out := slices.Sorted(maps.Keys(found))
		slices.Reverse(out)
		return out
	}
	return in(func(proxy.Source) bool { return true }), in(func(s proxy.Source) bool { return s.Closed })
}

func (i *isolation) number(mesh string) uint32 {
	n, ok := i.numbers[mesh]
	if !ok {
		n = uint32(len(i.numbers) + 1)
		i.numbers[mesh] = n
	}
	return n
}

// meshSets are the sets that keep meshes apart.
func (d dims) meshSets() []nfnl.Set {
	numberOf := func(name string) nfnl.Set {
		return nfnl.Set{
			Name: name, KeyType: d.addrType, KeyLen: d.addrLen, ValueType: nfnl.TypeClass, ValueLen: 4,
			UserData: nfnl.SetUserData(nfnl.NetworkOrder, "", nfnl.HostOrder, ""),
		}
	}
	groups := func(name string) nfnl.Set {
		return nfnl.Set{
			Name: name, KeyType: nfnl.TypeCgroup, KeyLen: 8, ValueType: nfnl.TypeClass, ValueLen: 4,
			UserData: nfnl.SetUserData(nfnl.HostOrder, "", nfnl.HostOrder, ""),
		}
	}
	pair := func(name string) nfnl.Set {
		return nfnl.Set{
			Name: name, KeyType: nfnl.TypeOf(nfnl.TypeClass, d.addrType), KeyLen: 4 + d.addrLen,
			UserData: nfnl.SetUserData(nfnl.NoOrder, "", nfnl.NoOrder, ""),
		}
	}
	return []nfnl.Set{
		numberOf(setMeshOf), pair(setMeshVIP),
		{
			Name: setMeshShared, KeyType: d.addrType, KeyLen: d.addrLen,
			UserData: nfnl.SetUserData(nfnl.NetworkOrder, "", nfnl.NoOrder, ""),
		},
		numberOf(setMeshClosed), pair(setMeshReach),
		groups(setMeshGroup), groups(setMeshInside),
	}
}

// meshSet finds a definition by its name.
func (d dims) meshSet(name string) (nfnl.Set, bool) {
	for _, s := range d.meshSets() {
		if s.Name == name {
			return s, true
		}
	}
	return nfnl.Set{}, false
}

// hooks are the rules of the chains that see the first packet of each connection: a jump to
// the chain that keeps meshes apart, and one to that for closed meshes; empty: none.
func (w *writer) hooks(apart, closed string) []*nfnl.Rule {
	var rules []*nfnl.Rule
	for _, chain := range []string{apart, chainDispatch, closed} {
		if chain != "" {
			rules = append(rules, rule("").Do(nfnl.Jump(chain)))
		}
	}
	return rules
}

// mesh puts the number of the mesh of a source into the carrier.
func (w *writer) mesh(r *nfnl.Rule, of string) *nfnl.Rule {
	return r.Network(w.saddr, w.addrLen, 0).Lookup(of, 0, 8).SetMeta(carrier, 8)
}

// group puts the number of the mesh of a socket's cgroup into the carrier.
func (w *writer) group(r *nfnl.Rule, level uint8, of string) *nfnl.Rule {
	return r.Cgroup(level, 0).Lookup(of, 0, 8).SetMeta(carrier, 8)
}

// output are the rules that ask for the cgroup, at these levels, before the address. next is
// for what is in none; empty: nothing is.
func (w *writer) output(levels []uint8, of, found, next string) []*nfnl.Rule {
	var rules []*nfnl.Rule
	for _, level := range levels {
		rules = append(rules, w.group(rule("a workload of this node"), level, of).Do(nfnl.Goto(found)))
	}
	if next != "" {
		rules = append(rules, rule("").Do(nfnl.Goto(next)))
	}
	return rules
}

func clearCarrier(r *nfnl.Rule) *nfnl.Rule { return r.Load(8, nfnl.Host(0)).SetMeta(carrier, 8) }

// reached continues if the mesh in the carrier and the destination are in a set.
func (w *writer) reached(r *nfnl.Rule, set string) *nfnl.Rule {
	return r.Meta(carrier, 0).Network(w.daddr, w.addrLen, 1).In(set, 0)
}

// meshes are the rules that keep cluster IPs to their meshes. node is the mesh of the node's
// own addresses; 0: none.
func (w *writer) meshes(node uint32) map[string][]*nfnl.Rule {
	sources := []*nfnl.Rule{w.mesh(rule("a workload of this node"), setMeshOf).Do(nfnl.Goto(chainMember))}
	if node != 0 {
		sources = append(sources, rule("a workload that shares the node's address").SourceType(0).Equal(0, nfnl.Host(rtnLocal)).
			Load(8, nfnl.Host(node)).SetMeta(carrier, 8).Do(nfnl.Goto(chainMember)))
	}
	known := rule("of another mesh").Network(w.daddr, w.addrLen, 0).In(setClusterIPs, 0).Do(nfnl.Goto(chainRefuse))
	return map[string][]*nfnl.Rule{
		chainMeshes: sources,
		chainMember: {
			clearCarrier(w.reached(rule(""), setMeshVIP)).Do(nfnl.Return()),
			clearCarrier(rule("").Network(w.daddr, w.addrLen, 0).In(setMeshShared, 0)).Do(nfnl.Return()),
			known,
			clearCarrier(rule("")),
		},
	}
}

// closed are the rules that keep workloads of closed meshes to what their mesh knows. What is
// no unicast address of another machine is not for them to decide.
func (w *writer) closed() map[string][]*nfnl.Rule {
	return map[string][]*nfnl.Rule{
		chainClosed: {w.mesh(rule("a workload without passthrough"), setMeshClosed).Do(nfnl.Goto(chainOutside))},
		chainOutside: {
			clearCarrier(w.reached(rule(""), setMeshReach)).Do(nfnl.Return()),
			clearCarrier(rule("the node itself, broadcast or multicast").DestinationType(0).NotEqual(0, nfnl.Host(rtnUnicast))).Do(nfnl.Return()),
			rule("unknown to the mesh").Do(nfnl.Goto(chainRefuse)),
		},
	}
}

// Isolate implements proxy.Isolator. A change is one transaction, and costs what it changes.
func (m *Mode) Isolate(change proxy.Isolation) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return ErrClosed
	}
	i := &m.isolation
	if change.Reset {
		*i = isolation{sources: map[netip.Addr]proxy.Source{}, cgroups: map[proxy.Cgroup]proxy.Source{}, reach: map[proxy.Reach]struct{}{}, numbers: map[string]uint32{}}
		for _, f := range m.families {
			f.forgetMeshes()
		}
		for _, mesh := range meshNames(change) { // in an order of their own, as a restarted agent gives them
			i.number(mesh)
		}
	}
	i.active, i.node = change.Active, change.Node
	for a, s := range change.Sources {
		m.setSource(a, s)
	}
	for g, s := range change.Cgroups {
		if s.Mesh == "" {
			delete(i.cgroups, g)
		} else {
			i.cgroups[g] = s
		}
	}
	for r, in := range change.Reach {
		if in {
			i.reach[r] = struct{}{}
		} else {
			delete(i.reach, r)
		}
	}
	for n, f := range m.families {
		f.isolate(n, m, change)
	}
	if !m.started {
		return nil
	}
	return m.flush()
}

func meshNames(change proxy.Isolation) []string {
	names := map[string]struct{}{}
	for _, s := range change.Sources {
		names[s.Mesh] = struct{}{}
	}
	for _, s := range change.Cgroups {
		names[s.Mesh] = struct{}{}
	}
	delete(names, "")
	return slices.Sorted(maps.Keys(names))
}

func (m *Mode) setSource(a netip.Addr, s proxy.Source) {
	i := &m.isolation
	if i.sources[a].Closed {
		i.closed--
	}
	if s.Mesh == "" {
		delete(i.sources, a)
		return
	}
	i.sources[a] = s
	if s.Closed {
		i.closed++
	}
}

// Isolates implements proxy.Isolator.
func (m *Mode) Isolates() proxy.Isolates { return proxy.Isolates{Outside: true, Cgroups: m.cgroups} }

// isolate makes the family's tables want what the mode was told, of which change is new.
func (f *family) isolate(n int, m *Mode, change proxy.Isolation) {
	i := &m.isolation
	ours := func(a netip.Addr) bool { return a.Is4() == (f.words == 1) }
	if i.active && !f.apart {
		for _, def := range f.meshSets() {
			f.wantSet(def)
		}
		f.apart = true
		f.numbers = i.number
		for _, p := range m.ports {
			f.refScope(p.of(n), +1)
		}
	}
	if !i.active {
		f.wantHooks(hooked{})
		return
	}
	for a := range change.Sources {
		if !ours(a) {
			continue
		}
		f.putSource(f.sets[setMeshOf], addrKey(a), i.sources[a], i.sources[a].Mesh != "")
		f.putSource(f.sets[setMeshClosed], addrKey(a), i.sources[a], i.sources[a].Closed)
	}
	for g := range change.Cgroups {
		f.putSource(f.sets[setMeshGroup], nfnl.Host64(g.ID), i.cgroups[g], i.cgroups[g].Mesh != "")
		f.putSource(f.sets[setMeshInside], nfnl.Host64(g.ID), i.cgroups[g], i.cgroups[g].Closed)
	}
	for r := range change.Reach {
		if !ours(r.Addr) {
			continue
		}
		key := nfnl.Host(i.number(r.Mesh)) + addrKey(r.Addr)
		if _, in := i.reach[r]; in {
			f.sets[setMeshReach].put(key, "", "")
		} else {
			f.sets[setMeshReach].remove(key)
		}
	}
	node := uint32(0)
	if i.node.Mesh != "" {
		node = i.number(i.node.Mesh)
	}
	for name, rules := range f.rules.meshes(node) {
		f.wantChain(nfnl.Chain{Name: name}, rules)
	}
	levels, inside := i.levels()
	f.wantHooks(hooked{apart: true, closed: i.closed > 0, levels: levels, inside: inside})
}

func (f *family) putSource(s *set, key string, source proxy.Source, in bool) {
	if in {
		s.put(key, nfnl.Host(f.numbers(source.Mesh)), "")
	} else {
		s.remove(key)
	}
}

// hooked is what the chains that the kernel calls have to ask for.
type hooked struct {
	// apart: meshes are kept apart. closed: an address is that of a closed mesh.
	apart, closed bool
	// levels of cgroups of workloads, and of those of closed meshes.
	levels, inside []uint8
}

// wantHooks makes the chains that the kernel calls, and those that only some of them need.
func (f *family) wantHooks(h hooked) {
	used := func(chain string, wanted bool) string {
		if !wanted {
			return ""
		}
		return chain
	}
	meshes, closed := used(chainMeshes, h.apart), used(chainClosed, h.closed)
	f.wantChain(f.chains[chainPre].def, f.rules.hooks(meshes, closed))
	outside := h.closed || len(h.inside) > 0
	if outside {
		for name, rules := range f.rules.closed() {
			if name != chainClosed || h.closed {
				f.wantChain(nfnl.Chain{Name: name}, rules)
			}
		}
	}
	wanted := map[string]bool{
		chainMeshes: h.apart, chainMember: h.apart, chainClosed: h.closed, chainOutside: outside,
		chainMeshesOut: len(h.levels) > 0, chainClosedOut: len(h.inside) > 0,
	}
	if wanted[chainMeshesOut] {
		f.wantChain(nfnl.Chain{Name: chainMeshesOut}, f.rules.output(h.levels, setMeshGroup, chainMember, meshes))
		meshes = chainMeshesOut
	}
	if wanted[chainClosedOut] {
		f.wantChain(nfnl.Chain{Name: chainClosedOut}, f.rules.output(h.inside, setMeshInside, chainOutside, closed))
		closed = chainClosedOut
	}
	f.wantChain(f.chains[chainOut].def, f.rules.hooks(meshes, closed))
	for name, wanted := range wanted {
		if f.chains[name] != nil && !wanted {
			f.unwantChain(name)
		}
	}
}

// forgetMeshes wants nothing of meshes any more.
func (f *family) forgetMeshes() {
	f.apart = false
	for _, def := range f.meshSets() {
		s := f.sets[def.Name]
		if s == nil {
			continue
		}
		var wanted []string
		s.each(func(key, want, _ string) {
			if want != "" {
				wanted = append(wanted, key)
			}
		})
		for _, key := range wanted {
			s.remove(key)
		}
		s.want = false
		maps.DeleteFunc(f.shared, func(k sharedKey, _ int) bool { return k.set == s })
	}
	f.wantHooks(hooked{})
}

// refScope notes which meshes may use the cluster IPs of a service port, or takes that back.
func (f *family) refScope(s *served, by int) {
	if !f.apart || !s.present {
		return
	}
	note := f.ref
	if by < 0 {
		note = f.unref
	}
	for _, v := range s.vips {
		if v.role != clusterIP {
			continue
		}
		if s.scope.Mesh == "" {
			note(f.sets[setMeshShared], addrKey(v.addr))
			continue
		}
		note(f.sets[setMeshVIP], nfnl.Host(f.numbers(s.scope.Mesh))+addrKey(v.addr))
		for _, mesh := range s.scope.Exported {
			note(f.sets[setMeshVIP], nfnl.Host(f.numbers(mesh))+addrKey(v.addr))
		}
	}
}

// mesh is the way of a connection as far as meshes are concerned; done: it ends there.
func (w *walk) mesh(m *Mode, to netip.Addr) (done bool) {
	i := &m.isolation
	source, known := i.sources[w.from]
	if !known && w.fromNode {
		source = i.node
	}
	if !i.active || source.Mesh == "" {
		return false
	}
	w.step("map "+setMeshOf, "%s is of mesh %s", w.from, source.Mesh)
	pair := nfnl.Host(i.number(source.Mesh)) + addrKey(to)
	switch {
	case w.f.sets[setMeshVIP].inKernel(pair), w.f.sets[setMeshShared].inKernel(addrKey(to)):
		w.step("set "+setMeshVIP, "mesh %s may use %s", source.Mesh, to)
		return false
	case w.f.clusterIPs.inKernel(addrKey(to)):
		w.step("set "+setMeshVIP, "%s is of another mesh: refuse", to)
		w.path.Outcome = "reject"
		return true
	}
	return false
}

// outside is the way of a connection that is for no service.
func (w *walk) outside(m *Mode, to netip.Addr) {
	i := &m.isolation
	source := i.sources[w.from]
	if w.path.Outcome != "pass" || !source.Closed {
		return
	}
	w.step("map "+setMeshClosed, "%s is of mesh %s, which has no passthrough", w.from, source.Mesh)
	switch {
	case w.f.sets[setMeshReach].inKernel(nfnl.Host(i.number(source.Mesh)) + addrKey(to)):
		w.step("set "+setMeshReach, "mesh %s reaches %s", source.Mesh, to)
	case slices.Contains(w.f.nodeIPs, to) || to.IsLoopback() || to.IsMulticast():
		w.step("chain "+chainOutside, "%s is no unicast address of another machine", to)
	default:
		w.step("chain "+chainOutside, "mesh %s does not know %s: refuse", source.Mesh, to)
		w.path.Outcome = "reject"
	}
}
