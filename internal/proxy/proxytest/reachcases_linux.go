package proxytest

import (
	"net/netip"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// reachCases: which addresses answer, by whom, and whom the backends see.
var reachCases = []kernelCase{
	{name: "every address from everywhere", run: everyAddress},
	{name: "source addresses", needs: []Feature{KeepSource}, run: sourceAddresses},
	{name: "masquerade from outside", run: masqueradeOutside},
	{name: "hairpin", run: hairpin},
	{name: "two families", run: twoFamilies},
	{name: "unknown port of a known address", run: unknownPort},
	{name: "unallocated address", needs: []Feature{UnallocatedDrop}, run: unallocated},
	{name: "no endpoint is a refusal", run: noEndpoint},
	{name: "SCTP", needs: []Feature{Sctp}, run: sctp},
	{name: "counts", run: counts},
	{name: "the port of an earlier connection", run: earlierPort},
}

// everyKind of address that a service has, as a client asks for them.
func (k *kernel) everyKind(i int) map[string]netip.AddrPort {
	return map[string]netip.AddrPort{
		"ClusterIP": k.at(k.vip(i)), "external IP": k.at(k.external(i)), "balancer": k.at(k.balancer(i)),
		"node port": k.nodeAt(k.nodePort(i)),
	}
}

func everyAddress(k *kernel) {
	k.apply(k.openService(0, k.all(local1, remote1)...))
	for _, c := range []client{k.pod(), k.node(), k.outside(0)} {
		for _, to := range k.everyKind(0) {
			for _, proto := range both {
				k.reaches(c, proto, to, local1, remote1)
			}
		}
	}
	// Node ports are those of every address of the node.
	k.reaches(k.outside(0), proxy.TCP, netip.AddrPortFrom(netip.MustParseAddr(k.family.nodeOutside), k.nodePort(0)), local1, remote1)
}

func sourceAddresses(k *kernel) {
	k.apply(k.openService(0, k.all(local1, remote1)...))
	for _, proto := range both {
		to := k.at(k.vip(0))
		k.seenAs(k.pod(), k.reaches(k.pod(), proto, to, local1, remote1), k.net.podAddr[k.family.name])
		k.seenAs(k.node(), k.reaches(k.node(), proto, to, local1, remote1), k.nodeAddresses()...)
	}
}

// masqueradeOutside: what comes from outside and may leave for another node has
// to come back through this one.
func masqueradeOutside(k *kernel) {
	k.apply(k.openService(0, k.all(local1, remote1)...))
	for _, to := range k.everyKind(0) {
		for _, proto := range both {
			k.seenAs(k.outside(1), k.reaches(k.outside(1), proto, to, local1, remote1), k.nodeAddresses()...)
		}
	}
}

// hairpin: the only endpoint asks its own service.
func hairpin(k *kernel) {
	k.apply(k.openService(0, k.on(local1)))
	for _, to := range k.everyKind(0) {
		for _, proto := range both {
			answers := k.reaches(k.inside(local1), proto, to, local1)
			if proto != proxy.TCP || !k.lacks(HairpinSource) {
				k.seenAs(k.inside(local1), answers, k.nodeAddresses()...)
			}
		}
	}
	// Between two endpoints of one node nothing is in the way.
	k.apply(k.openService(0, k.all(local1, local2)...))
	for _, proto := range both {
		k.reaches(k.inside(local1), proto, k.at(k.vip(0)), local1, local2)
	}
}

// twoFamilies of one service, of which one has no endpoints for a while.
func twoFamilies(k *kernel) {
	other := *k
	if other.family = ipv4; k.family == ipv4 {
		other.family = ipv6
	}
	s := k.svc(0, k.on(local1))
	s.ClusterIPs = append(s.ClusterIPs, other.vip(0))
	k.apply(s)
	for _, proto := range both {
		k.reaches(k.pod(), proto, k.at(k.vip(0)), local1)
		k.turnedAway(k.pod(), proto, k.at(other.vip(0)))
	}
	s.slices = append(s.slices, k.slice(s, "other", other.on(remote1)))
	k.apply(s)
	for _, proto := range both {
		k.reaches(k.pod(), proto, k.at(k.vip(0)), local1)
		k.reaches(k.pod(), proto, k.at(other.vip(0)), remote1)
	}
}

func unknownPort(k *kernel) {
	k.apply(k.svc(0, k.on(local1)))
	for _, c := range []client{k.pod(), k.node(), k.outside(0)} {
		for _, proto := range both {
			k.turnedAway(c, proto, netip.AddrPortFrom(k.vip(0), 81))
		}
	}
	k.reaches(k.pod(), proxy.TCP, k.at(k.vip(0)), local1)
}

func unallocated(k *kernel) {
	k.apply(k.svc(0, k.on(local1)))
	var checks []func()
	for _, c := range []client{k.pod(), k.node()} {
		for _, proto := range both {
			checks = append(checks, func() { k.unanswered(c, proto, k.at(k.vip(1))) })
		}
	}
	together(checks...)
}

func noEndpoint(k *kernel) {
	k.apply(k.openService(0), k.openService(1, k.finished(local1)))
	for i := range 2 {
		for _, c := range []client{k.pod(), k.node(), k.outside(0)} {
			for _, to := range k.everyKind(i) {
				for _, proto := range both {
					k.turnedAway(c, proto, to)
				}
			}
		}
	}
}

// counts: a mode that measures demand measures it exactly.
func counts(k *kernel) {
	counter, ok := k.mode.(proxy.Counter)
	if !ok {
		k.Skip("the mode does not count")
	}
	s := k.svc(0, k.all(local1, remote1)...)
	k.apply(s)
	of := func(port string) uint64 {
		for name, c := range counter.Counts() {
			if name == (proxy.PortName{ServiceName: s.Name, Port: port}) {
				return c.Connections
			}
		}
		return 0
	}
	for i, proto := range both {
		port := []string{"tcp", "udp"}[i]
		before := of(port)
		for range 10 {
			k.ask(1, k.pod(), proto, k.at(k.vip(0)))
			k.ask(1, k.node(), proto, k.at(k.vip(0)))
		}
		if got := of(port) - before; got != 20 {
			k.Errorf("%s: 20 questions count as %d", proto, got)
		}
	}
}

// earlierPort: a client that asked by a Service asks the same endpoint by its own address, from the same port.
func earlierPort(k *kernel) {
	k.apply(k.svc(0, k.all(local1, remote1)...))
	from := uint16(30000)
	for _, c := range []client{k.pod(), k.node()} {
		for _, proto := range both {
			for range 4 {
				from++
				first := k.askFrom(c, from, proto, k.at(k.vip(0)))
				if first.who != local1 && first.who != remote1 {
					k.Fatalf("%s asks %s %s from port %d: %s", c.name, proto, k.vip(0), from, first.who)
				}
				to := netip.AddrPortFrom(k.net.backends[first.who].addr(k.family), backendPort)
				if second := k.askFrom(c, from, proto, to); second.who != first.who {
					k.Fatalf("%s asks %s %s from port %d, as a Service before: %s, want %s", c.name, proto, to, from, second.who, first.who)
				}
			}
		}
	}
}
