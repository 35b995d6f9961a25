package wire

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func exampleName() HostName {
	return HostName{
		Names: []string{"web.shop.svc", "web.shop.svc.clusterset.local."}, Headless: true,
		Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")}, Alias: "other.example",
		Hosts: []HostBelow{{Name: "web-0.east", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}},
		Ports: []PortBelow{{Label: "_http._tcp", Number: 8080, Host: "web-0.east"}},
	}
}

func sameAddr(a, b netip.Addr) bool { return a == b }

func TestHostName(t *testing.T) {
	t.Parallel()
	for _, want := range []HostName{{}, exampleName()} {
		got, err := ParseHostName(want.Append(nil))
		if diff := cmp.Diff(want, got, cmp.Comparer(sameAddr)); err != nil || diff != "" {
			t.Errorf("%v\n%s", err, diff)
		}
	}
	if _, err := ParseHostName(appendBytes(nil, 2, []byte{1, 2, 3})); err == nil {
		t.Error("an address of 3 bytes is taken")
	}
}

func FuzzHostName(f *testing.F) {
	h := exampleName()
	f.Add(h.Append(nil))
	f.Fuzz(func(t *testing.T, data []byte) {
		first, err := ParseHostName(data)
		if err != nil {
			return
		}
		if _, err := ParseHostName(first.Append(nil)); err != nil {
			t.Error(err)
		}
	})
}
