package ebpf

import (
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// slot of an alias table: a coin of 16 bits below cut takes a, else b. Without b, a.
type slot struct {
	// a and b are indices of the list.
	a, b uint32
	cut  uint16
	both bool
}

// coin is how many sides the coin of a slot has.
const coin = 1 << 16

// maxEndpoints of a list: a word has 24 bits for them.
const maxEndpoints = 1<<24 - 1

// aliasTable divides connections by weight: each slot is as likely as any other, and one coin decides
// between its two endpoints (M. Vose, A Linear Algorithm For Generating Random Numbers With a Given
// Distribution, 1991). There is a slot per target, whatever the weights.
func aliasTable(targets []proxy.Target) []slot {
	n := len(targets)
	out := make([]slot, n)
	sum, equal := uint64(0), true
	for _, t := range targets {
		sum += weight(t)
		equal = equal && weight(t) == weight(targets[0])
	}
	if equal {
		for i := range out {
			out[i] = slot{a: uint32(i)}
		}
		return out
	}
	// share is n times the weight, so that a slot holds sum. Weights are 32 bits and n 24: no overflow.
	share := make([]uint64, n)
	var small, large []uint32
	for i, t := range targets {
		share[i] = weight(t) * uint64(n)
		if share[i] < sum {
			small = append(small, uint32(i))
		} else {
			large = append(large, uint32(i))
		}
	}
	for len(small) > 0 && len(large) > 0 {
		s, l := small[len(small)-1], large[len(large)-1]
		small = small[:len(small)-1]
		// Rounded; what rounds to all of the coin has no second side.
		cut := divide(share[s], sum)
		if out[s] = (slot{a: s}); cut < coin {
			out[s] = slot{a: s, b: l, cut: uint16(cut), both: true}
		}
		share[l] -= sum - share[s]
		if share[l] < sum {
			large = large[:len(large)-1]
			small = append(small, l)
		}
	}
	for _, left := range [][]uint32{small, large} { // their shares are sum
		for _, i := range left {
			out[i] = slot{a: i}
		}
	}
	return out
}

// divide is share/sum in parts of the coin, rounded. share is below sum, which may have 56 bits.
func divide(share, sum uint64) uint64 {
	for sum >= 1<<47 { // so that a product has 63 bits
		share, sum = share>>1, sum>>1
	}
	return (share*coin + sum/2) / sum
}

func weight(t proxy.Target) uint64 { return max(1, uint64(t.Weight)) }
