package node

import (
	"slices"

	"github.com/proxima-mesh/proxima/internal/dns/records"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/sites"
)

// Update is a change of the desired state, as a feed delivers it. The embedded part is
// for [Agent.Apply]; Names and NameSlices are for DNS, in addition to Services. A nil
// value removes the object; with Reset the update is the whole state.
type Update struct {
	proxy.Update
	Names      map[proxy.ServiceName]*records.Name
	NameSlices map[proxy.SliceName]*records.Slice
	// Remotes are for the tunnel to other sites, in addition to Elsewhere; Offers are for
	// an ingress.
	Remotes map[proxy.ServiceName]*sites.Remote
	Offers  map[proxy.ServiceName]*sites.Offer
	// Leaving are nodes that are about to be removed (true), and are not any more (false). Nil: the
	// feed does not say.
	Leaving map[string]bool
}

// Records returns the part of the update that DNS serves.
func (u Update) Records() records.Update {
	out := records.Update{
		Reset: u.Reset, Services: u.Services, Names: u.Names, Slices: u.NameSlices, Endpoints: u.Slices, VirtualIPs: u.VirtualIPs,
	}
	if len(u.Remotes) > 0 {
		out.Hosts = make(map[proxy.ServiceName]*records.Outside, len(u.Remotes))
	}
	for name, r := range u.Remotes {
		out.Hosts[name] = nil
		if r != nil && len(r.Hosts) > 0 {
			out.Hosts[name] = &records.Outside{Mesh: r.Mesh, Hosts: r.Hosts}
		}
	}
	return out
}

// Proxied reports whether the update changes anything for the proxy.
func (u Update) Proxied() bool {
	return u.Reset || len(u.Services)+len(u.Slices)+len(u.Suspects)+len(u.Elsewhere)+len(u.VirtualIPs) > 0
}

// Isolated reports whether the update changes anything for what keeps meshes apart.
func (u Update) Isolated() bool {
	return u.Reset || len(u.Services)+len(u.Slices)+len(u.Names)+len(u.NameSlices)+len(u.Meshes)+len(u.Workloads) > 0
}

// Leaves reports whether a node is about to be removed; known: the update says it.
func (u Update) Leaves(name string) (leaves, known bool) {
	leaves, known = u.Leaving[name]
	return leaves, known || u.Reset && u.Leaving != nil
}

// Empty reports whether the update changes nothing.
func (u Update) Empty() bool {
	return !u.Proxied() && !u.Isolated() && len(u.Remotes)+len(u.Offers)+len(u.Leaving) == 0
}

// KeepLoopback removes loopback addresses of other machines from NameSlices. It replaces
// slices, and never changes those that the feed keeps. Loopback endpoints of the proxy
// stay: package choose leaves them out, and gives the reason.
func (u Update) KeepLoopback(machine string) {
	for name, s := range u.NameSlices {
		if s == nil {
			continue
		}
		other := func(t records.Target) bool { return t.Addr.IsLoopback() && t.Machine != machine }
		if slices.ContainsFunc(s.Targets, other) {
			kept := *s
			kept.Targets = slices.DeleteFunc(slices.Clone(s.Targets), other)
			u.NameSlices[name] = &kept
		}
	}
}
