package hint

import (
	"math"
	"math/bits"
	"slices"

	"github.com/proxima-mesh/proxima/internal/planner"
)

const (
	// steepest: up to this many pairs of class and zone every move is tried before the
	// best is made; above, the best for each zone in turn.
	steepest = 200
	// maxTrials bounds the work on one request: a trial costs some 20 ns and up to 2 ns a
	// class.
	maxTrials = 6_000
)

// Searcher looks for hints. It keeps memory from one request to the next and is
// not for concurrent use. The zero value is ready.
type Searcher struct {
	solver planner.Solver
	plan   planner.Plan
	state  state
	best   []class
	value  float64
	limit  int // of trials
	slots  []slot
	order  []int
}

// Search returns the best hints it finds, within the mode's limit: starts that are each good for one kind of
// problem, descent from each, and a round of kicks from the best. Endpoints keep
// their previous hints where that is as good. An error is a *planner.FieldError.
func (s *Searcher) Search(t *planner.Topology, r *Request) (Result, error) {
	if err := r.check(t); err != nil {
		return Result{}, err
	}
	none := Result{Metrics: Score(t, r.Demand, r.Endpoints, nil)}
	switch {
	case len(r.Endpoints) == 0:
		none.Reason = NoEndpoints
		return none, nil
	case t.Len() > MaxZones:
		none.Reason = TooManyZones
		return none, nil
	}
	if !slices.ContainsFunc(r.Demand, func(d float64) bool { return d > 0 }) {
		return s.idle(r), nil
	}
	if err := s.run(t, r); err != nil {
		return Result{}, err
	}
	result := Result{Masks: assign(s.best, r)}
	result.Metrics = Score(t, r.Demand, r.Endpoints, result.Masks)
	return result, nil
}

// idle hints everything to its own zone, where there is no demand to plan for.
func (s *Searcher) idle(r *Request) Result {
	result := Result{Metrics: planner.Metrics{InZone: 1}}
	for _, z := range r.Endpoints {
		result.Masks = append(result.Masks, 1<<z)
	}
	return result
}

func (s *Searcher) run(t *planner.Topology, r *Request) error {
	st := &s.state
	st.init(t, r)
	if s.limit == 0 {
		s.limit = maxTrials
	}
	s.best, s.value = s.best[:0], math.Inf(1)
	if r.Previous != nil && !slices.Contains(r.Previous, 0) {
		st.clear()
		for e, mask := range r.Previous {
			st.add(r.Endpoints[e], mask, 1)
		}
		st.settle()
		s.keep()
		s.descend()
	}
	problem := planner.Problem{Demand: r.Demand, Weight: make([]int64, t.Len()), Params: planner.DefaultParams(false)}
	for _, z := range r.Endpoints {
		problem.Weight[z]++
	}
	if err := s.solver.Solve(t, &problem, &s.plan); err != nil {
		return err
	}
	bound := s.bound(t)
	for _, start := range []func(){s.allHome, s.nearestRounded, s.allHomeLoosely, s.partition, s.overflowUnhinted, s.allToAll} {
		if s.value <= bound+tolerance {
			return nil
		}
		start()
		st.settle()
		s.descend()
	}
	if s.value > bound+tolerance {
		s.kick()
	}
	return nil
}

// bound is a value that nothing can be below: in strict mode the cost of the plan,
// which is optimal among all ways of sending; in soft mode only the cost of staying home.
func (s *Searcher) bound(t *planner.Topology) float64 {
	if s.state.mode == Strict && t.MaxCost() > 0 {
		return s.plan.Metrics().Cost / t.MaxCost()
	}
	bound := 0.0
	for _, z := range s.state.active {
		least := math.Inf(1)
		for j, n := range s.state.at {
			if n > 0 {
				least = min(least, s.state.cost[z*s.state.zones+j])
			}
		}
		bound += least * s.state.demand[z] / float64(s.state.endpoints)
	}
	return bound
}

// keep notes the state if it is the best so far. Of equal ones the first stays.
func (s *Searcher) keep() {
	if s.state.value < s.value-tolerance {
		s.value = s.state.value
		s.best = append(s.best[:0], s.state.classes...)
	}
}

// descend makes moves as long as they help.
func (s *Searcher) descend() {
	st := &s.state
	for st.trials < s.limit {
		before := st.value
		if len(st.classes)*len(st.active) <= steepest {
			best := move{value: st.value}
			for _, z := range st.active {
				st.bestFor(z, &best)
			}
			if best.value < st.value-tolerance {
				st.apply(best)
			}
		} else {
			for _, z := range st.active {
				best := move{value: st.value}
				if st.bestFor(z, &best); best.value < st.value-tolerance {
					st.apply(best)
				}
				if st.trials >= s.limit {
					break
				}
			}
		}
		if st.value >= before-tolerance {
			break
		}
	}
	s.keep()
}

// bestFor tries the moves that concern a zone: add it to a class, drop it, put
// it in the place of another, or move it from one class to another.
func (s *state) bestFor(zone int, best *move) {
	bit := Mask(1) << zone
	single := func(k int, mask Mask) {
		if v := s.try(change{k, mask}, change{class: -1}, best.value); v < best.value {
			*best = move{change{k, mask}, change{class: -1}, v}
		}
	}
	large := len(s.classes)*len(s.active) > steepest
	for k, c := range s.classes {
		if c.mask&bit != 0 {
			if c.mask != bit {
				single(k, c.mask&^bit)
			} else if c.mask != 1<<c.zone && s.demand[c.zone] == 0 {
				single(k, 1<<c.zone)
			}
			continue
		}
		if large && !s.promising(zone, c) {
			continue
		}
		if bits.OnesCount64(uint64(c.mask)) < MaxPerEndpoint {
			single(k, c.mask|bit)
		}
		for m := c.mask; m != 0; m &= m - 1 {
			single(k, c.mask&^(m&-m)|bit)
		}
		if bits.OnesCount64(uint64(c.mask)) < MaxPerEndpoint {
			s.exchange(zone, k, best)
		}
	}
}

// exchange tries to move a zone to class k from each class that names it.
func (s *state) exchange(zone, k int, best *move) {
	bit := Mask(1) << zone
	for from, c := range s.classes {
		if c.mask&bit == 0 || c.mask == bit {
			continue
		}
		a, b := change{from, c.mask &^ bit}, change{k, s.classes[k].mask | bit}
		if v := s.try(a, b, best.value); v < best.value {
			*best = move{a, b, v}
		}
	}
}

// promising leaves out, in large problems, classes to which a zone would not be
// added with profit: those that are full or farther than where it goes now, unless
// its endpoints are overloaded.
func (s *state) promising(zone int, c class) bool {
	if c.zone == zone {
		return true
	}
	now := s.mean[zone]
	if s.named[zone] > 0 {
		now = s.sum[zone] / float64(s.named[zone])
	}
	if s.named[zone] == 0 || s.each[zone] > 0.8 {
		return c.load < 1
	}
	return c.load < 1 && s.cost[zone*s.zones+c.zone] < now
}

// kick disturbs the best state in one zone after the other, and descends again: the
// zone named by its own endpoints only, or by none, or by all of the nearest others.
func (s *Searcher) kick() {
	st := &s.state
	from := slices.Clone(s.best)
	for _, z := range st.active {
		for _, disturb := range []func(class) Mask{
			func(c class) Mask {
				if c.zone == z {
					return c.mask | 1<<z
				}
				return c.mask &^ (1 << z)
			},
			func(c class) Mask { return c.mask &^ (1 << z) },
			func(c class) Mask { return c.mask | 1<<z },
		} {
			if st.trials >= s.limit {
				return
			}
			st.clear()
			for _, c := range from {
				st.add(c.zone, limited(disturb(c), c.zone), c.count)
			}
			st.settle()
			s.descend()
		}
	}
}

// assign gives classes to endpoints, first to those that have these hints already.
func assign(classes []class, r *Request) []Mask {
	left := slices.Clone(classes)
	take := func(zone int, suits func(Mask) bool) Mask {
		for k := range left {
			if c := &left[k]; c.zone == zone && c.count > 0 && suits(c.mask) {
				c.count--
				return c.mask
			}
		}
		return 0
	}
	masks := make([]Mask, len(r.Endpoints))
	if r.Previous != nil {
		for e, z := range r.Endpoints {
			masks[e] = take(z, func(m Mask) bool { return m == r.Previous[e] })
		}
	}
	for e, z := range r.Endpoints {
		if masks[e] == 0 {
			masks[e] = take(z, func(Mask) bool { return true })
		}
	}
	return masks
}
