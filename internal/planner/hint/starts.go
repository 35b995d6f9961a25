package hint

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
)

// slot is an endpoint while a start is made.
type slot struct {
	zone int
	mask Mask
	free float64 // until the limit
}

// allHome hints each endpoint to its own zone, and then zones that would overload
// theirs to the fewest others that bring them below the limit.
func (s *Searcher) allHome() { s.fit(fair) }

// allHomeLoosely is allHome, up to what the mode allows at most.
func (s *Searcher) allHomeLoosely() { s.fit(s.state.mode.limit()) }

func (s *Searcher) fit(limit float64) {
	st := &s.state
	s.slots = s.slots[:0]
	var over []int
	for z, n := range st.at {
		home := 0.0
		if st.demand[z] > 0 && st.demand[z] > limit*float64(n) {
			over = append(over, z)
			home = limit
		} else if n > 0 {
			home = st.demand[z] / float64(n)
		}
		for range n {
			s.slots = append(s.slots, slot{z, 1 << z, limit - home})
		}
	}
	// The largest first, while the most is free.
	slices.SortStableFunc(over, func(a, b int) int {
		return cmp.Compare(st.demand[b]-limit*float64(st.at[b]), st.demand[a]-limit*float64(st.at[a]))
	})
	for _, z := range over {
		s.spread(z, limit)
	}
	st.clear()
	for _, e := range s.slots {
		st.add(e.zone, e.mask, 1)
	}
}

// spread adds the fewest remote endpoints to an overloaded zone such that each can
// take an even share: the cheapest, of those the ones that it fills best. If none
// can, it adds none.
func (s *Searcher) spread(z int, limit float64) {
	st, bit := &s.state, Mask(1)<<z
	s.order = s.order[:0]
	for e, slot := range s.slots {
		if slot.zone != z && bits.OnesCount64(uint64(slot.mask)) < MaxPerEndpoint && slot.free > 0 {
			s.order = append(s.order, e)
		}
	}
	slices.SortStableFunc(s.order, func(a, b int) int { return cmp.Compare(s.slots[b].free, s.slots[a].free) })
	count := 0
	for k := range s.order {
		if st.demand[z]/float64(st.at[z]+k+1) <= s.slots[s.order[k]].free {
			count = k + 1
			break
		}
	}
	if count == 0 {
		return
	}
	each := st.demand[z] / float64(st.at[z]+count)
	eligible := s.order[:0]
	for _, e := range s.order {
		if s.slots[e].free >= each {
			eligible = append(eligible, e)
		}
	}
	slices.SortStableFunc(eligible, func(a, b int) int {
		x, y := &s.slots[a], &s.slots[b]
		if c := cmp.Compare(st.cost[z*st.zones+x.zone], st.cost[z*st.zones+y.zone]); c != 0 {
			return c
		}
		return cmp.Compare(x.free, y.free)
	})
	for _, e := range eligible[:count] {
		s.slots[e].mask |= bit
		s.slots[e].free -= each
	}
	for e := range s.slots {
		if s.slots[e].zone == z {
			s.slots[e].free = limit - each
		}
	}
}

// nearestRounded rounds the plan: a zone names all its own endpoints, and of others'
// as many as make its shares about those of the plan.
func (s *Searcher) nearestRounded() {
	st := &s.state
	masks := make([][]Mask, st.zones)
	next := make([]int, st.zones)
	for j, n := range st.at {
		masks[j] = make([]Mask, n)
	}
	for _, z := range st.active {
		scale := float64(st.endpoints)
		if home := s.plan.Share(z, z); home > 0 {
			scale = float64(st.at[z]) / home
		}
		for j, n := range st.at {
			share := s.plan.Share(z, j)
			count := min(n, int(math.Round(share*scale)))
			if st.at[z] == 0 && share > 0 {
				count = max(1, count)
			}
			for range count {
				// Spread over the zone's endpoints, also for different sources.
				e := next[j] % n
				masks[j][e] |= 1 << z
				next[j]++
			}
		}
	}
	st.clear()
	for j, list := range masks {
		for _, m := range list {
			st.add(j, limited(m, j), 1)
		}
	}
}

// limited makes a mask publishable: not empty, and not too many.
func limited(m Mask, home int) Mask {
	if m == 0 {
		return 1 << home
	}
	for z := MaxZones - 1; bits.OnesCount64(uint64(m)) > MaxPerEndpoint; z-- {
		if z != home {
			m &^= 1 << z
		}
	}
	return m
}

// partition gives each endpoint to one zone, by demand after D'Hondt: the next
// endpoint to the zone with the most demand for each it would then have.
func (s *Searcher) partition() {
	st := &s.state
	seats := make([]int, st.zones)
	for range st.endpoints {
		best := st.active[0]
		for _, z := range st.active {
			if st.demand[z]*float64(seats[best]+1) > st.demand[best]*float64(seats[z]+1) {
				best = z
			}
		}
		seats[best]++
	}
	left := slices.Clone(st.at)
	st.clear()
	give := func(to, from int) {
		n := min(seats[to], left[from])
		st.add(from, 1<<to, n)
		seats[to] -= n
		left[from] -= n
	}
	for _, z := range st.active {
		give(z, z)
	}
	for _, z := range st.active {
		for seats[z] > 0 {
			nearest := -1
			for j, n := range left {
				if n > 0 && (nearest < 0 || st.cost[z*st.zones+j] < st.cost[z*st.zones+nearest]) {
					nearest = j
				}
			}
			give(z, nearest)
		}
	}
}

// allToAll sends everything everywhere, so that every load is the mean: it keeps any
// limit. With more zones than an endpoint may name, all name the one with the least
// demand, and the others, which none names, use all.
func (s *Searcher) allToAll() {
	st := &s.state
	all, least := Mask(0), st.active[0]
	for _, z := range st.active {
		all |= 1 << z
		if st.demand[z] < st.demand[least] {
			least = z
		}
	}
	if len(st.active) > MaxPerEndpoint {
		all = 1 << least
	}
	st.clear()
	for z, n := range st.at {
		st.add(z, all, n)
	}
}

// overflowUnhinted leaves zones that would overload their endpoints without hints, so
// that they use all. Their endpoints must name something: the zone with the most free capacity.
func (s *Searcher) overflowUnhinted() {
	st := &s.state
	widest, most := -1, math.Inf(-1)
	for z, d := range st.demand {
		if free := float64(st.at[z]) - d; free > most {
			widest, most = z, free
		}
	}
	st.clear()
	for z, n := range st.at {
		if n > 0 && st.demand[z] > fair*float64(n) {
			st.add(z, 1<<widest, n)
		} else {
			st.add(z, 1<<z, n)
		}
	}
}
