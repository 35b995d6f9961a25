package main

import (
	"fmt"
	"io"
	"math"
	"text/tabwriter"

	"github.com/proxima-mesh/proxima/internal/planner"
	"github.com/proxima-mesh/proxima/internal/planner/auto"
)

// scaling is where an autoscaler by mean utilisation comes to rest.
type scaling struct {
	replicas int
	// busiest is the utilisation that the traffic causes at the busiest endpoint, seen the
	// mean of what endpoints report, which is 1 at the most.
	busiest, seen float64
}

const (
	scaleTarget    = 0.7
	scaleTolerance = 0.1 // as of Kubernetes' HorizontalPodAutoscaler
	scaleSteps     = 20
)

// autoscale runs an autoscaler against a policy: so many endpoints' worth of traffic of
// three zones, endpoints spread evenly over them. An endpoint that is asked for more than
// it can reports 1, and the rest fails.
func autoscale(send func(*service) []float64, traffic float64, demand []float64, replicas int) (s scaling) {
	t := topologies{}.get(3, 1)
	s.replicas = replicas
	for range scaleSteps {
		svc := &service{
			topology: t[0],
			matrix:   t[1],
			demand:   demand,
			weight:   make([]int64, 3),
			cpu:      []float64{1. / 3, 1. / 3, 1. / 3},
			ratios:   auto.Ratios{},
		}
		for z, share := range svc.cpu {
			svc.ratios[t[0].Zone(z).Name] = share
		}
		for k := range s.replicas {
			svc.weight[k%3]++
			svc.endpoints = append(svc.endpoints, k%3)
		}
		s.busiest, s.seen = 0, 0
		for _, load := range send(svc) {
			s.busiest = max(s.busiest, load*traffic)
			s.seen += min(1, load*traffic) / float64(s.replicas)
		}
		if math.Abs(s.seen/scaleTarget-1) <= scaleTolerance {
			return s
		}
		s.replicas = max(1, int(math.Ceil(float64(s.replicas)*s.seen/scaleTarget)))
	}
	return s
}

// loads of a service's endpoints as shares of all traffic, by zone first.
func loads(s *service, share func(from, to int) float64) []float64 {
	out := make([]float64, len(s.endpoints))
	for e, at := range s.endpoints {
		for from, d := range s.demand {
			out[e] += d * share(from, at) / float64(s.weight[at])
		}
	}
	return out
}

// autoscalers prints what becomes of an autoscaler under three policies, and returns it.
func autoscalers(out io.Writer) map[string]scaling {
	demand := []float64{0.8, 0.1, 0.1}
	home := func(from, to int) float64 {
		if from == to {
			return 1
		}
		return 0
	}
	policies := []struct {
		name string
		send func(*service) []float64
	}{
		{"all endpoints alike", func(s *service) []float64 {
			return loads(s, func(_, to int) float64 { return float64(s.weight[to]) / float64(len(s.endpoints)) })
		}},
		// So does Auto, as long as it has hints.
		{"PreferSameZone", func(s *service) []float64 { return loads(s, home) }},
		{"Adaptive weights", func(s *service) []float64 {
			plan, err := planner.Solve(s.topology, s.problem(planner.DefaultParams(true)))
			must(plan, err)
			return loads(s, plan.Share)
		}},
	}
	fmt.Fprintf(
		out,
		"an autoscaler that holds the mean utilisation at %.0f %%: traffic for 6.3 endpoints, %.0f %% of it from one of three zones, 9 endpoints at first\n",
		100*scaleTarget,
		100*demand[0],
	)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "policy\tendpoints it ends with\tmean that it sees\tasked of the busiest endpoint")
	all := map[string]scaling{}
	for _, p := range policies {
		s := autoscale(p.send, 6.3, demand, 9)
		all[p.name] = s
		fmt.Fprintf(w, "%s\t%d\t%.0f %%\t%.0f %%\n", p.name, s.replicas, 100*s.seen, 100*s.busiest)
	}
	_ = w.Flush()
	fmt.Fprintln(out)
	return all
}
