//go:build linux

package nftables

import (
	"math"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

func weights(ws ...uint32) []proxy.Target {
	var out []proxy.Target
	for i, w := range ws {
		a := netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
		out = append(out, proxy.Target{Addr: netip.AddrPortFrom(a, 80), Weight: w})
	}
	return out
}

func TestSlotCount(t *testing.T) {
	many := func(n int, last uint32) []uint32 {
		ws := make([]uint32, n)
		for i := range ws {
			ws[i] = 5
		}
		ws[n-1] = last
		return ws
	}
	for _, c := range []struct {
		weights []uint32
		want    int
	}{
		{[]uint32{1}, 1}, {[]uint32{7, 7, 7}, 3}, {[]uint32{0, 1}, 2},
		{[]uint32{1, 2}, 128}, {[]uint32{1, 3, 6}, 128}, {[]uint32{5, 95}, 128}, {[]uint32{5, 1000}, 256}, {[]uint32{1, 1000}, 1024},
		{[]uint32{1, 1_000_000}, 128}, {many(10, 1), 256}, {many(30, 1), 512},
		{many(100, 1), 1024}, {many(1024, 1), 1024}, {many(1025, 1), 2048}, {many(5000, 5), 5000},
	} {
		if got := slotCount(weights(c.weights...), minSlots); got != c.want {
			t.Errorf("%d endpoints: %d slots, want %d", len(c.weights), got, c.want)
		}
	}
}

// TestSlotIsKeptWhenAnEndpointGoes: of two endpoints the first goes and another comes;
// the second keeps its slot.
func TestSlotIsKeptWhenAnEndpointGoes(t *testing.T) {
	all := weights(1, 1, 1)
	before := assign(nil, all[:2], minSlots)
	after := assign(before, all[1:], minSlots)
	kept := 0
	for i := range after {
		if after[i] == before[i] {
			kept++
		}
	}
	if kept != 1 {
		t.Errorf("%v became %v: %d slots kept, want 1", before, after, kept)
	}
}

// TestSlots: every endpoint has a slot, shares are right within one slot or the
// minimum of one, and no slot changes without need.
func TestSlots(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func() []proxy.Target {
			all := weights(rapid.SliceOfN(rapid.Uint32Range(1, 100), 1, 40).Draw(t, "weights")...)
			return all[rapid.IntRange(0, len(all)-1).Draw(t, "from"):]
		}
		list, next := draw(), draw()
		slots := assign(nil, list, minSlots)
		again := assign(slots, list, minSlots)
		for i := range slots {
			if again[i] != slots[i] {
				t.Fatalf("slot %d changed from %s to %s for nothing", i, slots[i], again[i])
			}
		}
		moved := assign(slots, next, minSlots)
		want, count := quotas(next, len(moved)), map[netip.AddrPort]int{}
		for _, a := range moved {
			count[a]++
		}
		var sum float64
		for _, target := range next {
			sum += float64(target.Weight)
		}
		kept, could := 0, 0
		old := map[netip.AddrPort]int{}
		for i, a := range slots {
			if i < len(moved) {
				old[a]++
				if moved[i] == a {
					kept++
				}
			}
		}
		forced := 0
		for _, target := range next {
			n := count[target.Addr]
			if (n < 1 && float64(target.Weight)*negligible >= sum) || n != want[target.Addr] {
				t.Fatalf("%s has %d slots, want %d", target.Addr, n, want[target.Addr])
			}
			exact := float64(target.Weight) / sum * float64(len(moved))
			if exact < 1 {
				forced++
			} else if math.Abs(float64(n)-exact) > 1+float64(forced)+float64(len(next)) {
				t.Fatalf("%s has %d slots, exact would be %.2f", target.Addr, n, exact)
			}
			could += min(old[target.Addr], n)
		}
		if kept < could {
			t.Fatalf("%d slots kept, %d could have been", kept, could)
		}
	})
}

func TestSharesOfTheSpecification(t *testing.T) {
	list := weights(1, 3, 6)
	got := quotas(list, slotCount(list, minSlots))
	for i, want := range []int{13, 38, 77} { // of 128: 12.8, 38.4, 76.8
		if n := got[list[i].Addr]; n != want {
			t.Errorf("endpoint %d has %d slots, want %d", i, n, want)
		}
	}
}

// TestSharesAreWithinHalfASlot: a share is off by at most 0.4 % of the connections, whatever
// the weights that Dataplanes may have.
func TestSharesAreWithinHalfASlot(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := weights(rapid.SliceOfN(rapid.Uint32Range(1, 1000), 2, 8).Draw(t, "weights")...)
		if !slices.ContainsFunc(list, func(x proxy.Target) bool { return x.Weight != list[0].Weight }) {
			return
		}
		slots := slotCount(list, minSlots)
		sum := 0.0
		for _, target := range list {
			sum += float64(target.Weight)
		}
		for addr, n := range quotas(list, slots) {
			i := slices.IndexFunc(list, func(x proxy.Target) bool { return x.Addr == addr })
			if off := math.Abs(float64(n)/float64(slots) - float64(list[i].Weight)/sum); off > 1/128. {
				t.Fatalf("weight %d of %.0f has %d of %d slots", list[i].Weight, sum, n, slots)
			}
		}
	})
}

func TestNegligibleSharesGetNoSlot(t *testing.T) {
	list := weights(1, 1_000_000, 1)
	got := quotas(list, slotCount(list, minSlots))
	if got[list[0].Addr]+got[list[2].Addr] != 0 || got[list[1].Addr] != 128 {
		t.Errorf("slots %v", got)
	}
}

func TestCommentsTellPortsApart(t *testing.T) {
	long := func(port string) proxy.PortName {
		b := make([]byte, 63)
		for i := range b {
			b[i] = 'x'
		}
		return proxy.PortName{ServiceName: proxy.ServiceName{Namespace: string(b), Name: string(b)}, Port: port}
	}
	a, b := comment(long("a-port")), comment(long("b-port"))
	if len(a) > 127 || a == b || a != comment(long("a-port")) {
		t.Errorf("%q and %q", a, b)
	}
	if got := comment(svcName("a")); got != "default/a:p" {
		t.Errorf("%q", got)
	}
}

// TestSlotsOfARoute: the share of a small backend is exact to half a slot of 1024.
func TestSlotsOfARoute(t *testing.T) {
	list := weights(99, 1)
	slots := assign(nil, list, maxSlots)
	n := 0
	for _, a := range slots {
		if a == list[1].Addr {
			n++
		}
	}
	if len(slots) != maxSlots || n != 10 {
		t.Errorf("%d of %d slots, want 10 of %d", n, len(slots), maxSlots)
	}
}

// TestHashedSlots: shares follow weights, all nodes have the same slots, and a change moves little
// more than it has to.
func TestHashedSlots(t *testing.T) {
	list := weights(1, 1, 1, 1, 1, 1, 1, 1, 1, 1)
	all := hashed(nil, list)
	count := func(slots []netip.AddrPort, a netip.AddrPort) (n int) {
		for _, s := range slots {
			if s == a {
				n++
			}
		}
		return n
	}
	for _, e := range list {
		if n := count(all, e.Addr); n < 102 || n > 103 {
			t.Errorf("%s has %d of %d slots", e.Addr, n, len(all))
		}
	}
	if !slices.Equal(all, hashed(hashed(nil, list[3:]), list)) {
		t.Error("slots depend on those of before")
	}
	fewer := hashed(all, list[1:])
	moved := 0
	for i := range all {
		if all[i] != fewer[i] && all[i] != list[0].Addr {
			moved++
		}
	}
	if moved > len(all)/10 {
		t.Errorf("%d of %d slots of others moved when one of ten endpoints went", moved, len(all))
	}
	if w := hashed(nil, weights(3, 1)); count(w, list[0].Addr) != 766 || len(w) != 1021 {
		t.Errorf("3 to 1: %d of %d", count(w, list[0].Addr), len(w))
	}
	if n := len(hashed(nil, weights(make([]uint32, 100)...))); n != 4093 {
		t.Errorf("100 endpoints have %d slots", n)
	}
	if n := len(hashed(nil, weights(make([]uint32, 3000)...))); n != 16381 {
		t.Errorf("3000 endpoints have %d slots", n)
	}
}
