package planner

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestNamed is the situations in which Kubernetes' heuristic is known to fail, and
// the safeguards.
func TestNamed(t *testing.T) {
	one := []string{"eu", "eu", "eu"}
	for _, c := range []struct {
		name    string
		regions []string
		p       Problem
		rules   []Rule
		inZone  float64
		worst   float64
	}{
		{"4/4/3: weights spill 0.6 points", one,
			Problem{Demand: []float64{1, 1, 1}, Weight: []int64{4, 4, 3}, Params: DefaultParams(false)},
			[]Rule{RuleHome, RuleHome, RuleRegion}, 0.9939, 1.2},
		{"9/0/0: all to the only zone", one,
			Problem{Demand: []float64{1, 1, 1}, Weight: []int64{9, 0, 0}, Params: DefaultParams(false)},
			[]Rule{RuleHome, RuleRegion, RuleRegion}, 1. / 3, 1},
		{"traffic from one zone only is shared at the limit", one,
			Problem{Demand: []float64{1, 0, 0}, Weight: []int64{3, 3, 3}, Params: DefaultParams(false)},
			[]Rule{RuleRegion, RuleNoDemandHome, RuleNoDemandHome}, 0.4, 1.2},
		{"a single endpoint", one,
			Problem{Demand: []float64{1, 1, 1}, Weight: []int64{0, 1, 0}, Params: DefaultParams(true)},
			[]Rule{RuleRegion, RuleHome, RuleRegion}, 1. / 3, 1},
		{"a zone without live nodes", one,
			Problem{Demand: []float64{8, 1, 1}, Weight: []int64{2, 2, 2}, NoNodes: []bool{true, false, false}, Params: DefaultParams(false)},
			[]Rule{RuleNoDemandHome, RuleRegion, RuleRegion}, 0.8, 1.2},
		{"a zone newly added, nothing there yet", one,
			Problem{Demand: []float64{1, 1, 0}, Weight: []int64{2, 2, 0}, Params: DefaultParams(false)},
			[]Rule{RuleHome, RuleHome, RuleNoDemandAll}, 1, 1},
		{"no demand", one,
			Problem{Demand: []float64{0, 0, 0}, Weight: []int64{2, 2, 0}, Params: DefaultParams(false)},
			[]Rule{RuleNoDemandHome, RuleNoDemandHome, RuleNoDemandAll}, 1, 0},
		{"no endpoints", one,
			Problem{Demand: []float64{1, 1, 1}, Weight: []int64{0, 0, 0}, Params: DefaultParams(false)},
			[]Rule{RuleNoEndpoints, RuleNoEndpoints, RuleNoEndpoints}, 1, 0},
		{"the region before the world", []string{"eu", "eu", "us"},
			Problem{Demand: []float64{3, 1, 2}, Weight: []int64{2, 2, 2}, Params: DefaultParams(false)},
			[]Rule{RuleRegion, RuleHome, RuleHome}, 5.4 / 6, 1.2},
		{"the world when the region is full", []string{"eu", "eu", "us"},
			Problem{Demand: []float64{3, 3, 0}, Weight: []int64{1, 1, 1}, Params: DefaultParams(false)},
			[]Rule{RuleWorld, RuleWorld, RuleNoDemandHome}, 0.8, 1.2},
		{"lightly used endpoints keep it home", one,
			Problem{Demand: []float64{8, 1, 1}, Weight: []int64{2, 2, 2}, Params: Params{Overload: 0.2, Utilisation: 0.1}},
			[]Rule{RuleHome, RuleHome, RuleHome}, 1, 2.4},
		{"a margin above ε leaves the mean", one,
			Problem{Demand: []float64{2, 1, 0}, Weight: []int64{1, 1, 1}, Params: Params{Overload: 0.01, Margin: 0.03}},
			[]Rule{RuleRegion, RuleHome, RuleNoDemandHome}, 2. / 3, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			plan, err := Solve(mustTopology(t, zonesNamed(c.regions), Costs{}), &c.p)
			if err != nil {
				t.Fatal(err)
			}
			for i, want := range c.rules {
				if plan.Rule(i) != want {
					t.Errorf("zone %d: rule %v, want %v", i, plan.Rule(i), want)
				}
			}
			m := plan.Metrics()
			if math.Abs(m.InZone-c.inZone) > 5e-5 || math.Abs(m.Worst-c.worst) > 1e-6 {
				t.Errorf("%+v, want in-zone %v, worst %v", m, c.inZone, c.worst)
			}
		})
	}
}

// TestTiesAreShared: with a matrix, equal costs do not fall on the first zone.
func TestTiesAreShared(t *testing.T) {
	costs := Costs{Matrix: [][]float64{{0, 3, 3, 3}, {3, 0, 3, 3}, {3, 3, 0, 3}, {3, 3, 3, 0}}}
	plan, err := Solve(mustTopology(t, zonesNamed([]string{"", "", "", ""}), costs),
		&Problem{Demand: []float64{10, 1, 1, 1}, Weight: []int64{1, 2, 2, 4}, Params: DefaultParams(false)})
	if err != nil {
		t.Fatal(err)
	}
	spare := func(j int) float64 { return float64(plan.Limit(j) - plan.Demand(j)) }
	for j := 2; j < 4; j++ {
		if got, want := plan.Share(0, j)/plan.Share(0, 1), spare(j)/spare(1); math.Abs(got-want) > 1e-6 {
			t.Errorf("zone %d gets %v times what zone 1 gets, not %v", j, got, want)
		}
	}
}

// TestOrderOfZonesIsNoMatter: a plan depends on names only where halves of the
// smallest unit are concerned.
func TestOrderOfZonesIsNoMatter(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(1, 6).Draw(rt, "zones")
		demand := rapid.SliceOfN(rapid.Float64Range(0, 100), n, n).Draw(rt, "demand")
		weight := rapid.SliceOfN(rapid.Int64Range(0, 20), n, n).Draw(rt, "weight")
		order := rapid.Permutation(sequence(n)).Draw(rt, "order")
		regions, other := make([]string, n), make([]string, n)
		p := &Problem{Demand: demand, Weight: weight, Params: DefaultParams(true)}
		q := &Problem{Demand: make([]float64, n), Weight: make([]int64, n), Params: p.Params}
		for k, i := range order {
			q.Demand[k], q.Weight[k] = demand[i], weight[i]
			regions[i] = []string{"x", "y"}[i%2]
			other[k] = regions[i]
		}
		a, err := Solve(mustTopology(t, zonesNamed(regions), Costs{}), p)
		if err != nil {
			rt.Fatal(err)
		}
		b, err := Solve(mustTopology(t, zonesNamed(other), Costs{}), q)
		if err != nil {
			rt.Fatal(err)
		}
		for k, i := range order {
			for l, j := range order {
				// A zone with hardly any demand has coarse units.
				if d := math.Abs(a.Share(i, j)-b.Share(k, l)) * float64(a.Demand(i)); d > 64 && a.Demand(i) > 0 {
					rt.Fatalf("from %d to %d: %v and %v", i, j, a.Share(i, j), b.Share(k, l))
				}
			}
		}
	})
}

func sequence(n int) []int {
	s := make([]int, n)
	for i := range s {
		s[i] = i
	}
	return s
}

// TestSolverIsReusable: what it solved before does not show.
func TestSolverIsReusable(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		used, plan := &Solver{}, &Plan{}
		for range 3 {
			n := rapid.IntRange(1, 8).Draw(rt, "zones")
			p := &Problem{
				Demand: rapid.SliceOfN(rapid.Float64Range(0, 100), n, n).Draw(rt, "demand"),
				Weight: rapid.SliceOfN(rapid.Int64Range(0, 20), n, n).Draw(rt, "weight"),
				Params: DefaultParams(false),
			}
			costs := Costs{}
			if rapid.Bool().Draw(rt, "matrix") {
				for range n {
					costs.Matrix = append(costs.Matrix, rapid.SliceOfN(rapid.Float64Range(0, 9), n, n).Draw(rt, "costs"))
				}
			}
			topology := mustTopology(t, zonesNamed(make([]string, n)), costs)
			if err := used.Solve(topology, p, plan); err != nil {
				rt.Fatal(err)
			}
			fresh, err := Solve(topology, p)
			if err != nil {
				rt.Fatal(err)
			}
			for i := range n {
				for j := range n {
					if plan.Share(i, j) != fresh.Share(i, j) || plan.Flow(i, j) != fresh.Flow(i, j) {
						rt.Fatalf("from %d to %d: %v, fresh %v", i, j, plan.Share(i, j), fresh.Share(i, j))
					}
				}
			}
		}
	})
}

// TestWeights: sums are exact, shares by zone are within 0.4 % in 99 of 100 cases, and
// within a zone no endpoint gets more than one slot above another of equal weight.
func TestWeights(t *testing.T) {
	total, off := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(1, 6).Draw(rt, "zones")
		p := &Problem{Demand: rapid.SliceOfN(rapid.Float64Range(0, 100), n, n).Draw(rt, "demand"), Params: DefaultParams(true)}
		endpoints, count := make([][]int64, n), 0
		for z := range endpoints {
			for range rapid.IntRange(0, 12).Draw(rt, "endpoints") {
				endpoints[z] = append(endpoints[z], 1)
				count++
			}
			p.Weight = append(p.Weight, int64(len(endpoints[z])))
		}
		plan, err := Solve(mustTopology(t, zonesNamed(make([]string, n)), Costs{}), p)
		if err != nil {
			rt.Fatal(err)
		}
		slots := int64(Slots(count))
		for from := range n {
			weights, err := plan.Weights(from, endpoints, slots)
			if err != nil {
				rt.Fatal(err)
			}
			sum := int64(0)
			for to, w := range weights {
				least, most, zone := int64(math.MaxInt64), int64(0), int64(0)
				for _, x := range w {
					least, most, zone = min(least, x), max(most, x), zone+x
				}
				if len(w) > 0 && most-least > 1 {
					rt.Fatalf("from %d, zone %d: %v", from, to, w)
				}
				sum += zone
				if total++; math.Abs(float64(zone)/float64(slots)-plan.Share(from, to)) > 0.004 {
					off++
				}
			}
			if sum != slots && count > 0 {
				rt.Fatalf("from %d: %d slots of %d", from, sum, slots)
			}
		}
	})
	if off*100 > total {
		t.Errorf("%d of %d shares are off by more than 0.4 %%", off, total)
	}
}

func TestWeightsRefuse(t *testing.T) {
	plan, err := Solve(mustTopology(t, threeZones(), Costs{}),
		&Problem{Demand: []float64{1, 1, 1}, Weight: []int64{2, 0, 1}, Params: DefaultParams(false)})
	if err != nil {
		t.Fatal(err)
	}
	for field, endpoints := range map[string][][]int64{
		"endpoints":       {{1, 1}},
		"endpoints[0][1]": {{3, -1}, nil, {1}},
		"endpoints[1]":    {{1, 1}, {1}, {1}},
	} {
		_, err := plan.Weights(0, endpoints, 128)
		wantField(t, err, field)
	}
}

// TestUnder: a plan under the demand it was made for does what it says.
func TestUnder(t *testing.T) {
	p := &Problem{Demand: []float64{5, 2, 1}, Weight: []int64{2, 3, 4}, Params: DefaultParams(false)}
	plan, err := Solve(mustTopology(t, threeZones(), Costs{}), p)
	if err != nil {
		t.Fatal(err)
	}
	same := func(a, b Metrics) bool {
		return math.Abs(a.InZone-b.InZone)+math.Abs(a.Cost-b.Cost)+math.Abs(a.Worst-b.Worst) < 1e-9
	}
	if got := plan.Under(p.Demand); !same(got, plan.Metrics()) {
		t.Errorf("%+v, not %+v", got, plan.Metrics())
	}
	if got := plan.Under([]float64{math.NaN(), -1, 0}); !same(got, Metrics{InZone: 1}) {
		t.Errorf("no demand: %+v", got)
	}
}

func TestRepublisher(t *testing.T) {
	type step struct {
		after   time.Duration
		changed bool
		gap     float64
		want    Reason
	}
	for name, steps := range map[string][]step{
		"the first plan":          {{0, false, 0, EndpointsChanged}, {10 * time.Second, false, 0, Keep}},
		"endpoints":               {{0, false, 0, EndpointsChanged}, {time.Second, true, 0, EndpointsChanged}},
		"a large gap":             {{0, false, 0, EndpointsChanged}, {time.Second, false, 3, Keep}, {time.Second, false, 3.1, LargeGap}, {time.Second, false, 0, Keep}},
		"a lasting gap":           {{0, false, 0, EndpointsChanged}, {10 * time.Minute, false, 0, Keep}, {time.Minute, false, 1.8, Keep}, {time.Minute, false, 1.8, Keep}, {time.Second, false, 1.8, LastingGap}, {time.Minute, false, 1.8, Keep}},
		"soon after a change":     {{0, false, 0, EndpointsChanged}, {20 * time.Second, false, 1.5, Keep}, {20 * time.Second, false, 1.5, LastingGap}, {20 * time.Second, false, 1.5, Keep}, {10 * time.Minute, false, 0, Keep}, {time.Minute, false, 1.5, Keep}},
		"noise is forgotten":      {{0, false, 0, EndpointsChanged}, {10 * time.Minute, false, 0, Keep}, {time.Minute, false, 2.3, Keep}, {10 * time.Minute, false, 0.1, Keep}, {time.Minute, false, 2.3, Keep}},
		"small gaps are for ever": {{0, false, 0, EndpointsChanged}, {1000 * time.Hour, false, 0.3, Keep}},
	} {
		t.Run(name, func(t *testing.T) {
			r, now := Republisher{}, time.Unix(1e9, 0)
			for k, s := range steps {
				now = now.Add(s.after)
				if got := r.Step(now, s.changed, s.gap); got != s.want {
					t.Errorf("step %d: %v, want %v", k, got, s.want)
				}
			}
		})
	}
}

func TestGap(t *testing.T) {
	topology := mustTopology(t, threeZones(), Costs{})
	for _, c := range []struct {
		published, best Metrics
		want            float64
	}{
		{Metrics{Cost: 1, Worst: 1.1}, Metrics{Cost: 0.5, Worst: 1.2}, 5},
		{Metrics{Cost: 0, Worst: 1.3}, Metrics{Cost: 0.5, Worst: 1.2}, 4},
		{Metrics{Cost: 0, Worst: 1.2}, Metrics{Cost: 0.5, Worst: 1}, 0},
	} {
		if got := Gap(topology, c.published, c.best, 1.2); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%+v against %+v: %v, want %v", c.published, c.best, got, c.want)
		}
	}
}
