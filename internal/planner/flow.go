package planner

import "math"

const unreached = math.MaxInt64

// flow is the memory of the search for cheapest paths.
//
// The network: traffic starts in rows (source zones) and ends in columns
// (destination zones); an arc from each row to each column, and one back where flow is.
// Every node has a price; the reduced cost of an arc, cost + row − column, is never
// negative, and 0 where flow is. That is what makes a flow cheapest. Prices are
// kept such that columns with spare are never below 0, and those at 0 are the
// ones that can be reached at the present cost.
type flow struct {
	rowPrice, colPrice []int64
	rowDist, colDist   []int64
	rowHops, colHops   []int32
	rowVia, colVia     []int32 // the column, or row, a cheapest path came through
	colDone            []bool
	want               []int64
}

func (f *flow) reset(n int) {
	if cap(f.rowPrice) < n {
		wide := make([]int64, 4*n)
		f.rowPrice, f.colPrice, f.rowDist, f.colDist = wide[:n:n], wide[n:2*n:2*n], wide[2*n:3*n:3*n], wide[3*n:]
		narrow := make([]int32, 4*n)
		f.rowHops, f.colHops, f.rowVia, f.colVia = narrow[:n:n], narrow[n:2*n:2*n], narrow[2*n:3*n:3*n], narrow[3*n:]
		f.colDone = make([]bool, n)
		f.want = make([]int64, n*n)
	}
	f.rowPrice, f.colPrice, f.rowDist, f.colDist = f.rowPrice[:n], f.colPrice[:n], f.rowDist[:n], f.colDist[:n]
	f.rowHops, f.colHops, f.rowVia, f.colVia = f.rowHops[:n], f.colHops[:n], f.rowVia[:n], f.colVia[:n]
	f.colDone = f.colDone[:n]
	clear(f.rowPrice)
	clear(f.colPrice)
}

// byCost is exact min-cost flow for any matrix, by successive cheapest paths.
// All traffic that can go directly at the present cost does so at once, in
// proportion to spare, so that ties do not fall on the first zone that fits. Only
// where that is impossible one path is rerouted through other zones' traffic.
func (s *Solver) byCost(p *Plan) {
	n := len(p.rows)
	s.over, s.spare = append(s.over[:0], p.demand...), append(s.spare[:0], p.limit...)
	s.flow.reset(n)
	for {
		s.sources = s.sources[:0]
		for i, o := range s.over {
			if o > 0 {
				s.sources = append(s.sources, i)
			}
		}
		if len(s.sources) == 0 {
			break
		}
		sink := s.cheapest(p)
		if !s.direct(p) {
			s.reroute(p, sink)
		}
	}
	for i, d := range p.demand {
		p.rules[i] = RuleHome
		if p.parts[i*n+i] < d {
			p.rules[i] = RuleCost
		}
	}
}

// cheapest finds the column with spare that is cheapest to reach from any
// source, of equal ones the one over fewest hops (which bounds the number of
// paths as in Edmonds and Karp), and moves the prices so that it is at 0. It is
// Dijkstra's algorithm on reduced costs, and stops when nothing better can come.
func (s *Solver) cheapest(p *Plan) int {
	f, n := &s.flow, len(p.rows)
	for v := range n {
		f.rowDist[v], f.colDist[v] = unreached, unreached
		f.colDone[v] = false
	}
	for _, i := range s.sources {
		f.rowDist[i], f.rowHops[i], f.rowVia[i] = 0, 0, -1
		f.relax(p, i)
	}
	best, bestDist, bestHops := -1, int64(unreached), int32(0)
	for {
		next, dist, hops := -1, bestDist, bestHops
		for j, d := range f.colDist {
			if !f.colDone[j] && p.limit[j] > 0 && (d < dist || d == dist && f.colHops[j] < hops) {
				next, dist, hops = j, d, f.colHops[j]
			}
		}
		if next < 0 {
			break
		}
		f.colDone[next] = true
		if s.spare[next] > 0 {
			if d := dist + f.colPrice[next]; d < bestDist || d == bestDist && hops < bestHops {
				best, bestDist, bestHops = next, d, hops
			}
		}
		for i := range n {
			if p.parts[i*n+next] > 0 && f.rowDist[i] == unreached {
				f.rowDist[i], f.rowHops[i], f.rowVia[i] = dist, hops+1, int32(next)
				f.relax(p, i)
			}
		}
	}
	for v := range n {
		if f.rowDist[v] < bestDist {
			f.rowPrice[v] -= bestDist - f.rowDist[v]
		}
		if f.colDone[v] && f.colDist[v] < bestDist {
			f.colPrice[v] -= bestDist - f.colDist[v]
		}
	}
	return best
}

// relax offers the columns the way through a row that was just reached.
func (f *flow) relax(p *Plan, row int) {
	n := len(f.colDist)
	arcs := p.topology.arcs[row*n : (row+1)*n]
	base, hops := f.rowDist[row]+f.rowPrice[row], f.rowHops[row]+1
	for j, c := range arcs {
		d := base + c - f.colPrice[j]
		if d < f.colDist[j] || d == f.colDist[j] && hops < f.colHops[j] && !f.colDone[j] {
			f.colDist[j], f.colHops[j], f.colVia[j] = d, hops, int32(row)
		}
	}
}

// direct moves everything that can go straight from a source to a column with
// spare at the present cost, and says whether anything could. In each round sources
// share by what they have and columns by what they can take; a round that leaves
// anything has filled a column, so there are few.
func (s *Solver) direct(p *Plan) bool {
	f, n := &s.flow, len(p.rows)
	s.sinks = s.sinks[:0]
	for j, r := range s.spare {
		if r > 0 && f.colPrice[j] == 0 {
			s.sinks = append(s.sinks, j)
		}
	}
	any := false
	for {
		moved := false
		for _, i := range s.sources {
			s.wish(p, i)
		}
		for _, j := range s.sinks {
			arrivals := int64(0)
			for _, i := range s.sources {
				arrivals += f.want[i*n+j]
			}
			if arrivals == 0 {
				continue
			}
			moved = true
			take := min(arrivals, s.spare[j])
			before, done := int64(0), int64(0)
			for _, i := range s.sources {
				before += f.want[i*n+j]
				upTo := mulDiv(take, before, arrivals)
				x := upTo - done
				done = upTo
				p.parts[i*n+j] += x
				s.over[i] -= x
			}
			s.spare[j] -= take
		}
		if !moved {
			return any
		}
		any = true
	}
}

// wish divides what a source still has among the columns that it can use now, in
// proportion to their spare.
func (s *Solver) wish(p *Plan, row int) {
	f, n := &s.flow, len(p.rows)
	free := int64(0)
	for _, j := range s.sinks {
		f.want[row*n+j] = 0
		if p.topology.arcs[row*n+j]+f.rowPrice[row] == 0 {
			f.want[row*n+j] = s.spare[j]
			free += s.spare[j]
		}
	}
	has := s.over[row]
	if free == 0 {
		return
	}
	before, done := int64(0), int64(0)
	for _, j := range s.sinks {
		if f.want[row*n+j] == 0 {
			continue
		}
		before += f.want[row*n+j]
		upTo := mulDiv(has, before, free)
		f.want[row*n+j] = upTo - done
		done = upTo
	}
}

// reroute sends as much as possible along the cheapest path to a column: a source
// takes the place of another's traffic, which moves on.
func (s *Solver) reroute(p *Plan, sink int) {
	f, n := &s.flow, len(p.rows)
	amount := s.spare[sink]
	for j := sink; ; {
		i := int(f.colVia[j])
		if f.rowVia[i] < 0 {
			amount = min(amount, s.over[i])
			break
		}
		j = int(f.rowVia[i])
		amount = min(amount, p.parts[i*n+j])
	}
	s.spare[sink] -= amount
	for j := sink; ; {
		i := int(f.colVia[j])
		p.parts[i*n+j] += amount
		if f.rowVia[i] < 0 {
			s.over[i] -= amount
			return
		}
		j = int(f.rowVia[i])
		p.parts[i*n+j] -= amount
	}
}
