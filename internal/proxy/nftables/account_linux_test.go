//go:build linux

package nftables

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/kernel/conntrack"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/account"
)

// TestBytesAreCounted: what goes through a virtual address of this mode is counted for its
// service port and the zone of the endpoint, and connections that no reading saw are added by
// the mode's exact counters.
func TestBytesAreCounted(t *testing.T) {
	const payload = 20 << 20
	l := newLab(t)
	m := l.mode(Options{})
	vip, at := vipAt(false, 0), netip.AddrPortFrom(podIP(false, 0), 8080)
	all := []proxy.Change{spec("web", proxy.TCP, 80, []netip.Addr{vip}, func(s *proxy.PortState) {
		s.IPv4.Cluster = []proxy.Target{{Addr: at, Weight: 1, Zone: "zone-b"}}
	})}
	l.apply(m, all...)
	table, directory := conntrack.NewReader(l.node.Fd()), account.NewDirectory(func(netip.Addr) bool { return false })
	if _, err := table.Accounting(); err != nil {
		t.Fatal(err)
	}
	directory.Update(all)
	ledger := account.NewLedger([2]uint64{1, 3}, directory)
	dump := func() (x proxy.Exchange) {
		t.Helper()
		ledger.Begin(1)
		if _, err := table.Dump(t.Context(), 0, func(e *conntrack.Entry) { ledger.Add(e, true) }); err != nil {
			t.Fatal(err)
		}
		ledger.End(true, func(yield func(proxy.PortName, uint64) bool) {
			for name, n := range m.Counts() {
				if !yield(name, n.Connections) {
					return
				}
			}
		})
		for _, row := range ledger.Exchanges(nil) {
			x = row.Exchange
		}
		return x
	}
	dump()
	sink, err := l.pods.Listen("tcp", at.String())
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	go func() {
		for {
			c, err := sink.Accept()
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, c)
			_ = c.Close()
		}
	}()
	c := l.client.Dial("tcp", netip.AddrPortFrom(vip, 80).String())
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := c.Write(make([]byte, payload)); err != nil {
		t.Fatal(err)
	}
	l.eventually("the connection is open and its bytes are there", func() bool { x := dump(); return x.Open == 1 && x.BytesIn >= payload })
	_ = c.(*net.TCPConn).CloseWrite()
	if _, err := io.ReadAll(c); err != nil {
		t.Fatal(err)
	}
	l.eventually("it is closed", func() bool { return dump().Closed == 1 })
	x := dump()
	// Packets that a router forwards are counted as the link has them: with headers of up to 3.4 %.
	if ratio := float64(x.BytesIn) / payload; ratio < 1 || ratio > 1.036 || x.Zone != "zone-b" || x.Opened != 1 || x.Estimated != 0 {
		t.Errorf("%.4f of the payload, %+v", ratio, x)
	}
}
