package planner

// Solver makes plans. It keeps memory from one to the next, so that a plan for a
// few zones costs about a microsecond; it is not for concurrent use. The zero
// value is ready.
type Solver struct {
	over, spare    []int64 // what zones cannot keep, what they can still take
	out, in        []int64 // of one match: what leaves, what arrives
	sources, sinks []int   // the zones concerned
	remainders     []int64
	flow           flow
}

// Solve is Solver.Solve for a single problem.
func Solve(t *Topology, p *Problem) (*Plan, error) {
	plan := &Plan{}
	if err := new(Solver).Solve(t, p, plan); err != nil {
		return nil, err
	}
	return plan, nil
}

// Solve writes the plan for a problem. There always is one if the input is sane;
// an error is a *FieldError, and leaves the plan as it was.
//
// Equal inputs give equal plans, on every machine.
func (s *Solver) Solve(t *Topology, p *Problem, plan *Plan) error {
	if err := p.check(t); err != nil {
		return err
	}
	factor, lightlyUsed, err := p.Params.factor()
	if err != nil {
		return err
	}
	weightSum := sumOf(p.Weight)
	width, err := headroom(weightSum, factor)
	if err != nil {
		return err
	}
	plan.reset(t)
	plan.params, plan.factor, plan.lightlyUsed = p.Params, factor, lightlyUsed
	plan.weightSum = weightSum
	copy(plan.weight, p.Weight)
	plan.sinks = plan.sinks[:0]
	for i, w := range p.Weight {
		if w > 0 {
			plan.sinks = append(plan.sinks, i)
		}
	}
	if weightSum == 0 {
		return nil
	}
	demand, fixed := p.wholeDemand(plan.demand, plan.fixed, width)
	for i := range plan.demand {
		plan.fixed[i] *= weightSum * factor.Den
		plan.limit[i] = max(0, factor.Num*(demand+fixed)*p.Weight[i]-plan.fixed[i])
		plan.demand[i] *= weightSum * factor.Den
	}
	plan.total = demand * weightSum * factor.Den
	plan.allFixed = fixed * weightSum * factor.Den
	if t.arcs != nil {
		s.byCost(plan)
	} else {
		s.byLevel(plan)
	}
	plan.settleIdle()
	plan.measure()
	return nil
}

// settleIdle decides for zones without demand, so that the first connection from
// one has somewhere to go.
func (p *Plan) settleIdle() {
	n := len(p.rows)
	for i, d := range p.demand {
		switch {
		case d > 0:
			p.rows[i] = d
		case p.weight[i] > 0:
			p.parts[i*n+i], p.rows[i], p.rules[i] = 1, 1, RuleNoDemandHome
		default:
			copy(p.parts[i*n:], p.weight)
			p.rows[i], p.rules[i] = p.weightSum, RuleNoDemandAll
		}
	}
}

// byLevel is the closed form: home, then the region, then the site, then all. Nearer is
// always better when costs are levels, so each step may take all it can.
func (s *Solver) byLevel(p *Plan) {
	n := len(p.rows)
	s.over, s.spare = resize(s.over, n), resize(s.spare, n)
	spilling := false
	for i, d := range p.demand {
		if d == 0 {
			s.spare[i] = p.limit[i]
			continue
		}
		home := min(d, p.limit[i])
		p.parts[i*n+i] = home
		p.rules[i] = RuleHome
		s.over[i], s.spare[i] = d-home, p.limit[i]-home
		spilling = spilling || d > home
	}
	if !spilling {
		return
	}
	for i := range p.topology.groups {
		g := &p.topology.groups[i]
		s.sources, s.sinks = s.sources[:0], s.sinks[:0]
		for _, z := range g.zones {
			s.involve(z)
		}
		s.match(p, g.rule)
	}
	s.sources, s.sinks = s.sources[:0], s.sinks[:0]
	for z := range n {
		s.involve(z)
	}
	s.match(p, p.topology.far)
}

// involve notes a zone as one that spills or one that receives. It is never both:
// a zone spills only what its own endpoints cannot take.
func (s *Solver) involve(zone int) {
	switch {
	case s.over[zone] > 0:
		s.sources = append(s.sources, zone)
	case s.spare[zone] > 0:
		s.sinks = append(s.sinks, zone)
	}
}

// match moves as much as it can from the sources to the sinks. Spillers take
// part in proportion to their overflow, receivers to their spare, and each pair to
// the product. Amounts are whole, so each is off by a few units at most, and
// the sums by zone are exact.
func (s *Solver) match(p *Plan, rule Rule) {
	n := len(p.rows)
	overflow, free := int64(0), int64(0)
	for _, i := range s.sources {
		overflow += s.over[i]
	}
	for _, j := range s.sinks {
		free += s.spare[j]
	}
	moved := min(overflow, free)
	if moved == 0 {
		return
	}
	s.out = s.divide(s.out, s.sources, s.over, moved, overflow)
	s.in = s.divide(s.in, s.sinks, s.spare, moved, free)
	left := moved // what sinks still wait for, in all
	for a, i := range s.sources {
		out, pending, done := s.out[a], left, int64(0)
		if out == 0 {
			continue
		}
		// Prefix sums rounded down: the parts sum to out and none exceeds what its
		// sink still waits for.
		before := int64(0)
		for b, j := range s.sinks {
			before += s.in[b]
			upTo := mulDiv(out, before, pending)
			x := upTo - done
			done = upTo
			s.in[b] -= x
			s.spare[j] -= x
			p.parts[i*n+j] += x
		}
		s.over[i] -= out
		left -= out
		p.rules[i] = rule
	}
}

// divide apportions moved among zones in proportion to what each has.
func (s *Solver) divide(dst []int64, zones []int, has []int64, moved, sum int64) []int64 {
	dst = dst[:0]
	for _, z := range zones {
		dst = append(dst, has[z])
	}
	if moved == sum {
		return dst
	}
	if cap(s.remainders) < len(dst) {
		s.remainders = make([]int64, 2*len(dst))
	}
	apportion(dst, moved, dst, sum, 0, s.remainders[:len(dst)])
	return dst
}
