package conntrack

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// attr is an attribute as the kernel writes it.
func attr(typ uint16, parts ...[]byte) []byte {
	var v []byte
	for _, p := range parts {
		v = append(v, p...)
	}
	b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(v)))
	b = append(binary.NativeEndian.AppendUint16(b, typ), v...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

func be(n int, v uint64) []byte { return binary.BigEndian.AppendUint64(nil, v)[8-n:] }

func tuple(typ uint16, protocol byte, from, to string) []byte {
	src, dst := netip.MustParseAddrPort(from), netip.MustParseAddrPort(to)
	a, b := uint16(ctaV4Src), uint16(ctaV4Dst)
	if src.Addr().Is6() {
		a, b = ctaV6Src, ctaV6Dst
	}
	const nested = 1 << 15
	return attr(typ|nested,
		attr(ctaTupleIP|nested, attr(a, src.Addr().AsSlice()), attr(b, dst.Addr().AsSlice())),
		attr(ctaTupleProto|nested, attr(ctaProtoNum, []byte{protocol}),
			attr(ctaSrcPort, be(2, uint64(src.Port()))), attr(ctaDstPort, be(2, uint64(dst.Port())))))
}

func counters(typ uint16, bytes uint64) []byte {
	return attr(typ, attr(1, be(8, 1)), attr(ctaCountersBytes, be(8, bytes)))
}

func dumped(status uint64, protocol byte, info []byte, more ...[]byte) []byte {
	all := [][]byte{
		tuple(ctaTupleOrig, protocol, "10.1.1.1:4000", "10.96.0.1:80"), tuple(ctaTupleReply, protocol, "10.2.2.2:8080", "10.1.1.1:4000"),
		attr(ctaStatus, be(4, status)), info, attr(ctaID, be(4, 7)),
	}
	var b []byte
	for _, p := range append(all, more...) {
		b = append(b, p...)
	}
	return b
}

func tcp(state byte) []byte {
	return attr(ctaProtoInfo, attr(ctaProtoInfoTCP, attr(ctaStateOf, []byte{state})))
}

func TestEntry(t *testing.T) {
	both := [][]byte{counters(ctaCountersOrig, 100), counters(ctaCountersReply, 2000)}
	for _, tc := range []struct {
		name   string
		b      []byte
		ok     bool
		state  State
		counts bool
	}{
		{"established", dumped(statusDNAT|8, numberTCP, tcp(3), both...), true, Established, true},
		{"time wait", dumped(statusDNAT, numberTCP, tcp(7), both...), true, Closed, true},
		{"reset", dumped(statusDNAT, numberTCP, tcp(8), both...), true, Closed, true},
		{"syn sent", dumped(statusDNAT, numberTCP, tcp(1), both...), true, Opening, true},
		{"not counted", dumped(statusDNAT, numberTCP, tcp(3)), true, Established, false},
		{"udp answered", dumped(statusDNAT|statusSeenReply, numberUDP, nil, both...), true, Established, true},
		{"udp unanswered", dumped(statusDNAT, numberUDP, nil, both...), true, Opening, true},
		{"sctp", dumped(statusDNAT, numberSCTP, attr(ctaProtoInfo, attr(ctaProtoInfoSCTP, attr(ctaStateOf, []byte{4}))), both...), true,
			Established, true},
		{"source translated alone", dumped(1<<4, numberTCP, tcp(3), both...), false, 0, false},
		{"icmp", dumped(statusDNAT, 1, nil, both...), false, 0, false},
		{"cut", dumped(statusDNAT, numberTCP, tcp(3), both...)[:150], false, 0, false},
		{"nothing", nil, false, 0, false},
	} {
		var e Entry
		if ok := e.parse(tc.b); ok != tc.ok {
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
	b := dumped(statusDNAT, numberTCP, tcp(3), counters(ctaCountersOrig, 1), counters(ctaCountersReply, 1))
	var e Entry
	if n := testing.AllocsPerRun(100, func() { e.parse(b) }); n != 0 {
		t.Errorf("%v allocations for an entry", n)
	}
}

// FuzzEntry: any bytes are refused, or become a flow.
func FuzzEntry(f *testing.F) {
	f.Add([]byte{})
	f.Add(dumped(statusDNAT, numberTCP, tcp(3), counters(ctaCountersOrig, 1<<63), counters(ctaCountersReply, 1)))
	f.Add(dumped(statusDNAT, numberUDP, nil))
	f.Add(append(tuple(ctaTupleOrig, numberTCP, "[fd00::1]:1", "[fd00::2]:2"), tuple(ctaTupleReply, numberTCP, "[fd00::3]:3", "[fd00::1]:1")...))
	f.Fuzz(func(t *testing.T, b []byte) {
		var e Entry
		if !e.parse(b) {
			return
		}
		_, to, _ := e.Ends()
		if to.Protocol == "" || len(e.Tuple) == 0 || e.status&statusDNAT == 0 {
			t.Errorf("parsed %x into %+v", b, e)
		}
	})
}
