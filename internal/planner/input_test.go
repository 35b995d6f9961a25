package planner

import (
	"errors"
	"math"
	"strings"
	"testing"
)

func threeZones() []Zone {
	return []Zone{{Name: "a", Region: "eu"}, {Name: "b", Region: "eu"}, {Name: "c", Region: "us"}}
}

// wantField checks that an error names the input that was refused.
func wantField(t *testing.T, err error, field string) {
	t.Helper()
	var refused *FieldError
	if !errors.As(err, &refused) || refused.Field != field || refused.Reason == "" {
		t.Errorf("error %v does not name %s", err, field)
	}
}

func TestTopologyRefuses(t *testing.T) {
	square := func(c float64) [][]float64 { return [][]float64{{0, 1, 1}, {1, 0, c}, {1, 1, 0}} }
	for _, c := range []struct {
		field string
		zones []Zone
		costs Costs
	}{
		{"zones", nil, Costs{}},
		{"zones", make([]Zone, MaxZones+1), Costs{}},
		{"zones[0].name", []Zone{{}}, Costs{}},
		{"zones[1].name", []Zone{{Name: "b"}, {Name: "a"}}, Costs{}},
		{"zones[1].name", []Zone{{Name: "a"}, {Name: "a"}}, Costs{}},
		{"costs", threeZones(), Costs{Matrix: [][]float64{{0}}}},
		{"costs", threeZones(), Costs{Matrix: [][]float64{}}},
		{"costs[1]", threeZones(), Costs{Matrix: [][]float64{{0, 1, 1}, {1}, {1, 1, 0}}}},
		{"costs[1][2]", threeZones(), Costs{Matrix: square(math.NaN())}},
		{"costs[1][2]", threeZones(), Costs{Matrix: square(-1)}},
		{"costs[1][2]", threeZones(), Costs{Matrix: square(math.Inf(1))}},
		{"costs.region", threeZones(), Costs{Region: -1, World: 1}},
		{"costs.region", threeZones(), Costs{Region: 3, World: 2}},
		{"costs.world", threeZones(), Costs{World: math.NaN()}},
		{"costs.site", threeZones(), Costs{Site: -1}},
		{"costs.world", threeZones(), Costs{World: 10, Site: 9}},
	} {
		_, err := NewTopology(c.zones, c.costs)
		wantField(t, err, c.field)
	}
}

func TestProblemRefuses(t *testing.T) {
	topology := mustTopology(t, threeZones(), Costs{})
	for _, c := range []struct {
		field  string
		change func(*Problem)
	}{
		{"demand", func(p *Problem) { p.Demand = p.Demand[1:] }},
		{`demand["b"]`, func(p *Problem) { p.Demand[1] = math.NaN() }},
		{`demand["b"]`, func(p *Problem) { p.Demand[1] = -1e-300 }},
		{`demand["c"]`, func(p *Problem) { p.Demand[2] = math.Inf(1) }},
		{"weight", func(p *Problem) { p.Weight = nil }},
		{`weight["a"]`, func(p *Problem) { p.Weight[0] = -1 }},
		{`weight["a"]`, func(p *Problem) { p.Weight[0] = math.MaxInt64 }},
		{"noNodes", func(p *Problem) { p.NoNodes = []bool{true} }},
		{"overload", func(p *Problem) { p.Params.Overload = math.NaN() }},
		{"overload", func(p *Problem) { p.Params.Overload = 11 }},
		{"margin", func(p *Problem) { p.Params.Margin = -0.1 }},
		{"utilisation", func(p *Problem) { p.Params.Utilisation = math.Inf(1) }},
	} {
		p := &Problem{Demand: []float64{1, 2, 3}, Weight: []int64{1, 2, 3}, Params: DefaultParams(true)}
		plan, err := Solve(topology, p)
		if err != nil {
			t.Fatal(err)
		}
		before := plan.Clone()
		c.change(p)
		wantField(t, new(Solver).Solve(topology, p, plan), c.field)
		if plan.Share(0, 0) != before.Share(0, 0) || plan.Total() != before.Total() {
			t.Errorf("%s: the old plan was changed", c.field)
		}
	}
}

// FuzzSolve: any numbers give a sound plan or an error that names a field.
func FuzzSolve(f *testing.F) {
	f.Add(1.0, 2.0, 3.0, int64(1), int64(2), int64(3), 0.2, 0.03, 0.0, 1.0, false)
	f.Add(math.NaN(), math.Inf(1), -1.0, int64(-1), int64(0), int64(math.MaxInt64), 0.2, 0.0, 0.1, 5.0, true)
	f.Add(1e-300, 1e15, 1e-11, int64(1<<31), int64(1<<31), int64(1<<31), 9.999, 0.0, 0.001, 1e9, true)
	f.Add(0.0, 0.0, 5e-324, int64(0), int64(0), int64(1), 0.0, 1.0, 0.7, 1e-300, true)
	f.Fuzz(func(t *testing.T, d1, d2, d3 float64, w1, w2, w3 int64, overload, margin, use, cost float64, matrix bool) {
		costs := Costs{Region: cost / 2, World: cost}
		if matrix {
			costs = Costs{Matrix: [][]float64{{0, cost, 1}, {2, 0, cost}, {cost, 1, 0}}}
		}
		named := func(err error) {
			var refused *FieldError
			if !errors.As(err, &refused) || refused.Field == "" || strings.Contains(refused.Field, "%!") {
				t.Fatalf("error %v names no field", err)
			}
		}
		topology, err := NewTopology(threeZones(), costs)
		if err != nil {
			named(err)
			return
		}
		p := &Problem{
			Demand: []float64{d1, d2, d3},
			Weight: []int64{w1, w2, w3},
			Params: Params{Overload: overload, Margin: margin, Utilisation: use},
		}
		plan, err := Solve(topology, p)
		if err != nil {
			named(err)
			return
		}
		total := int64(0)
		for i := range 3 {
			sum, placed := 0.0, int64(0)
			for j := range 3 {
				if plan.Flow(i, j) < 0 {
					t.Fatalf("flow %d", plan.Flow(i, j))
				}
				sum += plan.Share(i, j)
				placed += plan.Flow(i, j)
			}
			if plan.HasEndpoints() && math.Abs(sum-1) > 1e-9 || placed != plan.Demand(i) && plan.HasEndpoints() {
				t.Fatalf("from %d: shares %v, placed %d of %d", i, sum, placed, plan.Demand(i))
			}
			if plan.Load(i) > plan.Limit(i) {
				t.Fatalf("load %d, limit %d", plan.Load(i), plan.Limit(i))
			}
			total += plan.Load(i)
		}
		if total != plan.Total() && plan.HasEndpoints() {
			t.Fatalf("%d of %d placed", total, plan.Total())
		}
	})
}
