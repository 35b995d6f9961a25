package ipvs

import (
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink/nl"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// message is one as the kernel answers: the header of generic netlink and an attribute.
func message(a *nl.RtAttr) []byte {
	return append((&nl.Genlmsg{Command: cmdNewService, Version: familyVersion}).Serialize(), a.Serialize()...)
}

func TestServiceRoundTrip(t *testing.T) {
	for _, s := range []Service{
		{Key{proxy.IPv4, 0x00070150}, "wrr"}, {Key{proxy.IPv6, 0xffff0151}, "lblcr"},
	} {
		got, marked, err := decodeService(message(encodeService(s)))
		if err != nil || !marked || got != s {
			t.Errorf("%+v: %+v, %v, %v", s, got, marked, err)
		}
	}
	a := nl.NewRtAttr(attrService, nil)
	a.AddRtAttr(svcFamily, u16(2))
	if _, marked, err := decodeService(message(a)); marked || err != nil {
		t.Errorf("a service without a mark: %v, %v", marked, err)
	}
}

func TestDestinationRoundTrip(t *testing.T) {
	for addr, family := range map[string]proxy.Family{"10.1.2.3:8080": proxy.IPv4, "[2001:db8::1]:443": proxy.IPv6} {
		d := Destination{Addr: netip.MustParseAddrPort(addr), Weight: 17}
		got, err := decodeDestination(message(encodeDestination(d, true)), family)
		if err != nil || got != d {
			t.Errorf("%+v: %+v, %v", d, got, err)
		}
	}
}

// TestOtherForwardingDiffers: a destination that another program made with direct routing equals none of ours.
func TestOtherForwardingDiffers(t *testing.T) {
	a := nl.NewRtAttr(attrDest, nil)
	a.AddRtAttr(destAddr, make([]byte, 16))
	a.AddRtAttr(destPort, []byte{0, 80})
	a.AddRtAttr(destForward, u32(3))
	a.AddRtAttr(destWeight, u32(1))
	if d, err := decodeDestination(message(a), proxy.IPv4); err != nil || d.Weight != foreignWeight {
		t.Errorf("%+v, %v", d, err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(message(encodeService(Service{Key{proxy.IPv6, 0x00070150}, "wrr"})))
	f.Add(message(encodeDestination(Destination{Addr: netip.MustParseAddrPort("10.1.2.3:8080"), Weight: 17}, true)))
	f.Add([]byte{1, 1, 0, 0, 4, 0})
	f.Fuzz(func(t *testing.T, msg []byte) {
		if s, marked, err := decodeService(msg); err == nil && marked {
			if again, _, err := decodeService(message(encodeService(Service{s.Key, "rr"}))); err != nil || again.Key != s.Key {
				t.Errorf("%+v becomes %+v, %v", s, again, err)
			}
		}
		for _, family := range []proxy.Family{proxy.IPv4, proxy.IPv6} {
			if d, err := decodeDestination(msg, family); err == nil && !d.Addr.IsValid() {
				t.Errorf("%+v", d)
			}
		}
	})
}
