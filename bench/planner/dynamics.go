package main

import (
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"text/tabwriter"
	"time"

	"github.com/proxima-mesh/proxima/internal/planner"
	"github.com/proxima-mesh/proxima/internal/planner/demand"
)

const (
	report      = 10 * time.Second
	connections = 30. // a second
	settledGap  = 2.  // points of cost
	settledLoad = 1.25
	settledFor  = 6 // reports in a row
)

// scenario is 3 zones with 9 endpoints, and what happens to them. at gives the
// true demand and the endpoints at a number of seconds after the event.
type scenario struct {
	name    string
	seconds int // to observe after the event
	at      func(t float64) (demand []float64, weight []int64, failed int)
}

func even() []int64 { return []int64{3, 3, 3} }

func scenarios() []scenario {
	const nobody = -1
	before := []float64{0.5, 0.3, 0.2}
	return []scenario{
		{"steady", 1800, func(float64) ([]float64, []int64, int) { return before, even(), nobody }},
		{"step 80/10/10 to 10/80/10", 600, func(t float64) ([]float64, []int64, int) {
			if t < 0 {
				return []float64{0.8, 0.1, 0.1}, even(), nobody
			}
			return []float64{0.1, 0.8, 0.1}, even(), nobody
		}},
		{"step 50/30/20 to 30/50/20", 600, func(t float64) ([]float64, []int64, int) {
			if t < 0 {
				return before, even(), nobody
			}
			return []float64{0.3, 0.5, 0.2}, even(), nobody
		}},
		{"drift over an hour", 3600, func(t float64) ([]float64, []int64, int) {
			shift := 0.3 * math.Sin(2*math.Pi*max(0, t)/3600)
			return []float64{0.4 + shift, 0.4 - shift, 0.2}, even(), nobody
		}},
		{"zone fails", 600, func(t float64) ([]float64, []int64, int) {
			if t < 0 {
				return before, even(), nobody
			}
			return []float64{0, 0.6, 0.4}, []int64{0, 3, 3}, 0
		}},
		{"rolling update in a zone", 600, func(t float64) ([]float64, []int64, int) {
			w := even()
			if t >= 0 && t < 180 && math.Mod(t, 60) < 30 {
				w[0]--
			}
			return before, w, nobody
		}},
		{"scale-out in a zone", 600, func(t float64) ([]float64, []int64, int) {
			if t < 0 {
				return before, even(), nobody
			}
			return before, []int64{5, 3, 3}, nobody
		}},
	}
}

// course is what came of one run after the event.
type course struct {
	settled  float64   // seconds until it was within the bounds, and stayed for a minute
	gap      []float64 // of all reports
	worst    []float64
	after    []float64 // worst load since it settled
	churn    float64   // share of the traffic that was sent elsewhere, summed
	replans  int
	duration float64
}

// follow runs the loop: counts are drawn, estimated, planned for, and published
// when the rule says so. It is judged by the true demand.
func follow(r *rand.Rand, s scenario, t *planner.Topology) course {
	names := []string{t.Zone(0).Name, t.Zone(1).Name, t.Zone(2).Name}
	estimator, solver := demand.New(names), &planner.Solver{}
	var republisher planner.Republisher
	var published, fresh, best planner.Plan
	c := course{settled: float64(s.seconds), duration: float64(s.seconds)}
	var last []int64
	within := 0
	const warm = 900
	now := time.Unix(0, 0)
	for second := -warm; second < s.seconds; second += int(report / time.Second) {
		truth, weight, failed := s.at(float64(second))
		counts, missing := make([]float64, 3), make([]bool, 3)
		for z, d := range truth {
			counts[z] = poisson(r, d*connections*report.Seconds())
			missing[z] = z == failed
		}
		noNodes := missing
		must(estimator.Observe(demand.Report{Elapsed: report, Counts: counts, Missing: missing}))
		now = now.Add(report)
		problem := &planner.Problem{Demand: estimator.Shares(nil, noNodes), Weight: weight, NoNodes: noNodes, Params: planner.DefaultParams(true)}
		must(0, solver.Solve(t, problem, &fresh))
		must(0, solver.Solve(t, &planner.Problem{Demand: truth, Weight: weight, Params: planner.DefaultParams(false)}, &best))
		changed := last == nil || !equal(last, weight)
		last = weight
		gap := 0.0
		if !changed {
			limit, _ := fresh.Factor()
			gap = planner.Gap(t, published.Under(problem.Demand), fresh.Metrics(), limit.Float())
		}
		if republisher.Step(now, changed, gap) != planner.Keep {
			if second >= 0 && !changed {
				c.churn += moved(&published, &fresh, truth)
				c.replans++
			}
			published = *fresh.Clone()
		}
		if second < 0 {
			continue
		}
		got := published.Under(truth)
		off := 100 * (got.Cost - best.Metrics().Cost) / t.MaxCost()
		c.gap, c.worst = append(c.gap, off), append(c.worst, got.Worst)
		switch {
		case off > settledGap || got.Worst > settledLoad:
			within = 0
		case within < settledFor:
			if within++; within == settledFor && c.settled == c.duration {
				c.settled = float64(second) - (settledFor-1)*report.Seconds()
			}
		}
		if second >= int(c.settled) {
			c.after = append(c.after, got.Worst)
		}
	}
	return c
}

func equal(a, b []int64) bool {
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// moved is the share of the traffic that another plan sends elsewhere.
func moved(a, b *planner.Plan, truth []float64) float64 {
	sum := 0.0
	for i, d := range truth {
		for j := range truth {
			sum += d * math.Abs(a.Share(i, j)-b.Share(i, j)) / 2
		}
	}
	return sum
}

func must[T any](_ T, err error) {
	if err != nil {
		panic(err) // the inputs are ours
	}
}

// poisson draws a count of independent arrivals.
func poisson(r *rand.Rand, mean float64) float64 {
	n := 0.0
	for t := r.ExpFloat64(); t < mean; t += r.ExpFloat64() {
		n++
	}
	return n
}

// summary of all runs of a scenario.
type summary struct {
	settledP50, settledP99, settledMax float64 // seconds
	worstP99, gapMean, above           float64
	churnPerMinute, replansPerHour     float64
}

func summarise(courses []course) summary {
	var settled, after []float64
	s := summary{}
	minutes, n, above, gaps := 0.0, 0, 0, 0.0
	for _, c := range courses {
		settled = append(settled, c.settled)
		after = append(after, c.after...)
		minutes += c.duration / 60
		s.churnPerMinute += 100 * c.churn
		s.replansPerHour += float64(c.replans)
		for k := range c.gap {
			n++
			gaps += math.Abs(c.gap[k])
			if c.worst[k] > settledLoad {
				above++
			}
		}
	}
	s.settledP50, s.settledP99, s.settledMax = quantile(settled, 0.5), quantile(settled, 0.99), quantile(settled, 1)
	s.worstP99, s.gapMean, s.above = quantile(after, 0.99), gaps/float64(n), 100*float64(above)/float64(n)
	s.churnPerMinute /= minutes
	s.replansPerHour /= minutes / 60
	return s
}

// dynamics prints what becomes of every scenario, and returns it for the tests.
func dynamics(out io.Writer, seed uint64, runs int) map[string]summary {
	t := topologies{}.get(3, 1)[0]
	fmt.Fprintf(out, "dynamics: 3 zones, 9 endpoints, %.0f connections a second, %d runs each\n", connections, runs)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "event\tsettled p50 s\tp99 s\tmax s\tthen worst p99\tgap, points\t> 1.25, % of time\tchurn %/min\treplans/h")
	all := map[string]summary{}
	for k, s := range scenarios() {
		r := rand.New(rand.NewPCG(seed, uint64(100+k)))
		var courses []course
		for range runs {
			courses = append(courses, follow(r, s, t))
		}
		x := summarise(courses)
		all[s.name] = x
		fmt.Fprintf(w, "%s\t%.0f\t%.0f\t%.0f\t%.2f\t%.2f\t%.1f\t%.2f\t%.1f\n", s.name, x.settledP50, x.settledP99, x.settledMax, x.worstP99, x.gapMean, x.above, x.churnPerMinute, x.replansPerHour)
	}
	_ = w.Flush()
	fmt.Fprintln(out)
	return all
}
