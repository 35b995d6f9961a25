package proxy_test

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

func TestParseSourceRanges(t *testing.T) {
	for _, c := range []struct{ in, want []string }{
		{nil, nil},
		{[]string{" 198.51.100.7/24\n", "\tfd00::1/64 "}, []string{"198.51.100.0/24", "fd00::/64"}},
		{[]string{"10.0.0.0/8", "10.1.0.0/8"}, []string{"10.0.0.0/8"}},
		{[]string{"010.000.1.0/24"}, []string{"10.0.1.0/24"}},
		{[]string{"::ffff:10.0.0.0/104", "::ffff:0:0/96"}, []string{"10.0.0.0/8", "0.0.0.0/0"}},
		{[]string{"::ffff:0:0/80"}, []string{"::/80"}},
		{[]string{"0.0.0.0/0", "::/0", "0.0.0.0/0"}, []string{"0.0.0.0/0", "::/0"}},
		{[]string{"nonsense", "10.0.0.0/33", "10.0.0.0", ""}, []string{"::/128"}},
		{[]string{"nonsense", "10.0.0.0/8"}, []string{"::/128", "10.0.0.0/8"}},
	} {
		var want []netip.Prefix
		for _, p := range c.want {
			want = append(want, netip.MustParsePrefix(p))
		}
		if diff := cmp.Diff(want, proxy.ParseSourceRanges(c.in), cmpopts.EquateComparable(netip.Prefix{})); diff != "" {
			t.Errorf("%q: %s", c.in, diff)
		}
	}
}

func TestSourcesOf(t *testing.T) {
	for _, c := range []struct {
		ranges   []string
		v4, v6   []string // "all", or the ranges
		admitted string   // of the four clients below
	}{
		{nil, []string{"all"}, []string{"all"}, "yyyy"},
		{[]string{"192.0.2.0/24"}, []string{"192.0.2.0/24"}, nil, "ynnn"},
		{[]string{"fd00:dead::/64"}, nil, []string{"fd00:dead::/64"}, "nnyn"},
		{[]string{"0.0.0.0/0", "fd00:dead::/64"}, []string{"all"}, []string{"fd00:dead::/64"}, "yyyn"},
		{[]string{"192.0.2.0/24", "::/0"}, []string{"192.0.2.0/24"}, []string{"all"}, "ynyy"},
		{[]string{"0.0.0.0/0", "192.0.2.0/24", "0.0.0.0/0"}, []string{"all"}, nil, "yynn"},
		{[]string{"::/0", "0.0.0.0/0"}, []string{"all"}, []string{"all"}, "yyyy"},
		{[]string{"nonsense"}, nil, []string{"::/128"}, "nnnn"},
	} {
		s := &proxy.Service{SourceRanges: proxy.ParseSourceRanges(c.ranges)}
		for _, f := range []struct {
			is4  bool
			want []string
		}{{true, c.v4}, {false, c.v6}} {
			ranges, all := s.SourcesOf(f.is4)
			var got []string
			if all {
				got = append(got, "all")
			}
			for _, p := range ranges {
				got = append(got, p.String())
			}
			if diff := cmp.Diff(f.want, got); diff != "" {
				t.Errorf("%q, IPv4 %v: %s", c.ranges, f.is4, diff)
			}
		}
		got := ""
		for _, client := range []string{"192.0.2.1", "198.51.100.1", "fd00:dead::1%eth0", "fd00::1"} {
			if s.Admits(netip.MustParseAddr(client)) {
				got += "y"
			} else {
				got += "n"
			}
		}
		if got != c.admitted {
			t.Errorf("%q admits %s, want %s", c.ranges, got, c.admitted)
		}
		if s.Admits(netip.MustParseAddr("::ffff:192.0.2.1")) != (c.admitted[0] == 'y') {
			t.Errorf("%q: an IPv4-mapped client is judged otherwise than its IPv4 address", c.ranges)
		}
	}
}

// FuzzParseSourceRanges: whatever is written, a list that is not empty stays so,
// and admits no family that it does not name.
func FuzzParseSourceRanges(f *testing.F) {
	for _, s := range []string{"", " 10.0.0.0/8 ", "::ffff:0:0/96", "fe80::1%eth0/64", "010.1.1.1/0", "::/0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := proxy.ParseSourceRanges([]string{s})
		if len(got) != 1 || !got[0].IsValid() || got[0] != got[0].Masked() || got[0].Addr().Is4In6() {
			t.Fatalf("%q is read as %v", s, got)
		}
		_, all4 := (&proxy.Service{SourceRanges: got}).SourcesOf(true)
		_, all6 := (&proxy.Service{SourceRanges: got}).SourcesOf(false)
		if all4 && all6 {
			t.Fatalf("%q admits all of both families", s)
		}
	})
}
