package topology

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	plannerv1alpha1 "github.com/proxima-mesh/proxima/api/planner/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/planner"
	"github.com/proxima-mesh/proxima/internal/planner/hint"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// Annotations of a Service that set its parameters. Anything else under the prefix
// is a mistake, and is reported as one.
const (
	prefix = "topology.proxima.dev/"
	// AnnotationOverload is how far above the mean load an endpoint may be planned, as
	// a share: 0.2. Auto takes it as its threshold.
	AnnotationOverload = prefix + "overload"
	// AnnotationMargin is what is kept below that, as demand is estimated.
	AnnotationMargin = prefix + "margin"
	// AnnotationUtilisation says how much the endpoints are used, 1 for fully, such as
	// the target of their autoscaler. Lightly used ones may keep more traffic home.
	AnnotationUtilisation = prefix + "utilisation"
	// AnnotationCapacity is how many connections per second an endpoint of the default weight
	// takes at most. No plan depends on it: it turns demand into utilisation, for autoscalers.
	AnnotationCapacity = prefix + "capacity"
	// AnnotationCosts names the ZoneCosts that hold for the Service.
	AnnotationCosts = prefix + "costs"
	// AnnotationHints is soft, strict or none.
	AnnotationHints = prefix + "hints"
	// AnnotationFallback is what readers of hints get where no hints can be planned:
	// none (traffic goes everywhere) or zone (every endpoint is hinted to its own).
	AnnotationFallback = prefix + "fallback"
)

// HintMode says what readers of hints get.
type HintMode string

const (
	HintsSoft   HintMode = "soft"
	HintsStrict HintMode = "strict"
	HintsNone   HintMode = "none"
)

func (m HintMode) search() hint.Mode {
	if m == HintsStrict {
		return hint.Strict
	}
	return hint.Soft
}

// Fallback says what readers of hints get where none can be planned.
type Fallback string

const (
	FallbackNone Fallback = "none"
	FallbackZone Fallback = "zone"
)

// DefaultCosts is the ZoneCosts that hold for Services that name none. Without it
// costs follow zone and region: 0 at home, 1 within the region, 10 across.
const DefaultCosts = "default"

// Params of a Service.
type Params struct {
	Overload    float64 `json:"overload"`
	Margin      float64 `json:"margin"`
	Utilisation float64 `json:"utilisation,omitempty"`
	// Stated: the utilisation is what endpoints state in their responses, not an annotation.
	Stated   bool     `json:"utilisationStatedByEndpoints,omitempty"`
	Capacity float64  `json:"capacity,omitempty"`
	Costs    string   `json:"costs,omitempty"`
	Hints    HintMode `json:"hints"`
	Fallback Fallback `json:"fallback"`
}

// DefaultParams are those of a Service that says nothing.
func DefaultParams() Params {
	return Params{Overload: planner.DefaultOverload, Margin: planner.DefaultMargin, Hints: HintsSoft, Fallback: FallbackNone}
}

// paramsFor is what holds for a Service: its annotations or, if they cannot be used, the
// last good ones, which its plan records. The capacity, on which no plan depends, is that of
// the annotations where that can be used.
func paramsFor(service *corev1.Service, plan []*plannerv1alpha1.TrafficPlan) Params {
	params, problems := ParamsOf(service.Annotations)
	switch {
	case problems == nil:
		return params
	case len(plan) > 0:
		p := plan[0].Spec.Parameters
		return Params{
			Overload: p.Overload, Margin: p.Margin, Utilisation: p.Utilisation, Capacity: params.Capacity,
			Costs: p.Costs, Hints: HintMode(p.Hints), Fallback: Fallback(p.Fallback),
		}
	}
	return DefaultParams()
}

func (p Params) api() plannerv1alpha1.TrafficPlanParameters {
	return plannerv1alpha1.TrafficPlanParameters{
		Overload: p.Overload, Margin: p.Margin, Utilisation: p.Utilisation, Costs: p.Costs, Hints: string(p.Hints), Fallback: string(p.Fallback),
	}
}

func (p Params) planner() planner.Params {
	return planner.Params{Overload: p.Overload, Margin: p.Margin, Utilisation: p.Utilisation}
}

// Limits of parameters. 10 is the planner's for the overload; a Service that is used
// more than 1000 times over is a mistake in the unit.
const (
	maxOverload    = 10
	maxMargin      = 1
	maxUtilisation = 10
	// minUtilisation: below it the limit would be beyond 70 times the mean, and
	// nothing would ever leave its zone.
	minUtilisation = 0.01
	// Capacities, in connections per second: from one in a quarter of an hour.
	minCapacity, maxCapacity = 0.001, 1e9
)

// ParamsOf reads a Service's annotations. Problems say what cannot be used, naming
// the annotation and what it may be; with any, the Params mean nothing.
func ParamsOf(annotations map[string]string) (p Params, problems []string) {
	p = DefaultParams()
	for _, key := range sortedKeys(annotations) {
		name, ours := strings.CutPrefix(key, prefix)
		if !ours {
			continue
		}
		value := annotations[key]
		if problem := p.set(name, value); problem != "" {
			problems = append(problems, fmt.Sprintf("%s=%q: %s", key, value, problem))
		}
	}
	return p, problems
}

func (p *Params) set(name, value string) (problem string) {
	switch prefix + name {
	case AnnotationOverload:
		return number(&p.Overload, value, 0, maxOverload)
	case AnnotationMargin:
		return number(&p.Margin, value, 0, maxMargin)
	case AnnotationUtilisation:
		return number(&p.Utilisation, value, minUtilisation, maxUtilisation)
	case AnnotationCapacity:
		return number(&p.Capacity, value, minCapacity, maxCapacity)
	case AnnotationCosts:
		p.Costs = value
		if value == "" {
			return "must name a ZoneCosts"
		}
		return ""
	case AnnotationHints:
		return oneOf(&p.Hints, value, HintsSoft, HintsStrict, HintsNone)
	case AnnotationFallback:
		return oneOf(&p.Fallback, value, FallbackNone, FallbackZone)
	case kind.AnnotationWarmUp: // no plan depends on it
		if _, err := kind.ParseWarmUp(value); err != nil {
			return err.Error()
		}
		return ""
	}
	return "is no parameter of topology routing"
}

func number(dst *float64, value string, low, high float64) (problem string) {
	v, err := strconv.ParseFloat(value, 64)
	if err != nil || math.IsNaN(v) || v < low || v > high {
		return fmt.Sprintf("must be a number from %g to %g", low, high)
	}
	*dst = v
	return ""
}

func oneOf[T ~string](dst *T, value string, allowed ...T) (problem string) {
	if !slices.Contains(allowed, T(value)) {
		return fmt.Sprintf("must be one of %v", allowed)
	}
	*dst = T(value)
	return ""
}
