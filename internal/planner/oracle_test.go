package planner

import (
	"math/big"
	"math/rand/v2"
	"strconv"

	"github.com/proxima-mesh/proxima/internal/locality"
)

// The oracle solves the same problem in another way: rationals instead of scaled
// integers, an explicit network with Bellman and Ford's algorithm instead of dense
// matrices with prices, and for levels the formulas of the specification word by word.

type edge struct {
	from, to int
	cost     int64
	left     *big.Rat
}

// network is a list of edges; edge k^1 is the way back of edge k.
type network struct {
	nodes int
	edges []edge
}

func (g *network) add(from, to int, cost int64, capacity *big.Rat) {
	g.edges = append(g.edges, edge{from, to, cost, new(big.Rat).Set(capacity)}, edge{to, from, -cost, new(big.Rat)})
}

// run sends all it can from the first node to the second, cheapest first.
func (g *network) run(source, sink int) {
	for {
		dist := make([]int64, g.nodes)
		via := make([]int, g.nodes)
		for v := range dist {
			dist[v], via[v] = 1<<60, -1
		}
		dist[source] = 0
		for changed := true; changed; {
			changed = false
			for k, e := range g.edges {
				if dist[e.from] < 1<<60 && e.left.Sign() > 0 && dist[e.from]+e.cost < dist[e.to] {
					dist[e.to], via[e.to] = dist[e.from]+e.cost, k
					changed = true
				}
			}
		}
		if dist[sink] == 1<<60 {
			return
		}
		var amount *big.Rat
		for v := sink; v != source; v = g.edges[via[v]].from {
			if l := g.edges[via[v]].left; amount == nil || l.Cmp(amount) < 0 {
				amount = new(big.Rat).Set(l)
			}
		}
		for v := sink; v != source; {
			k := via[v]
			g.edges[k].left.Sub(g.edges[k].left, amount)
			g.edges[k^1].left.Add(g.edges[k^1].left, amount)
			v = g.edges[k].from
		}
	}
}

type exact struct {
	placed, cost, away *big.Rat
}

// optimum of a problem with whole demand and costs: how much can be placed, at
// what cost, and how much of it must leave its zone.
func optimum(demand, weight []int64, f *big.Rat, cost func(i, j int) int64) exact {
	n := len(demand)
	const first = 1 << 20 // cost before staying home
	limit := limits(demand, weight, f)
	g := &network{nodes: 2*n + 2}
	source, sink := 2*n, 2*n+1
	type arc struct{ i, j, k int }
	var arcs []arc
	for i := range n {
		g.add(source, i, 0, new(big.Rat).SetInt64(demand[i]))
		g.add(n+i, sink, 0, limit[i])
		for j := range n {
			c := cost(i, j) * first
			if i != j {
				c++
			}
			arcs = append(arcs, arc{i, j, len(g.edges)})
			g.add(i, n+j, c, big.NewRat(1<<40, 1))
		}
	}
	g.run(source, sink)
	e := exact{new(big.Rat), new(big.Rat), new(big.Rat)}
	for _, a := range arcs {
		x := g.edges[a.k^1].left
		e.placed.Add(e.placed, x)
		e.cost.Add(e.cost, new(big.Rat).Mul(x, new(big.Rat).SetInt64(cost(a.i, a.j))))
		if a.i != a.j {
			e.away.Add(e.away, x)
		}
	}
	return e
}

// limits is L = f·T·W[z]/W.
func limits(demand, weight []int64, f *big.Rat) []*big.Rat {
	limit := make([]*big.Rat, len(weight))
	for j, w := range weight {
		limit[j] = big.NewRat(w*sumOf(demand), sumOf(weight))
		limit[j].Mul(limit[j], f)
	}
	return limit
}

// proportional is the closed form for costs by level.
func proportional(demand, weight []int64, f *big.Rat, zones []Zone) [][]*big.Rat {
	n := len(demand)
	x := make([][]*big.Rat, n)
	over, spare := make([]*big.Rat, n), limits(demand, weight, f)
	for i := range n {
		x[i] = make([]*big.Rat, n)
		for j := range n {
			x[i][j] = new(big.Rat)
		}
		over[i] = new(big.Rat).SetInt64(demand[i])
		home := over[i]
		if spare[i].Cmp(home) < 0 {
			home = spare[i]
		}
		x[i][i].Set(home)
		over[i] = new(big.Rat).Sub(over[i], x[i][i])
		spare[i] = new(big.Rat).Sub(spare[i], x[i][i])
	}
	level := func(in func(int) bool) {
		o, p := new(big.Rat), new(big.Rat)
		for z := range n {
			if in(z) {
				o.Add(o, over[z])
				p.Add(p, spare[z])
			}
		}
		if o.Sign() == 0 || p.Sign() == 0 {
			return
		}
		larger := o
		if p.Cmp(o) > 0 {
			larger = p
		}
		gone, taken := make([]*big.Rat, n), make([]*big.Rat, n)
		for z := range n {
			gone[z], taken[z] = new(big.Rat), new(big.Rat)
		}
		for i := range n {
			for j := range n {
				if in(i) && in(j) {
					move := new(big.Rat).Mul(over[i], spare[j])
					move.Quo(move, larger)
					x[i][j].Add(x[i][j], move)
					gone[i].Add(gone[i], move)
					taken[j].Add(taken[j], move)
				}
			}
		}
		for z := range n {
			over[z].Sub(over[z], gone[z])
			spare[z].Sub(spare[z], taken[z])
		}
	}
	seen := map[Zone]bool{}
	for _, near := range []func(Zone) Zone{
		func(z Zone) Zone { return Zone{Region: z.Region, Site: z.Site} },
		func(z Zone) Zone { return Zone{Site: z.Site} },
	} {
		clear(seen)
		for _, z := range zones {
			if place := near(z); !seen[place] {
				seen[place] = true
				level(func(z int) bool { return near(zones[z]) == place })
			}
		}
	}
	level(func(int) bool { return true })
	return x
}

// sample is a random problem with whole demand.
type sample struct {
	zones  []Zone
	demand []int64
	weight []int64
	params Params
	matrix [][]float64
}

func (s *sample) problem() *Problem {
	p := &Problem{Weight: s.weight, Params: s.params}
	for _, d := range s.demand {
		p.Demand = append(p.Demand, float64(d))
	}
	return p
}

func zonesNamed(regions []string) []Zone {
	zones := make([]Zone, len(regions))
	for i, r := range regions {
		zones[i] = Zone{Name: locality.Zone("zone-" + strconv.Itoa(1000 + i)[1:]), Region: locality.Region(r)}
	}
	return zones
}

// draw makes a problem that is likely to hit edges: empty zones, idle zones, ties,
// one zone with everything.
func draw(r *rand.Rand, n int) *sample {
	s := &sample{demand: make([]int64, n), weight: make([]int64, n)}
	regions := 1 + r.IntN(min(n, 4))
	sites := 1 + max(0, r.IntN(5)-2) // mostly one
	var regionOf []string
	scale := int64(1) << r.IntN(12)
	for i := range n {
		regionOf = append(regionOf, "region-"+strconv.Itoa(r.IntN(regions)))
		switch r.IntN(5) {
		case 0:
		case 1:
			s.demand[i], s.weight[i] = scale, 0
		case 2:
			s.demand[i], s.weight[i] = 0, 1+r.Int64N(3)
		case 3:
			s.demand[i], s.weight[i] = scale, 1+r.Int64N(2)
		default:
			s.demand[i], s.weight[i] = r.Int64N(scale*10), r.Int64N(12)
		}
	}
	s.zones = zonesNamed(regionOf)
	for i := range s.zones {
		s.zones[i].Site = locality.Site("site-" + strconv.Itoa(r.IntN(sites)))
	}
	s.params = Params{Overload: float64(r.IntN(5)) / 10, Margin: float64(r.IntN(4)) / 100}
	if r.IntN(4) == 0 {
		s.params.Utilisation = float64(1+r.IntN(20)) / 20
	}
	s.matrix = make([][]float64, n)
	highest := 1 + r.IntN(20)
	for i := range n {
		s.matrix[i] = make([]float64, n)
		for j := range n {
			if i != j || r.IntN(6) == 0 {
				s.matrix[i][j] = float64(r.IntN(highest + 1))
			}
		}
	}
	return s
}
