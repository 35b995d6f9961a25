package proxytest

import (
	"net/netip"

	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// routingCases: what docs/concepts/modes.md says of routes and policies for clients without a sidecar.
var routingCases = []kernelCase{
	{name: "a route divides connections among Services", run: dividedByRoute},
	{name: "a route leads to local endpoints alone under policy Local", run: routeUnderLocal},
	{name: "locality of a policy", run: localityOfPolicy},
	{name: "a hash of the client's address", needs: []Feature{SourceHash}, run: sourceHash},
	{name: "policies hold for sockets of the node itself", run: nodePolicies},
}

// routed is the case's i-th service, whose connections a route divides.
func (k *kernel) routed(s *kernelService, backends map[*kernelService]uint32) *kernelService {
	r := &proxy.Routing{Route: "default/split"}
	for b, w := range backends {
		r.Backends = append(r.Backends, proxy.RouteBackend{Service: b.Name, Port: 80, Weight: w})
	}
	s.Routing = map[string]*proxy.Routing{"tcp": r}
	return s
}

func dividedByRoute(k *kernel) {
	stable, canary := k.svc(1, k.all(local1, remote1)...), k.svc(2, k.all(remote2)...)
	web := func(w1, w2 uint32) *kernelService {
		return k.routed(k.svc(0, k.on(local2)), map[*kernelService]uint32{stable: w1, canary: w2})
	}
	k.apply(stable, canary, web(90, 10))
	want := map[string]float64{local1: .45, remote1: .45, remote2: .1}
	k.counted(manyClients(), always(k.pod()), k.at(k.vip(0)), want)
	k.counted(manyClients(), always(k.node()), k.at(k.vip(0)), want)
	k.reaches(k.pod(), proxy.TCP, k.at(k.vip(2)), remote2) // the backends' own addresses are as they were
	k.reaches(k.pod(), proxy.UDP, k.at(k.vip(0)), local2)  // and so are other ports

	k.apply(stable, canary, web(10, 90)) // weights are moved
	k.counted(manyClients(), always(k.pod()), k.at(k.vip(0)), map[string]float64{local1: .05, remote1: .05, remote2: .9})
	canary = k.svc(2, k.all(remote2, local2)...)
	k.apply(stable, canary, web(0, 1)) // all traffic, and another endpoint
	k.reaches(k.pod(), proxy.TCP, k.at(k.vip(0)), remote2, local2)
	canary = k.svc(2)
	k.apply(stable, canary, web(0, 1)) // nothing is left
	k.turnedAway(k.pod(), proxy.TCP, k.at(k.vip(0)))
	k.apply(k.svc(0, k.on(local2))) // no route
	k.reaches(k.pod(), proxy.TCP, k.at(k.vip(0)), local2)
}

func routeUnderLocal(k *kernel) {
	stable, canary := k.svc(1, k.all(local1, remote1)...), k.svc(2, k.all(local2, remote2)...)
	k.apply(stable, canary, k.routed(k.localService(0, k.on(remote1)), map[*kernelService]uint32{stable: 3, canary: 1}))
	k.counted(manyClients(), always(k.outside(0)), k.at(k.balancer(0)), map[string]float64{local1: .75, local2: .25})
}

func localityOfPolicy(k *kernel) {
	service := func(l *proxy.Locality, pods ...string) *kernelService {
		s := k.svc(0, k.all(pods...)...)
		s.Routing = map[string]*proxy.Routing{"tcp": {Locality: l}, "udp": {Locality: l}}
		return s
	}
	strict := &proxy.Locality{Mode: proxy.LocalityStrict}
	none := &proxy.Locality{Failover: []proxy.Failover{{To: proxy.FailoverNone}}}
	only := func(zone locality.Zone) *proxy.Locality {
		return &proxy.Locality{Failover: []proxy.Failover{{To: proxy.FailoverOnly, Zones: []locality.Zone{zone}}}}
	}
	own, away := k.byZone()
	for _, proto := range []proxy.Protocol{proxy.TCP, proxy.UDP} {
		k.apply(service(strict, local1, local2, remote1, remote2))
		k.reaches(k.pod(), proto, k.at(k.vip(0)), own...)
		k.apply(service(strict, away...))
		k.turnedAway(k.pod(), proto, k.at(k.vip(0)))
		k.apply(service(none, local1, local2, remote1, remote2))
		k.reaches(k.pod(), proto, k.at(k.vip(0)), own...)
		k.apply(service(only(k.net.backends[remote1].zone), away...))
		k.reaches(k.pod(), proto, k.at(k.vip(0)), away...)
		k.apply(service(only("another"), away...))
		k.turnedAway(k.pod(), proto, k.at(k.vip(0)))
	}
}

// sourceHash: a client stays with its endpoint, also after a restart and mostly when endpoints change, and
// clients are spread by weight.
func sourceHash(k *kernel) {
	n := manyClients() / 2
	k.crowd()
	service := func(e ...proxy.SliceEndpoint) *kernelService {
		s := k.openService(0, e...)
		s.Routing = map[string]*proxy.Routing{"tcp": {SourceHash: true}}
		return s
	}
	two := service(weigh(k.all(local1, remote1), 1, 3)...)
	k.apply(two)
	first := k.counted(n, k.oneOfMany, k.at(k.vip(0)), map[string]float64{local1: .25, remote1: .75})
	stay := func(when string, most int) {
		moved := 0
		for i := range n {
			if who := k.ask(1, k.oneOfMany(i), proxy.TCP, k.at(k.vip(0)))[0].who; who != first[i] {
				moved++
			}
		}
		if moved > most {
			k.Errorf("%s: %d of %d clients moved", when, moved, n)
		}
	}
	stay("again", 0)
	k.restart(nil)
	stay("after a restart", 0)
	k.apply(service(weigh(k.all(local1, remote1, remote2), 1, 3, 1)...))
	stay("one of five parts is another endpoint's", n/3)
}

// nodePolicies: programs of the node are clients like others, also where a mode takes a shorter way for their connections.
func nodePolicies(k *kernel) {
	// The ranges of a balancer are for its address alone.
	s := k.openService(0, k.all(local1, remote1)...)
	s.SourceRanges = []netip.Prefix{k.rangeOf(k.outside(1), 0)}
	k.apply(s)
	k.excluded(k.node())
	for _, proto := range both {
		k.reaches(k.node(), proto, k.at(k.vip(0)), local1, remote1)
		k.reaches(k.node(), proto, k.at(k.external(0)), local1, remote1)
	}
	for _, a := range append(k.nodeAddresses(), k.balancer(0)) {
		s.SourceRanges = append(s.SourceRanges, netip.PrefixFrom(a, a.BitLen()))
	}
	k.apply(s)
	for _, proto := range both {
		k.reaches(k.node(), proto, k.at(k.balancer(0)), local1, remote1)
	}

	strict := &proxy.Locality{Mode: proxy.LocalityStrict}
	own, away := k.byZone()
	s = k.svc(0, k.all(append(own, away...)...)...)
	s.Routing = map[string]*proxy.Routing{"tcp": {Locality: strict}, "udp": {Locality: strict}}
	k.apply(s)
	for _, proto := range both {
		k.reaches(k.node(), proto, k.at(k.vip(0)), own...)
	}
	none := k.svc(0, k.all(away...)...)
	none.Routing = s.Routing
	k.apply(none)
	for _, proto := range both {
		k.turnedAway(k.node(), proto, k.at(k.vip(0)))
	}

	if k.lacks(SourceHash) {
		return
	}
	s = k.svc(0, k.all(local1, remote1, remote2)...)
	s.Routing = map[string]*proxy.Routing{"tcp": {SourceHash: true}}
	k.apply(s)
	answers := k.ask(20, k.node(), proxy.TCP, k.at(k.vip(0)))
	for _, a := range answers {
		if a.who != answers[0].who || k.net.backends[a.who] == nil {
			k.Fatalf("the node is answered by %s and %s, want one of the endpoints, by its address", answers[0].who, a.who)
		}
	}
}

// byZone are pods in the node's zone, and others.
func (k *kernel) byZone() (own, away []string) {
	k.Helper()
	for _, pod := range []string{local1, local2, remote1, remote2} {
		if k.net.backends[pod].zone == nodeZone {
			own = append(own, pod)
		} else {
			away = append(away, pod)
		}
	}
	if len(own) == 0 || len(away) == 0 {
		k.Fatalf("pods in the node's zone: %v, in others: %v", own, away)
	}
	return own, away
}
