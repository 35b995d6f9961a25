package proxytest

import (
	"net/netip"
	"testing"

	core "github.com/proxima-mesh/proxima/internal/kernel/netns"
	"github.com/proxima-mesh/proxima/internal/testkit/netns"
)

// LayHost makes this process's network namespace a node that is the host of its own workloads, at the addresses that pod returns, with a
// router of a name that refuses every address that no service has.
func LayHost(t *testing.T, name string, pod func(v6 bool, i int) netip.Addr) {
	t.Helper()
	current, err := core.Current()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = current.Close() })
	router := netns.New(t, name)
	if err := core.Connect(
		core.End{NS: current, Link: "uplink", Addrs: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24"), netip.MustParsePrefix("2001:db8:1::1/64")}},
		core.End{NS: router.NS, Link: "uplink", Addrs: []netip.Prefix{netip.MustParsePrefix("192.0.2.2/24"), netip.MustParsePrefix("2001:db8:1::2/64")}},
	); err != nil {
		t.Fatal(err)
	}
	if err := current.SetLinkUp("lo", true); err != nil {
		t.Fatal(err)
	}
	for to, via := range map[string]string{"0.0.0.0/0": "192.0.2.2", "::/0": "2001:db8:1::2"} {
		if err := current.AddRoute(netip.MustParsePrefix(to), netip.MustParseAddr(via)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 8 {
		for _, v6 := range []bool{false, true} {
			a := pod(v6, i)
			if err := current.AddAddr("lo", netip.PrefixFrom(a, a.BitLen())); err != nil {
				t.Fatal(err)
			}
		}
	}
	router.Run("ip", "route", "add", "local", "10.96.0.0/16", "dev", "lo")
	router.Run("ip", "-6", "route", "add", "local", "fd00:96::/108", "dev", "lo")
}
