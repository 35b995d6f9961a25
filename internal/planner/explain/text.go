package explain

import (
	"fmt"
	"strings"
)

// String answers in words: who gets which share, why, what it costs, and what would
// change it.
func (e *Explanation) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "limit: %s\n", e.limit())
	for _, z := range e.Zones {
		fmt.Fprintf(&b, "%s: %s\n", z.Name, e.sentence(z))
	}
	fmt.Fprintf(&b, "in zone %s, cost %.2f, busiest endpoint %.2f× the mean\n", percent(e.Metrics.InZone), e.Metrics.Cost, e.Metrics.Worst)
	for _, w := range e.Warnings {
		fmt.Fprintf(&b, "warning: %s\n", w)
	}
	if k := e.Kubernetes; k != nil {
		what := "would give hints"
		if !k.Hints {
			what = "would give none: " + k.Refusal
		}
		fmt.Fprintf(&b, "Kubernetes' heuristic %s (in zone %s, cost %.2f, busiest endpoint %.2f× the mean)\n",
			what, percent(k.Metrics.InZone), k.Metrics.Cost, k.Metrics.Worst)
	}
	return b.String()
}

func (e *Explanation) limit() string {
	s := fmt.Sprintf("no endpoint above %.2f× the mean load", e.Limit)
	if e.LightlyUsed {
		return s + fmt.Sprintf(", as endpoints are only %.0f %% used", 100*e.Params.Utilisation)
	}
	if e.Params.Margin > 0 {
		return s + fmt.Sprintf(" (1 + %.2f, less %.2f as demand is estimated)", e.Params.Overload, e.Params.Margin)
	}
	return s
}

func (e *Explanation) sentence(z Zone) string {
	have := fmt.Sprintf("%s of demand, weight %d", percent(z.Demand), z.Weight)
	if z.Full {
		have += fmt.Sprintf(", full at %.2f×", z.Overload)
	} else if z.Weight > 0 {
		have += fmt.Sprintf(", loaded %.2f×", z.Overload)
	}
	switch z.Rule {
	case "NoEndpoints":
		return have + "; nowhere to go"
	case "Home":
		return have + "; all stays"
	case "NoDemandHome":
		return have + "; would stay"
	case "NoDemandAll":
		return have + "; would go to all endpoints alike, as none is here"
	}
	var to []string
	for _, s := range z.To {
		if s.Zone == z.Name {
			to = append([]string{percent(s.Share) + " stays"}, to...)
		} else {
			to = append(to, fmt.Sprintf("%s to %s", percent(s.Share), s.Zone))
		}
	}
	why := map[string]string{
		"Region": "the rest is shared in the region by what is free",
		"World":  "the region has no capacity left",
		"Site":   "the site has no capacity left",
		"Cost":   "wherever that is cheapest",
	}[z.Rule]
	s := have + "; " + strings.Join(to, ", ") + ": " + why
	if z.EndpointsMissing > 0 {
		s += fmt.Sprintf("; %d more here would keep all", z.EndpointsMissing)
	}
	return s
}

func percent(share float64) string { return fmt.Sprintf("%.1f %%", 100*share) }
