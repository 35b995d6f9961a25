package main

import (
	"fmt"
	"io"
	"math/rand/v2"
	"text/tabwriter"
)

// labStage is a stage of TestTopologySettles in test/e2e: what that sees of real
// traffic is to be expected from what is simulated here.
type labStage struct {
	name    string
	seconds int
	demand  []float64
	weight  []int64
}

var labStages = []labStage{
	{"4/4/3 endpoints, demand 80/10/10, nothing known", 120, []float64{0.8, 0.1, 0.1}, []int64{4, 4, 3}},
	{"demand 10/80/10", 340, []float64{0.1, 0.8, 0.1}, []int64{4, 4, 3}},
	{"1/2/5 endpoints", 30, []float64{0.1, 0.8, 0.1}, []int64{1, 2, 5}},
	{"zone-b fails", 340, []float64{0.5, 0, 0.5}, []int64{1, 0, 5}},
	{"zone-b is back", 340, []float64{0.1, 0.8, 0.1}, []int64{1, 2, 5}},
}

const labRate = 120 // connections a second

func labScenario() scenario {
	s := scenario{name: "lab", rate: labRate, cold: true}
	for _, stage := range labStages {
		s.events = append(s.events, s.seconds)
		s.seconds += stage.seconds
	}
	s.at = func(t float64) ([]float64, []int64, int) {
		k := len(s.events) - 1
		for float64(s.events[k]) > t {
			k--
		}
		return labStages[k].demand, labStages[k].weight, -1
	}
	return s
}

// lab prints what to expect of the lab's stages, one after the other, and returns it.
func lab(out io.Writer, seed uint64, runs int) []summary {
	t, s := topologies{}.get(3, 1)[0], labScenario()
	r := rand.New(rand.NewPCG(seed, 200))
	stages := make([][]course, len(s.events))
	for range runs {
		for k, c := range follow(r, s, t) {
			stages[k] = append(stages[k], c)
		}
	}
	fmt.Fprintf(out,
		"the stages of the lab's long test, %d connections a second, %d runs; a report is 10 s old when it counts, and up to 20 s on its way\n",
		labRate, runs)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "stage\tsettled p50 s\tp99 s\tmax s\tthen in-zone points below the best\tworst p99\treplans")
	var all []summary
	for k, courses := range stages {
		x := summarise(courses)
		all = append(all, x)
		fmt.Fprintf(w, "%s\t%.0f\t%.0f\t%.0f\t%.1f\t%.2f\t%.1f\n", labStages[k].name, x.settledP50, x.settledP99, x.settledMax,
			x.inZone, x.worstP99, x.replansPerHour*courses[0].duration/3600)
	}
	_ = w.Flush()
	fmt.Fprintln(out)
	return all
}
