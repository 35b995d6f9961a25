package planner

import (
	"fmt"
	"math"
	"math/bits"
)

const (
	// DefaultOverload is ε: how far above its fair share an endpoint may be
	// planned. Kubernetes' heuristic promises the same 20 %.
	DefaultOverload = 0.2
	// DefaultMargin is kept below that limit where demand is estimated, as
	// estimates of a few hundred connections are off by a few percent.
	DefaultMargin = 0.03
	// targetUtilisation is what lightly used endpoints may be loaded to in order to
	// keep traffic home: the target at which autoscalers usually sit.
	targetUtilisation = 0.7

	thousand     = 1000
	maxOverload  = 10
	maxDemand    = 1e15
	minDemand    = 1e-12
	maxWeight    = 1 << 31
	maxWeightSum = 1 << 40

	// Demand is held in this many bits, or fewer where the other factors of a
	// scaled flow need more bits.
	demandBits    = 40
	minDemandBits = 12
)

// Params are the rules of a service. All are rounded to thousandths.
type Params struct {
	// Overload is ε, from 0 to 10: no endpoint is planned above (1+ε) times the
	// mean load.
	Overload float64
	// Margin is taken off ε, as far as there is any.
	Margin float64
	// Utilisation of the service's endpoints, 1 for fully used, if known and if
	// lightly used endpoints may take more than ε allows; else 0.
	Utilisation float64
}

// DefaultParams are those of a service that states none.
func DefaultParams(estimated bool) Params {
	p := Params{Overload: DefaultOverload}
	if estimated {
		p.Margin = DefaultMargin
	}
	return p
}

// Problem is one service port. The slices are by zone, in the order of the
// topology, and belong to the caller.
type Problem struct {
	// Demand is how much traffic starts in a zone, in any unit, from 0 to 1e15.
	// Only proportions matter.
	Demand []float64
	// Weight is the weight of a zone's ready endpoints together: their number,
	// unless they have weights of their own.
	Weight []int64
	// NoNodes marks zones without live nodes, whose demand counts as 0 whatever
	// was measured. Nil if there are none.
	NoNodes []bool
	// Fixed is load of a zone's endpoints that is not planned, in the unit of Demand, such as
	// what traffic policies keep on nodes. It is taken off the limit. Nil if there is none.
	Fixed  []float64
	Params Params
}

// Factor is an exact limit: so many times the mean load.
type Factor struct{ Num, Den int64 }

func (f Factor) Float() float64 { return float64(f.Num) / float64(f.Den) }

func (f Factor) less(g Factor) bool { return f.Num*g.Den < g.Num*f.Den }

func (f Factor) reduced() Factor {
	d := gcd(f.Num, f.Den)
	return Factor{f.Num / d, f.Den / d}
}

// factor returns f = 1 + ε − m or 0.7/u, whichever is more, but at least 1: any
// less and the endpoints together could not carry the whole. lightlyUsed says
// that the second applied.
func (p Params) factor() (f Factor, lightlyUsed bool, err error) {
	overload, err := thousandths(p.Overload, maxOverload, "overload")
	if err != nil {
		return f, false, err
	}
	margin, err := thousandths(p.Margin, 1, "margin")
	if err != nil {
		return f, false, err
	}
	utilisation, err := thousandths(p.Utilisation, 1000, "utilisation")
	if err != nil {
		return f, false, err
	}
	f = Factor{thousand + max(0, overload-margin), thousand}
	if p.Utilisation > 0 {
		byUse := Factor{int64(targetUtilisation * thousand), max(1, utilisation)}
		if f.less(byUse) {
			f, lightlyUsed = byUse, true
		}
	}
	return f.reduced(), lightlyUsed, nil
}

func thousandths(value, limit float64, field string) (int64, error) {
	switch {
	case math.IsNaN(value):
		return 0, refuse("not a number", "%s", field)
	case value < 0:
		return 0, refuse("negative", "%s", field)
	case value > limit:
		return 0, refuse(fmt.Sprintf("above %g", limit), "%s", field)
	}
	return int64(math.RoundToEven(value * thousand)), nil
}

// check refuses what cannot be planned, naming the zone.
func (p *Problem) check(t *Topology) error {
	n := len(t.zones)
	switch {
	case len(p.Demand) != n:
		return refuse(fmt.Sprintf("%d values for %d zones", len(p.Demand), n), "demand")
	case len(p.Weight) != n:
		return refuse(fmt.Sprintf("%d values for %d zones", len(p.Weight), n), "weight")
	case p.Fixed != nil && len(p.Fixed) != n:
		return refuse(fmt.Sprintf("%d values for %d zones", len(p.Fixed), n), "fixed")
	case p.NoNodes != nil && len(p.NoNodes) != n:
		return refuse(fmt.Sprintf("%d values for %d zones", len(p.NoNodes), n), "noNodes")
	}
	sum := int64(0)
	for i, d := range p.Demand {
		switch {
		case math.IsNaN(d):
			return refuse("not a number", "demand[%q]", t.zones[i].Name)
		case d < 0:
			return refuse("negative", "demand[%q]", t.zones[i].Name)
		case d > maxDemand:
			return refuse(fmt.Sprintf("above %g", float64(maxDemand)), "demand[%q]", t.zones[i].Name)
		}
		if p.Fixed != nil && !(p.Fixed[i] >= 0 && p.Fixed[i] <= maxDemand) {
			return refuse(fmt.Sprintf("%g, not 0 to %g", p.Fixed[i], float64(maxDemand)), "fixed[%q]", t.zones[i].Name)
		}
		w := p.Weight[i]
		if w < 0 {
			return refuse("negative", "weight[%q]", t.zones[i].Name)
		}
		if w > maxWeight {
			return refuse(fmt.Sprintf("above %d", int64(maxWeight)), "weight[%q]", t.zones[i].Name)
		}
		sum += w
	}
	if sum > maxWeightSum {
		return refuse(fmt.Sprintf("sum above %d", int64(maxWeightSum)), "weight")
	}
	return nil
}

// wholeDemand writes demand as integers whose sum, with fixed load, has at most that many
// bits, scaled by a power of two: whole numbers stay exact. It returns the sums of both.
func (p *Problem) wholeDemand(dst, fixed []int64, width int) (sum, sumFixed int64) {
	total := 0.0
	for i, d := range p.Demand {
		if p.counts(i) {
			total += d
		}
	}
	if total < minDemand {
		clear(dst)
		return 0, 0
	}
	load := total
	for _, x := range p.Fixed {
		load += x
	}
	_, exponent := math.Frexp(load)
	scale := math.Ldexp(1, width-exponent)
	for i, x := range p.Fixed {
		fixed[i] = int64(math.RoundToEven(x * scale))
		sumFixed += fixed[i]
	}
	for i, d := range p.Demand {
		dst[i] = 0
		if p.counts(i) {
			dst[i] = int64(math.RoundToEven(d * scale))
			sum += dst[i]
		}
	}
	return sum, sumFixed
}

func (p *Problem) counts(zone int) bool { return p.NoNodes == nil || !p.NoNodes[zone] }

// headroom returns how many bits demand may have, so that flows scaled by weight and
// factor stay below 2^62.
func headroom(weight int64, f Factor) (int, error) {
	width := 61 - bits.Len64(uint64(weight)) - bits.Len64(uint64(max(f.Num, f.Den)))
	if width < minDemandBits {
		return 0, refuse("sum too large for this overload", "weight")
	}
	return min(width, demandBits), nil
}
