package hns

import (
	"errors"
	"net/netip"
	"runtime"
	"testing"
)

func TestSameID(t *testing.T) {
	if !SameID("{A1B2}", "a1b2") || SameID("a", "b") {
		t.Error("identifiers are the same in either case, with braces or without")
	}
}

func TestProvider(t *testing.T) {
	n := Network{Type: "overlay", RemoteSubnets: []RemoteSubnet{
		{Prefix: netip.MustParsePrefix("10.244.2.0/24"), ProviderAddress: netip.MustParseAddr("192.168.0.2")},
	}}
	for addr, want := range map[string]string{"10.244.2.9": "192.168.0.2", "192.168.0.2": "192.168.0.2", "10.244.3.1": "invalid IP"} {
		if got := n.Provider(netip.MustParseAddr(addr)).String(); got != want {
			t.Errorf("provider of %s: %s, want %s", addr, got, want)
		}
	}
	if !n.IsOverlay() {
		t.Error("the type of a network is compared in either case")
	}
}

func TestOpenElsewhere(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("this is about other systems")
	}
	if _, err := Open(); !errors.Is(err, ErrUnsupported) {
		t.Errorf("Open() = %v", err)
	}
}
