package topology

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/proxima-mesh/proxima/internal/planner"
	"github.com/proxima-mesh/proxima/internal/planner/auto"
	"github.com/proxima-mesh/proxima/internal/planner/explain"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// Report says how a Service is routed among zones, why, what that costs, and what
// would change it.
type Report struct {
	// Mode is the value that chose it; empty: traffic goes to all endpoints alike.
	Mode string `json:"mode,omitempty"`
	// Planned: agents follow Plans. Else they are what Adaptive would do.
	Planned bool `json:"planned"`
	// Decision is what came of the mode, as in the Service's condition.
	Decision string `json:"decision"`
	// Params that hold, and Problems with those that are asked for.
	Params   Params       `json:"params"`
	Problems []string     `json:"problems,omitempty"`
	Plans    []PlanReport `json:"plans"`
	// Rulings are the weights that a heuristic gave, which agents follow then.
	Rulings []RulingReport `json:"rulings,omitempty"`
}

// PlanReport is the plan of ports that are planned together.
type PlanReport struct {
	Ports  []string `json:"ports"`
	Family string   `json:"family"`
	// Age of the plan in seconds, and why it was published: EndpointsChanged, LargeGap or
	// LastingGap. Reason is empty if it is not in effect.
	Age    float64 `json:"ageSeconds"`
	Reason string  `json:"reason,omitempty"`
	// Measured demand, in connections per second; else it is guessed from CPU.
	Measured bool `json:"measured"`
	// Held: after a restart, the demand that was planned for before, until agents have reported.
	Held bool    `json:"held,omitempty"`
	Rate float64 `json:"connectionsPerSecond"`
	// Plan as it was made. Now is what it makes of the present demand, Gap how much worse
	// than the best plan that is, in points; above 3 it is replaced at the next report.
	Plan *explain.Explanation `json:"plan"`
	Now  planner.Metrics      `json:"now"`
	Gap  float64              `json:"gapPoints"`
	// Hints that other proxies get.
	Hints *HintReport `json:"hints,omitempty"`
}

// HintReport says what readers of hints get.
type HintReport struct {
	Mode    HintMode        `json:"mode"`
	Given   bool            `json:"given"`
	Why     string          `json:"why,omitempty"`
	Metrics planner.Metrics `json:"metrics"`
}

// Explain reports on a Service; ok is false if there is none of that name, or no delta
// has been planned yet.
func (c *Controller) Explain(key resource.Key) (r *Report, ok bool) {
	families, plans := c.hinted(key)
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.primed {
		return nil, false
	}
	service, ok := c.snapshot.Services.Get(key)
	if !ok {
		return nil, false
	}
	mode := ModeOf(service)
	r = &Report{Mode: mode.Name, Planned: mode.Kind == Planned, Params: DefaultParams(), Plans: []PlanReport{}}
	e := c.entries[key]
	units := c.unitsFor(service, e, r.Planned)
	if e != nil {
		r.Params = e.params
		r.Problems = append(slices.Clone(e.problems), e.warnings...)
	}
	r.Decision = c.decision(mode, e, families, plans)
	if mode.Kind == Custom && e != nil {
		r.Rulings = c.rulingReports(e, units)
	}
	for _, u := range units {
		if p, ok := c.reportOn(u, r.Planned, plans[u.unitName]); ok {
			r.Plans = append(r.Plans, p)
		}
	}
	return r, true
}

// unitsFor a Service: those that are in effect, or what they would be.
func (c *Controller) unitsFor(service *corev1.Service, e *entry, planned bool) []*unit {
	if planned && e != nil {
		return e.sorted()
	}
	params, problems := ParamsOf(service.Annotations)
	if problems != nil {
		params = DefaultParams()
	}
	would := &entry{key: resource.KeyOf(service), mode: Mode{Planned, Adaptive}, params: params, units: map[unitName]*unit{}}
	c.replan(would, c.clock.Now())
	return would.sorted()
}

func (c *Controller) decision(mode Mode, e *entry, families []told, plans map[unitName]*hintPlan) string {
	switch {
	case e != nil:
		if cond, ok := e.plan(families, plans); ok {
			return cond.Message
		}
		return "its EndpointSlices have not been looked at yet"
	case mode.Name == "":
		return "all ready endpoints alike, wherever they are"
	}
	return fmt.Sprintf("spec.trafficDistribution %s: endpoints are hinted to their own zone, however they are loaded", mode.Name)
}

func (c *Controller) reportOn(u *unit, planned bool, hints *hintPlan) (p PlanReport, ok bool) {
	if u.published == nil {
		return p, false
	}
	p = PlanReport{
		Ports: u.portList, Family: string(u.family), Measured: u.measured, Held: u.held, Rate: u.rate,
		Plan: explain.Of(u.published, &u.planned, compared(c.atlas.cluster.ratios, u.planned.Weight)), Now: u.now, Gap: u.gap,
	}
	if planned {
		p.Reason, p.Age = u.reason.String(), c.clock.Since(u.since).Seconds()
	}
	if hints != nil {
		p.Hints = &HintReport{Mode: hints.mode, Given: hints.hints != nil, Why: hints.why, Metrics: hints.metrics}
	}
	return p, true
}

// compared is what the comparison with Kubernetes' heuristic needs.
func compared(ratios auto.Ratios, weight []int64) *explain.Cluster {
	k := &explain.Cluster{Ratios: ratios, NoZone: noZone}
	for zone, n := range weight {
		for range n {
			k.Endpoints = append(k.Endpoints, zone)
		}
	}
	return k
}

// whyReplanned puts reasons into words.
func whyReplanned(reason string) string {
	switch reason {
	case planner.LargeGap.String():
		return "demand had moved far"
	case planner.LastingGap.String():
		return "demand had moved for long"
	}
	return "endpoints, nodes or parameters changed"
}

// Text answers in words; from is the zone that the reader asks about, or empty.
func (r *Report) Text(from string) string {
	var b strings.Builder
	mode := r.Mode
	if mode == "" {
		mode = "none"
	}
	fmt.Fprintf(&b, "topology mode: %s\n", mode)
	for _, line := range strings.Split(r.Decision, "\n") {
		fmt.Fprintf(&b, "decision: %s\n", line)
	}
	for _, p := range r.Problems {
		fmt.Fprintf(&b, "problem: %s\n", p)
	}
	for i := range r.Rulings {
		b.WriteByte('\n')
		r.Rulings[i].text(&b, from)
	}
	for i := range r.Plans {
		b.WriteByte('\n')
		r.Plans[i].text(&b, r.Planned, from)
	}
	return b.String()
}

func (p *PlanReport) text(b *strings.Builder, planned bool, from string) {
	ports := strings.Join(p.Ports, ", ")
	if ports == "" {
		ports = "unnamed port"
	}
	demand := "demand is guessed from the CPU of nodes"
	switch {
	case p.Held:
		demand = "demand is what it was before the restart, until all nodes have reported"
	case p.Measured:
		demand = fmt.Sprintf("demand is measured, %.3g connections/s", p.Rate)
	}
	if planned {
		fmt.Fprintf(b, "plan of %s %s, %s old: %s; %s\n", ports, p.Family, age(p.Age), whyReplanned(p.Reason), demand)
	} else {
		fmt.Fprintf(b, "%s would plan %s %s so; %s\n", Adaptive, ports, p.Family, demand)
	}
	for _, line := range strings.Split(strings.TrimSuffix(p.Plan.String(), "\n"), "\n") {
		mark := "  "
		if from != "" && strings.HasPrefix(line, from+": ") {
			mark = "> "
		}
		fmt.Fprintf(b, "%s%s\n", mark, line)
	}
	if planned && p.moved() {
		fmt.Fprintf(b, "  under the demand as it is now: %s; %.1f points from the best plan, replaced above 3, or above 0.3 for long\n", measures(p.Now), p.Gap)
	}
	if h := p.Hints; h != nil {
		hints := hintPlan{mode: h.Mode, why: h.Why, metrics: h.Metrics}
		if h.Given {
			hints.hints = map[string][]string{}
		}
		fmt.Fprintf(b, "  other proxies: %s\n", hints.summary())
	}
}

// moved says whether the plan does something else now than when it was made, as far as
// is printed.
func (p *PlanReport) moved() bool {
	return measures(p.Now) != measures(p.Plan.Metrics) || fmt.Sprintf("%.1f", p.Gap) != "0.0"
}

func age(seconds float64) string {
	return (time.Duration(seconds) * time.Second).String()
}
