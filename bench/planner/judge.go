package main

import (
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/proxima-mesh/proxima/internal/planner"
	"github.com/proxima-mesh/proxima/internal/planner/hint"
)

// verdict is a figure with its requirement in planner.md, under "How it is judged".
type verdict struct {
	what       string
	got, limit float64
	unit       string
	atLeast    bool // limit is the least that is good, else the most
}

func (v verdict) pass() bool {
	if v.atLeast {
		return v.got >= v.limit-1e-9
	}
	return v.got <= v.limit+1e-9 // false for NaN, too
}

func (v verdict) print(w io.Writer) {
	sign, word := "≤", "pass"
	if v.atLeast {
		sign = "≥"
	}
	if !v.pass() {
		word = "miss"
	}
	got, limit := fmt.Sprintf("%.4g %s", v.got, v.unit), fmt.Sprintf("%g", v.limit)
	if v.unit == microseconds {
		got, limit = duration(v.got), duration(v.limit)
	}
	fmt.Fprintf(w, "%s\t%s\t%s %s\t%s\n", v.what, got, sign, limit, word)
}

// microseconds is the unit of times.
const microseconds = "µs"

func duration(us float64) string {
	return time.Duration(us * float64(time.Microsecond)).Round(10 * time.Nanosecond).String()
}

// judge prints verdicts and says how many are misses.
func judge(out io.Writer, all []verdict) (misses int) {
	fmt.Fprintln(out, "judged by planner.md")
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "figure\tmeasured\tlimit\t")
	for _, v := range all {
		v.print(w)
		if !v.pass() {
			misses++
		}
	}
	_ = w.Flush()
	fmt.Fprintf(out, "%d of %d pass\n", len(all)-misses, len(all))
	return misses
}

// judgeDynamics takes the summaries by name of the scenario. Demand moves in the first
// two, endpoints in the others, of which planner.md demands nothing by name: they are held
// to what it demands of a step.
func judgeDynamics(all map[string]summary) []verdict {
	var out []verdict
	for _, name := range []string{stepFar, stepNear, zoneFails, rollingUpdate, scaleOut} {
		s := all[name]
		out = append(out, verdict{name + ": settled, p50", s.settledP50, 200, "s", false},
			verdict{name + ": settled, max", s.settledMax, 300, "s", false},
			verdict{name + ": worst load then, p99", s.worstP99, 1.35, "×", false})
	}
	out = append(out, verdict{stepFar + ": settled, p50", all[stepFar].settledP50, 15, "s", false},
		verdict{stepFar + ": settled, p99", all[stepFar].settledP99, 120, "s", false},
		verdict{stepMany + ": settled, p50", all[stepMany].settledP50, 15, "s", false},
		verdict{stepMany + ": settled, max", all[stepMany].settledMax, 45, "s", false},
		verdict{stepMany + ": worst load then, p99", all[stepMany].worstP99, 1.35, "×", false},
		verdict{triple + ": an endpoint above 1.5×, longest", all[triple].hot, 30, "s", false})
	s := all[steady]
	return append(out, verdict{steady + ": gap", s.gapMean, 1.5, "points", false},
		verdict{steady + ": above 1.25", s.above, 3, "% of time", false},
		verdict{steady + ": traffic moved", s.churnPerMinute, 0.4, "%/min", false})
}

// judgeNear holds a small step to what planner.md demands of steps. It leaves little: an estimator
// that is told the moment of the step, and has counting noise alone to wait for, takes 90 s in 1 %
// of 4,000 runs.
func judgeNear(all map[string]summary) []verdict {
	return []verdict{
		{stepNear + ": settled, p50", all[stepNear].settledP50, 15, "s", false},
		{stepNear + ": settled, p99", all[stepNear].settledP99, 120, "s", false},
	}
}

// judgePolicies takes what compare saw.
func judgePolicies(c *comparison) []verdict {
	share := func(n int) float64 { return 100 * float64(n) / float64(c.services) }
	weights, strict, soft := c.rows["Adaptive weights"], c.rows["Adaptive hints, strict"], c.rows["Adaptive hints, soft"]
	return []verdict{
		{"weights: cost above the exact optimum, at most", c.dearest, 1e-6, "", false},
		{"weights: services without a plan", share(weights.none), 0, "%", false},
		{"weights: highest load", quantile(weights.worst, 1), 1.2 + 1e-6, "×", false},
		{"hints, strict: highest load", quantile(strict.worst, 1), 1.2 + 1e-6, "×", false},
		{"hints, soft: highest load", quantile(soft.worst, 1), 1.5 + 1e-6, "×", false},
		{"hints, soft: cost within 2 points of the optimum of weights, ≤ 6 zones", share(c.nearCost), 80, "% of services", true},
	}
}

// judgeHints compares the search with every hinting that there is, for services of at
// most 8 endpoints.
func judgeHints(seed uint64, services int) []verdict {
	r, tops, searcher := rand.New(rand.NewPCG(seed, 2)), topologies{}, &hint.Searcher{}
	near := map[hint.Mode]int{}
	for done := 0; done < services; {
		s := tops.draw(r)
		if !small(s) {
			continue
		}
		done++
		for _, mode := range []hint.Mode{hint.Strict, hint.Soft} {
			got, err := searcher.Search(s.topology, &hint.Request{Demand: s.demand, Endpoints: s.endpoints, Mode: mode})
			must(got, err)
			best := exhaustive(s, mode)
			if d := mode.Value(got.Metrics, s.topology.MaxCost()) - best; d <= 0.02 {
				near[mode]++
			}
		}
	}
	share := func(mode hint.Mode) float64 { return 100 * float64(near[mode]) / float64(services) }
	return []verdict{
		{"hints, strict: within 2 points of exhaustive search, ≤ 8 endpoints", share(hint.Strict), 97, "% of services", true},
		{"hints, soft: within 2 points of exhaustive search, ≤ 8 endpoints", share(hint.Soft), 80, "% of services", true},
	}
}

// small services can be searched exhaustively in some milliseconds.
func small(s *service) bool {
	n := len(s.endpoints)
	switch len(s.demand) {
	case 2:
		return n <= 8
	case 3:
		return n <= 6
	case 4:
		return n <= 3
	}
	return false
}

// exhaustive is the least value of all hintings. Endpoints of a zone are alike, so their
// masks are tried in ascending order only.
func exhaustive(s *service, mode hint.Mode) float64 {
	endpoints := slices.Sorted(slices.Values(s.endpoints))
	masks, best := make([]hint.Mask, len(endpoints)), math.Inf(1)
	var fill func(e int)
	fill = func(e int) {
		if e == len(endpoints) {
			best = min(best, mode.Value(hint.Score(s.topology, s.demand, endpoints, masks), s.topology.MaxCost()))
			return
		}
		first := hint.Mask(1)
		if e > 0 && endpoints[e] == endpoints[e-1] {
			first = masks[e-1]
		}
		for m := first; m < 1<<len(s.demand); m++ {
			masks[e] = m
			fill(e + 1)
		}
	}
	fill(0)
	return best
}

// costGap between two metrics, as a share of the highest cost.
func costGap(a, b planner.Metrics, t *planner.Topology) float64 {
	return (a.Cost - b.Cost) / t.MaxCost()
}
