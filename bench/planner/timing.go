package main

import (
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/planner"
	"github.com/proxima-mesh/proxima/internal/planner/hint"
)

// grid is a topology of n zones by three a region, with a random matrix if asked.
func grid(r *rand.Rand, n int, matrix bool) *planner.Topology {
	var zones []planner.Zone
	costs := planner.Costs{}
	for i := range n {
		zones = append(zones, planner.Zone{Name: locality.Zone(fmt.Sprintf("zone-%03d", i)), Region: locality.Region(fmt.Sprint("region-", i/3))})
		if matrix {
			row := make([]float64, n)
			for j := range row {
				if i != j {
					row[j] = 1 + 99*r.Float64()
				}
			}
			costs.Matrix = append(costs.Matrix, row)
		}
	}
	return mustTopology(zones, costs)
}

func randomProblem(r *rand.Rand, zones, endpoints int) (*planner.Problem, []int) {
	p := &planner.Problem{Weight: make([]int64, zones), Params: planner.DefaultParams(true)}
	var at []int
	for range zones {
		p.Demand = append(p.Demand, r.ExpFloat64())
	}
	for range endpoints {
		z := r.IntN(zones)
		p.Weight[z]++
		at = append(at, z)
	}
	return p, at
}

// timings prints how long plans and hints take on one core: the median of rounds,
// each over the same random problems. It returns them with their limits.
func timings(out io.Writer, seed uint64, rounds, services int) (verdicts []verdict) {
	r := rand.New(rand.NewPCG(seed, 3))
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "time of\teach\tlimit")
	solver, plan, searcher := &planner.Solver{}, &planner.Plan{}, &hint.Searcher{}
	line := func(name string, limit time.Duration, problems, endpoints, zones int, matrix bool, work func(*planner.Topology, *planner.Problem, []int), whole bool) {
		t := grid(r, zones, matrix)
		type task struct {
			p  *planner.Problem
			at []int
		}
		var tasks []task
		for range problems {
			n := endpoints
			if whole {
				n = 1 + r.IntN(endpoints)
			}
			p, at := randomProblem(r, zones, n)
			tasks = append(tasks, task{p, at})
		}
		var took []time.Duration
		for range rounds {
			start := time.Now()
			for _, k := range tasks {
				work(t, k.p, k.at)
			}
			elapsed := time.Since(start)
			if !whole {
				elapsed /= time.Duration(problems)
			}
			took = append(took, elapsed)
		}
		slices.Sort(took)
		median := took[len(took)/2]
		fmt.Fprintf(w, "%s\t%v\t%v\n", name, median.Round(10*time.Nanosecond), limit)
		verdicts = append(verdicts,
			verdict{name, float64(median) / float64(time.Microsecond), float64(limit) / float64(time.Microsecond), microseconds, false})
	}
	solve := func(t *planner.Topology, p *planner.Problem, _ []int) {
		if err := solver.Solve(t, p, plan); err != nil {
			panic(err) // the problems are ours
		}
	}
	search := func(t *planner.Topology, p *planner.Problem, at []int) {
		if _, err := searcher.Search(t, &hint.Request{Demand: p.Demand, Endpoints: at}); err != nil {
			panic(err)
		}
	}
	both := func(t *planner.Topology, p *planner.Problem, at []int) {
		solve(t, p, at)
		search(t, p, at)
	}
	line("plan, 3 zones", time.Microsecond, 100, 10, 3, false, solve, false)
	line("plan, 50 zones", 50*time.Microsecond, 100, 300, 50, false, solve, false)
	line("plan, 50 zones, cost matrix", 500*time.Microsecond, 30, 300, 50, true, solve, false)
	line(fmt.Sprintf("%d services of 1-20 endpoints, 3 zones", services), 50*time.Millisecond*time.Duration(services)/10000,
		services, 20, 3, false, solve, true)
	line(fmt.Sprintf("%d services with hints", services), time.Second*time.Duration(services)/10000, services, 20, 3, false, both, true)
	line("hints, 3 zones, 10 endpoints", 100*time.Microsecond, 50, 10, 3, false, search, false)
	line("hints, 50 zones, 300 endpoints", 5*time.Millisecond, 5, 300, 50, false, search, false)
	_ = w.Flush()
	fmt.Fprintln(out)
	return verdicts
}
