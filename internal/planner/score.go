package planner

// Metrics say how good a way of sending traffic is.
type Metrics struct {
	// InZone is the share of the traffic that stays in its zone.
	InZone float64 `json:"inZone"`
	// Cost is the mean cost of a connection.
	Cost float64 `json:"cost"`
	// Worst is the load of the most loaded endpoint as a multiple of the mean.
	Worst float64 `json:"worst"`
}

// Under returns what becomes of a plan when the demand is another than it was
// made for. Demand is by zone; NaN, negative or infinite values count as 0.
func (p *Plan) Under(demand []float64) Metrics {
	n := len(p.rows)
	m := Metrics{InZone: 1}
	if p.weightSum == 0 {
		return m
	}
	total, home, cost := 0.0, 0.0, 0.0
	load := make([]float64, n)
	for i, d := range demand {
		if !(d > 0 && d <= maxDemand) {
			continue
		}
		total += d
		for _, j := range p.sinks {
			x := d * p.Share(i, j)
			load[j] += x
			cost += x * p.topology.cost[i*n+j]
		}
		home += d * p.Share(i, i)
	}
	if total == 0 {
		return m
	}
	all := total
	if p.total > 0 { // fixed load stays what it was beside the demand
		for j, x := range p.fixed {
			fixed := total * float64(x) / float64(p.total)
			load[j], all = load[j]+fixed, all+fixed
		}
	}
	m.InZone, m.Cost = home/total, cost/total
	for j, w := range p.weight {
		if w > 0 {
			m.Worst = max(m.Worst, load[j]/all*float64(p.weightSum)/float64(w))
		}
	}
	return m
}
