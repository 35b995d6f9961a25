package addresspool

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
)

func TestRanges(t *testing.T) {
	for text, want := range map[string]string{
		"192.0.2.0/30":                "192.0.2.0 192.0.2.3 4",
		"192.0.2.7":                   "192.0.2.7 192.0.2.7 1",
		"192.0.2.250 - 192.0.3.5":     "192.0.2.250 192.0.3.5 12",
		"2001:db8::/64":               "2001:db8:: 2001:db8::ffff:ffff:ffff:ffff 18446744073709551615",
		"2001:db8::10-2001:db8:0:1::": "2001:db8::10 2001:db8:0:1:: 18446744073709551601",
		"0.0.0.0/0":                   "0.0.0.0 255.255.255.255 4294967296",
	} {
		r, err := ParseRange(text)
		if got := fmt.Sprint(r.First, " ", r.Last, " ", r.Size()); err != nil || got != want {
			t.Errorf("%s: %s (%v), want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", "x", "192.0.2.1/24", "192.0.2.9-192.0.2.1", "192.0.2.1-2001:db8::1", "192.0.2.0/33", "fe80::1%eth0", "::ffff:192.0.2.0/120", "1.2.3.4-"} {
		if r, err := ParseRange(text); err == nil {
			t.Errorf("%q: %v, want an error", text, r)
		}
	}
	a, b, c := parse(t, "192.0.2.0/28"), parse(t, "192.0.2.15-192.0.2.20"), parse(t, "192.0.2.16/28")
	if !a.Overlaps(b) || !b.Overlaps(a) || a.Overlaps(c) || !b.Overlaps(c) {
		t.Error("overlaps")
	}
}

func parse(t *testing.T, text string) Range {
	t.Helper()
	r, err := ParseRange(text)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func FuzzParseRange(f *testing.F) {
	f.Add("192.0.2.0/28")
	f.Add("2001:db8::1-2001:db8::2")
	f.Fuzz(func(t *testing.T, text string) {
		r, err := ParseRange(text)
		if err == nil && (!r.Contains(r.First) || !r.Contains(r.Last) || r.Size() == 0 || r.First.Is4In6()) {
			t.Errorf("%q: %v", text, r)
		}
	})
}

func TestEveryAddressIsAllocatedOnce(t *testing.T) {
	p := New(parse(t, "192.0.2.4-192.0.2.6"), parse(t, "2001:db8::1"), parse(t, "198.51.100.0/31"))
	seen := map[netip.Addr]string{}
	for i := range 5 {
		name := fmt.Sprint("object-", i)
		a, err := p.Allocate(true, name)
		if err != nil || seen[a] != "" {
			t.Fatalf("%s: %v (%v), which %q has", name, a, err, seen[a])
		}
		seen[a] = name
	}
	if _, err := p.Allocate(true, "one more"); !errors.Is(err, ErrFull) {
		t.Errorf("error %v, want ErrFull", err)
	}
	for a, name := range seen {
		if p.Take(a, "another") || !p.Take(a, name) {
			t.Errorf("%v of %s was taken by another", a, name)
		}
		p.Free(a, "another")
		if again, err := p.Allocate(true, name); err == nil && seen[again] != name {
			t.Errorf("%s: %v", name, again)
		}
	}
	if p.Take(netip.MustParseAddr("192.0.2.7"), "x") {
		t.Error("an address in no range was taken")
	}
}
