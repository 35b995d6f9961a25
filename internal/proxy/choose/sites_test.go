package choose_test

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/choose"
)

func TestWithElsewhere(t *testing.T) {
	at := netip.MustParseAddrPort
	own, other, tunnel := at("10.0.0.1:80"), at("10.0.0.9:80"), at("10.0.0.5:10003")
	target := func(a netip.AddrPort, weight uint32) proxy.Target {
		if a == tunnel {
			return proxy.Target{Addr: a, Weight: weight, Local: true, Zone: proxy.OtherSitesZone}
		}
		return proxy.Target{Addr: a, Weight: weight}
	}
	ready := proxy.Choice{Cluster: []proxy.Target{target(own, 1), target(other, 3)}, Why: proxy.AllReady}
	some := map[string]uint32{"http": 6}
	for name, tc := range map[string]struct {
		before    proxy.Choice
		elsewhere *proxy.Elsewhere
		want      proxy.Choice
	}{
		"nothing elsewhere": {ready, nil, ready},
		"of another port":   {ready, &proxy.Elsewhere{Instances: map[string]uint32{"admin": 1}}, ready},
		"not asked for":     {proxy.Choice{}, &proxy.Elsewhere{Instances: some}, proxy.Choice{}},
		"own endpoints come first": {ready, &proxy.Elsewhere{Instances: some}, proxy.Choice{
			Cluster: ready.Cluster, Why: proxy.AllReady, Fallback: []proxy.Target{target(tunnel, 1)},
		}},
		"none here": {
			proxy.Choice{Why: proxy.NoEndpoint, NoCluster: proxy.Reject}, &proxy.Elsewhere{Instances: some},
			proxy.Choice{Why: proxy.OtherSites, Cluster: []proxy.Target{target(tunnel, 1)}},
		},
		"only terminating ones": {
			proxy.Choice{Why: proxy.TerminatingFallback, Cluster: []proxy.Target{target(own, 1)}}, &proxy.Elsewhere{Instances: some},
			proxy.Choice{Why: proxy.OtherSites, Cluster: []proxy.Target{target(tunnel, 1)}, Fallback: []proxy.Target{target(own, 1)}},
		},
		// 6 instances there, each as much as one of the two here on average.
		"all sites": {ready, &proxy.Elsewhere{Instances: some, Spread: true}, proxy.Choice{
			Why: proxy.AllSites, Cluster: []proxy.Target{target(own, 1), target(tunnel, 12), target(other, 3)},
		}},
		// A quarter leaves; the weights of the endpoints are multiplied by 256.
		"a plan": {ready, &proxy.Elsewhere{Instances: some, Splits: map[string]proxy.Split{"http": {Here: 3, Away: 1}}}, proxy.Choice{
			Why: proxy.PlannedSites, Cluster: []proxy.Target{target(own, 256), target(tunnel, 341), target(other, 768)},
		}},
		"a plan that keeps nothing": {ready, &proxy.Elsewhere{Instances: some, Splits: map[string]proxy.Split{"http": {Away: 1}}}, proxy.Choice{
			Why: proxy.PlannedSites, Cluster: []proxy.Target{target(tunnel, 1)}, Fallback: ready.Cluster,
		}},
		"a plan, but none here": {
			proxy.Choice{Why: proxy.NoEndpoint, NoCluster: proxy.Reject},
			&proxy.Elsewhere{Instances: some, Splits: map[string]proxy.Split{"http": {Here: 3, Away: 1}}},
			proxy.Choice{Why: proxy.OtherSites, Cluster: []proxy.Target{target(tunnel, 1)}},
		},
	} {
		s := &proxy.PortState{Port: proxy.Port{Name: "http", Protocol: proxy.TCP}, IPv4: tc.before}
		got := choose.WithElsewhere(s, tc.elsewhere, []netip.AddrPort{tunnel})
		if diff := cmp.Diff(tc.want, got.IPv4, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if got.IPv6.Cluster != nil {
			t.Errorf("%s: IPv6 has %v, without a tunnel", name, got.IPv6.Cluster)
		}
	}
	udp := &proxy.PortState{Port: proxy.Port{Name: "http", Protocol: proxy.UDP}, IPv4: proxy.Choice{Why: proxy.NoEndpoint}}
	if got := choose.WithElsewhere(udp, &proxy.Elsewhere{Instances: some}, []netip.AddrPort{tunnel}); got.IPv4.Cluster != nil {
		t.Error("a tunnel of UDP")
	}
}
