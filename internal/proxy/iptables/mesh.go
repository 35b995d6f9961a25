package iptables

import (
	"fmt"
	"net/netip"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// Chains that keep meshes apart. They exist only while that is asked for.
const (
	chainSources = prefix + "M-"      // nat: nodes of the trie over addresses of workloads
	chainForeign = prefix + "V-"      // nat: of a mesh, nodes of the trie over cluster addresses that are not for it
	chainClosed  = prefix + "C-"      // nat: nodes of the trie over addresses of workloads of closed meshes
	chainReach   = prefix + "R-"      // nat: of a closed mesh, nodes of the trie over what it reaches
	chainOutside = prefix + "OUTSIDE" // nat: of a closed mesh, everything else
)

// meshes are what a family's rules keep apart.
type meshes struct {
	active bool
	node   string // mesh of the node's own addresses; empty: none
	// own are the sources of this family.
	own map[netip.Addr]proxy.Source
	// scopes of the cluster addresses of this family, and how many service ports have each.
	scopes map[netip.Addr]scoped
	// sources and closed lead to foreign and reach, by mesh.
	sources, closed *trie
	foreign, reach  map[string]*trie
	reached         map[proxy.Reach]struct{}
}

type scoped struct {
	scope proxy.Scope
	ports int
}

// meshTrie is a trie of a mesh: the names of its chains are hashes, as a mesh's name is too
// long for them.
func meshTrie(chain string, f family, mesh, otherwise string) *trie {
	t := newTrie(chain, f, "-d", f.digits())
	t.of, t.otherwise = mesh, otherwise
	return t
}

// isolate takes a change over.
func (r *ruleset) isolate(change proxy.Isolation) {
	chains := map[string]*string{}
	m := &r.meshes
	if change.Reset || !change.Active {
		r.forgetMeshes(chains)
	}
	if change.Active {
		if !m.active {
			r.rememberMeshes(chains)
		}
		m.node = change.Node.Mesh
		sources := map[netip.Addr]struct{}{}
		for a, s := range change.Sources {
			if familyOf(a) != r.config.family {
				continue
			}
			sources[a] = struct{}{}
			if m.own[a] = s; s.Mesh == "" {
				delete(m.own, a)
			}
		}
		reach := map[proxy.Reach]struct{}{}
		for x, in := range change.Reach {
			if familyOf(x.Addr) != r.config.family {
				continue
			}
			reach[x] = struct{}{}
			if m.reached[x] = struct{}{}; !in {
				delete(m.reached, x)
			}
		}
		r.followMeshes(sources, reach, chains)
	}
	r.frameMeshes(chains)
	for chain, text := range chains {
		r.nat.put(chain, text)
	}
}

// rememberMeshes begins to keep meshes apart.
func (r *ruleset) rememberMeshes(chains map[string]*string) {
	f := r.config.family
	r.meshes = meshes{
		active: true, own: map[netip.Addr]proxy.Source{}, scopes: map[netip.Addr]scoped{},
		sources: newTrie(chainSources, f, "-s", f.digits()), closed: newTrie(chainClosed, f, "-s", f.digits()),
		foreign: map[string]*trie{}, reach: map[string]*trie{}, reached: map[proxy.Reach]struct{}{},
	}
	r.meshes.sources.begin(chains)
	r.meshes.closed.begin(chains)
	for _, p := range r.rendered {
		for _, a := range p.cluster {
			r.meshes.count(a, p.scope, 1)
		}
	}
}

// forgetMeshes removes all that keeps meshes apart.
func (r *ruleset) forgetMeshes(chains map[string]*string) {
	m := &r.meshes
	if !m.active {
		return
	}
	for _, t := range []*trie{m.sources, m.closed} {
		t.remove("", chains)
	}
	for _, all := range []map[string]*trie{m.foreign, m.reach} {
		for _, t := range all {
			t.remove("", chains)
		}
	}
	r.meshes = meshes{}
}

func (m *meshes) count(a netip.Addr, scope proxy.Scope, by int) {
	s := m.scopes[a]
	if s.ports += by; by > 0 {
		s.scope = scope
	}
	if m.scopes[a] = s; s.ports == 0 {
		delete(m.scopes, a)
	}
}

// followMeshes brings the tries to the sources and destinations that changed.
func (r *ruleset) followMeshes(sources map[netip.Addr]struct{}, reach map[proxy.Reach]struct{}, chains map[string]*string) {
	m := &r.meshes
	here, closed := map[string]bool{}, map[string]bool{}
	if m.node != "" {
		here[m.node] = true
	}
	for _, s := range m.own {
		here[s.Mesh] = true
		if s.Closed {
			closed[s.Mesh] = true
		}
	}
	r.needForeign(here, chains)
	r.needReach(closed, chains)
	rules, outside := map[key]string{}, map[key]string{}
	for a := range sources {
		at, s := key(addrKey(a)), m.own[a]
		rules[at], outside[at] = "", ""
		if s.Mesh != "" {
			rules[at] = "-s " + host(a) + " -g " + m.foreign[s.Mesh].root()
		}
		if s.Closed {
			outside[at] = "-s " + host(a) + " -g " + m.reach[s.Mesh].root()
		}
	}
	m.sources.set(rules, nil, chains)
	m.closed.set(outside, nil, chains)
	changed := map[string]map[key]string{}
	for x := range reach {
		if m.reach[x.Mesh] == nil {
			continue
		}
		if changed[x.Mesh] == nil {
			changed[x.Mesh] = map[key]string{}
		}
		changed[x.Mesh][key(addrKey(x.Addr))] = m.reachRule(x)
	}
	for mesh, rules := range changed {
		m.reach[mesh].set(rules, nil, chains)
	}
	m.prune(here, closed, chains)
}

func (m *meshes) reachRule(x proxy.Reach) string {
	if _, in := m.reached[x]; !in {
		return ""
	}
	return "-d " + host(x.Addr) + " -j RETURN"
}

// needForeign makes the tries of meshes that sources are of.
func (r *ruleset) needForeign(here map[string]bool, chains map[string]*string) {
	m := &r.meshes
	for mesh := range here {
		if m.foreign[mesh] != nil {
			continue
		}
		t := meshTrie(chainForeign, r.config.family, mesh, "")
		m.foreign[mesh] = t
		t.begin(chains)
		rules := make(map[key]string, len(m.scopes))
		for a := range m.scopes {
			rules[key(addrKey(a))] = m.foreignRule(mesh, a)
		}
		t.set(rules, nil, chains)
	}
}

func (r *ruleset) needReach(closed map[string]bool, chains map[string]*string) {
	m := &r.meshes
	for mesh := range closed {
		if m.reach[mesh] != nil {
			continue
		}
		t := meshTrie(chainReach, r.config.family, mesh, "-g "+chainOutside)
		m.reach[mesh] = t
		t.begin(chains)
		rules := map[key]string{}
		for x := range m.reached {
			if x.Mesh == mesh {
				rules[key(addrKey(x.Addr))] = m.reachRule(x)
			}
		}
		t.set(rules, nil, chains)
	}
}

// prune removes the tries of meshes that no source is of any more.
func (m *meshes) prune(here, closed map[string]bool, chains map[string]*string) {
	for mesh, t := range m.foreign {
		if !here[mesh] {
			t.remove("", chains)
			delete(m.foreign, mesh)
		}
	}
	for mesh, t := range m.reach {
		if !closed[mesh] {
			t.remove("", chains)
			delete(m.reach, mesh)
		}
	}
}

// foreignRule refuses a cluster address to a mesh; empty: it may use it.
func (m *meshes) foreignRule(mesh string, a netip.Addr) string {
	s, known := m.scopes[a]
	if !known || s.scope.Allows(mesh) {
		return ""
	}
	return "-d " + host(a) + " -g " + chainReject
}

// swapScopes follows a service port's change; changed gets the addresses concerned.
func (r *ruleset) swapScopes(had, next *portRules, changed map[netip.Addr]struct{}) {
	if !r.meshes.active {
		return
	}
	for _, a := range had.cluster {
		r.meshes.count(a, had.scope, -1)
		changed[a] = struct{}{}
	}
	for _, a := range next.cluster {
		r.meshes.count(a, next.scope, 1)
		changed[a] = struct{}{}
	}
}

// setForeign brings the tries to addresses that changed.
func (r *ruleset) setForeign(changed map[netip.Addr]struct{}, chains map[string]*string) {
	for mesh, t := range r.meshes.foreign {
		rules := make(map[key]string, len(changed))
		for a := range changed {
			rules[key(addrKey(a))] = r.meshes.foreignRule(mesh, a)
		}
		t.set(rules, nil, chains)
	}
}

// frameMeshes brings the chains that lead to the tries to what there is.
func (r *ruleset) frameMeshes(chains map[string]*string) {
	m, c := &r.meshes, r.config
	c.apart, c.apartNode, c.closed = m.active, "", m.active && len(m.reach) > 0
	if m.active && m.node != "" {
		c.apartNode = m.foreign[m.node].root()
	}
	for chain, text := range c.nat().chains {
		chains[chain] = &text
	}
	if !c.closed {
		chains[chainOutside] = nil
	}
}

// apartRules are those of the chain of services before and behind all others.
func (c *config) apartRules() (before, behind []string) {
	if !c.apart {
		return nil, nil
	}
	before = []string{"-j " + chainSources + "ROOT"}
	if c.apartNode != "" {
		before = append(before, "-m addrtype --src-type LOCAL -j "+c.apartNode)
	}
	if c.closed {
		behind = []string{"-j " + chainClosed + "ROOT"}
	}
	return before, behind
}

// outside refuses what a closed mesh does not know. What is no unicast address of another
// machine is not for it to decide.
func (c *config) outside() string {
	return lines(chainOutside, []string{"-m addrtype ! --dst-type UNICAST -j RETURN", "-g " + chainReject})
}

// Isolate implements proxy.Isolator. Each family's change is one transaction.
func (m *Mode) Isolate(change proxy.Isolation) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return ErrClosed
	}
	for _, r := range m.rulesets {
		r.isolate(change)
	}
	if !m.started {
		return nil // with the first Apply
	}
	if err := m.flush(m.life); err != nil {
		return fmt.Errorf("keeping meshes apart: %w", err)
	}
	return nil
}

// Isolates implements proxy.Isolator.
func (m *Mode) Isolates() proxy.Isolates { return proxy.Isolates{Outside: true} }
