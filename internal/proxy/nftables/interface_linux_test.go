package nftables

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/testkit/netns"
)

// TestInterfacesInKernel: the kernel has the interfaces of workloads as nft writes them.
func TestInterfacesInKernel(t *testing.T) {
	ns := netns.New(t, "interfaces")
	m, err := New(Options{Namespace: ns.Fd(), WorkloadInterfaces: proxy.Interfaces{"cni0", "cali*"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = m.Close(t.Context()) }()
	web := spec("web", proxy.TCP, 80, []netip.Addr{vipAt(false, 0)}, func(s *proxy.PortState) {
		s.Service.ExternalIPs, s.Service.ExternalLocal = []netip.Addr{netip.MustParseAddr("203.0.113.1")}, true
		target := proxy.Target{Addr: netip.MustParseAddrPort("10.244.0.5:8080"), Weight: 1, Local: true}
		s.IPv4 = proxy.Choice{Cluster: []proxy.Target{target}, Local: []proxy.Target{target}}
	})
	if err := m.Apply(t.Context(), []proxy.Change{web}); err != nil {
		t.Fatal(err)
	}
	rules := ns.Run("nft", "list", "table", "ip", DefaultTable)
	for _, want := range []string{`iifname != "cni0" iifname != "cali*" `, `iifname "cni0" `, `iifname "cali*" `} {
		if !strings.Contains(rules, want) {
			t.Errorf("no %q in the kernel:\n%s", want, rules)
		}
	}
	d, err := m.Dump(t.Context())
	if err != nil || len(d.Missing)+len(d.Foreign) > 0 {
		t.Errorf("read back: %v, %+v", err, d)
	}
}
