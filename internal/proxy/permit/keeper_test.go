package permit

import (
	"net/netip"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// TestUnable: a keeper that cannot enforce knows what it does not, and leaves the kernel alone.
func TestUnable(t *testing.T) {
	k, err := New(Config{Node: "n1", Unable: "mode userspace"})
	if err != nil {
		t.Fatal(err)
	}
	k.Apply(true, map[proxy.ServiceName]*proxy.Workload{{Namespace: "ns", Name: "pod"}: {
		Node: "n1", Addrs: []netip.Addr{netip.MustParseAddr("10.1.0.2")}, Ports: []proxy.GuardedPort{{Port: 80, Protocol: proxy.TCP, Refuse: true}},
	}})
	if err := k.Flush(); err != nil {
		t.Fatal(err)
	}
	if s := k.Status(); s.Ports != 1 || s.Unable != "mode userspace" {
		t.Errorf("%+v", s)
	}
	if n := testutil.CollectAndCount(k); n != 5 {
		t.Errorf("%d metrics, want 5", n)
	}
	if err := k.Close(); err != nil {
		t.Error(err)
	}
}
