package node

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

func TestAppendLeft(t *testing.T) {
	target := func(a string) proxy.Target { return proxy.Target{Addr: netip.MustParseAddrPort(a), Weight: 1} }
	state := func(p proxy.Protocol, cluster, local, fallback []proxy.Target) *proxy.PortState {
		return &proxy.PortState{Port: proxy.Port{Protocol: p}, IPv4: proxy.Choice{Cluster: cluster, Local: local, Fallback: fallback}}
	}
	a, b := target("10.0.0.1:80"), target("10.0.0.2:80")
	both := []proxy.Target{a, b}
	for _, c := range []struct {
		name         string
		before, next *proxy.PortState
		want         []string
	}{
		{"new", nil, state(proxy.TCP, both, nil, nil), nil},
		{"as before", state(proxy.TCP, both, nil, nil), state(proxy.TCP, both, nil, nil), nil},
		{"suspect: used last", state(proxy.TCP, both, nil, nil), state(proxy.TCP, both[:1], nil, both[1:]), []string{"10.0.0.2:80"}},
		{"in the other list", state(proxy.TCP, both, nil, nil), state(proxy.TCP, both[:1], both[1:], nil), nil},
		{"the Service is gone", state(proxy.TCP, both[:1], nil, nil), nil, []string{"10.0.0.1:80"}},
		{"UDP: the modes end its flows", state(proxy.UDP, both, nil, nil), nil, nil},
	} {
		var got []string
		for _, e := range appendLeft(nil, c.before, c.next) {
			got = append(got, e.String())
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
