package proxytest

import (
	"net/netip"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// meshCases: meshes are kept apart by the source of a connection.
var meshCases = []kernelCase{
	{name: "cluster addresses of another mesh", run: meshAddresses},
	{name: "other ways into another mesh", run: meshOtherWays},
	{name: "services change their mesh", run: meshScopes},
	{name: "the node is of a mesh", run: meshOfNode},
	{name: "several meshes at an address", run: meshConflict},
	{name: "meshes over a restart", needs: []Feature{SurvivesRestart}, run: meshRestart},
	{name: "outside of a closed mesh", needs: []Feature{Outside}, run: meshClosed},
}

const ours, theirs = "ours", "theirs"

// isolate tells the mode, which must keep meshes apart, twice.
func (k *kernel) isolate(change proxy.Isolation) {
	k.Helper()
	mode, ok := k.mode.(proxy.Isolator)
	if !ok {
		k.Fatalf("mode %s does not keep meshes apart", k.mode.Name())
	}
	for range 2 {
		if err := mode.Isolate(change); err != nil {
			k.Fatalf("isolating: %v", err)
		}
	}
	k.Cleanup(func() {
		if err := k.mode.(proxy.Isolator).Isolate(proxy.Isolation{Reset: true}); err != nil {
			k.Errorf("ending isolation: %v", err)
		}
	})
}

// ofMesh makes the pod's address a mesh's, and nothing else anybody's.
func (k *kernel) ofMesh(mesh string) proxy.Isolation {
	return proxy.Isolation{Reset: true, Active: true, Sources: map[netip.Addr]proxy.Source{k.net.podAddr[k.family.name]: {Mesh: mesh}}}
}

// scoped makes the case's i-th service one of a mesh.
func (k *kernel) scoped(i int, mesh string, exported ...string) *kernelService {
	s := k.svc(i, k.all(local1, remote1)...)
	s.Scope = proxy.Scope{Mesh: mesh, Exported: exported}
	return s
}

// barred from an address, as from a Service without endpoints.
func (k *kernel) barred(c client, to netip.AddrPort) {
	k.Helper()
	k.turnedAway(c, proxy.TCP, to)
	if k.lacks(SelectiveRefusal) {
		k.notServed(c, proxy.UDP, to)
		return
	}
	k.turnedAway(c, proxy.UDP, to)
}

func (k *kernel) reachesBoth(c client, to netip.AddrPort, want ...string) {
	k.Helper()
	for _, proto := range both {
		k.reaches(c, proto, to, want...)
	}
}

func meshAddresses(k *kernel) {
	k.apply(k.scoped(0, ours), k.scoped(1, theirs), k.scoped(2, theirs, ours), k.scoped(3, ""))
	k.isolate(k.ofMesh(ours))
	for _, i := range []int{0, 2, 3} {
		k.reachesBoth(k.pod(), k.at(k.vip(i)), local1, remote1)
	}
	k.barred(k.pod(), k.at(k.vip(1)))
	// No workload: no mesh.
	k.reachesBoth(k.node(), k.at(k.vip(1)), local1, remote1)
	k.reaches(k.inside(local2), proxy.TCP, k.at(k.vip(1)), local1, remote1)

	// The pod is of the other mesh now; another service comes.
	k.isolate(proxy.Isolation{Active: true, Sources: k.ofMesh(theirs).Sources})
	k.barred(k.pod(), k.at(k.vip(0)))
	k.reachesBoth(k.pod(), k.at(k.vip(1)), local1, remote1)

	// It is gone; then there is one mesh.
	k.isolate(proxy.Isolation{Active: true, Sources: map[netip.Addr]proxy.Source{k.net.podAddr[k.family.name]: {}}})
	k.reaches(k.pod(), proxy.TCP, k.at(k.vip(0)), local1, remote1)
	k.isolate(k.ofMesh(ours))
	k.barred(k.pod(), k.at(k.vip(1)))
	k.isolate(proxy.Isolation{Reset: true})
	k.reachesBoth(k.pod(), k.at(k.vip(1)), local1, remote1)
}

// meshOtherWays: what a Service opens to those outside of meshes is open to other meshes.
func meshOtherWays(k *kernel) {
	s := k.openService(0, k.all(local1, remote1)...)
	s.Scope = proxy.Scope{Mesh: theirs}
	k.apply(s)
	k.isolate(k.ofMesh(ours))
	k.barred(k.pod(), k.at(k.vip(0)))
	k.reaches(k.pod(), proxy.TCP, k.nodeAt(k.nodePort(0)), local1, remote1)
	k.reaches(k.outside(1), proxy.TCP, k.at(k.external(0)), local1, remote1)
}

func meshScopes(k *kernel) {
	k.isolate(k.ofMesh(ours))
	k.apply(k.scoped(0, theirs))
	k.barred(k.pod(), k.at(k.vip(0)))
	k.apply(k.scoped(0, ours))
	k.reachesBoth(k.pod(), k.at(k.vip(0)), local1, remote1)
	k.apply(k.scoped(0, theirs))
	k.barred(k.pod(), k.at(k.vip(0)))
	k.apply(k.scoped(0, theirs, "further", ours))
	k.reachesBoth(k.pod(), k.at(k.vip(0)), local1, remote1)
	k.apply(k.scoped(1, theirs)) // another one has its endpoints
	k.barred(k.pod(), k.at(k.vip(1)))
	// Without endpoints all are refused alike.
	empty := k.svc(2)
	empty.Scope = proxy.Scope{Mesh: ours}
	k.apply(empty)
	k.turnedAway(k.pod(), proxy.TCP, k.at(k.vip(2)))
}

func meshOfNode(k *kernel) {
	k.apply(k.scoped(0, ours), k.scoped(1, theirs))
	k.isolate(proxy.Isolation{Reset: true, Active: true, Node: proxy.Source{Mesh: ours}})
	k.reachesBoth(k.node(), k.at(k.vip(0)), local1, remote1)
	k.barred(k.node(), k.at(k.vip(1)))
	k.reaches(k.pod(), proxy.TCP, k.at(k.vip(1)), local1, remote1)
	k.isolate(proxy.Isolation{Active: true})
	k.reachesBoth(k.node(), k.at(k.vip(1)), local1, remote1)
}

func meshConflict(k *kernel) {
	k.apply(k.scoped(0, ours), k.scoped(1, theirs), k.scoped(2, ""))
	k.isolate(k.ofMesh(proxy.SeveralMeshes))
	k.barred(k.pod(), k.at(k.vip(0)))
	k.barred(k.pod(), k.at(k.vip(1)))
	k.reachesBoth(k.pod(), k.at(k.vip(2)), local1, remote1)
}

func meshRestart(k *kernel) {
	k.apply(k.scoped(0, ours), k.scoped(1, theirs))
	change := k.ofMesh(ours)
	k.isolate(change)
	k.isolation = &change
	defer func() { k.isolation = nil }()
	k.restart(func() { k.barred(k.pod(), k.at(k.vip(1))) })
	k.reachesBoth(k.pod(), k.at(k.vip(0)), local1, remote1)
	k.barred(k.pod(), k.at(k.vip(1)))
	// With one mesh when the agent starts, what an earlier one left is gone.
	k.isolation = &proxy.Isolation{Reset: true}
	k.restart(nil)
	k.reachesBoth(k.pod(), k.at(k.vip(1)), local1, remote1)
}

func meshClosed(k *kernel) {
	direct := func(pod string) netip.AddrPort {
		return netip.AddrPortFrom(k.net.backends[pod].addr(k.family), backendPort)
	}
	open := k.openService(1, k.all(local1, remote1)...)
	open.Scope = proxy.Scope{Mesh: theirs}
	k.apply(k.scoped(0, ours), open)
	pod := k.net.podAddr[k.family.name]
	reach := func(name string) proxy.Reach {
		return proxy.Reach{Mesh: ours, Addr: k.net.backends[name].addr(k.family)}
	}
	k.isolate(proxy.Isolation{
		Reset: true, Active: true, Sources: map[netip.Addr]proxy.Source{pod: {Mesh: ours, Closed: true}},
		Reach: map[proxy.Reach]bool{reach(remote1): true, reach(local2): true, {Mesh: theirs, Addr: reach(remote2).Addr}: true},
	})
	k.reachesBoth(k.pod(), k.at(k.vip(0)), local1, remote1) // by the Service, also what it does not reach itself
	k.reachesBoth(k.pod(), direct(remote1), remote1)
	k.reachesBoth(k.pod(), direct(local2), local2)
	for _, proto := range both {
		k.turnedAway(k.pod(), proto, direct(local1))
		k.turnedAway(k.pod(), proto, direct(remote2))
	}
	k.barred(k.pod(), k.at(k.vip(1)))
	k.reaches(k.pod(), proxy.TCP, k.nodeAt(k.nodePort(1)), local1, remote1) // an address of the node
	k.reachesBoth(k.node(), direct(remote2), remote2)
	k.reachesBoth(k.inside(local2), direct(remote2), remote2)

	k.isolate(proxy.Isolation{Active: true, Reach: map[proxy.Reach]bool{reach(remote2): true, reach(remote1): false}})
	k.reachesBoth(k.pod(), direct(remote2), remote2)
	for _, proto := range both {
		k.turnedAway(k.pod(), proto, direct(remote1))
	}
	k.isolate(proxy.Isolation{Active: true, Sources: map[netip.Addr]proxy.Source{pod: {Mesh: ours}}})
	k.reachesBoth(k.pod(), direct(remote3), remote3)
}
