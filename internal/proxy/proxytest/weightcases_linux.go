package proxytest

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// weightCases: what docs/how-to/weights.md says of weights and the other ways in which a
// Service chooses endpoints.
var weightCases = []kernelCase{
	{name: "weights", run: weights},
	{name: "weights within a zone", run: weightsWithinZone},
	{name: "weights under policy Local", run: weightsUnderLocal},
	{name: "weights decide where a client with affinity goes first", run: weightsFirst},
}

// manyClients is by how many connections shares are counted.
func manyClients() int {
	if os.Getenv("PROXIMA_SOAK") != "" {
		return 20_000
	}
	return 600
}

func weights(k *kernel) {
	e := k.all(local1, remote1, remote2)
	want := map[string]float64{local1: .1, remote1: .3, remote2: .6}
	k.apply(k.svc(0, weigh(e, 1, 3, 6)...))
	k.shares(k.pod(), want)
	// The plan changes.
	want[local1], want[remote2] = want[remote2], want[local1]
	k.apply(k.svc(0, weigh(e, 6, 3, 1)...))
	k.shares(k.pod(), want)
}

func weigh(e []proxy.SliceEndpoint, all ...uint32) []proxy.SliceEndpoint {
	for i, w := range all {
		e[i].Weight = w
	}
	return e
}

// shares within 0.12, four standard deviations of 300 random picks.
func (k *kernel) shares(c client, want map[string]float64) {
	k.Helper()
	got := map[string]int{}
	const n = 300
	for _, a := range k.ask(n, c, proxy.TCP, k.at(k.vip(0))) {
		got[a.who]++
	}
	for who, share := range want {
		if real := float64(got[who]) / n; real < share-.12 || real > share+.12 {
			k.Errorf("%s got %.2f of the connections, want %.2f (%v)", who, real, share, got)
		}
	}
}

// counted: the i-th of n clients asks, and shares are right within a point and three standard
// errors of random picks. It returns who answered each.
func (k *kernel) counted(n int, c func(i int) client, to netip.AddrPort, want map[string]float64) []string {
	k.Helper()
	answered := make([]string, n)
	got := map[string]int{}
	for i := range answered {
		answered[i] = k.ask(1, c(i), proxy.TCP, to)[0].who
		got[answered[i]]++
	}
	for who := range got {
		if _, ok := want[who]; !ok {
			k.Errorf("%s: answered by %v, want %v", to, got, want)
			return answered
		}
	}
	for who, share := range want {
		within := .01 + 3*math.Sqrt(share*(1-share)/float64(n))
		if real := float64(got[who]) / float64(n); math.Abs(real-share) > within {
			k.Errorf("%s: %s got %.4f of %d connections, want %.4f", to, who, real, n, share)
		}
	}
	return answered
}

func always(c client) func(int) client { return func(int) client { return c } }

// weightsWithinZone: with trafficDistribution, or other hints, weights hold among the endpoints
// of the zone, and those of others count for nothing.
func weightsWithinZone(k *kernel) {
	e := weigh(k.all(local1, local2, remote1), 5, 95, 1000)
	for i := range e {
		e[i].Hints = proxy.HintsOf([]locality.Zone{e[i].Zone}, nil)
	}
	k.apply(k.svc(0, e...))
	k.counted(manyClients(), always(k.pod()), k.at(k.vip(0)), map[string]float64{local1: .05, local2: .95})
}

// weightsUnderLocal: among the endpoints of the node.
func weightsUnderLocal(k *kernel) {
	k.apply(k.localService(0, weigh(k.all(local1, local2, remote1), 5, 95, 1000)...))
	k.counted(manyClients(), always(k.outside(0)), k.at(k.balancer(0)), map[string]float64{local1: .05, local2: .95})
}

// weightsFirst: a client goes by weight first, and stays where it is when weights change.
func weightsFirst(k *kernel) {
	n := manyClients()
	k.crowd()
	e := k.all(local1, remote1)
	service := func(w1, w2 uint32) *kernelService {
		s := k.openService(0, weigh(e, w1, w2)...)
		s.AffinityTimeout = time.Hour
		return s
	}
	k.apply(service(5, 95))
	first := k.counted(n, k.oneOfMany, k.at(k.vip(0)), map[string]float64{local1: .05, remote1: .95})
	k.apply(service(95, 5))
	k.counted(n, func(i int) client { return k.oneOfMany(n + i) }, k.at(k.vip(0)), map[string]float64{local1: .95, remote1: .05})
	for i := range min(n, 200) {
		if who := k.ask(1, k.oneOfMany(i), proxy.TCP, k.at(k.vip(0)))[0].who; who != first[i] {
			k.Errorf("client %d went from %s to %s when weights changed", i, first[i], who)
			return
		}
	}
}

// crowds are ranges of clients outside: for benchmarks of networks (RFC 2544, RFC 5180).
var crowds = map[string]string{ipv4.name: "198.18.0.0/15", ipv6.name: "2001:2::/48"}

// crowd has every address of a large range ask from outside.
func (k *kernel) crowd() {
	k.Helper()
	all := netip.MustParsePrefix(crowds[k.family.name])
	k.net.outside.Set("net.ipv6.ip_nonlocal_bind", "1")
	args := []string{"route", "replace", "local", all.String(), "dev", "lo"}
	if all.Addr().Is6() {
		args = append([]string{"-6"}, args...)
	}
	k.net.outside.Run("ip", args...)
	if err := k.net.node.AddRoute(all, netip.MustParseAddr(k.family.outside(0))); err != nil && !errors.Is(err, syscall.EEXIST) {
		k.Fatal(err)
	}
}

// oneOfMany clients of the crowd, of an address of its own.
func (k *kernel) oneOfMany(i int) client {
	a := nth(crowds[k.family.name], 1+i)
	return client{name: fmt.Sprint("client ", a), ns: k.net.outside.NS, addr: a, flows: &k.net.flows}
}
