package planner

import "math/bits"

// mulDiv returns ⌊a·b/c⌋ without loss in between. It needs a, b ≥ 0 and c > 0,
// and a quotient that fits, which holds wherever a ≤ c or b ≤ c.
func mulDiv(a, b, c int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi == 0 {
		return int64(lo / uint64(c))
	}
	q, _ := bits.Div64(hi, lo, uint64(c))
	return int64(q)
}

// mulDivRem is mulDiv with the remainder.
func mulDivRem(a, b, c int64) (quotient, remainder int64) {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	q, r := bits.Div64(hi, lo, uint64(c))
	return int64(q), int64(r)
}

// apportion divides total into whole parts in proportion to weights, by largest
// remainder; of equal remainders the first wins, counted from index first and
// around. The weights sum to sum > 0. dst may be weights itself.
//
// A part is the exact one rounded up or down. So where total ≤ sum, no part
// exceeds its weight.
func apportion(dst []int64, total int64, weights []int64, sum int64, first int, remainders []int64) {
	left := total
	for i, w := range weights {
		if w == 0 {
			dst[i], remainders[i] = 0, 0
			continue
		}
		dst[i], remainders[i] = mulDivRem(total, w, sum)
		left -= dst[i]
	}
	for ; left > 0; left-- {
		best, most := 0, int64(0)
		for k := range remainders[:len(weights)] {
			i := k + first
			if i >= len(weights) {
				i -= len(weights)
			}
			if remainders[i] > most {
				best, most = i, remainders[i]
			}
		}
		dst[best]++
		remainders[best] = 0
	}
}

func sumOf(values []int64) int64 {
	sum := int64(0)
	for _, v := range values {
		sum += v
	}
	return sum
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
