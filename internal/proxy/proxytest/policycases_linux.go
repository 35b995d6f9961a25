package proxytest

import (
	"net/netip"

	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// policyCases: traffic policies and hints.
var policyCases = []kernelCase{
	{name: "external Local with a local endpoint", run: externalLocal},
	{name: "external Local keeps the source", needs: []Feature{KeepSource}, run: externalLocalSource},
	{name: "external Local without a local endpoint", run: externalLocalNone},
	{name: "external Local without any endpoint", run: externalLocalNobody},
	{name: "internal Local", needs: []Feature{Drop}, run: internalLocal},
	{name: "hints narrow the cluster list", run: zoneHints},
}

// fromOutside are the addresses that policies for external traffic are about.
func (k *kernel) fromOutside(i int) map[string]netip.AddrPort {
	all := k.everyKind(i)
	delete(all, "ClusterIP")
	return all
}

func (k *kernel) localService(i int, endpoints ...proxy.SliceEndpoint) *kernelService {
	s := k.openService(i, endpoints...)
	s.ExternalLocal = true
	return s
}

// silentTo are checks that a client, unlike others, gets no answer.
func (k *kernel) silentTo(c client, to netip.AddrPort) []func() {
	k.Helper()
	check := k.unanswered
	if k.lacks(SelectiveDrop) {
		check = k.notServed
	}
	var checks []func()
	for _, proto := range both {
		checks = append(checks, func() { check(c, proto, to) })
	}
	return checks
}

// shortcuts: who is on the node uses the cluster's list under the policy Local.
func (k *kernel) shortcuts(i int, want ...string) {
	k.Helper()
	var clients []client
	if !k.lacks(NodeShortcut) {
		clients = append(clients, k.node())
	}
	if !k.lacks(WorkloadShortcut) {
		clients = append(clients, k.pod())
	}
	for _, c := range clients {
		for _, to := range k.fromOutside(i) {
			for _, proto := range both {
				answers := k.reaches(c, proto, to, want...)
				if c.name == "node" {
					k.seenAs(c, answers, k.nodeAddresses()...)
				}
			}
		}
	}
	k.reaches(k.pod(), proxy.TCP, k.at(k.vip(i)), want...) // internal traffic has a policy of its own
}

func externalLocal(k *kernel) {
	k.apply(k.localService(0, k.all(local1, remote1)...))
	for _, to := range k.fromOutside(0) {
		for _, proto := range both {
			for _, a := range k.ask(8, k.outside(2), proto, to) {
				if a.who != local1 {
					k.Fatalf("%s %s from outside: answered by %s, want the local endpoint alone", proto, to, a.who)
				}
			}
		}
	}
	k.shortcuts(0, local1, remote1)
}

func externalLocalSource(k *kernel) {
	k.apply(k.localService(0, k.all(local1, remote1)...))
	for _, to := range k.fromOutside(0) {
		for _, proto := range both {
			c := k.outside(3)
			k.seenAs(c, k.reaches(c, proto, to, local1), c.addr)
		}
	}
}

func externalLocalNone(k *kernel) {
	k.apply(k.localService(0, k.all(remote1, remote2)...))
	k.shortcuts(0, remote1, remote2)
	var checks []func()
	for _, to := range k.fromOutside(0) {
		checks = append(checks, k.silentTo(k.outside(0), to)...)
	}
	together(checks...)
	// One comes, and goes.
	k.apply(k.localService(0, k.all(local1, remote1)...))
	for _, to := range k.fromOutside(0) {
		k.reaches(k.outside(0), proxy.TCP, to, local1)
	}
}

func externalLocalNobody(k *kernel) {
	k.apply(k.localService(0))
	for _, c := range []client{k.outside(0), k.pod(), k.node()} {
		for _, to := range k.fromOutside(0) {
			k.turnedAway(c, proxy.TCP, to)
		}
	}
}

func internalLocal(k *kernel) {
	s := k.svc(0, k.all(local1, remote1)...)
	s.InternalLocal = true
	k.apply(s)
	for _, c := range []client{k.pod(), k.node()} {
		for _, proto := range both {
			for _, a := range k.ask(8, c, proto, k.at(k.vip(0))) {
				if a.who != local1 {
					k.Fatalf("%s: %s is answered by %s, want the local endpoint alone", proto, c.name, a.who)
				}
			}
		}
	}
	none := k.svc(0, k.on(remote1))
	none.InternalLocal = true
	k.apply(none)
	var checks []func()
	for _, c := range []client{k.pod(), k.node()} {
		for _, proto := range both {
			checks = append(checks, func() { k.unanswered(c, proto, k.at(k.vip(0))) })
		}
	}
	together(checks...)
	k.apply(s)
	k.reaches(k.pod(), proxy.TCP, k.at(k.vip(0)), local1)
	// One that drains here goes before one that is ready elsewhere.
	last := k.svc(0, k.draining(local1), k.on(remote1))
	last.InternalLocal = true
	k.apply(last)
	for _, c := range []client{k.pod(), k.node()} {
		k.reaches(c, proxy.TCP, k.at(k.vip(0)), local1)
	}
}

// zoneHints go through the one choice, as the agent makes it.
func zoneHints(k *kernel) {
	e := k.all(local1, remote1)
	for i := range e {
		e[i].Hints = proxy.HintsOf([]locality.Zone{e[i].Zone}, nil)
	}
	k.apply(k.svc(0, e...))
	for _, a := range k.ask(8, k.pod(), proxy.TCP, k.at(k.vip(0))) {
		if a.who != local1 {
			k.Fatalf("answered by %s, want the endpoint of this zone", a.who)
		}
	}
	e[0].Hints = nil // partly hinted is not hinted
	k.apply(k.svc(0, e...))
	k.reaches(k.pod(), proxy.TCP, k.at(k.vip(0)), local1, remote1)
}
