package dns

import (
	"net/netip"
	"testing"

	"github.com/miekg/dns"
)

// A range that comes while the server answers is its own at once, and no longer
// once it has gone, whatever was kept of earlier answers.
func TestServiceCIDRsChange(t *testing.T) {
	s := serve(t)
	before := []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}
	more := append(before, netip.MustParsePrefix("10.200.0.0/24"))
	for round, tc := range []struct {
		ranges []netip.Prefix
		want   int
	}{
		{before, dns.RcodeServerFailure}, // not ours, and there is no upstream
		{more, dns.RcodeNameError}, {before, dns.RcodeServerFailure}, {more, dns.RcodeNameError},
	} {
		s.SetServiceCIDRs(tc.ranges)
		for range 2 {
			if r := s.ask(t, "udp", "7.0.200.10.in-addr.arpa.", dns.TypePTR); r.Rcode != tc.want {
				t.Errorf("round %d: %s, want %s", round, dns.RcodeToString[r.Rcode], dns.RcodeToString[tc.want])
			}
		}
	}
}
