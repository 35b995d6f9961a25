package hint

import (
	"math/bits"

	"github.com/proxima-mesh/proxima/internal/planner"
)

// class is endpoints that are alike: in the same zone, naming the same zones.
type class struct {
	zone  int
	mask  Mask
	count int
	load  float64 // of each, as a multiple of the mean
}

// state is one way of hinting. Loads are in multiples of the mean load, costs in
// multiples of the highest cost.
type state struct {
	mode      Mode
	zones     int
	endpoints int
	at        []int     // endpoints by zone
	demand    []float64 // by zone; sums to the number of endpoints
	active    []int     // zones with demand
	cost      []float64 // zones × zones
	mean      []float64 // cost by zone if it goes everywhere

	classes []class
	named   [MaxZones]int     // endpoints that name a zone
	sum     [MaxZones]float64 // of their costs from it
	each    [MaxZones]float64 // load of one of them
	base    float64           // load of every endpoint by zones that none names
	spent   float64
	value   float64 // what the search goes by; see worth
	trials  int
}

// init takes a problem. Its demand is not 0.
func (s *state) init(t *planner.Topology, r *Request) {
	n := t.Len()
	s.mode, s.zones, s.endpoints, s.trials = r.Mode, n, len(r.Endpoints), 0
	s.at = append(s.at[:0], make([]int, n)...)
	clear(s.each[:]) // zones without demand load no endpoint
	s.demand, s.active, s.cost, s.mean = s.demand[:0], s.active[:0], s.cost[:0], s.mean[:0]
	for _, z := range r.Endpoints {
		s.at[z]++
	}
	total := 0.0
	for _, d := range r.Demand {
		total += d
	}
	highest := max(t.MaxCost(), 1e-300)
	for i, d := range r.Demand {
		s.demand = append(s.demand, d/total*float64(s.endpoints))
		if d > 0 {
			s.active = append(s.active, i)
		}
		mean := 0.0
		for j := range n {
			c := t.Cost(i, j) / highest
			s.cost = append(s.cost, c)
			mean += c * float64(s.at[j])
		}
		s.mean = append(s.mean, mean/float64(s.endpoints))
	}
}

// clear forgets the hints.
func (s *state) clear() { s.classes = s.classes[:0] }

// add puts endpoints into their class.
func (s *state) add(zone int, mask Mask, count int) {
	if count == 0 {
		return
	}
	for k := range s.classes {
		if c := &s.classes[k]; c.zone == zone && c.mask == mask {
			c.count += count
			return
		}
	}
	s.classes = append(s.classes, class{zone: zone, mask: mask, count: count})
}

// settle computes everything from the classes.
func (s *state) settle() {
	kept := s.classes[:0]
	for _, c := range s.classes {
		if c.count > 0 {
			kept = append(kept, c)
		}
	}
	s.classes = kept
	for _, z := range s.active {
		s.named[z], s.sum[z] = 0, 0
	}
	for _, c := range s.classes {
		for m := c.mask; m != 0; m &= m - 1 {
			z := bits.TrailingZeros64(uint64(m))
			s.named[z] += c.count
			s.sum[z] += float64(c.count) * s.cost[z*s.zones+c.zone]
		}
	}
	s.base, s.spent = 0, 0
	for _, z := range s.active {
		s.spent += s.costOf(z, s.named[z], s.sum[z])
		s.each[z] = s.loadOf(z, s.named[z])
		if s.named[z] == 0 {
			s.base += s.demand[z] / float64(s.endpoints)
		}
	}
	worst, excess := 0.0, 0.0
	for k := range s.classes {
		c := &s.classes[k]
		c.load = s.base
		for m := c.mask; m != 0; m &= m - 1 {
			c.load += s.each[bits.TrailingZeros64(uint64(m))]
		}
		worst = max(worst, c.load)
		excess += max(0, c.load-fair) * float64(c.count)
	}
	s.value = s.worth(s.spent, worst, excess)
}

func (s *state) costOf(zone, named int, sum float64) float64 {
	if named == 0 {
		return s.demand[zone] / float64(s.endpoints) * s.mean[zone]
	}
	return s.demand[zone] / float64(s.endpoints) * sum / float64(named)
}

func (s *state) loadOf(zone, named int) float64 {
	if named == 0 {
		return 0
	}
	return s.demand[zone] / float64(named)
}

// worth is what the search goes by: the mode's value, where what is above the limit
// counts first, so that a search can start there, and where the sum of all
// excess counts a little, so that lowering one of several worst endpoints is progress.
func (s *state) worth(cost, worst, excess float64) float64 {
	value := cost + 0.01*excess/float64(s.endpoints)
	if limit := s.mode.limit(); worst > limit+tolerance {
		value += 10 + 100*(worst-limit) + excess
	}
	if s.mode == Soft {
		value += overloadWeight * max(0, worst-fair)
	}
	return value
}

// change is one endpoint of a class that gets another mask.
type change struct {
	class int
	mask  Mask
}

// move is one or two changes; the second has class −1 if there is none.
type move struct {
	a, b  change
	value float64
}

// touched is what a move changes: at most two zones for each of two endpoints. delta
// is the change of their load for each endpoint, in the order of the bits.
type touched struct {
	zones Mask
	delta [4]float64
}

// add is what the move adds to the load of an endpoint that names these zones.
func (t *touched) add(mask Mask) float64 {
	sum := 0.0
	for m := mask & t.zones; m != 0; m &= m - 1 {
		sum += t.delta[bits.OnesCount64(uint64(t.zones&(m&-m-1)))]
	}
	return sum
}

// try returns the value after a move, without making it, or something not below
// atMost as soon as it is certain that the value is not.
func (s *state) try(a, b change, atMost float64) float64 {
	s.trials++
	t := touched{zones: s.classes[a.class].mask ^ a.mask}
	if b.class >= 0 {
		t.zones |= s.classes[b.class].mask ^ b.mask
	}
	cost, base, n := s.spent, 0.0, 0
	for m := t.zones; m != 0; m &= m - 1 {
		z := bits.TrailingZeros64(uint64(m))
		if s.demand[z] > 0 {
			named, sum := s.shift(z, a, s.named[z], s.sum[z])
			if b.class >= 0 {
				named, sum = s.shift(z, b, named, sum)
			}
			cost += s.costOf(z, named, sum) - s.costOf(z, s.named[z], s.sum[z])
			t.delta[n] = s.loadOf(z, named) - s.each[z]
			if named == 0 {
				base += s.demand[z] / float64(s.endpoints)
			}
			if s.named[z] == 0 {
				base -= s.demand[z] / float64(s.endpoints)
			}
		}
		n++
	}
	if cost >= atMost {
		return cost // loads can only add to it
	}
	worst := s.after(a, base, &t)
	excess := max(0, worst-fair)
	if b.class >= 0 {
		load := s.after(b, base, &t)
		worst = max(worst, load)
		excess += max(0, load-fair)
	}
	for k := range s.classes {
		c := &s.classes[k]
		count := c.count
		if k == a.class || k == b.class {
			if count--; count <= 0 {
				continue
			}
		}
		load := c.load + base + t.add(c.mask)
		if load > fair {
			excess += (load - fair) * float64(count)
			if load > worst {
				worst = load
				if v := s.worth(cost, worst, excess); v >= atMost {
					return v
				}
			}
		}
		worst = max(worst, load)
	}
	return s.worth(cost, worst, excess)
}

// shift adjusts a zone's count and cost sum for one change.
func (s *state) shift(zone int, c change, named int, sum float64) (int, float64) {
	old := &s.classes[c.class]
	switch had, has := old.mask.Has(zone), c.mask.Has(zone); {
	case has && !had:
		return named + 1, sum + s.cost[zone*s.zones+old.zone]
	case had && !has:
		return named - 1, sum - s.cost[zone*s.zones+old.zone]
	}
	return named, sum
}

// after is the load of an endpoint that was changed.
func (s *state) after(c change, base float64, t *touched) float64 {
	load := s.base + base + t.add(c.mask)
	for m := c.mask; m != 0; m &= m - 1 {
		load += s.each[bits.TrailingZeros64(uint64(m))]
	}
	return load
}

// apply makes a move.
func (s *state) apply(m move) {
	for _, c := range [...]change{m.a, m.b} {
		if c.class >= 0 {
			s.classes[c.class].count--
			s.add(s.classes[c.class].zone, c.mask, 1)
		}
	}
	s.settle()
}
