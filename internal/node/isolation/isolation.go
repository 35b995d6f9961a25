// Package isolation decides what keeps meshes apart on a node: of which mesh a client at an
// address is, and what a mode refuses to it.
//
// Enter at New; hand updates of the feed to Keeper.Apply, and run Keeper.Run, which brings the
// mode to that. Keeper.Viewer and Keeper.MeshAt answer DNS. Where a site has one mesh, and that
// is not closed, nothing is kept, the mode is told nothing, and every client sees everything.
//
// It owns no rules: a mode refuses (proxy.Isolator), and DNS leaves names out.
package isolation

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/proxima-mesh/proxima/internal/node"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// state is what is known, indexed so that a change costs what it changes. It is not safe for
// concurrent use.
type state struct {
	node string
	// own are the addresses of this machine, but loopback ones.
	own map[netip.Addr]bool

	meshes map[string]*proxy.Mesh
	// here are the workloads of this node.
	here map[proxy.ServiceName]*proxy.Workload
	// placed are the cgroups of workloads, and members the meshes that they were last known to
	// be of: a process may outlive its Dataplane. Both outlive the rest.
	placed  []Placed
	members map[proxy.Cgroup]string
	destinations

	located
}

// located is what follows from the workloads of this node. It is replaced, never changed.
type located struct {
	active  bool
	sources map[netip.Addr]proxy.Source
	cgroups map[proxy.Cgroup]proxy.Source
	// host is what holds for the node's own addresses.
	host proxy.Source
	own  map[netip.Addr]bool
	// names are the meshes whose names clients see, by address, and hostNames that of the
	// node's own addresses: questions are told apart by their address alone.
	names     map[netip.Addr]string
	hostNames string
}

// Placed is a cgroup of a workload of this node.
type Placed struct {
	Cgroup proxy.Cgroup
	// Path as in /proc/PID/cgroup.
	Path     string
	Workload proxy.ServiceName
}

func newState(name string) *state {
	s := &state{node: name, own: map[netip.Addr]bool{}, members: map[proxy.Cgroup]string{}}
	s.clear()
	return s
}

func (s *state) clear() {
	s.meshes, s.here = map[string]*proxy.Mesh{}, map[proxy.ServiceName]*proxy.Workload{} // placed stay
	s.located, s.destinations = located{}, newDestinations()
}

// activeWith reports whether meshes have to be kept apart when an update is applied.
func (s *state) activeWith(u node.Update) bool {
	n := 0
	for name, m := range s.meshes {
		if _, different := u.Meshes[name]; different || u.Reset {
			continue
		}
		if n++; m.Closed {
			return true
		}
	}
	for _, m := range u.Meshes {
		if m != nil {
			if n++; m.Closed {
				return true
			}
		}
	}
	return n > 1
}

// noteMeshes takes over the meshes of an update.
func (s *state) noteMeshes(u node.Update) {
	if u.Reset {
		clear(s.meshes)
	}
	for name, m := range u.Meshes {
		set(s.meshes, name, m)
	}
}

// apply takes an update over, while meshes are to be kept apart, and returns what of it a mode
// has to know.
func (s *state) apply(u node.Update) proxy.Isolation {
	was, relocated := s.located, s.relocates(u)
	if u.Reset {
		s.clear()
		s.destinations.reset = true
	}
	s.noteMeshes(u)
	for name, w := range u.Workloads {
		delete(s.here, name)
		if w != nil && w.Node == s.node {
			s.here[name] = w
		}
		s.setWorkload(name, w)
	}
	for name, n := range u.Names {
		s.setName(name, n)
	}
	for name, svc := range u.Services {
		s.setService(name, svc)
	}
	for name, slice := range u.Slices {
		s.setSlice(name, partOfSlice(slice))
	}
	for name, slice := range u.NameSlices {
		s.setSlice(sliceKey(name), partOfNames(slice))
	}
	if relocated {
		s.locate()
	}
	return s.since(was)
}

// relocates reports whether an update may change of which mesh an address of this node is.
func (s *state) relocates(u node.Update) bool {
	if u.Reset || len(u.Meshes) > 0 {
		return true
	}
	for name, w := range u.Workloads {
		if s.here[name] != nil || w != nil && w.Node == s.node {
			return true
		}
	}
	return false
}

// since is the difference of what a mode has to know to what it knew.
func (s *state) since(was located) proxy.Isolation {
	out := proxy.Isolation{Active: s.active, Node: s.host, Reset: !was.active}
	out.Reach, out.Reset = s.destinations.take(out.Reset)
	if out.Reset {
		out.Sources, out.Cgroups = s.sources, s.cgroups
		return out
	}
	out.Sources, out.Cgroups = changed(was.sources, s.sources), changed(was.cgroups, s.cgroups)
	return out
}

// changed are the values of now that are not those of before, and zero for what is gone.
func changed[K comparable](before, now map[K]proxy.Source) map[K]proxy.Source {
	out := map[K]proxy.Source{}
	for a, s := range now {
		if before[a] != s {
			out[a] = s
		}
	}
	for a := range before {
		if _, still := now[a]; !still {
			out[a] = proxy.Source{}
		}
	}
	return out
}

// locate works out of which mesh a connection of this node is.
//
// A workload at an address of the node itself, or at a loopback address, shares it with the
// agent and all other programs: the kernel chooses the source of their connections. Where the
// workload has a cgroup, that tells its connections from theirs. Else the node's addresses are
// of the mesh of these workloads, if that is one; and they are never closed, as the agent has
// to reach the control plane.
func (s *state) locate() {
	next := located{
		active: true, sources: map[netip.Addr]proxy.Source{}, cgroups: s.inCgroups(), own: s.own, names: map[netip.Addr]string{},
	}
	told := map[proxy.ServiceName]bool{}
	for _, p := range s.placed {
		told[p.Workload] = told[p.Workload] || next.cgroups[p.Cgroup].Mesh != ""
	}
	var shared, sharedNames []string
	for name, w := range s.here {
		for _, a := range w.Addrs {
			source := s.source(w.Mesh)
			common := a.IsLoopback() || s.own[a]
			if common {
				source.Closed = false
				sharedNames = append(sharedNames, w.Mesh)
			}
			next.names[a] = one(next.names[a], w.Mesh)
			if common && told[name] {
				continue
			}
			if common {
				shared = append(shared, w.Mesh)
			}
			if other, taken := next.sources[a]; taken && other.Mesh != source.Mesh {
				source = proxy.Source{Mesh: proxy.SeveralMeshes}
			}
			next.sources[a] = source
		}
	}
	next.host.Mesh, next.hostNames = only(shared), only(sharedNames)
	s.located = next
	s.setClosed()
}

// source is what holds for a workload of a mesh.
func (s *state) source(mesh string) proxy.Source {
	return proxy.Source{Mesh: mesh, Closed: s.meshes[mesh] != nil && s.meshes[mesh].Closed}
}

// inCgroups is what holds for the cgroups whose mesh is known.
func (s *state) inCgroups() map[proxy.Cgroup]proxy.Source {
	out := map[proxy.Cgroup]proxy.Source{}
	for _, p := range s.placed {
		if w := s.here[p.Workload]; w != nil {
			s.members[p.Cgroup] = w.Mesh
		}
		if mesh := s.members[p.Cgroup]; mesh != "" {
			out[p.Cgroup] = s.source(mesh)
		}
	}
	return out
}

// place makes these all cgroups of workloads.
func (s *state) place(all []Placed) {
	s.placed = all
	maps.DeleteFunc(s.members, func(g proxy.Cgroup, _ string) bool {
		return !slices.ContainsFunc(all, func(p Placed) bool { return p.Cgroup == g })
	})
}

// one mesh of two; an empty one is none.
func one(a, b string) string {
	if a == "" || a == b {
		return b
	}
	return proxy.SeveralMeshes
}

// only is the mesh that all are; empty: there is none, or several.
func only(meshes []string) string {
	if len(meshes) == 0 || slices.ContainsFunc(meshes, func(m string) bool { return m != meshes[0] }) {
		return ""
	}
	return meshes[0]
}

// setClosed makes the closed meshes of this node those that destinations are kept for.
func (s *state) setClosed() {
	closed := map[string]bool{}
	note := func(source proxy.Source) {
		if source.Closed {
			closed[source.Mesh] = true
		}
	}
	for _, source := range s.sources {
		note(source)
	}
	for _, source := range s.cgroups {
		note(source)
	}
	s.destinations.close(closed)
}

// viewer is the mesh whose names a client sees; empty: all.
func (l *located) viewer(client netip.Addr) string {
	if mesh, ok := l.names[client]; ok {
		return mesh
	}
	if client.IsLoopback() || l.own[client] {
		return l.hostNames
	}
	return ""
}

// of is the mesh that connections from an address are of, where no cgroup says it; empty:
// none.
func (l *located) of(client netip.Addr) string {
	if source, ok := l.sources[client]; ok {
		return source.Mesh
	}
	if client.IsLoopback() || l.own[client] {
		return l.host.Mesh
	}
	return ""
}

func set[K comparable, V any](m map[K]*V, key K, value *V) {
	if value == nil {
		delete(m, key)
		return
	}
	m[key] = value
}
