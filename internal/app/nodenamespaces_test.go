package app

import (
	"maps"
	"net/netip"
	"testing"

	"github.com/proxima-mesh/proxima/internal/node"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// TestClientNamespaces: addresses of workloads of this node have their namespace, but those that several share.
func TestClientNamespaces(t *testing.T) {
	own, shared, third := netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("10.1.0.3")
	key := func(namespace string) proxy.ServiceName { return proxy.ServiceName{Namespace: namespace, Name: "w"} }
	workload := func(node string, all ...netip.Addr) *proxy.Workload { return &proxy.Workload{Node: node, Addrs: all} }
	var c clientNamespaces
	apply := func(when string, reset bool, workloads map[proxy.ServiceName]*proxy.Workload, want map[netip.Addr]string) {
		t.Helper()
		u := node.Update{}
		u.Reset, u.Workloads = reset, workloads
		if got := c.apply("n1", u); !maps.Equal(got, want) || (got == nil) != (want == nil) {
			t.Errorf("%s: %v, want %v", when, got, want)
		}
	}
	apply("a feed without workloads", true, nil, nil)
	apply("all", true, map[proxy.ServiceName]*proxy.Workload{
		key("a"): workload("n1", own, shared), key("b"): workload("n1", shared), key("c"): workload("n2", third),
	}, map[netip.Addr]string{own: "a"})
	apply("another node's", false, map[proxy.ServiceName]*proxy.Workload{key("c"): workload("n3", third)}, nil)
	apply("one is gone", false, map[proxy.ServiceName]*proxy.Workload{key("b"): nil}, map[netip.Addr]string{own: "a", shared: "a"})
	apply("one comes", false, map[proxy.ServiceName]*proxy.Workload{key("c"): workload("n1", third)}, map[netip.Addr]string{own: "a", shared: "a", third: "c"})
	apply("all again", true, map[proxy.ServiceName]*proxy.Workload{}, map[netip.Addr]string{})
}
