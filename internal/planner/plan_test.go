package planner

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"os"
	"testing"
)

// cases is how many random problems a test tries.
func cases(short, soak int) int {
	if os.Getenv("PROXIMA_SOAK") == "1" {
		return soak
	}
	return short
}

func mustTopology(t testing.TB, zones []Zone, costs Costs) *Topology {
	t.Helper()
	topology, err := NewTopology(zones, costs)
	if err != nil {
		t.Fatal(err)
	}
	return topology
}

// levelMatrix spells the default costs out, which sends them through the general solver.
func levelMatrix(zones []Zone) [][]float64 {
	m := make([][]float64, len(zones))
	for i, a := range zones {
		m[i] = make([]float64, len(zones))
		for j, b := range zones {
			switch {
			case i == j:
			case a.Site != b.Site:
				m[i][j] = DefaultSiteCost
			case a.Region == b.Region:
				m[i][j] = DefaultRegionCost
			default:
				m[i][j] = DefaultWorldCost
			}
		}
	}
	return m
}

// rational is an amount of a plan in the unit of the demand it was made from.
func rational(p *Plan, amount, demand int64) *big.Rat {
	x := new(big.Rat).Mul(new(big.Rat).SetInt64(amount), new(big.Rat).SetInt64(demand))
	return x.Quo(x, new(big.Rat).SetInt64(p.Total()))
}

// checkSound: all demand is placed, nothing is negative, no limit is exceeded, and
// every zone has somewhere to go.
func checkSound(p *Plan, s *sample) error {
	n, total := len(s.demand), sumOf(s.demand)
	if sumOf(s.weight) == 0 {
		for i := range n {
			if p.Rule(i) != RuleNoEndpoints {
				return fmt.Errorf("rule %v without endpoints", p.Rule(i))
			}
		}
		return nil
	}
	f, _ := p.Factor()
	limit := limits(s.demand, s.weight, big.NewRat(f.Num, f.Den))
	for i := range n {
		share, sum := 0.0, int64(0)
		for j := range n {
			if p.Flow(i, j) < 0 {
				return fmt.Errorf("flow %d from %d to %d", p.Flow(i, j), i, j)
			}
			if s.weight[j] == 0 && p.Share(i, j) > 0 {
				return fmt.Errorf("traffic from %d to %d, which has no endpoint", i, j)
			}
			sum += p.Flow(i, j)
			share += p.Share(i, j)
		}
		if share < 1-1e-9 || share > 1+1e-9 {
			return fmt.Errorf("shares from %d sum to %v", i, share)
		}
		if total == 0 {
			continue
		}
		if sum != p.Demand(i) || rational(p, sum, total).Cmp(new(big.Rat).SetInt64(s.demand[i])) != 0 {
			return fmt.Errorf("%d placed of %d from zone %d", sum, p.Demand(i), i)
		}
		if rational(p, p.Load(i), total).Cmp(limit[i]) > 0 || rational(p, p.Limit(i), total).Cmp(limit[i]) != 0 {
			return fmt.Errorf("load %d of zone %d, limit %v", p.Load(i), i, limit[i])
		}
	}
	return nil
}

// checkOptimal compares cost and what stays home with the oracle, exactly.
func checkOptimal(p *Plan, s *sample, cost func(i, j int) int64) error {
	total := sumOf(s.demand)
	if total == 0 || sumOf(s.weight) == 0 {
		return nil
	}
	f, _ := p.Factor()
	want := optimum(s.demand, s.weight, big.NewRat(f.Num, f.Den), cost)
	if want.placed.Cmp(new(big.Rat).SetInt64(total)) != 0 {
		return fmt.Errorf("the oracle placed %v of %d", want.placed, total)
	}
	got, away := new(big.Rat), new(big.Rat)
	for i := range s.demand {
		for j := range s.demand {
			x := rational(p, p.Flow(i, j), total)
			if i != j {
				away.Add(away, x)
			}
			got.Add(got, x.Mul(x, new(big.Rat).SetInt64(cost(i, j))))
		}
	}
	if got.Cmp(want.cost) != 0 || away.Cmp(want.away) != 0 {
		return fmt.Errorf("cost %v, away %v; optimum %v, %v", got, away, want.cost, want.away)
	}
	return nil
}

// checkProportional compares every cell with the closed form; parts are whole, so
// a cell may be off by a unit for each zone that was rounded before it.
func checkProportional(p *Plan, s *sample) error {
	total := sumOf(s.demand)
	if total == 0 || sumOf(s.weight) == 0 {
		return nil
	}
	f, _ := p.Factor()
	want := proportional(s.demand, s.weight, big.NewRat(f.Num, f.Den), s.zones)
	slack := rational(p, int64(3*len(s.demand)), total)
	for i := range want {
		for j, x := range want[i] {
			diff := new(big.Rat).Sub(rational(p, p.Flow(i, j), total), x)
			if diff.Abs(diff).Cmp(slack) > 0 {
				return fmt.Errorf("from %d to %d: %v, not %v", i, j, rational(p, p.Flow(i, j), total).FloatString(9), x.FloatString(9))
			}
		}
	}
	return nil
}

func TestRandomProblems(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	solver, plan := &Solver{}, &Plan{}
	for k := range cases(1000, 10000) {
		s := draw(r, 1+r.IntN(6))
		levels := mustTopology(t, s.zones, Costs{})
		spelledOut := mustTopology(t, s.zones, Costs{Matrix: levelMatrix(s.zones)})
		general := mustTopology(t, s.zones, Costs{Matrix: s.matrix})
		for name, topology := range map[string]*Topology{"levels": levels, "levels as a matrix": spelledOut, "matrix": general} {
			err := solver.Solve(topology, s.problem(), plan)
			if err == nil {
				err = checkSound(plan, s)
			}
			if err == nil {
				err = checkOptimal(plan, s, func(i, j int) int64 { return int64(topology.Cost(i, j)) })
			}
			if err == nil && topology != general {
				err = checkProportional(plan, s)
			}
			if err != nil {
				t.Fatalf("problem %d, %s: %v\n%+v", k, name, err, *s)
			}
		}
	}
}

// TestManyZones: up to 50 zones against the same network oracle.
func TestManyZones(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range cases(3, 100) {
		s := draw(r, 20+r.IntN(31))
		for _, costs := range []Costs{{}, {Matrix: s.matrix}} {
			topology := mustTopology(t, s.zones, costs)
			plan, err := Solve(topology, s.problem())
			if err == nil {
				err = checkSound(plan, s)
			}
			if err == nil {
				err = checkOptimal(plan, s, func(i, j int) int64 { return int64(topology.Cost(i, j)) })
			}
			if err != nil {
				t.Fatalf("%v\n%+v", err, *s)
			}
		}
	}
}

// TestFixedLoad: what is not planned is taken off the limits, and no plan is without a way.
func TestFixedLoad(t *testing.T) {
	top, err := NewTopology([]Zone{{Name: "a", Region: "r"}, {Name: "b", Region: "r"}}, Costs{})
	if err != nil {
		t.Fatal(err)
	}
	solve := func(fixed ...float64) *Plan {
		t.Helper()
		p, err := Solve(top, &Problem{Demand: []float64{6, 4}, Weight: []int64{5, 5}, Fixed: fixed, Params: DefaultParams(false)})
		if err != nil {
			t.Fatal(err)
		}
		for j := range 2 {
			if p.Load(j) > p.Limit(j) {
				t.Errorf("fixed %v: load %d above the limit %d", fixed, p.Load(j), p.Limit(j))
			}
		}
		if p.Flow(0, 0)+p.Flow(0, 1) != p.Demand(0) || p.Flow(1, 0)+p.Flow(1, 1) != p.Demand(1) {
			t.Errorf("fixed %v: not all demand is planned", fixed)
		}
		return p
	}
	for _, tc := range []struct {
		fixed       []float64
		home, worst float64
	}{
		{nil, 1, 1.2}, {[]float64{0, 0}, 1, 1.2},
		// 15 in all, 9 per zone at 1.2: a has 4 left for its 6.
		{[]float64{5, 0}, 4. / 6, 1.2},
		// More than the limit is fixed in a: nothing goes there.
		{[]float64{1000, 0}, 0, 2 * 1000 / 1010.},
	} {
		p := solve(tc.fixed...)
		if got := p.Share(0, 0); math.Abs(got-tc.home) > 1e-6 {
			t.Errorf("fixed %v: %.3f stays home, want %.3f", tc.fixed, got, tc.home)
		}
		if m, u := p.Metrics(), p.Under([]float64{6, 4}); math.Abs(m.Worst-tc.worst) > 1e-6 || math.Abs(u.Worst-m.Worst) > 1e-9 {
			t.Errorf("fixed %v: worst %.4f, and %.4f by the other way; want %.4f", tc.fixed, m.Worst, u.Worst, tc.worst)
		}
	}
	for _, bad := range [][]float64{{1}, {-1, 0}, {math.NaN(), 0}, {0, 1e16}} {
		if _, err := Solve(top, &Problem{Demand: []float64{1, 1}, Weight: []int64{1, 1}, Fixed: bad}); err == nil {
			t.Errorf("fixed %v was taken", bad)
		}
	}
}
