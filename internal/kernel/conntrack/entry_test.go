package conntrack

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxima-mesh/proxima/internal/kernel/conntracktest"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// flow of web at an endpoint.
func flow(protocol, state byte, status uint32, bytes *[2]uint64) []byte {
	return conntracktest.Flow{
		ID: 7, Protocol: protocol, Status: status, State: state, Bytes: bytes, Client: netip.MustParseAddrPort("10.1.1.1:4000"),
		To: netip.MustParseAddrPort("10.96.0.1:80"), Endpoint: netip.MustParseAddrPort("10.2.2.2:8080"),
	}.Attributes()
}

func TestEntry(t *testing.T) {
	both := &[2]uint64{100, 2000}
	for _, tc := range []struct {
		name   string
		b      []byte
		ok     bool
		state  State
		counts bool
	}{
		{"established", flow(numberTCP, 3, statusDNAT|8, both), true, Established, true},
		{"time wait", flow(numberTCP, 7, statusDNAT, both), true, Closed, true},
		{"reset", flow(numberTCP, 8, statusDNAT, both), true, Closed, true},
		{"syn sent", flow(numberTCP, 1, statusDNAT, both), true, Opening, true},
		{"not counted", flow(numberTCP, 3, statusDNAT, nil), true, Established, false},
		{"udp answered", flow(numberUDP, 0, statusDNAT|statusSeenReply, both), true, Established, true},
		{"udp unanswered", flow(numberUDP, 0, statusDNAT, both), true, Opening, true},
		{"sctp", flow(numberSCTP, 4, statusDNAT, both), true, Established, true},
		{"source translated alone", flow(numberTCP, 3, 1<<4, both), false, 0, false},
		{"icmp", flow(1, 0, statusDNAT, both), false, 0, false},
		{"cut", flow(numberTCP, 3, statusDNAT, both)[:150], false, 0, false},
		{"nothing", nil, false, 0, false},
	} {
		var e Entry
		if ok := e.Parse(tc.b); ok != tc.ok {
			t.Errorf("%s: taken is %v", tc.name, ok)
		}
		if !tc.ok {
			continue
		}
		if e.State != tc.state || e.Counted != tc.counts || e.ID != 7 || tc.counts && (e.In != 100 || e.Out != 2000) {
			t.Errorf("%s: %+v", tc.name, e)
		}
		client, to, endpoint := e.Ends()
		if client != netip.MustParseAddrPort("10.1.1.1:4000") || to.Addr != netip.MustParseAddrPort("10.96.0.1:80") ||
			endpoint != netip.MustParseAddrPort("10.2.2.2:8080") {
			t.Errorf("%s: %v to %v at %v", tc.name, client, to, endpoint)
		}
		if diff := cmp.Diff(protocols[e.protocol], to.Protocol); diff != "" || (to.Protocol == proxy.UDP) != e.Connectionless() {
			t.Errorf("%s: %s", tc.name, diff)
		}
	}
}

// TestEntryAllocatesNothing: a table of 100,000 entries is no work for the collector.
func TestEntryAllocatesNothing(t *testing.T) {
	b := flow(numberTCP, 3, statusDNAT, &[2]uint64{1, 1})
	var e Entry
	if n := testing.AllocsPerRun(100, func() { e.Parse(b) }); n != 0 {
		t.Errorf("%v allocations for an entry", n)
	}
}

// FuzzEntry: any bytes are refused, or become a flow.
func FuzzEntry(f *testing.F) {
	f.Add([]byte{})
	f.Add(flow(numberTCP, 3, statusDNAT, &[2]uint64{1 << 63, 1}))
	f.Add(flow(numberUDP, 0, statusDNAT, nil))
	f.Add(conntracktest.Flow{
		Protocol: numberTCP, Status: statusDNAT, Client: netip.MustParseAddrPort("[fd00::1]:1"), To: netip.MustParseAddrPort("[fd00::2]:2"),
		Endpoint: netip.MustParseAddrPort("[fd00::3]:3"),
	}.Attributes())
	f.Fuzz(func(t *testing.T, b []byte) {
		var e Entry
		if !e.Parse(b) {
			return
		}
		_, to, _ := e.Ends()
		if to.Protocol == "" || len(e.Tuple) == 0 || e.status&statusDNAT == 0 {
			t.Errorf("parsed %x into %+v", b, e)
		}
	})
}
