// Package choose decides which endpoints serve a service port on a node. It is
// the one place for that decision: every mode, and everything that explains a
// mode, asks here.
//
// Enter at [Port], or at [Slices] where no policy or other site counts. The
// functions are pure: they depend on their arguments alone, never on the order
// of slices or endpoints nor on an earlier result, change no argument, and do
// no I/O.
//
// What never reaches this package, as the feeds leave it out at their edge:
// headless and ExternalName Services, Services with the label
// service.kubernetes.io/service-proxy-name, FQDN slices, and conditions that
// are nil (ready and serving default to true, terminating to false).
package choose

import (
	"cmp"
	"net/netip"
	"slices"
	"sort"

	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// Node is what the choice needs to know of the node it is made for. An empty
// Zone is in no zone; an empty Name has no local endpoints.
type Node struct {
	Name string
	Zone locality.Zone
	// Suspects are nodes that probably do not answer any more. Their endpoints are used
	// last: where no endpoint of another node can serve. A node never suspects itself.
	// Nil: none.
	Suspects map[string]bool
	// Machine that the node runs on (package machine): endpoints with loopback
	// addresses of others are not used. Empty: they are not judged.
	Machine string
	// Frontends are the cluster addresses that the node carries: an endpoint at one of
	// them is not used. Nil: none is known.
	Frontends *Frontends
	// Anywhere: hints do not count, as a policy says so.
	Anywhere bool
}

// suspects reports whether an endpoint is used last.
func (n Node) suspects(e *Endpoint) bool {
	return e.Node != "" && e.Node != n.Name && n.Suspects[e.Node]
}

// Slices chooses for one port of a Service among the endpoints of its slices.
func Slices(svc *proxy.Service, port proxy.Port, from []*proxy.Slice, node Node) *proxy.PortState {
	return choose(svc, port, Flatten(port, from), node)
}

// Endpoint is one address and port that serves a service port, as published,
// before any choice.
type Endpoint struct {
	Addr netip.AddrPort
	Node string
	Zone locality.Zone
	// Conditions as in discovery.k8s.io/v1, with their defaults applied.
	Ready, Serving, Terminating bool
	// HintZones and HintNodes: which zones and nodes should use the endpoint;
	// empty: no hint.
	HintZones []locality.Zone
	HintNodes []string
	// Weight is the endpoint's share relative to the others of the same list, as
	// planned for this node's zone. 0 means 1: no plan.
	Weight uint32
	// Machine (package machine) that a loopback address is on; empty: not known.
	Machine string
}

// Flatten lists the endpoints that slices give a service port: those of every
// slice port with its name and protocol. Duplicates are kept. Hint lists are
// shared with the slices.
func Flatten(port proxy.Port, from []*proxy.Slice) []Endpoint {
	n := 0
	for _, s := range from {
		n += len(s.Endpoints)
	}
	out := make([]Endpoint, 0, n)
	for _, s := range from {
		for _, p := range s.Ports {
			if p.Name != port.Name || p.Protocol != port.Protocol || p.Port == 0 {
				continue
			}
			for i := range s.Endpoints {
				e := &s.Endpoints[i]
				if !e.Addr.IsValid() {
					continue
				}
				flat := Endpoint{
					Addr: netip.AddrPortFrom(e.Addr.Unmap(), p.Port),
					Node: e.Node, Zone: e.Zone,
					Ready: e.Ready, Serving: e.Serving, Terminating: e.Terminating,
					Weight: e.Weight, Machine: s.Machine(i),
				}
				if e.Hints != nil {
					flat.HintZones, flat.HintNodes = e.Hints.Zones, e.Hints.Nodes
				}
				out = append(out, flat)
			}
		}
	}
	return out
}

// choose owns all and reorders it.
func choose(svc *proxy.Service, port proxy.Port, all []Endpoint, node Node) *proxy.PortState {
	all = aggregate(usable(all, port.Protocol, node), node)
	split, _ := slices.BinarySearchFunc(all, netip.AddrPortFrom(netip.IPv6Unspecified(), 0),
		func(e Endpoint, first6 netip.AddrPort) int { return e.Addr.Compare(first6) })

	use := lists(svc, port)
	state := &proxy.PortState{
		Name:    proxy.PortName{ServiceName: svc.Name, Port: port.Name},
		Service: svc,
		Port:    port,
	}
	var ready4, ready6 int
	state.IPv4, ready4 = family(all[:split], node, use)
	state.IPv6, ready6 = family(all[split:], node, use)
	state.LocalReady = max(ready4, ready6)
	return state
}

// used reports which lists a Service's policies and its port ask for.
type used struct{ cluster, local, held bool }

func lists(svc *proxy.Service, port proxy.Port) used {
	reachable := port.NodePort != 0 || len(svc.ExternalIPs) > 0 || len(svc.LoadBalancerIPs) > 0
	return used{
		// Also under externalTrafficPolicy Local: pods and processes of the node
		// that use the external address get the cluster's list.
		cluster: !svc.InternalLocal || reachable,
		local:   svc.InternalLocal || (svc.ExternalLocal && reachable),
		held:    port.Protocol == proxy.UDP,
	}
}

// family chooses among the endpoints of one address family, sorted and unique.
// It also counts the local ready ones.
func family(all []Endpoint, node Node, use used) (c proxy.Choice, localReady int) {
	var anyReady, anyDraining, localDraining bool
	for i := range all {
		e := &all[i]
		switch local := e.Node == node.Name && node.Name != ""; {
		case e.Ready:
			anyReady = true
			if local {
				localReady++
			}
		case draining(e):
			anyDraining = true
			localDraining = localDraining || local
		}
	}
	// Endpoints that are neither ready nor draining count as not existing.
	verdict := proxy.Reject
	if anyReady || anyDraining {
		verdict = proxy.Drop
	}
	if use.cluster {
		cluster(&c, all, node)
	}
	if use.local {
		here := func(e *Endpoint) bool { return e.Node == node.Name }
		switch {
		case localReady > 0:
			c.Local = keep(all, node, func(e *Endpoint) bool { return e.Ready && here(e) })
		case localDraining:
			c.Local = keep(all, node, func(e *Endpoint) bool { return draining(e) && here(e) })
		default:
			c.NoLocal = verdict
		}
	}
	if use.held {
		c.Held = held(&c, all, node)
	}
	return c, localReady
}

// held lists the endpoints that serve and are in neither list. Those of suspects are not
// among them: their flows go to nobody.
func held(c *proxy.Choice, all []Endpoint, node Node) []netip.AddrPort {
	var out []netip.AddrPort
	for i := range all {
		e := &all[i]
		if (e.Ready || e.Serving) && !node.suspects(e) && !has(c.Cluster, e.Addr) && !has(c.Local, e.Addr) {
			out = append(out, e.Addr)
		}
	}
	return out
}

// has says whether a sorted list has an address.
func has(list []proxy.Target, addr netip.AddrPort) bool {
	_, found := slices.BinarySearchFunc(list, addr, func(t proxy.Target, a netip.AddrPort) int { return t.Addr.Compare(a) })
	return found
}

// cluster fills the list for cluster-wide traffic.
func cluster(c *proxy.Choice, all []Endpoint, node Node) {
	trusted, suspect := all, []Endpoint(nil)
	if len(node.Suspects) > 0 {
		trusted, suspect = partition(all, node)
	}
	t := topology(trusted, node)
	anyReady, anyDraining := false, false
	for i := range trusted {
		anyReady = anyReady || trusted[i].Ready
		anyDraining = anyDraining || draining(&trusted[i])
	}
	switch {
	case anyReady: // topology never hides the last ready endpoint
		c.Why = [...]proxy.Rule{ignored: proxy.AllReady, byZone: proxy.ZoneHints, byNode: proxy.NodeHints}[t]
		c.Cluster = keep(trusted, node, func(e *Endpoint) bool { return e.Ready && t.allows(e, node) })
		if t != ignored {
			c.Fallback = keep(trusted, node, func(e *Endpoint) bool { return e.Ready && !t.allows(e, node) })
		}
	case anyDraining:
		c.Why = proxy.TerminatingFallback
		c.Cluster = keep(trusted, node, draining)
	case len(suspect) > 0: // the same choice among those that are left
		node.Suspects = nil
		cluster(c, suspect, node)
		if len(c.Cluster) > 0 {
			c.Why = proxy.Suspected
		}
		return
	default:
		c.Why = proxy.NoEndpoint
		c.NoCluster = proxy.Reject
	}
	c.Fallback = append(c.Fallback, keep(suspect, node, func(e *Endpoint) bool { return e.Ready })...)
}

// partition divides endpoints into those of trusted nodes and those of suspects, and
// keeps their order. The argument is not changed.
func partition(all []Endpoint, node Node) (trusted, suspect []Endpoint) {
	for i := range all {
		if node.suspects(&all[i]) {
			suspect = append(suspect, all[i])
		} else {
			trusted = append(trusted, all[i])
		}
	}
	return trusted, suspect
}

// draining endpoints still serve, though they are going: the last resort.
func draining(e *Endpoint) bool { return e.Serving && e.Terminating }

// hints is what narrows the cluster list: nothing, zone hints or node hints.
type hints uint8

const (
	ignored hints = iota
	byZone
	byNode
)

// topology looks at ready endpoints only. Hints count if every one of them has
// some, and one names this node or zone; a service that is only partly hinted,
// as while a controller is at work, is served without. Node hints go first.
func topology(all []Endpoint, node Node) hints {
	ready := false
	allNode, hereNode, allZone, hereZone := true, false, true, false
	for i := range all {
		e := &all[i]
		if !e.Ready {
			continue
		}
		ready = true
		allNode = allNode && len(e.HintNodes) > 0
		allZone = allZone && len(e.HintZones) > 0
		hereNode = hereNode || byNode.allows(e, node)
		hereZone = hereZone || byZone.allows(e, node)
	}
	switch {
	case node.Anywhere:
		return ignored
	case ready && allNode && hereNode:
		return byNode
	case ready && allZone && hereZone:
		return byZone
	}
	return ignored
}

func (h hints) allows(e *Endpoint, node Node) bool {
	switch h {
	case byNode:
		return node.Name != "" && slices.Contains(e.HintNodes, node.Name)
	case byZone:
		return node.Zone != "" && slices.Contains(e.HintZones, node.Zone)
	}
	return true
}

func keep(all []Endpoint, node Node, wanted func(*Endpoint) bool) []proxy.Target {
	n := 0
	for i := range all {
		if wanted(&all[i]) {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	out := make([]proxy.Target, 0, n)
	for i := range all {
		if e := &all[i]; wanted(e) {
			out = append(out, proxy.Target{
				Addr:   e.Addr,
				Weight: max(e.Weight, 1), // 0 is "no plan", an equal share
				Local:  e.Node == node.Name && node.Name != "",
				Zone:   e.Zone,
			})
		}
	}
	return out
}

// aggregate sorts by address and keeps the best of every run of one address:
// while an endpoint moves from slice to slice, consumers see it in both.
func aggregate(all []Endpoint, node Node) []Endpoint {
	for i := 1; i < len(all); i++ {
		if before(&all[i], &all[i-1], node) {
			sort.Sort(&byAddress{all, node})
			break
		}
	}
	var last netip.AddrPort
	return remove(all, func(e *Endpoint) bool {
		twice := e.Addr == last
		last = e.Addr
		return twice
	})
}

// before orders by address, duplicates with the best one first.
func before(a, b *Endpoint, node Node) bool {
	if c := a.Addr.Compare(b.Addr); c != 0 {
		return c < 0
	}
	return better(a, b, node) < 0
}

// byAddress sorts endpoints as before says. It compares in place, as an Endpoint is large.
type byAddress struct {
	all  []Endpoint
	node Node
}

func (s *byAddress) Len() int           { return len(s.all) }
func (s *byAddress) Less(i, j int) bool { return before(&s.all[i], &s.all[j], s.node) }
func (s *byAddress) Swap(i, j int)      { s.all[i], s.all[j] = s.all[j], s.all[i] }

// remove the endpoints that drop says. It reuses all; an Endpoint is large, so none is
// copied while nothing is removed.
func remove(all []Endpoint, drop func(*Endpoint) bool) []Endpoint {
	n := 0
	for i := range all {
		if drop(&all[i]) {
			continue
		}
		if n != i {
			all[n] = all[i]
		}
		n++
	}
	clear(all[n:])
	return all[:n]
}

// better orders duplicates, the one to keep first. Non-terminating wins; the
// rest only makes the order total, so that the choice does not depend on that
// of the slices.
func better(a, b *Endpoint, node Node) int {
	return cmp.Or(
		first(!a.Terminating, !b.Terminating),
		first(a.Ready, b.Ready),
		first(a.Serving, b.Serving),
		first(a.Node == node.Name, b.Node == node.Name),
		cmp.Compare(b.Weight, a.Weight),
		slices.Compare(a.HintNodes, b.HintNodes),
		slices.Compare(a.HintZones, b.HintZones),
		cmp.Compare(a.Node, b.Node),
		cmp.Compare(a.Zone, b.Zone),
	)
}

func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}
