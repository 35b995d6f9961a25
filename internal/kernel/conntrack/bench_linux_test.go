package conntrack_test

import (
	"net"
	"net/netip"
	"testing"

	"github.com/proxima-mesh/proxima/internal/kernel/conntrack"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/testkit/netns"
)

func BenchmarkPrune(b *testing.B) {
	ns := netns.New(b, "pipt-ct")
	ns.Addr("lo", "10.7.0.1/32")
	ns.Addr("lo", "10.7.0.2/32")
	ns.Run("iptables-legacy", "-w", "-t", "filter", "-A", "OUTPUT", "-m", "conntrack", "--ctstate", "NEW")
	var table *conntrack.Table
	if err := ns.Do(func() (err error) { table, err = conntrack.Open(0); return err }); err != nil {
		b.Fatal(err)
	}
	defer table.Close()
	c, err := ns.ListenPacket("udp", "10.7.0.2:0")
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	fill := func(n int) conntrack.Keep {
		keep := conntrack.Keep{}
		for i := range n {
			to := netip.AddrPortFrom(netip.MustParseAddr("10.7.0.1"), uint16(1000+i))
			_, _ = c.WriteTo([]byte("x"), net.UDPAddrFromAddrPort(to))
			keep.Add(conntrack.Frontend{Protocol: proxy.UDP, Addr: to})
		}
		return keep
	}
	keep := fill(20000)
	b.Run("read", func(b *testing.B) {
		none := conntrack.Keep{{Protocol: proxy.UDP, Addr: netip.MustParseAddrPort("10.9.9.9:53")}: nil}
		b.ReportAllocs()
		for b.Loop() {
			if _, err := table.Prune(none); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("end", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			b.StopTimer()
			fill(20000)
			b.StartTimer()
			if n, err := table.Prune(keep); err != nil || n < 19000 {
				b.Fatal(n, err)
			}
		}
	})
}
