package topology

import (
	"fmt"
	"math"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	plannerv1alpha1 "github.com/proxima-mesh/proxima/api/planner/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/demand"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/planner"
	"github.com/proxima-mesh/proxima/internal/planner/auto"
	"github.com/proxima-mesh/proxima/internal/planner/estimate"
	"github.com/proxima-mesh/proxima/internal/planner/explain"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/topology/trafficplan"
)

// Report says how a Service is routed among zones, why, what that costs, and what
// would change it.
type Report struct {
	// Mode is the value that chose it; empty: traffic goes to all endpoints alike.
	Mode string `json:"mode,omitempty"`
	// Level that chose it; empty: none did.
	Level Level `json:"level,omitempty"`
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
	// OtherFamily: there are no connections of this family lately, so Measured are those of the
	// other one, whose zones are planned for.
	OtherFamily bool `json:"otherFamily,omitempty"`
	// Held: after a restart, the demand that was planned for before, until agents have reported.
	Held bool    `json:"held,omitempty"`
	Rate float64 `json:"connectionsPerSecond"`
	// Units that the demand was counted in; nil: not known, or all are connections that nodes count.
	Units *demand.Units `json:"units,omitempty"`
	// Utilisation of the endpoints of the most loaded zone, as the metric for autoscalers has
	// it, where the Service states a capacity; 0: not known. Capacity is that of an endpoint.
	Utilisation float64 `json:"utilisation,omitempty"`
	Capacity    float64 `json:"capacity,omitempty"`
	// Plan as it was made. Now is what it makes of the present demand, Gap how much worse
	// than the best plan that is, in points; above 3 it is replaced at the next report.
	Plan *explain.Explanation `json:"plan"`
	Now  planner.Metrics      `json:"now"`
	Gap  float64              `json:"gapPoints"`
	// Hints that other proxies get.
	Hints *HintReport `json:"hints,omitempty"`
	// Volume is what is known of bytes and open connections, Money what they cost where a price
	// is known, and Long the connections that a plan cannot move; nil: there are none.
	Volume *demand.Volume `json:"volume,omitempty"`
	Money  *Money         `json:"money,omitempty"`
	Long   *Long          `json:"long,omitempty"`
}

// HintReport says what readers of hints get.
type HintReport struct {
	Mode  HintMode `json:"mode"`
	Given bool     `json:"given"`
	// Reason is Found, or why hints were not planned; Why says the latter in words.
	Reason  HintReason      `json:"reason"`
	Why     string          `json:"why,omitempty"`
	Metrics planner.Metrics `json:"metrics"`
}

// Explain reports on a Service from what the catalog holds; ok is false if there is none
// of that name, or the catalog is not filled yet. Hints are reported on by the instance
// that writes them.
func (c *Controller) Explain(key resource.Key) (r *Report, ok bool) {
	snapshot := c.config.Catalog.Snapshot()
	service, ok := snapshot.Services.Get(key)
	if !ok || !c.config.Catalog.Synced() {
		return nil, false
	}
	mode, parts, m := c.modeOf(snapshot, service), partsOf(snapshot, key), c.modelFor(snapshot)
	r = &Report{Mode: mode.Name, Level: mode.Level, Planned: mode.Kind == Planned, Params: c.paramsOf(service, parts), Plans: []PlanReport{}}
	candidates := c.candidates(snapshot, m, service, parts)
	if mode.Kind == Distribution {
		r.Params = DefaultParams()
	} else {
		_, r.Problems = ParamsOf(service.Annotations)
		r.Problems = append(r.Problems, warnings(m, parts)...)
	}
	r.Decision = c.decision(snapshot, mode, service)
	if policyLocal(service) && mode.planned() {
		r.Decision = policyLocalText
		return r, true
	}
	if mode.Kind == Custom {
		r.Rulings = rulingReports(snapshot, key, groupsIn(parts), candidates)
	}
	_, hints := c.hinted(key)
	for _, u := range candidates {
		if p, ok := c.reportOn(u, r.Planned, hints[u.group.Name]); ok {
			c.reckon(&p, u, serviceName(service), m, r.Params)
			if units, ok := c.unitsOf(serviceName(service), p.Ports); ok && units.ProxyConnections+units.Requests > 0 {
				p.Units = &units
			}
			if p.Capacity = r.Params.Capacity; p.Capacity > 0 {
				p.Utilisation = u.in.utilisation(p.Capacity, &u.best.demand, p.Now.Worst)
			}
			r.Plans = append(r.Plans, p)
		}
	}
	return r, true
}

// modelFor a question: the one that is kept up to date, or one of the snapshot where
// plans are made elsewhere.
func (c *Controller) modelFor(snapshot *catalog.Snapshot) *model {
	if _, ready := c.model.current(); ready {
		return c.model
	}
	return modelOf(snapshot, c.config.Site)
}

// candidate is a group of ports that can be planned, and the best plan for the demand as
// it is now.
type candidate struct {
	group *group
	in    input
	best  *solution
	// plan that is in effect; nil: none.
	plan *plannerv1alpha1.PortGroup
}

// inEffect reports whether a plan with shares is.
func (u *candidate) inEffect() bool { return u.plan != nil && u.plan.Zones != nil }

// share of a zone's connections for another, by the plan in effect; without one by the best plan.
func (u *candidate) share() func(from, to int) float64 {
	if u.inEffect() {
		return shareOf(u.plan, &u.in)
	}
	return u.best.plan.Share
}

func (c *Controller) candidates(
	snapshot *catalog.Snapshot,
	m *model,
	service *corev1.Service,
	parts []*plannerv1alpha1.TrafficPlan,
) []*candidate {
	return c.candidatesIn(snapshot, m, c.modeOf(snapshot, service), service, parts, nil)
}

// candidatesIn a mode, whose best plans are in the memory that is given.
func (c *Controller) candidatesIn(
	snapshot *catalog.Snapshot,
	m *model,
	mode Mode,
	service *corev1.Service,
	parts []*plannerv1alpha1.TrafficPlan,
	memory *plans,
) []*candidate {
	params := c.paramsOf(service, parts)
	var out []*candidate
	for _, g := range c.groupsOf(snapshot, service) {
		u := &candidate{group: g}
		for _, published := range groupsIn(parts) {
			if trafficplan.NameOf(published) == g.Name && mode.Kind == Planned {
				u.plan = published
			}
		}
		var err error
		if u.in, err = m.inputOf(params, g); err != nil {
			continue
		}
		if u.best, err = c.solve(serviceName(service), g.Group, &u.in, u.plan, memory); err == nil {
			out = append(out, u)
		}
	}
	return out
}

// decision is the message of the Service's condition, or what holds without a mode.
func (c *Controller) decision(snapshot *catalog.Snapshot, mode Mode, service *corev1.Service) string {
	if mode.Kind == Distribution {
		if mode.Name == "" {
			return "all ready endpoints alike, wherever they are"
		}
		return fmt.Sprintf("spec.trafficDistribution %s: endpoints are hinted to their own zone, however they are loaded", mode.Name)
	}
	if c.config.PlansAlone {
		return c.unwritten(snapshot, mode, service)
	}
	if cond := meta.FindStatusCondition(service.Status.Conditions, ConditionPlan); cond != nil {
		return cond.Message
	}
	return "its EndpointSlices have not been looked at yet"
}

// unwritten is the message of a condition that is not written, as plans alone are.
func (c *Controller) unwritten(snapshot *catalog.Snapshot, mode Mode, service *corev1.Service) string {
	if mode.Kind == Auto {
		return "Kubernetes' own controller decides over hints; plans are only made to compare with"
	}
	var lines []string
	for _, g := range groupsIn(partsOf(snapshot, resource.KeyOf(service))) {
		lines = append(lines, c.summary(g, false))
	}
	if lines == nil {
		return "it has not been planned yet"
	}
	return strings.Join(lines, "\n")
}

func (c *Controller) reportOn(u *candidate, planned bool, hints *hintPlan) (p PlanReport, ok bool) {
	made := u.best
	p = PlanReport{
		Ports: u.group.Ports, Family: string(u.group.Name.Family),
		Measured: u.best.demand.measured, OtherFamily: u.best.demand.borrowed, Held: u.best.demand.held, Rate: u.best.demand.rate, Now: u.best.plan.Metrics(),
	}
	if planned {
		if u.plan == nil || u.plan.Zones == nil {
			return p, false
		}
		var err error
		if made, err = solveFor(&u.in, estimated{shares: recorded(u.plan, &u.in)}); err != nil {
			return p, false
		}
		p.Now, p.Gap, _ = compare(u.plan, &u.in, u.best.demand, u.best.plan)
		p.Reason, p.Age = string(u.plan.Reason), c.clock.Since(u.plan.Published.Time).Seconds()
	}
	p.Plan = explain.Of(made.plan, &made.problem, compared(u.in.cluster.ratios, u.in.topology, u.in.count))
	if u.in.weighted() { // what is missing is in units of weight
		for i := range p.Plan.Zones {
			missing := &p.Plan.Zones[i].EndpointsMissing
			*missing = (*missing + int64(trafficplan.DefaultWeight) - 1) / int64(trafficplan.DefaultWeight)
		}
	}
	if planned {
		asPublished(p.Plan, u.plan)
	}
	if hints != nil {
		p.Hints = &HintReport{Mode: hints.mode, Given: hints.hints != nil, Reason: hints.reason, Metrics: hints.metrics}
		if hints.reason != HintsFound {
			p.Hints.Why = hints.reason.text()
		}
	}
	return p, true
}

// reckon completes a report with bytes, open connections, and money.
func (c *Controller) reckon(p *PlanReport, u *candidate, name proxy.ServiceName, m *model, params Params) {
	v, ok := c.volumeOf(name, familyOf(u.group.Name.Family), u.group.Ports)
	if !ok || len(v.Ways) == 0 && v.Reason == "" {
		return
	}
	p.Volume = &v
	f, share := flowsOf(&v, &u.in), u.share()
	p.Long = f.long(&v, share, false)
	if price := m.priced(params.Costs, &u.in, nil); price != nil && f.total > 0 {
		p.Money = moneyOf(price, f, &v, &u.in, share)
	}
}

// asPublished has an explanation name the shares and reasons of the plan in effect, should
// they be others for a moment.
func asPublished(e *explain.Explanation, plan *plannerv1alpha1.PortGroup) {
	for i := range e.Zones {
		z := &e.Zones[i]
		for _, published := range plan.Zones {
			if locality.Zone(published.Name) != z.Name {
				continue
			}
			z.Rule, z.To = string(published.Reason), nil
			for _, to := range published.To {
				z.To = append(z.To, explain.Share{Zone: locality.Zone(to.Zone), Share: to.Share})
			}
		}
	}
}

// compared is what the comparison with Kubernetes' heuristic needs; nil where other sites
// are part of the plan, of which the heuristic knows nothing.
func compared(ratios auto.Ratios, t *planner.Topology, count []int64) *explain.Cluster {
	k := &explain.Cluster{Ratios: ratios, NoZone: noZone}
	for zone, n := range count {
		if isSite(t.Zone(zone).Name) {
			return nil
		}
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
func (r *Report) Text(from locality.Zone) string {
	var b strings.Builder
	mode := r.Mode
	if mode == "" {
		mode = "none"
	}
	fmt.Fprintf(&b, "topology mode: %s%s\n", mode, r.Level.text())
	for _, line := range strings.Split(r.Decision, "\n") {
		fmt.Fprintf(&b, "decision: %s\n", line)
	}
	if r.Params.Stated {
		fmt.Fprintf(&b, "utilisation: endpoints state in their responses (ORCA) that they are %.0f %% used\n", 100*r.Params.Utilisation)
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

func (p *PlanReport) text(b *strings.Builder, planned bool, from locality.Zone) {
	ports := portsText(p.Ports)
	demand := "demand is guessed from the CPU of nodes"
	switch {
	case p.Held:
		demand = "demand is what it was before the restart, until all nodes have reported"
	case p.OtherFamily:
		demand = "demand is that of the other address family, which is measured: this one has no connections"
	case p.Measured:
		demand = fmt.Sprintf("demand is measured, %.3g %s/s, averaged with a half-life of %.0f s", p.Rate, p.unit(), estimate.HalfLife.Seconds())
	}
	if planned {
		fmt.Fprintf(b, "plan of %s %s, %s old: %s; %s\n", ports, p.Family, age(p.Age), whyReplanned(p.Reason), demand)
	} else {
		fmt.Fprintf(b, "%s would plan %s %s so; %s\n", Adaptive, ports, p.Family, demand)
	}
	for _, line := range strings.Split(strings.TrimSuffix(p.Plan.String(), "\n"), "\n") {
		mark := "  "
		if from != "" && strings.HasPrefix(line, string(from)+": ") {
			mark = "> "
		}
		fmt.Fprintf(b, "%s%s\n", mark, line)
	}
	if planned && p.moved() {
		fmt.Fprintf(b, "  under the demand as it is now: %s; %.1f points from the best plan, replaced above 3, or above 0.3 for long\n",
			measures(p.Now), p.Gap)
	}
	if p.Units != nil {
		fmt.Fprintf(b, "  demand: %s\n", sourcesText(*p.Units))
	}
	if p.Utilisation > 0 {
		fmt.Fprintf(b, "  utilisation of the busiest zone: %.0f %%, of %g connections/s that an endpoint takes\n", 100*p.Utilisation, p.Capacity)
	}
	p.volumeText(b)
	if h := p.Hints; h != nil {
		hints := hintPlan{mode: h.Mode, reason: h.Reason, metrics: h.Metrics}
		if h.Given {
			hints.hints = map[string][]locality.Zone{}
		}
		fmt.Fprintf(b, "  other proxies: %s\n", hints.summary())
	}
}

// unit of the demand.
func (p *PlanReport) unit() string {
	switch u := p.Units; {
	case u == nil || u.Requests == 0:
		return "connections"
	case u.Nodes+u.ProxyConnections == 0:
		return "requests"
	}
	return "connections and requests"
}

// volumeText is about bytes, open connections and money.
func (p *PlanReport) volumeText(b *strings.Builder) {
	if p.Volume == nil {
		return
	}
	v := p.Volume
	if len(v.Ways) == 0 {
		fmt.Fprintf(b, "  bytes: %s: %s\n", v.Bytes, v.Reason)
		return
	}
	in, out, home := 0.0, 0.0, 0.0
	for _, w := range v.Ways {
		in, out = in+w.BytesIn, out+w.BytesOut
		if w.From == w.To {
			home += w.BytesIn + w.BytesOut
		}
	}
	fmt.Fprintf(b, "  bytes: %s/s in, %s/s out", bytesText(in), bytesText(out))
	if in+out > 0 {
		fmt.Fprintf(b, ", %.1f %% of them in their zone", 100*home/(in+out))
	}
	fmt.Fprintf(b, "; %s", v.Bytes)
	if v.Reason != "" {
		fmt.Fprintf(b, ": %s", v.Reason)
	}
	b.WriteByte('\n')
	if v.Turnover > 0 {
		fmt.Fprintf(b, "  open connections: %.0f, each lasts about %s\n", v.Open, lasting(1/v.Turnover))
	}
	if p.Long != nil {
		fmt.Fprintf(b, "  long connections: %s\n", p.Long.text())
	}
	if m := p.Money; m != nil {
		fmt.Fprintf(b, "  money: %s a month now, %s by the plan%s, %s if spread over all endpoints; ± %.0f %%\n", amount(m.Now, m.Currency),
			amount(m.Planned, m.Currency), map[bool]string{true: " once connections are made anew"}[p.Long != nil],
			amount(m.Spread, m.Currency), 100*m.Error)
	}
}

// lasting is a time in words, short ones too.
func lasting(seconds float64) string {
	if seconds < 120 {
		return fmt.Sprintf("%.2g s", seconds)
	}
	return roughly(seconds)
}

// bytesText has at most four digits.
func bytesText(x float64) string {
	for _, unit := range []string{"B", "kB", "MB", "GB"} {
		if x < 1000 {
			return fmt.Sprintf("%.3g %s", x, unit)
		}
		x /= 1000
	}
	return fmt.Sprintf("%.3g TB", x)
}

// moved says whether the plan does something else now than when it was made, as far as
// is printed.
func (p *PlanReport) moved() bool {
	far := func(a, b, by float64) bool { return math.Abs(a-b) > by }
	was := p.Plan.Metrics
	return far(p.Now.InZone, was.InZone, 0.0005) || far(p.Now.Cost, was.Cost, 0.005) ||
		far(p.Now.Worst, was.Worst, 0.005) || p.Gap >= 0.05
}

func age(seconds float64) string {
	return (time.Duration(seconds) * time.Second).String()
}
