package rule

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
)

// weigh evaluates the weights of ready endpoints, fills in zones that are left without
// one, and makes the zones of hints of those that weigh something.
func (r *evaluation) weigh(out *Result, in Input, endpoints, zones []ref.Val) error {
	out.Weights = make([][]float64, len(in.Endpoints))
	used := make([]bool, len(in.Zones))
	for i, e := range in.Endpoints {
		out.Weights[i] = make([]float64, len(in.Zones))
		if !e.Ready {
			continue
		}
		r.values[nameEndpoint] = endpoints[i]
		for z, zone := range in.Zones {
			if r.program.zones != nil {
				if _, may := slices.BinarySearch(out.Zones[i], zone.Name); !may {
					continue
				}
			}
			r.values[nameZone] = zones[z]
			what := fmt.Sprintf("weight of endpoint %s for zone %s", e.Address, zone.Name)
			value, err := r.eval(what, r.program.weight)
			if err != nil {
				return err
			}
			w, err := weightOf(value)
			if err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
			out.Weights[i][z] = w
			used[z] = used[z] || w > 0
		}
	}
	if err := r.program.coverWeights(out, in, used); err != nil {
		return err
	}
	return hinted(out, in)
}

// weightOf reads a weight. What is negative, not finite or too much is refused.
func weightOf(value ref.Val) (float64, error) {
	var w float64
	switch v := value.(type) {
	case types.Double:
		w = float64(v)
	case types.Int:
		w = float64(v)
	case types.Uint:
		w = float64(v)
	default:
		return 0, fmt.Errorf("%v is no number", value)
	}
	if math.IsNaN(w) || w < 0 || w > MaxWeight {
		return 0, fmt.Errorf("%v, not a number from 0 to %.0f", w, float64(MaxWeight))
	}
	return w, nil
}

// coverWeights gives all ready endpoints alike to zones that were left without any, as
// the fallback says.
func (p *Program) coverWeights(out *Result, in Input, used []bool) error {
	ready := slices.ContainsFunc(in.Endpoints, func(e Endpoint) bool { return e.Ready })
	if !ready || p.fallback == None {
		return nil
	}
	for z, zone := range in.Zones {
		if used[z] {
			continue
		}
		if p.fallback == Fail {
			return fmt.Errorf("zone %s may use no endpoint", zone.Name)
		}
		for i, e := range in.Endpoints {
			if e.Ready {
				out.Weights[i][z] = 1
			}
		}
		out.Filled = append(out.Filled, zone.Name)
	}
	return nil
}

// hinted makes the zones of hints: those for which an endpoint weighs something, and of
// too many the ones for which it weighs most. A zone that no hint names uses all endpoints
// where only hints are read.
func hinted(out *Result, in Input) error {
	for i, e := range in.Endpoints {
		if !e.Ready {
			continue
		}
		var at []int
		for z, w := range out.Weights[i] {
			if w > 0 {
				at = append(at, z)
			}
		}
		if len(at) == 0 && lost(out.Zones[i], in.Zones) {
			continue // it is for its own zone alone, which has no demand
		}
		if len(at) == 0 {
			return fmt.Errorf("weight of endpoint %s: 0 for every zone: %s", e.Address, ignored)
		}
		slices.SortStableFunc(at, func(a, b int) int { return cmp.Compare(out.Weights[i][b], out.Weights[i][a]) })
		out.Zones[i] = nil
		for _, z := range at[:min(len(at), MaxZonesPerEndpoint)] {
			out.Zones[i] = append(out.Zones[i], in.Zones[z].Name)
		}
		slices.Sort(out.Zones[i])
	}
	return nil
}

// lost says whether all of an endpoint's zones are others than there are: its own, whose
// nodes are gone.
func lost(of []string, zones []Zone) bool {
	known := func(name string) bool {
		return slices.ContainsFunc(zones, func(z Zone) bool { return z.Name == name })
	}
	return len(of) > 0 && !slices.ContainsFunc(of, known)
}
