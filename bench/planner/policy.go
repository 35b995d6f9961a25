package main

import (
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"text/tabwriter"

	"github.com/proxima-mesh/proxima/internal/planner"
	"github.com/proxima-mesh/proxima/internal/planner/auto"
	"github.com/proxima-mesh/proxima/internal/planner/hint"
)

// policy is one way of sending traffic. planned is false where it gives up, and
// traffic goes everywhere.
type policy struct {
	name string
	send func(*service) (m planner.Metrics, planned bool)
}

func policies() []policy {
	solver, plan, searcher := &planner.Solver{}, &planner.Plan{}, &hint.Searcher{}
	solve := func(t *planner.Topology, s *service) (planner.Metrics, bool) {
		if err := solver.Solve(t, s.problem(planner.DefaultParams(false)), plan); err != nil {
			panic(err) // the problems are ours
		}
		return plan.Metrics(), true
	}
	hints := func(mode hint.Mode) func(*service) (planner.Metrics, bool) {
		return func(s *service) (planner.Metrics, bool) {
			r, err := searcher.Search(s.topology, &hint.Request{Demand: s.demand, Endpoints: s.endpoints, Mode: mode})
			if err != nil {
				panic(err)
			}
			return r.Metrics, r.Reason == hint.Published
		}
	}
	return []policy{
		{"random", func(s *service) (planner.Metrics, bool) { return everywhere(s), true }},
		{"Auto", kubernetesAuto},
		{"PreferSameZone", sameZone},
		{"Envoy zone-aware, clients by demand", func(s *service) (planner.Metrics, bool) { return envoy(s, s.demand) }},
		{"Envoy zone-aware, clients by CPU", func(s *service) (planner.Metrics, bool) { return envoy(s, s.cpu) }},
		{"waterfall, capacity 1.2", func(s *service) (planner.Metrics, bool) { return waterfall(s), true }},
		{"Adaptive weights", func(s *service) (planner.Metrics, bool) { return solve(s.topology, s) }},
		{"Adaptive hints, strict", hints(hint.Strict)},
		{"Adaptive hints, soft", hints(hint.Soft)},
		{"optimum, ε = 0.2 (min-cost flow)", func(s *service) (planner.Metrics, bool) { return solve(s.matrix, s) }},
	}
}

func everywhere(s *service) planner.Metrics {
	return hint.Score(s.topology, s.demand, s.endpoints, nil)
}

// kubernetesAuto is the heuristic of the mode Auto.
func kubernetesAuto(s *service) (planner.Metrics, bool) {
	slice := auto.Slice{}
	for _, z := range s.endpoints {
		slice.Endpoints = append(slice.Endpoints, auto.Endpoint{Zone: s.topology.Zone(z).Name, Ready: true})
	}
	decision := auto.Decide(s.ratios, auto.Request{Slices: []auto.Slice{slice}})
	if !decision.Hinted {
		return everywhere(s), false
	}
	masks := make([]hint.Mask, len(s.endpoints))
	for e, h := range decision.Hints[0] {
		z, _ := s.topology.Index(h.ForZones[0])
		masks[e] = 1 << z
	}
	return hint.Score(s.topology, s.demand, s.endpoints, masks), true
}

// sameZone is trafficDistribution PreferSameZone.
func sameZone(s *service) (planner.Metrics, bool) {
	masks := make([]hint.Mask, len(s.endpoints))
	for e, z := range s.endpoints {
		masks[e] = 1 << z
	}
	return hint.Score(s.topology, s.demand, s.endpoints, masks), true
}

// envoy is zone-aware routing as Envoy documents it: zones compare their share of
// the clients with their share of the endpoints; where it is larger, the rest goes
// to zones that have a smaller one, by how much smaller. Below six endpoints (the
// default of min_cluster_size) it is off.
func envoy(s *service, clients []float64) (planner.Metrics, bool) {
	if len(s.endpoints) < 6 {
		return everywhere(s), false
	}
	n, total := len(clients), 0.0
	for _, c := range clients {
		total += c
	}
	spare, sum := make([]float64, n), 0.0
	for z := range n {
		spare[z] = max(0, float64(s.weight[z])/float64(len(s.endpoints))-clients[z]/total)
		sum += spare[z]
	}
	return measure(s, func(from, to int) float64 {
		own := float64(s.weight[from]) / float64(len(s.endpoints)) / (clients[from] / total)
		switch {
		case own >= 1 && from == to:
			return 1
		case own >= 1:
			return 0
		case from == to:
			return own
		}
		return (1 - own) * spare[to] / sum
	}), true
}

// waterfall fills the nearest zone up to 1.2 times the fair share, then the next.
// Zones are served in turn, so who comes first has the choice.
func waterfall(s *service) planner.Metrics {
	n, total := len(s.demand), 0.0
	for _, d := range s.demand {
		total += d
	}
	room, flow := make([]float64, n), make([]float64, n*n)
	for z := range n {
		room[z] = 1.2 * total * float64(s.weight[z]) / float64(len(s.endpoints))
		flow[z*n+z] = min(s.demand[z], room[z])
		room[z] -= flow[z*n+z]
	}
	for from := range n {
		left := s.demand[from] - flow[from*n+from]
		order := make([]int, n)
		for z := range n {
			order[z] = z
		}
		slices.SortStableFunc(order, func(a, b int) int {
			return int(s.topology.Cost(from, a) - s.topology.Cost(from, b))
		})
		for _, to := range order {
			x := min(left, room[to])
			flow[from*n+to] += x
			room[to] -= x
			left -= x
		}
	}
	return measure(s, func(from, to int) float64 { return flow[from*n+to] / s.demand[from] })
}

// measure scores shares by zone.
func measure(s *service, share func(from, to int) float64) planner.Metrics {
	n, total := len(s.demand), 0.0
	for _, d := range s.demand {
		total += d
	}
	m, load := planner.Metrics{}, make([]float64, n)
	for i, d := range s.demand {
		for j := range n {
			x := d / total * share(i, j)
			load[j] += x
			m.Cost += x * s.topology.Cost(i, j)
			if i == j {
				m.InZone += x
			}
		}
	}
	for j, w := range s.weight {
		if w > 0 {
			m.Worst = max(m.Worst, load[j]*float64(len(s.endpoints))/float64(w))
		}
	}
	return m
}

// row is one policy over all services.
type row struct {
	none, over   int
	inZone, cost float64
	worst        []float64
	bySize       [3][2]int // services, and those without a plan, by number of endpoints
}

func sizeClass(endpoints int) int {
	switch {
	case endpoints <= 3:
		return 0
	case endpoints <= 10:
		return 1
	}
	return 2
}

// comparison is what compare saw.
type comparison struct {
	services int
	rows     map[string]*row
	// nearCost services have soft hints that cost within 2 points of the optimum of
	// weights, nearValue ones those whose overload counts, too.
	nearCost, nearValue int
	// dearest is how far, at most, the cost of weights is from the optimum, as a share of
	// the highest cost.
	dearest float64
}

// compare prints the table, and returns it.
func compare(out io.Writer, seed uint64, count int) *comparison {
	r, tops := rand.New(rand.NewPCG(seed, 1)), topologies{}
	list, c := policies(), &comparison{services: count, rows: map[string]*row{}}
	for _, p := range list {
		c.rows[p.name] = &row{}
	}
	for range count {
		s := tops.draw(r)
		var optimum, soft, weights planner.Metrics
		for _, p := range list {
			m, planned := p.send(s)
			c.rows[p.name].take(m, planned, len(s.endpoints))
			optimum = m // the last
			switch p.name {
			case "Adaptive hints, soft":
				soft = m
			case "Adaptive weights":
				weights = m
			}
		}
		if hint.Soft.Value(soft, s.topology.MaxCost()) <= optimum.Cost/s.topology.MaxCost()+0.02 {
			c.nearValue++
		}
		if costGap(soft, optimum, s.topology) <= 0.02 {
			c.nearCost++
		}
		c.dearest = max(c.dearest, math.Abs(costGap(weights, optimum, s.topology)))
	}
	fmt.Fprintf(out, "policies: %d random services of 2 to 6 zones, demand known\n", count)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "policy\tno plan %\t1-3 / 4-10 / 11-50\tin-zone %\tcost\tworst mean\tp99\t> 1.2x, % of cases")
	for _, p := range list {
		c.rows[p.name].print(w, p.name, float64(count))
	}
	_ = w.Flush()
	fmt.Fprintf(out, "soft hints against the optimum of weights: cost within 2 points in %.1f %%, cost and overload together in %.1f %%\n\n",
		100*float64(c.nearCost)/float64(count), 100*float64(c.nearValue)/float64(count))
	return c
}

func (r *row) take(m planner.Metrics, planned bool, endpoints int) {
	class := &r.bySize[sizeClass(endpoints)]
	class[0]++
	if !planned {
		r.none++
		class[1]++
	}
	if m.Worst > 1.2+1e-9 {
		r.over++
	}
	r.inZone += m.InZone
	r.cost += m.Cost
	r.worst = append(r.worst, m.Worst)
}

func (r *row) print(w io.Writer, name string, count float64) {
	mean := 0.0
	for _, x := range r.worst {
		mean += x / count
	}
	none := ""
	for k, c := range r.bySize {
		if k > 0 {
			none += " / "
		}
		none += fmt.Sprintf("%.0f", 100*float64(c[1])/max(1, float64(c[0])))
	}
	fmt.Fprintf(w, "%s\t%.1f\t%s\t%.1f\t%.3f\t%.2f\t%.2f\t%.1f\n", name, 100*float64(r.none)/count, none,
		100*r.inZone/count, r.cost/count, mean, quantile(r.worst, 0.99), 100*float64(r.over)/count)
}

func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}
