package planner

import "fmt"

// Slots is the length of a table of endpoints from which one is picked evenly,
// such that shares are kept within 0.4 % in 99 of 100 cases.
func Slots(endpoints int) int { return max(128, 16*endpoints) }

// Localities returns weights of zones that sum to total, for traffic from one
// zone: for consumers that pick a zone first. They are all 0 if the service has no
// endpoint. total must be from 0 to 2^31.
func (p *Plan) Localities(from int, total int64) []int64 {
	n := len(p.rows)
	weights := make([]int64, n)
	if p.rows[from] > 0 {
		apportion(weights, total, p.parts[from*n:(from+1)*n], p.rows[from], 0, make([]int64, n))
	}
	return weights
}

// Weights returns weights of endpoints that sum to slots, for traffic from one
// zone: for consumers that pick among all endpoints at once. endpoints holds, by
// zone, the weight of each endpoint; the sums must be those of the problem. The
// result has its shape.
//
// Zones are apportioned first and endpoints within a zone then. Slots that do not
// divide evenly among a zone's endpoints start at another endpoint for each source,
// so that they do not all fall on the first. Of few slots an endpoint may get none.
func (p *Plan) Weights(from int, endpoints [][]int64, slots int64) ([][]int64, error) {
	n := len(p.rows)
	if len(endpoints) != n {
		return nil, refuse(fmt.Sprintf("%d lists for %d zones", len(endpoints), n), "endpoints")
	}
	byZone := p.Localities(from, slots)
	out := make([][]int64, n)
	var remainders []int64
	for z, weights := range endpoints {
		sum := int64(0)
		for k, w := range weights {
			if w < 0 || w > maxWeight {
				return nil, refuse(fmt.Sprintf("%d, not 0 to %d", w, int64(maxWeight)), "endpoints[%d][%d]", z, k)
			}
			sum += w
		}
		if sum != p.weight[z] {
			return nil, refuse(fmt.Sprintf("weights sum to %d, the plan was made for %d", sum, p.weight[z]), "endpoints[%d]", z)
		}
		out[z] = make([]int64, len(weights))
		if sum == 0 {
			continue
		}
		remainders = resize(remainders, len(weights))
		apportion(out[z], byZone[z], weights, sum, from%len(weights), remainders)
	}
	return out, nil
}
