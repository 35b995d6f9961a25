package modes

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/proxima-mesh/proxima/internal/diag"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// TestTraceNotAdmitted: in user space a client outside of the source ranges is
// reset, ignored or refused, depending on what the socket supports.
func TestTraceNotAdmitted(t *testing.T) {
	addr := netip.MustParseAddr
	for _, c := range []struct {
		name, ranges  string
		protocol      proxy.Protocol
		endpoint      bool
		outcome, does string
	}{
		{"TCP", "192.0.2.0/24", proxy.TCP, true, "reject", "accepts the connection, then resets it"},
		{"UDP", "192.0.2.0/24", proxy.UDP, true, "drop", "ignores the datagram"},
		{"no endpoint", "192.0.2.0/24", proxy.TCP, false, "reject", "no endpoint"},
		{"ranges of the other family", "::/0", proxy.TCP, true, "drop", "no client of this family"},
	} {
		s := &proxy.PortState{Port: proxy.Port{Port: 80, Protocol: c.protocol}, Service: &proxy.Service{
			LoadBalancerIPs: []netip.Addr{addr("203.0.113.7")}, SourceRanges: proxy.ParseSourceRanges([]string{c.ranges}),
		}}
		if c.endpoint {
			s.IPv4.Cluster = []proxy.Target{{Addr: netip.MustParseAddrPort("10.0.0.1:80"), Weight: 1}}
		}
		conn := diag.Connection{To: netip.MustParseAddrPort("203.0.113.7:80"), From: addr("198.51.100.1"), Protocol: c.protocol}
		var tr diag.Trace
		userspaceMode{}.Trace(&tr, conn, tr.Trace(conn, []*proxy.PortState{s}, diag.Vantage{}), nil)
		if len(tr.Steps) != 1 || tr.Outcome != c.outcome || !strings.Contains(tr.Steps[0].Does, c.does) || tr.Reason == "" {
			t.Errorf("%s: %s by %v because %q, want %s: %s", c.name, tr.Outcome, tr.Steps, tr.Reason, c.outcome, c.does)
		}
	}
}
