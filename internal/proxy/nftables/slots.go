//go:build linux

package nftables

import (
	"cmp"
	"encoding/binary"
	"hash/fnv"
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
// same, else a power of two of at least so many and 16 per endpoint, and so many that the
// endpoint with the smallest share gets no more than that: a weight of 5 beside one of 1000
// takes 256. So only few different numbers are in use.
func slotCount(list []proxy.Target, least int) int {
	n := len(list)
	if !slices.ContainsFunc(list, func(t proxy.Target) bool { return weight(t) != weight(list[0]) }) {
		return min(n, localSlots-1)
	}
	sum := uint64(0)
	for _, t := range list {
		sum += weight(t)
	}
	smallest := sum
	for _, t := range list {
		if w := weight(t); w*negligible >= sum {
			smallest = min(smallest, w)
		}
	}
	power := func(n int) int { return 1 << bits.Len(uint(n-1)) }
	slots := max(least, power(16*n))
	if smallest*uint64(slots) < sum {
		slots = power(int(min(sum/smallest, maxSlots)))
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
func assign(old []netip.AddrPort, list []proxy.Target, least int) []netip.AddrPort {
	if len(list) == 0 {
		return nil
	}
	n := slotCount(list, least)
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

// hashSlots are the numbers of slots of a list that clients are hashed to: primes, so that the steps
// by which an endpoint looks for slots meet all of them. There are at least 16 slots for each endpoint,
// up to 1000 of them.
var hashSlots = [...]int{1021, 4093, 16381}

// hashed fills slots for a list by the method of Maglev (Eisenbud et al., NSDI 2016, section 3.4):
// every endpoint has an order of all slots, by its address, and they take their slots in turn. So all
// nodes have the same slots, and a change of the list leaves most of them as they are.
func hashed(old []netip.AddrPort, list []proxy.Target) []netip.AddrPort {
	if len(list) == 0 {
		return nil
	}
	n := hashSlots[len(hashSlots)-1]
	for _, slots := range hashSlots {
		if slots >= 16*len(list) {
			n = slots
			break
		}
	}
	left := quotas(list, n)
	type seeker struct {
		addr     netip.AddrPort
		at, step int
		left     int
	}
	var seekers []seeker
	for _, t := range list {
		if left[t.Addr] == 0 {
			continue
		}
		a, b := hashesOf(t.Addr)
		seekers = append(seekers, seeker{t.Addr, int(a % uint64(n)), 1 + int(b%uint64(n-1)), left[t.Addr]}) //nolint:gosec // below n
	}
	slots := make([]netip.AddrPort, n)
	for given := 0; given < n; {
		for i := range seekers {
			s := &seekers[i]
			if s.left == 0 {
				continue
			}
			for slots[s.at].IsValid() {
				s.at = (s.at + s.step) % n
			}
			slots[s.at] = s.addr
			s.left--
			given++
		}
	}
	if slices.Equal(slots, old) {
		return old
	}
	return slots
}

// hashesOf an endpoint: two that do not depend on each other.
func hashesOf(a netip.AddrPort) (uint64, uint64) {
	h := fnv.New128a()
	addr := a.Addr().As16()
	_, _ = h.Write(binary.BigEndian.AppendUint16(addr[:], a.Port()))
	sum := h.Sum(nil)
	mix := func(v uint64) uint64 { // the bits of FNV are weak
		v ^= v >> 33
		v *= 0xff51afd7ed558ccd
		v ^= v >> 33
		v *= 0xc4ceb9fe1a85ec53
		return v ^ v>>33
	}
	return mix(binary.BigEndian.Uint64(sum)), mix(binary.BigEndian.Uint64(sum[8:]))
}
