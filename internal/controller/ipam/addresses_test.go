package ipam

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"
)

func prefixes(texts ...string) []netip.Prefix {
	out := make([]netip.Prefix, len(texts))
	for i, t := range texts {
		out[i] = netip.MustParsePrefix(t)
	}
	return out
}

func newTestAddresses(t testing.TB, opts AddressOptions, cidrs ...string) *Addresses {
	t.Helper()
	a := NewAddresses(opts)
	if err := a.SetRanges(prefixes(cidrs...)); err != nil {
		t.Fatal(err)
	}
	return a
}

func TestUsage(t *testing.T) {
	for _, tc := range []struct {
		cidr       string
		size, band uint64
	}{
		{"10.0.0.0/32", 0, 0},
		{"10.0.0.0/31", 0, 0},
		{"10.0.0.0/30", 2, 0},
		{"10.0.0.0/28", 14, 0},
		{"10.0.0.0/27", 30, 16},
		{"10.0.0.0/24", 254, 16},
		{"10.0.0.0/23", 510, 32},
		{"10.0.0.0/20", 4094, 256},
		{"10.96.0.0/16", 65534, 256},
		{"10.96.0.0/12", 1<<20 - 2, 256},
		{"fd00::/128", 0, 0},
		{"fd00::/124", 15, 0},
		{"fd00::/123", 31, 16},
		{"fd00:96::/108", 1<<20 - 1, 256},
		{"fd00::/64", 1<<64 - 1, 256},
	} {
		t.Run(tc.cidr, func(t *testing.T) {
			a := newTestAddresses(t, AddressOptions{}, tc.cidr)
			want := []Usage{{Range: tc.cidr, Size: tc.size, StaticBand: tc.band}}
			if diff := cmp.Diff(want, a.Usage()); diff != "" {
				t.Error(diff)
			}
			for addr := range a.Candidates(familyOf(netip.MustParsePrefix(tc.cidr).Addr())) {
				if err := a.Check(addr); err != nil {
					t.Errorf("candidate %s: %v", addr, err)
				}
				break
			}
		})
	}
}

func TestSetRangesRefuses(t *testing.T) {
	a := newTestAddresses(t, AddressOptions{}, "10.0.0.0/24")
	for _, bad := range []netip.Prefix{
		{}, netip.MustParsePrefix("10.0.0.1/24"), netip.MustParsePrefix("fd00::/63"), netip.MustParsePrefix("::ffff:10.0.0.0/120"),
	} {
		if err := a.SetRanges([]netip.Prefix{bad}); err == nil {
			t.Errorf("range %s was accepted", bad)
		}
	}
	if !a.Contains(netip.MustParseAddr("10.0.0.1")) {
		t.Error("a refused change lost the old ranges")
	}
}

func TestCheck(t *testing.T) {
	a := newTestAddresses(t, AddressOptions{}, "10.0.0.0/24", "10.1.0.0/24", "fd00::/108")
	a.MarkTaken(netip.MustParseAddr("10.0.0.7"))
	a.MarkTaken(netip.MustParseAddr("fd00::7"))
	outside := "the provided network does not match the current range: valid IPs are those of "
	for addr, want := range map[string]string{
		"10.0.0.1": "", "10.1.0.254": "", "fd00::1": "", "::ffff:10.0.0.9": "",
		"10.0.0.7": "provided IP is already allocated", "::ffff:10.0.0.7": "provided IP is already allocated",
		"fd00::7":      "provided IP is already allocated",
		"10.0.0.0":     outside + "10.0.0.0/24,10.1.0.0/24",
		"10.0.0.255":   outside + "10.0.0.0/24,10.1.0.0/24",
		"fd00::":       outside + "fd00::/108",
		"fd00::1:1:0":  outside + "fd00::/108",
		"fd00::1%eth0": outside + "fd00::/108",
	} {
		got := ""
		if err := a.Check(netip.MustParseAddr(addr)); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: %q, want %q", addr, got, want)
		}
	}
}

// Every address of a /16 is handed out once, the band last; then the range is
// full; released, all are free again and no memory is held.
func TestExhaustAndRelease(t *testing.T) {
	a := newTestAddresses(t, AddressOptions{}, "10.96.0.0/16")
	var order []netip.Addr
	for range 65534 {
		addr, ok := a.Cursor(corev1.IPv4Protocol).Next()
		if !ok {
			t.Fatalf("full after %d addresses", len(order))
		}
		a.MarkTaken(addr)
		order = append(order, addr)
	}
	if addr, ok := a.Cursor(corev1.IPv4Protocol).Next(); ok {
		t.Fatalf("a full range offers %s", addr)
	}
	seen := map[netip.Addr]bool{}
	for i, addr := range order {
		if seen[addr] || !a.Contains(addr) {
			t.Fatalf("address %s: given twice or out of range", addr)
		}
		seen[addr] = true
		inBand := a.ranges[0].inBand(positionOf(addr))
		if wantBand := i >= 65534-256; inBand != wantBand {
			t.Fatalf("address %d is %s: in static band %v, want %v", i, addr, inBand, wantBand)
		}
	}
	for _, addr := range order {
		a.MarkFree(addr)
		a.MarkFree(addr)
	}
	if n := len(a.taken4.chunks); n != 0 || a.taken4.count != 0 {
		t.Errorf("after release %d chunks and %d marks are left", n, a.taken4.count)
	}
}

func TestOverlapRespectsEveryBand(t *testing.T) {
	a := newTestAddresses(t, AddressOptions{}, "10.0.0.0/23", "10.0.1.0/24")
	dynamic := true
	seen := map[netip.Addr]int{}
	for addr := range a.Candidates(corev1.IPv4Protocol) {
		seen[addr]++
		static := false
		for _, r := range a.ranges {
			static = static || r.inBand(positionOf(addr))
		}
		if static {
			dynamic = false
		} else if !dynamic {
			t.Fatalf("%s is dynamic and comes after a static one", addr)
		}
	}
	if len(seen) != 510 {
		t.Errorf("%d addresses were offered, want 510", len(seen))
	}
}

func TestWholePool(t *testing.T) {
	a := newTestAddresses(t, AddressOptions{WholePool: true, Random: func(uint64) uint64 { return 0 }}, "10.0.0.0/24")
	addr, ok := a.Cursor(corev1.IPv4Protocol).Next()
	if want := netip.MustParseAddr("10.0.0.1"); !ok || addr != want {
		t.Errorf("first candidate %s, want %s", addr, want)
	}
}

func TestFamilies(t *testing.T) {
	a := newTestAddresses(t, AddressOptions{}, "fd00::/108", "10.0.0.0/24", "10.1.0.0/24")
	want := []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol}
	if diff := cmp.Diff(want, a.Families()); diff != "" {
		t.Error(diff)
	}
}

func TestLastIPv6Address(t *testing.T) {
	last := ^uint64(0)
	a := newTestAddresses(t, AddressOptions{WholePool: true, Random: func(n uint64) uint64 { return n - 1 }}, "fd00::/64")
	c := a.Cursor(corev1.IPv6Protocol)
	for _, want := range []uint64{last, 1, 2} {
		if addr, ok := c.Next(); !ok || positionOf(addr).lo != want {
			t.Errorf("candidate %s, want offset %x", addr, want)
		}
	}
	// Marked as taken, the last number must not make the search run over.
	var s set
	s.add(position{lo: last})
	if n, ok := s.nextFree(0, last, last); ok {
		t.Errorf("found %x", n)
	}
}

// The set behaves like a map of numbers.
func TestSetProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const first, last = 1<<20 - 3000, 1<<20 + 3000
		var s set
		model := map[uint64]bool{}
		number := rapid.Uint64Range(first, last)
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				n := number.Draw(t, "n")
				for ; n <= last && rapid.Bool().Draw(t, "more"); n++ {
					if s.add(position{lo: n}) == model[n] {
						t.Fatalf("add %d: wrong answer", n)
					}
					model[n] = true
				}
			},
			"fill": func(t *rapid.T) {
				from := number.Draw(t, "from")
				for n := from; n <= min(from+1500, last); n++ {
					s.add(position{lo: n})
					model[n] = true
				}
			},
			"remove": func(t *rapid.T) {
				n := number.Draw(t, "n")
				if s.remove(position{lo: n}) != model[n] {
					t.Fatalf("remove %d: wrong answer", n)
				}
				delete(model, n)
			},
			"nextFree": func(t *rapid.T) {
				from, to := number.Draw(t, "from"), number.Draw(t, "to")
				got, ok := s.nextFree(0, from, to)
				want := from
				for want <= to && model[want] {
					want++
				}
				if ok != (want <= to) || ok && got != want {
					t.Fatalf("next free in [%d,%d]: %d %v, want %d", from, to, got, ok, want)
				}
			},
			"": func(t *rapid.T) {
				if s.count != len(model) || s.countIn(0, 0, 1<<63) != len(model) {
					t.Fatalf("count %d, %d in all; want %d", s.count, s.countIn(0, 0, 1<<63), len(model))
				}
			},
		})
	})
}

// Two API servers whose marks lag behind by any number of events, and one truth
// that refuses a second owner: no address ever has two owners, and no address is
// lost.
func TestNeverTwoOwners(t *testing.T) {
	type event struct {
		addr  netip.Addr
		taken bool
	}
	rapid.Check(t, func(t *rapid.T) {
		cidrs := prefixes("10.0.0.0/27", "10.0.0.16/28", "10.0.1.0/29")
		const total = 30 + 6
		truth := map[netip.Addr]int{}
		var log []event
		var servers [2]*Addresses
		var seen [2]int
		for i := range servers {
			servers[i] = NewAddresses(AddressOptions{Random: func(n uint64) uint64 { return rapid.Uint64Range(0, n-1).Draw(t, "r") }})
			if err := servers[i].SetRanges(cidrs); err != nil {
				t.Fatal(err)
			}
		}
		catchUp := func(s, to int) {
			for ; seen[s] < to; seen[s]++ {
				if e := log[seen[s]]; e.taken {
					servers[s].MarkTaken(e.addr)
				} else {
					servers[s].MarkFree(e.addr)
				}
			}
		}
		owner := 0
		t.Repeat(map[string]func(*rapid.T){
			"create": func(t *rapid.T) {
				s := rapid.IntRange(0, 1).Draw(t, "server")
				plan, errs := NewPlan(nil, service(nil), servers[s].Families())
				if len(errs) > 0 {
					t.Fatal(errs)
				}
				choice, err := Choose(plan, servers[s], nil)
				for err == nil {
					addr := choice.Addresses()[0]
					if _, owned := truth[addr]; !owned {
						owner++
						truth[addr] = owner
						log = append(log, event{addr, true})
						return
					}
					err = choice.Retry(addr)
				}
				if !errors.Is(err, ErrFull) {
					t.Fatal(err)
				}
				if seen[s] == len(log) && len(truth) < total {
					t.Fatalf("an up-to-date server says full at %d of %d", len(truth), total)
				}
			},
			"delete": func(t *rapid.T) {
				if len(truth) == 0 {
					t.Skip("nothing to delete")
				}
				addrs := slices.SortedFunc(maps.Keys(truth), netip.Addr.Compare)
				addr := rapid.SampledFrom(addrs).Draw(t, "addr")
				delete(truth, addr)
				log = append(log, event{addr, false})
			},
			"events": func(t *rapid.T) {
				s := rapid.IntRange(0, 1).Draw(t, "server")
				catchUp(s, rapid.IntRange(seen[s], len(log)).Draw(t, "to"))
			},
			"relist": func(t *rapid.T) {
				s := rapid.IntRange(0, 1).Draw(t, "server")
				servers[s].Replace(maps.Keys(truth))
				seen[s] = len(log)
			},
		})
		for s := range servers {
			catchUp(s, len(log))
			if free := len(slices.Collect(servers[s].Candidates(corev1.IPv4Protocol))); free < total-len(truth) {
				t.Fatalf("server %d: %d free addresses, want at least %d", s, free, total-len(truth))
			}
		}
	})
}

func BenchmarkNext(b *testing.B) {
	for _, tc := range []struct {
		cidr string
		full float64
	}{{"10.96.0.0/16", 0}, {"10.96.0.0/16", 0.5}, {"fd00:96::/108", 0.1}, {"10.96.0.0/12", 1}} {
		b.Run(fmt.Sprintf("%s full %.1f", tc.cidr, tc.full), func(b *testing.B) {
			a := newTestAddresses(b, AddressOptions{}, tc.cidr)
			f := familyOf(netip.MustParsePrefix(tc.cidr).Addr())
			for range int(tc.full * float64(a.ranges[0].size)) {
				addr, _ := a.Cursor(f).Next()
				a.MarkTaken(addr)
			}
			b.ReportAllocs()
			for b.Loop() {
				addr, ok := a.Cursor(f).Next()
				if ok {
					a.MarkTaken(addr)
					a.MarkFree(addr)
				}
			}
		})
	}
}
