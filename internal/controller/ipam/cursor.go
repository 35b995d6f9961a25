package ipam

import (
	"iter"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
)

// Cursor walks over the addresses of a family that look free: first the dynamic
// part of every range, from a random start round to it, then the static bands.
// It sees marks made meanwhile and reserves nothing. Not safe for concurrent
// use; the Addresses behind it is.
type Cursor struct {
	from *Addresses
	v4   bool
	// ranges are those of the time the cursor was made.
	ranges []addressRange
	legs   []leg
}

// leg is a stretch of positions still to walk.
type leg struct {
	hi, from, to uint64
	static       bool
}

// Cursor starts a walk. It ends early if the ranges shrink meanwhile.
func (a *Addresses) Cursor(family corev1.IPFamily) *Cursor {
	c := &Cursor{from: a, v4: family == corev1.IPv4Protocol}
	a.mu.Lock()
	defer a.mu.Unlock()
	c.ranges = a.ranges
	for _, r := range c.ranges {
		if r.v4 == c.v4 && r.size > r.band {
			c.addLegs(r, r.band+1, r.size, false)
		}
	}
	for _, r := range c.ranges {
		if r.v4 == c.v4 && r.band > 0 && r.size > 0 {
			c.addLegs(r, 1, min(r.band, r.size), true)
		}
	}
	return c
}

// addLegs walks offsets first to last from a random one round to it.
func (c *Cursor) addLegs(r addressRange, first, last uint64, static bool) {
	span := last - first + 1 // cannot overflow: first is ≥ 1
	start := first + c.from.random(span)
	c.legs = append(c.legs, leg{r.base.hi, r.base.lo + start, r.base.lo + last, static})
	if start > first {
		c.legs = append(c.legs, leg{r.base.hi, r.base.lo + first, r.base.lo + start - 1, static})
	}
}

// Next returns the next address that looks free; ok=false: none is left.
func (c *Cursor) Next() (addr netip.Addr, ok bool) {
	c.from.mu.Lock()
	defer c.from.mu.Unlock()
	taken := c.from.taken(c.v4)
	for len(c.legs) > 0 {
		l := &c.legs[0]
		n, found := taken.nextFree(l.hi, l.from, l.to)
		if !found || n == l.to {
			c.legs = c.legs[1:]
		}
		if !found {
			continue
		}
		static := l.static
		l.from = n + 1
		p := position{l.hi, n}
		// Where ranges overlap, one's dynamic part may hold another's band.
		if !static && c.inSomeBand(p) {
			continue
		}
		return p.addr(c.v4), true
	}
	return netip.Addr{}, false
}

func (c *Cursor) inSomeBand(p position) bool {
	for i := range c.ranges {
		if c.ranges[i].v4 == c.v4 && c.ranges[i].inBand(p) {
			return true
		}
	}
	return false
}

// Candidates is the same walk as a sequence.
func (a *Addresses) Candidates(family corev1.IPFamily) iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		c := a.Cursor(family)
		for {
			addr, ok := c.Next()
			if !ok || !yield(addr) {
				return
			}
		}
	}
}
