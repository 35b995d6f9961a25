//go:build linux

package nftables

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// Path returns the way of a new connection from an address to a virtual one, by
// what the mode has in the kernel as far as it knows. Whether a client is
// remembered by affinity is known to the kernel alone.
func (m *Mode) Path(to netip.Addr, proto proxy.Protocol, number uint16, from netip.Addr, by string) *Path {
	m.mu.Lock()
	defer m.mu.Unlock()
	to, from = to.Unmap(), from.Unmap()
	i := 0
	if to.Is6() {
		i = 1
	}
	w := walk{f: m.families[i], i: i, from: from, by: by, fromNode: slices.Contains(m.families[i].nodeIPs, from), path: &Path{}}
	key := vipKey(to, proto, number)
	claims := w.f.claims[key]
	if w.mesh(m, to) {
		if len(claims) > 0 {
			c := slices.MinFunc(claims, compareClaims)
			w.path.Service, w.path.Role = &c.port.name, c.vip.role.String()
		}
		return w.path
	}
	if len(claims) > 0 {
		w.service(slices.MinFunc(claims, compareClaims), key)
	} else {
		w.noService(to)
		w.outside(m, to)
	}
	return w.path
}

type walk struct {
	f        *family
	i        int
	from     netip.Addr
	by       string // the interface; empty: none, or unknown
	fromNode bool
	path     *Path
}

func (w *walk) step(object, format string, args ...any) {
	w.path.Steps = append(w.path.Steps, Step{w.f.String() + " " + object, fmt.Sprintf(format, args...)})
}

// noService: no service has the address and port.
func (w *walk) noService(to netip.Addr) {
	w.step("map vip", "has no such address, protocol and port")
	if w.f.clusterIPs.inKernel(addrKey(to)) {
		w.step("set clusterips", "%s is known, the port is not: refuse", to)
		w.path.Outcome = "reject"
		return
	}
	for _, p := range w.f.rules.services {
		if p.Contains(to) {
			w.step("chain "+chainCIDR, "%s is in %s and not allocated: drop", to, p)
			w.path.Outcome = "drop"
			return
		}
	}
	w.path.Outcome = "pass"
}

func (w *walk) service(c claim, key string) {
	p := c.port
	w.path.Service, w.path.Role = &p.name, c.vip.role.String()
	w.path.Affinity = p.state.Service.AffinityTimeout
	known := ""
	if !w.f.vip.inKernel(key) {
		known = ", not in the kernel yet"
	}
	w.step("map vip "+w.f.keyText(setVIP, key), "service port %x (%s), class %x%s", p.number, p.name, c.vip.entry, known)
	class := c.vip.entry
	if class == classRanges || class == classRangesLocal {
		if !w.admitted(p) {
			return
		}
		if class = c.vip.cluster; c.vip.entry == classRangesLocal {
			class = classExtLocal
		}
	}
	if class == classExtLocal {
		class = w.externalLocal(c)
	}
	w.class(p, class)
}

func (w *walk) admitted(p *port) bool {
	for _, r := range p.of(w.i).ranges {
		if r.Contains(w.from) {
			w.step("set "+w.f.source(r.Bits()).Name, "%s is in %s: admitted", w.from, r)
			return true
		}
	}
	w.step("chain "+chainRanges, "%s is in no source range: drop", w.from)
	w.path.Outcome = "drop"
	return false
}

func (w *walk) isWorkload() bool {
	return w.f.rules.interfaces.Contain(w.by) ||
		slices.ContainsFunc(w.f.rules.workloads, func(p netip.Prefix) bool { return p.Contains(w.from) })
}

// externalLocal finds the class under externalTrafficPolicy Local.
func (w *walk) externalLocal(c claim) uint16 {
	switch {
	case w.isWorkload():
		w.step("chain "+chainExtLocal, "%s is a workload: the cluster's list", w.from)
		return c.vip.cluster
	case w.fromNode:
		w.path.Masquerade = true
		w.step("chain "+chainExtLocal, "%s is this node: masquerade, the cluster's list", w.from)
		return c.vip.cluster
	}
	w.step("chain "+chainExtLocal, "from outside: the local list")
	return c.vip.local
}

func (w *walk) class(p *port, class uint16) {
	switch class {
	case classRefuse:
		w.step("chain "+chainNoEndpoint, "no endpoint: refuse")
		w.path.Outcome = "reject"
		return
	case classDrop, 0:
		w.step("map lists", "no endpoint for this policy: drop")
		w.path.Outcome = "drop"
		return
	}
	c := w.f.classOf[class]
	if c == nil {
		w.path.Outcome = "drop"
		return
	}
	w.path.Outcome, w.path.List = "endpoint", "cluster"
	if c.key.local {
		w.path.List = "local"
	}
	w.path.Masquerade = w.path.Masquerade || c.key.mark == markAlways || c.key.mark == markOutside && !w.isWorkload()
	if c.key.balanced {
		mark := ListMark(p.number, c.key.local)
		w.step("chain "+c.key.chain(), "mark %#x, for the balancer", mark)
		does, shares := w.f.balancer.Explain(w.f.family(), mark)
		w.path.Steps, w.path.Shares = append(w.path.Steps, Step{w.f.balancer.Name(), does}), shares
		return
	}
	how := "one"
	if c.key.hash {
		how = "by a hash of the client's address, one"
	}
	w.step("chain "+c.key.chain(), "%s of %d slots of map ep, service %x", how, c.key.slots, p.number)
	if c.key.affinitySeconds > 0 {
		w.step("map aff", "a client remembered within %d s goes where it went before", c.key.affinitySeconds)
	}
	w.shares(p, c.key)
}

func (w *walk) shares(p *port, k classKey) {
	all, choice := w.f.slotsOf(p, p.of(w.i), nil), &p.state.IPv4
	if w.i == 1 {
		choice = &p.state.IPv6
	}
	slots, list := all[0], choice.Cluster
	if k.local {
		slots, list = all[1], choice.Local
	}
	for _, t := range list {
		n := 0
		for _, a := range slots {
			if a == t.Addr {
				n++
			}
		}
		w.path.Shares = append(w.path.Shares, Share{Endpoint: t.Addr, Slots: n, Of: len(slots), Local: t.Local})
	}
}
