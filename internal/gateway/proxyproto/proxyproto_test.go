package proxyproto

import (
	"bytes"
	"io"
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

// TestRead: what Append writes, and nothing after it.
func TestRead(t *testing.T) {
	for _, h := range []Header{
		{Source: netip.MustParseAddrPort("192.0.2.1:1000"), Destination: netip.MustParseAddrPort("192.0.2.2:80"), Node: "n", Identity: "spiffe://x/y"},
		{Source: netip.MustParseAddrPort("[2001:db8::1]:1000"), Destination: netip.MustParseAddrPort("[2001:db8::2]:80")},
	} {
		wire, err := Append(nil, h)
		if err != nil {
			t.Fatal(err)
		}
		r := bytes.NewReader(append(wire, "rest"...))
		got, err := Read(r)
		if err != nil || got.Source != h.Source || got.Destination != h.Destination {
			t.Errorf("%+v: read %+v, %v", h, got, err)
		}
		if rest, _ := io.ReadAll(r); string(rest) != "rest" {
			t.Errorf("after the header: %q", rest)
		}
	}
	local := signature + "\x20\x00\x00\x00"
	if got, err := Read(strings.NewReader(local)); err != nil || got.Source.IsValid() {
		t.Errorf("LOCAL: %+v, %v", got, err)
	}
	for name, text := range map[string]string{
		"none": "", "another protocol": "PROXY TCP4 192.0.2.1 192.0.2.2 1000 80\r\n", "short": local[:15],
		"too few addresses": signature + "\x21\x11\x00\x04abcd", "too long": signature + "\x21\x11\xff\xff",
		"a family that is not known": signature + "\x21\x31\x00\x00",
	} {
		if got, err := Read(strings.NewReader(text)); err == nil {
			t.Errorf("%s: read %+v", name, got)
		}
	}
}

func FuzzRead(f *testing.F) {
	wire, err := Append(nil, Header{Source: netip.MustParseAddrPort("192.0.2.1:1000"), Node: "n"})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(wire)
	f.Fuzz(func(t *testing.T, data []byte) {
		h, err := Read(bytes.NewReader(data))
		if err != nil || !h.Source.IsValid() {
			return
		}
		again, err := Append(nil, h)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := Read(bytes.NewReader(again)); err != nil || got.Source != h.Source {
			t.Fatalf("%+v: read again as %+v, %v", h, got, err)
		}
	})
}
