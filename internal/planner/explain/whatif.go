package explain

import (
	"fmt"
	"math"
	"slices"

	"github.com/proxima-mesh/proxima/internal/planner"
)

// clone is a problem that can be changed without touching the original.
func clone(p *planner.Problem) *planner.Problem {
	c := *p
	c.Demand, c.Weight, c.NoNodes = slices.Clone(p.Demand), slices.Clone(p.Weight), slices.Clone(p.NoNodes)
	return &c
}

// FailZone is a problem in which a zone, by index, has neither nodes nor endpoints.
func FailZone(p *planner.Problem, zone int) *planner.Problem {
	c := clone(p)
	if c.NoNodes == nil {
		c.NoNodes = make([]bool, len(c.Demand))
	}
	c.Weight[zone], c.NoNodes[zone] = 0, true
	return c
}

// AddEndpoints is a problem with n more endpoints of weight 1 in a zone, or fewer. An
// error is a *planner.FieldError.
func AddEndpoints(p *planner.Problem, zone int, n int64) (*planner.Problem, error) {
	c := clone(p)
	if n > math.MaxInt32 || c.Weight[zone]+n < 0 {
		return nil, &planner.FieldError{Field: "endpoints", Reason: fmt.Sprintf("%+d where the weight is %d", n, c.Weight[zone])}
	}
	c.Weight[zone] += n
	return c, nil
}

// ScaleDemand is a problem in which a zone's demand is a multiple of what it was. An
// error is a *planner.FieldError.
func ScaleDemand(p *planner.Problem, zone int, factor float64) (*planner.Problem, error) {
	if !(factor >= 0 && factor <= 1e6) {
		return nil, &planner.FieldError{Field: "demand", Reason: fmt.Sprintf("multiplied by %g, not 0 to 1e6", factor)}
	}
	c := clone(p)
	c.Demand[zone] *= factor
	return c, nil
}
