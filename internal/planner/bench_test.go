package planner

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// BenchmarkSolve: 3 zones within 1 µs, 50 within 50 µs, any matrix within 500 µs.
func BenchmarkSolve(b *testing.B) {
	for _, n := range []int{3, 10, 50} {
		r := rand.New(rand.NewPCG(5, uint64(n)))
		regions := make([]string, n)
		matrix := make([][]float64, n)
		var problems []*Problem
		for i := range regions {
			regions[i] = fmt.Sprint("region-", i/3%6)
			matrix[i] = make([]float64, n)
			for j := range n {
				if i != j {
					matrix[i][j] = 1 + 99*r.Float64()
				}
			}
		}
		for range 64 {
			p := &Problem{Params: DefaultParams(true)}
			for range n {
				p.Demand = append(p.Demand, r.ExpFloat64())
				p.Weight = append(p.Weight, r.Int64N(12))
			}
			problems = append(problems, p)
		}
		for _, c := range []struct {
			name  string
			costs Costs
		}{{"levels", Costs{}}, {"matrix", Costs{Matrix: matrix}}} {
			b.Run(fmt.Sprintf("%s/zones=%d", c.name, n), func(b *testing.B) {
				topology := mustTopology(b, zonesNamed(regions), c.costs)
				solver, plan := &Solver{}, &Plan{}
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					if err := solver.Solve(topology, problems[i%len(problems)], plan); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
