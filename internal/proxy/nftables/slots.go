//go:build linux

package nftables

import (
	"cmp"
	"math/bits"
	"net/netip"
	"slices"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// maxSlots bounds the slots of a list with weights, unless it has more endpoints. With
// minSlots a share is off by less than half a slot, 0.4 % of the connections.
const (
	minSlots = 128
	maxSlots = 1024
)

// slotCount is how many slots a list gets: one per endpoint if all weigh the
// same, else a power of two of at least minSlots and 16 per endpoint, and so many that the
// endpoint with the smallest share gets no more than that: a weight of 5 beside one of 1000
// takes 256. So only few different numbers are in use.
func slotCount(list []proxy.Target) int {
	n := len(list)
	if !slices.ContainsFunc(list, func(t proxy.Target) bool { return weight(t) != weight(list[0]) }) {
		return min(n, localSlots-1)
	}
	sum := uint64(0)
	for _, t := range list {
		sum += weight(t)
	}
	least := sum
	for _, t := range list {
		if w := weight(t); w*negligible >= sum {
			least = min(least, w)
		}
	}
	power := func(n int) int { return 1 << bits.Len(uint(n-1)) }
	slots := max(minSlots, power(16*n))
	if least*uint64(slots) < sum {
		slots = power(int(min(sum/least, maxSlots)))
	}
	return min(max(min(slots, maxSlots), power(n)), localSlots/2)
}

func weight(t proxy.Target) uint64 { return max(1, uint64(t.Weight)) }

// negligible is the share, as one in so many, below which an endpoint gets no
// slot: half of the smallest that maxSlots can express. A slot would be a
// multiple of what was asked for.
const negligible = 2 * maxSlots

// quotas divides slots by weight: by largest remainder, at least one for each
// share that is not negligible. More endpoints than slots: the first ones get theirs.
func quotas(list []proxy.Target, slots int) map[netip.AddrPort]int {
	if slots < len(list) {
		list = list[:slots]
	}
	var sum uint64
	for _, t := range list {
		sum += weight(t)
	}
	type share struct {
		addr      netip.AddrPort
		slots     int
		remainder uint64
	}
	shares := make([]share, len(list))
	given := 0
	for i, t := range list {
		// weights are 32 bits, slots 16: no overflow
		exact := weight(t) * uint64(slots)
		shares[i] = share{t.Addr, int(exact / sum), exact % sum}
		if shares[i].slots == 0 && weight(t)*negligible >= sum {
			shares[i].slots, shares[i].remainder = 1, 0
		}
		given += shares[i].slots
	}
	byRemainder := func(a, b share) int { return cmp.Or(cmp.Compare(b.remainder, a.remainder), a.addr.Compare(b.addr)) }
	slices.SortFunc(shares, byRemainder)
	for i := 0; given < slots; i, given = (i+1)%len(shares), given+1 {
		shares[i].slots++
	}
	for ; given > slots; given-- { // the minimum of one took too many: from the largest
		largest := 0
		for i := range shares {
			if cmp.Or(cmp.Compare(shares[i].slots, shares[largest].slots), shares[largest].addr.Compare(shares[i].addr)) > 0 {
				largest = i
			}
		}
		shares[largest].slots--
	}
	out := make(map[netip.AddrPort]int, len(shares))
	for _, s := range shares {
		out[s.addr] = s.slots
	}
	return out
}

// assign fills slots for a list so that as few as possible differ from old.
func assign(old []netip.AddrPort, list []proxy.Target) []netip.AddrPort {
	if len(list) == 0 {
		return nil
	}
	n := slotCount(list)
	if len(old) == 0 && n == len(list) {
		return addrs(list)
	}
	if n == len(list) && slices.EqualFunc(list, old, func(t proxy.Target, a netip.AddrPort) bool { return t.Addr == a }) {
		return old
	}
	left := quotas(list, n)
	slots := make([]netip.AddrPort, n)
	for i := range min(n, len(old)) {
		if left[old[i]] > 0 {
			left[old[i]]--
			slots[i] = old[i]
		}
	}
	next := 0
	for i := range slots {
		if slots[i].IsValid() {
			continue
		}
		for left[list[next].Addr] == 0 {
			next++
		}
		left[list[next].Addr]--
		slots[i] = list[next].Addr
	}
	return slots
}
