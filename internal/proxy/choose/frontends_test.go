package choose_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/choose"
)

// Which endpoints a node never uses, and what it says of them.
func TestUnusableEndpoints(t *testing.T) {
	fronts := choose.NewFrontends()
	other := &proxy.Service{
		Name:       proxy.ServiceName{Namespace: "shop", Name: "other"},
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.7"), netip.MustParseAddr("fd00:96::7")},
		Ports:      []proxy.Port{{Name: "http", Port: 80, Protocol: proxy.TCP}},
	}
	fronts.Set(nil, other)
	node := choose.Node{Name: "n1", Machine: "m1", Frontends: fronts}
	port := proxy.Port{Name: "http", Port: 8080, Protocol: proxy.TCP}
	svc := &proxy.Service{Name: proxy.ServiceName{Namespace: "shop", Name: "web"}, Ports: []proxy.Port{port}}
	for name, tc := range map[string]struct {
		address, node, machine string
		at                     choose.Node
		why                    string // part of it; empty: it is used
	}{
		"an address":                        {"10.0.0.1:80", "n2", "", node, ""},
		"a virtual IP":                      {"10.96.0.7:80", "", "", node, "virtual IP of service shop/other"},
		"a virtual IPv6":                    {"[fd00:96::7]:80", "", "", node, "virtual IP of service shop/other"},
		"a virtual IP, mapped":              {"[::ffff:10.96.0.7]:80", "", "", node, "virtual IP of service shop/other"},
		"a virtual IP, other port":          {"10.96.0.7:81", "", "", node, ""},
		"loopback of this machine":          {"127.0.0.1:80", "n2", "m1", node, ""},
		"loopback of another":               {"127.0.0.1:80", "n1", "m2", node, "loopback address of another machine"},
		"loopback6 of another":              {"[::1]:80", "n1", "m2", node, "loopback address of another machine"},
		"loopback of an unknown one":        {"127.0.0.1:80", "n2", "", node, "loopback address of another machine"},
		"loopback of an unknown, own node":  {"127.0.0.1:80", "n1", "", node, ""},
		"loopback of an unknown, no node":   {"127.0.0.1:80", "", "", choose.Node{Machine: "m1"}, "loopback address of another machine"},
		"loopback, machine not known here":  {"127.0.0.1:80", "n2", "m2", choose.Node{Name: "n1"}, ""},
		"loopback for a question elsewhere": {"127.0.0.1:80", "n2", "m2", choose.Node{Machine: choose.UnknownMachine}, "loopback address of another machine"},
	} {
		t.Run(name, func(t *testing.T) {
			e := choose.Endpoint{Addr: netip.MustParseAddrPort(tc.address), Node: tc.node, Machine: tc.machine, Ready: true, Serving: true}
			why := choose.Unusable(e, proxy.TCP, tc.at)
			if (why == "") != (tc.why == "") || !strings.Contains(why, tc.why) {
				t.Errorf("it says %q, want %q", why, tc.why)
			}
			state := choose.Endpoints(svc, port, []choose.Endpoint{e}, tc.at)
			used := len(state.IPv4.Cluster)+len(state.IPv6.Cluster) == 1
			if used != (tc.why == "") {
				t.Errorf("used: %t", used)
			}
		})
	}
	if _, ok := fronts.At(netip.MustParseAddrPort("10.96.0.7:80"), proxy.UDP); ok {
		t.Error("a Service answers by a protocol that it has no port of")
	}
	fronts.Set(other, nil)
	if _, ok := fronts.At(netip.MustParseAddrPort("10.96.0.7:80"), proxy.TCP); ok {
		t.Error("a Service that is gone still has its address")
	}
}
