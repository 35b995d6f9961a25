package proxytest

import (
	"net/netip"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// sourceCases: loadBalancerSourceRanges.
var sourceCases = []kernelCase{
	{name: "source ranges", run: sourceRanges},
	{name: "source ranges with external Local", run: sourceRangesLocal},
	{name: "source ranges are judged per family", run: sourceRangesPerFamily},
	{name: "source ranges without an endpoint", run: sourceRangesNoEndpoint},
}

// rangeOf is a client's own address, and the range of a further one.
func (k *kernel) rangeOf(c client, bits int) netip.Prefix {
	return netip.PrefixFrom(c.addr, c.addr.BitLen()-bits).Masked()
}

// excluded clients get no answer at the balancer's address alone.
func (k *kernel) excluded(c client) {
	k.Helper()
	together(k.silentTo(c, k.at(k.balancer(0)))...)
}

func sourceRanges(k *kernel) {
	s := k.openService(0, k.all(local1, remote1)...)
	s.SourceRanges = []netip.Prefix{k.rangeOf(k.outside(1), 0), k.rangeOf(k.outside(16), 2)}
	k.apply(s)
	for _, in := range []client{k.outside(1), k.outside(16)} {
		for _, proto := range both {
			k.reaches(in, proto, k.at(k.balancer(0)), local1, remote1)
		}
	}
	out := k.outside(30)
	k.excluded(out)
	// They are for the balancer's addresses only.
	k.reaches(out, proxy.TCP, k.at(k.external(0)), local1, remote1)
	k.reaches(out, proxy.TCP, k.nodeAt(k.nodePort(0)), local1, remote1)
	k.reaches(out, proxy.TCP, k.at(k.vip(0)), local1, remote1)

	s.SourceRanges = []netip.Prefix{k.rangeOf(out, 0)}
	k.apply(s)
	k.reaches(out, proxy.TCP, k.at(k.balancer(0)), local1, remote1)
	k.excluded(k.outside(17))

	s.SourceRanges = nil
	k.apply(s)
	k.reaches(k.outside(1), proxy.TCP, k.at(k.balancer(0)), local1, remote1)
}

func sourceRangesLocal(k *kernel) {
	s := k.localService(0, k.all(local1, remote1)...)
	in := k.outside(1)
	s.SourceRanges = []netip.Prefix{k.rangeOf(in, 0)}
	k.apply(s)
	for _, proto := range both {
		answers := k.reaches(in, proto, k.at(k.balancer(0)), local1)
		if !k.lacks(KeepSource) {
			k.seenAs(in, answers, in.addr)
		}
	}
	k.excluded(k.outside(30))
}

// sourceRangesPerFamily: in each family the ranges of that family alone count.
func sourceRangesPerFamily(k *kernel) {
	other := *k
	if other.family = ipv4; k.family == ipv4 {
		other.family = ipv6
	}
	for i, step := range []struct {
		name                       string
		ranges                     func(in, otherIn netip.Prefix) []string
		in, out, otherIn, otherOut bool // who is admitted
	}{
		{
			name:   "all of this family, one client of the other",
			ranges: func(_, otherIn netip.Prefix) []string { return []string{k.family.everywhere, otherIn.String()} },
			in:     true, out: true, otherIn: true,
		},
		{
			name:   "one client of this family only",
			ranges: func(in, _ netip.Prefix) []string { return []string{in.String()} },
			in:     true,
		},
		{
			name: "spaces around",
			ranges: func(in, otherIn netip.Prefix) []string {
				return []string{" " + in.String() + "\t", "\n" + otherIn.String() + " "}
			},
			in: true, otherIn: true,
		},
		{
			name: "all of both families, among others",
			ranges: func(in, otherIn netip.Prefix) []string {
				return []string{in.String(), k.family.everywhere, otherIn.String(), other.family.everywhere}
			},
			in: true, out: true, otherIn: true, otherOut: true,
		},
		{
			name: "all of this family, twice",
			ranges: func(netip.Prefix, netip.Prefix) []string {
				return []string{k.family.everywhere, " " + k.family.everywhere}
			},
			in: true, out: true,
		},
		{
			name:   "no range that can be read",
			ranges: func(netip.Prefix, netip.Prefix) []string { return []string{"", "198.51.100.0"} },
		},
		{name: "none", in: true, out: true, otherIn: true, otherOut: true},
	} {
		s := k.openService(0, k.on(local1))
		s.ClusterIPs = append(s.ClusterIPs, other.vip(0))
		s.LoadBalancerIPs = append(s.LoadBalancerIPs, other.balancer(0))
		s.slices = append(s.slices, k.slice(s, "other", other.on(local1)))
		in, out := k.outside(2*i), k.outside(2*i+1)
		otherIn, otherOut := other.outside(2*i), other.outside(2*i+1)
		if step.ranges != nil {
			s.SourceRanges = proxy.ParseSourceRanges(step.ranges(k.rangeOf(in, 0), k.rangeOf(otherIn, 0)))
		}
		k.Logf("%s: %v", step.name, s.SourceRanges)
		k.apply(s)
		var checks []func()
		for _, c := range []struct {
			who      client
			to       netip.Addr
			admitted bool
		}{
			{in, k.balancer(0), step.in}, {out, k.balancer(0), step.out},
			{otherIn, other.balancer(0), step.otherIn}, {otherOut, other.balancer(0), step.otherOut},
		} {
			if !c.admitted {
				checks = append(checks, k.silentTo(c.who, k.at(c.to))...)
				continue
			}
			for _, proto := range both {
				k.reaches(c.who, proto, k.at(c.to), local1)
			}
		}
		together(checks...)
	}
}

// sourceRangesNoEndpoint: clients outside of the ranges learn nothing, those in
// them are refused, as at any other address without an endpoint.
func sourceRangesNoEndpoint(k *kernel) {
	in, out := k.outside(1), k.outside(30)
	for _, local := range []bool{false, true} {
		s := k.openService(0)
		s.ExternalLocal = local
		s.SourceRanges = []netip.Prefix{k.rangeOf(in, 0)}
		k.apply(s)
		for _, proto := range both {
			k.turnedAway(in, proto, k.at(k.balancer(0)))
			k.turnedAway(out, proto, k.at(k.external(0)))
		}
		k.excluded(out)
		// Endpoints come, and go.
		full := k.openService(0, k.on(local1))
		full.ExternalLocal, full.SourceRanges = local, s.SourceRanges
		k.apply(full)
		k.reaches(in, proxy.TCP, k.at(k.balancer(0)), local1)
		k.excluded(out)
		k.apply(s)
		k.turnedAway(in, proxy.TCP, k.at(k.balancer(0)))
		k.excluded(out)
	}
}
