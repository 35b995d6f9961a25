package proxyproto

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestAppend compares with bytes composed by hand from the specification, 2.2.
func TestAppend(t *testing.T) {
	const sig = "\x0d\x0a\x0d\x0a\x00\x0d\x0a\x51\x55\x49\x54\x0a"
	mapped := strings.Repeat("\x00", 10) + "\xff\xff"
	for name, c := range map[string]struct {
		header Header
		want   string
	}{
		"IPv4 with fields": {
			Header{netip.MustParseAddrPort("10.1.2.3:258"), netip.MustParseAddrPort("240.0.0.1:80"), "n1", "spiffe://m/w"},
			sig + "\x21\x11\x00\x20" + "\x0a\x01\x02\x03\xf0\x00\x00\x01\x01\x02\x00\x50" + "\xe0\x00\x02n1" + "\xe1\x00\x0cspiffe://m/w",
		},
		"IPv6": {
			Header{Source: netip.MustParseAddrPort("[fd00::1]:1"), Destination: netip.MustParseAddrPort("[fd00::2]:2")},
			sig + "\x21\x21\x00\x24" + "\xfd" + strings.Repeat("\x00", 14) + "\x01\xfd" + strings.Repeat("\x00", 14) + "\x02\x00\x01\x00\x02",
		},
		"two families": {
			Header{Source: netip.MustParseAddrPort("10.0.0.1:1"), Destination: netip.MustParseAddrPort("[fd00::2]:2")},
			sig + "\x21\x21\x00\x24" + mapped + "\x0a\x00\x00\x01\xfd" + strings.Repeat("\x00", 14) + "\x02\x00\x01\x00\x02",
		},
		"no destination": {
			Header{Source: netip.MustParseAddrPort("10.0.0.1:1")},
			sig + "\x21\x11\x00\x0c" + "\x0a\x00\x00\x01\x00\x00\x00\x00\x00\x01\x00\x00",
		},
	} {
		got, err := Append(nil, c.header)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(c.want, string(got)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestAppendRefuses(t *testing.T) {
	source := netip.MustParseAddrPort("10.0.0.1:1")
	for name, h := range map[string]Header{
		"no source":     {},
		"long node":     {Source: source, Node: strings.Repeat("x", 5000)},
		"long identity": {Source: source, Identity: strings.Repeat("x", 5000)},
	} {
		if _, err := Append(nil, h); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
