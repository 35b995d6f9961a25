package topology

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	plannerv1alpha1 "github.com/proxima-mesh/proxima/api/planner/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/loop"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/planner"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/topology/trafficplan"
)

// Conditions of a Service that this package writes. Services without a mode of their
// own have none of them.
const (
	// ConditionPlan says whether the mode that the Service asks for is in effect, how,
	// and if not why.
	ConditionPlan = "proxima.dev/TopologyPlan"
	// ConditionParameters says whether the Service's parameters are. While they are not,
	// the last good ones are, or the defaults.
	ConditionParameters = "proxima.dev/TopologyParameters"
	// ConditionLong says that a plan cannot move connections of the Service, as they stay open,
	// and what would. It is there only while that is so.
	ConditionLong = "proxima.dev/LongConnections"
	// ConditionUnits says that the demand of a port is counted in connections by some and in
	// requests by others. It is there only while that is so.
	ConditionUnits = "proxima.dev/DemandUnitsMixed"
)

// Reasons of conditions.
const (
	ReasonPlanned       = "Planned"
	ReasonNoEndpoints   = "NoEndpoints"
	ReasonNotPlanned    = "NotPlanned"
	ReasonHintsEnabled  = "HintsEnabled"
	ReasonHintsDisabled = "HintsDisabled"
	ReasonHeuristic     = "Heuristic"
	ReasonValid         = "Valid"
	ReasonInvalid       = "Invalid"
	ReasonUnresolved    = "Unresolved"
	// ReasonPolicyLocal: all traffic stays on its node.
	ReasonPolicyLocal     = "PolicyLocal"
	ReasonLongConnections = "LongConnections"
	ReasonUnitsMixed      = "DemandUnitsMixed"
)

// statusWindow between two writes of the conditions of one Service.
const statusWindow = time.Second

// maxMessage of a condition (metav1.Condition).
const maxMessage = 32768

// dispatchStatus queues Services whose conditions others may have changed, and
// those whose plan is another or gone.
func (c *Controller) dispatchStatus(d catalog.Delta) {
	for _, change := range d.Services {
		if change.New != nil {
			c.status.Add(change.Key)
		}
	}
	for _, change := range d.Plans {
		if plan := cmp.Or(change.New, change.Old); plan != nil {
			c.status.Add(resource.Key{Namespace: change.Key.Namespace, Name: plan.Spec.Service})
		}
	}
}

// writeConditions brings the conditions of a Service to what they should be.
func (c *Controller) writeConditions(ctx context.Context, key resource.Key) error {
	snapshot := c.config.Catalog.Snapshot()
	service, ok := snapshot.Services.Get(key)
	if !ok {
		c.status.Forget(key)
		return nil
	}
	expected := c.status.Expectations(key)
	if !loop.Observed(expected, snapshot.Services.Revision(), service) {
		return loop.ErrStale
	}
	want, settled := c.conditions(snapshot, service)
	if !settled {
		return nil
	}
	next := service.DeepCopy()
	if !setConditions(&next.Status.Conditions, want, metav1.NewTime(c.clock.Now())) {
		return nil
	}
	c.status.Writes(key)
	made, err := c.config.Client.UpdateStatus(ctx, kind.Service, next)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case apierrors.IsConflict(err):
		return loop.ErrStale
	case err != nil:
		return fmt.Errorf("write conditions of service %s: %w", key, err)
	}
	expected.Await(made)
	c.tell(ctx, snapshot, service, want)
	return nil
}

// setConditions makes ours among conditions those that are wanted, and says whether
// that changed anything.
func setConditions(conditions *[]metav1.Condition, want []metav1.Condition, now metav1.Time) (changed bool) {
	for _, typ := range []string{ConditionPlan, ConditionParameters, ConditionLong, ConditionUnits} {
		i := slices.IndexFunc(want, func(c metav1.Condition) bool { return c.Type == typ })
		if i < 0 {
			changed = meta.RemoveStatusCondition(conditions, typ) || changed
			continue
		}
		want[i].LastTransitionTime = now // kept where the status is the same
		if len(want[i].Message) > maxMessage {
			want[i].Message = want[i].Message[:maxMessage]
		}
		changed = meta.SetStatusCondition(conditions, want[i]) || changed
	}
	return changed
}

// conditionStands says whether the Service has the condition of its plan that it should
// have.
func (c *Controller) conditionStands(service *corev1.Service) bool {
	want, settled := c.conditions(c.config.Catalog.Snapshot(), service)
	if !settled || len(want) == 0 {
		return false
	}
	is := meta.FindStatusCondition(service.Status.Conditions, ConditionPlan)
	return is != nil && is.Status == want[0].Status && is.Reason == want[0].Reason && is.Message == want[0].Message
}

// conditions that a Service should have, that of its plan first. settled is false while
// it is not known.
func (c *Controller) conditions(snapshot *catalog.Snapshot, service *corev1.Service) (want []metav1.Condition, settled bool) {
	if _, ready := c.model.current(); !ready {
		return nil, false
	}
	mode, key := c.modeOf(snapshot, service), resource.KeyOf(service)
	if mode.Kind == Distribution {
		return nil, true
	}
	parts := partsOf(snapshot, key)
	if len(parts) > 0 && parts[0].Spec.Mode != mode.Name {
		return nil, false // the planner has not come to it yet
	}
	families, hints := c.hinted(key)
	var plan metav1.Condition
	switch {
	case mode.Kind == Planned && policyLocal(service):
		plan = metav1.Condition{Type: ConditionPlan, Status: metav1.ConditionFalse, Reason: ReasonPolicyLocal, Message: policyLocalText}
		settled = len(parts) == 0
	case mode.Kind == Planned:
		plan, settled = c.plannedCondition(parts, hints)
	case mode.Kind == Custom:
		plan, settled = c.ruleCondition(service, mode, parts, families)
	case c.config.ForeignSlices:
		settled = true // the heuristic is that of another controller, whose Events say what it gives
	default:
		plan, settled = autoCondition(families)
	}
	if !settled {
		return nil, false
	}
	if plan.Type != "" {
		want = append(want, plan)
	}
	if parameters, ok := c.parameters(service, parts); ok {
		want = append(want, parameters)
	}
	long, mixed := c.noted(key)
	if long != "" {
		want = append(want, metav1.Condition{Type: ConditionLong, Status: metav1.ConditionTrue, Reason: ReasonLongConnections, Message: long})
	}
	if mixed != "" {
		want = append(want, metav1.Condition{Type: ConditionUnits, Status: metav1.ConditionTrue, Reason: ReasonUnitsMixed, Message: mixed})
	}
	for i := range want {
		want[i].ObservedGeneration = service.Generation
	}
	return want, true
}

// noted of a planned Service, in words: its long connections, empty if there are none, or they
// move, and the units of its demand, empty if they are one.
func (c *Controller) noted(key resource.Key) (long, mixed string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var allLong, allMixed []string
	if e := c.entries[key]; e != nil {
		for _, u := range e.units {
			ports := strings.Split(u.name.Ports, ",")
			if u.long != "" {
				allLong = append(allLong, titleOf(ports, string(u.name.Family))+": "+u.long)
			}
			// Demand is counted for both families together.
			if text := portsText(ports) + ": " + u.mixed; u.mixed != "" && !slices.Contains(allMixed, text) {
				allMixed = append(allMixed, text)
			}
		}
	}
	return strings.Join(allLong, "\n"), strings.Join(allMixed, "\n")
}

// hinted is a copy of what is known of a Service's hints.
func (c *Controller) hinted(key resource.Key) (families []outcome, groups map[trafficplan.Name]*hintPlan) {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.hints[key]
	if h == nil {
		return nil, nil
	}
	for _, f := range sortedKeys(h.families) {
		families = append(families, h.families[f])
	}
	return families, maps.Clone(h.groups)
}

// autoCondition is the condition of a Service that Kubernetes' heuristic decides over.
func autoCondition(families []outcome) (metav1.Condition, bool) {
	cond := metav1.Condition{Type: ConditionPlan, Status: metav1.ConditionTrue, Reason: ReasonHintsEnabled}
	var messages []string
	for _, f := range families {
		if f.mode != Auto {
			continue
		}
		if !f.hinted {
			cond.Status, cond.Reason = metav1.ConditionFalse, ReasonHintsDisabled
		}
		messages = append(messages, f.message)
	}
	cond.Message = strings.Join(messages, "; ")
	return cond, messages != nil // else its slices have not been looked at
}

// plannedCondition is the condition of a Service that the planner plans: a line for each
// group of ports.
func (c *Controller) plannedCondition(parts []*plannerv1alpha1.TrafficPlan, hints map[trafficplan.Name]*hintPlan) (metav1.Condition, bool) {
	cond := metav1.Condition{Type: ConditionPlan, Status: metav1.ConditionTrue, Reason: ReasonPlanned}
	if len(parts) == 0 {
		return cond, false
	}
	measured := c.measured(resource.Key{Namespace: parts[0].Namespace, Name: parts[0].Spec.Service})
	var lines []string
	for _, g := range groupsIn(parts) {
		line := c.summary(g, measured[trafficplan.NameOf(g)])
		switch g.Outcome {
		case plannerv1alpha1.OutcomePlanned:
			if !c.config.ForeignSlices {
				line += "; " + hints[trafficplan.NameOf(g)].summary()
			}
		case plannerv1alpha1.OutcomeNoEndpoints:
			if cond.Status == metav1.ConditionTrue {
				cond.Status, cond.Reason = metav1.ConditionFalse, ReasonNoEndpoints
			}
		default:
			cond.Status, cond.Reason = metav1.ConditionFalse, ReasonNotPlanned
		}
		lines = append(lines, line)
	}
	if lines == nil {
		cond.Status, cond.Reason, lines = metav1.ConditionFalse, ReasonNoEndpoints, []string{"there is no endpoint"}
	}
	cond.Message = strings.Join(lines, "\n")
	return cond, true
}

// measured are the groups of a Service with measured demand now.
func (c *Controller) measured(key resource.Key) map[trafficplan.Name]bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[trafficplan.Name]bool{}
	if e := c.entries[key]; e != nil {
		for _, u := range e.units {
			out[u.name] = u.rate > 0
		}
	}
	return out
}

// groupsIn the parts of a plan, by name.
func groupsIn(parts []*plannerv1alpha1.TrafficPlan) []*plannerv1alpha1.PortGroup {
	var out []*plannerv1alpha1.PortGroup
	for _, part := range parts {
		for i := range part.Spec.Groups {
			out = append(out, &part.Spec.Groups[i])
		}
	}
	slices.SortFunc(out, func(a, b *plannerv1alpha1.PortGroup) int { return trafficplan.NameOf(a).Compare(trafficplan.NameOf(b)) })
	return out
}

// summary of a plan as it was made: it changes when the plan does.
func (c *Controller) summary(g *plannerv1alpha1.PortGroup, measured bool) string {
	title := titleOf(g.Ports, g.AddressType)
	switch g.Outcome {
	case plannerv1alpha1.OutcomePlanned:
	case plannerv1alpha1.OutcomeNoEndpoints:
		return title + ": there is no ready endpoint"
	case plannerv1alpha1.OutcomeTooLarge:
		return title + ": no plan: it would be too large"
	default:
		return title + ": no plan"
	}
	endpoints, zones, others := int64(0), 0, 0
	for i := range g.Zones {
		if n := g.Zones[i].Endpoints; n > 0 {
			endpoints += n
			if isSite(locality.Zone(g.Zones[i].Name)) {
				others++
			} else {
				zones++
			}
		}
	}
	where := count(int64(zones), "zone")
	if others > 0 {
		where += " and " + count(int64(others), "other site")
	}
	x := g.Expected
	return fmt.Sprintf("%s: %s in %s, demand %s; %.1f %% stays in its zone, cost %.2f, busiest endpoint %.2f× the mean (limit %.2f×)",
		title, count(endpoints, "endpoint"), where, c.basis(g, measured), 100*x.InZone, x.Cost, x.Busiest, x.Limit)
}

// titleOf ports that are planned together, for people.
func titleOf(ports []string, family string) string { return portsText(ports) + " " + family }

func portsText(ports []string) string {
	if text := strings.Join(ports, ", "); text != "" {
		return text
	}
	return "unnamed port"
}

// basis of a plan's demand, and the demand if it was measured. measured says that it is
// now, which may have been no reason to publish another plan.
func (c *Controller) basis(g *plannerv1alpha1.PortGroup, measured bool) string {
	switch {
	case g.DemandSource == plannerv1alpha1.DemandMeasured:
	case measured:
		return "measured"
	default:
		return "guessed from the CPU of nodes"
	}
	what := "measured"
	if c.cold() {
		what = "held until all nodes have reported"
	}
	var list []string
	for i := range g.Zones {
		if share := fmt.Sprintf("%.2f", 100*g.Zones[i].Demand); share != "0.00" {
			list = append(list, g.Zones[i].Name+" "+share+" %")
		}
	}
	if list == nil {
		return what
	}
	return what + " (" + strings.Join(list, ", ") + ")"
}

func count(n int64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// ruleCondition is the condition of a Service that a heuristic decides over.
func (c *Controller) ruleCondition(
	service *corev1.Service,
	mode Mode,
	parts []*plannerv1alpha1.TrafficPlan,
	families []outcome,
) (cond metav1.Condition, settled bool) {
	cond = metav1.Condition{Type: ConditionPlan, Status: metav1.ConditionTrue, Reason: ReasonHeuristic}
	c.mu.Lock()
	e := c.entries[resource.KeyOf(service)]
	evaluated := e != nil && e.mode == mode && e.rule != nil
	var problem error
	coming := false
	if evaluated {
		problem, coming = e.rule.failed(), e.rule.weighted() && len(parts) == 0
	}
	c.mu.Unlock()
	if !evaluated || coming {
		return cond, false // its heuristic has not been evaluated, or its weights are being written
	}
	weights, selected := len(parts) > 0, selects(service) && !c.config.ForeignSlices
	var failed []string
	hinted := false
	for _, f := range families {
		if f.mode != Custom {
			continue
		}
		if hinted = true; !f.hinted {
			failed = append(failed, f.message)
		}
	}
	if selected && !hinted {
		return cond, false // its slices have not been looked at
	}
	if failed == nil && problem != nil {
		failed = []string{problem.Error()}
	}
	switch {
	case failed != nil:
		cond.Status, cond.Message = metav1.ConditionFalse, strings.Join(failed, "; ")
		if weights {
			cond.Message += "; the last good weights stay in effect"
		}
	case selected && weights:
		cond.Message = fmt.Sprintf("hints and weights are those of %s", mode.Name)
	case selected:
		cond.Message = fmt.Sprintf("hints are those of %s", mode.Name)
	case weights:
		cond.Message = fmt.Sprintf("weights are those of %s; another controller manages its EndpointSlices, and decides about hints", mode.Name)
	default:
		cond.Status = metav1.ConditionFalse
		cond.Message = fmt.Sprintf("%s gives no weights, and another controller manages its EndpointSlices, and decides about hints", mode.Name)
	}
	return cond, true
}

// summary of hints; p may be nil.
func (p *hintPlan) summary() string {
	switch {
	case p == nil:
		return "no hints are given: the slices were not processed yet, or another controller manages them"
	case p.reason == HintsFound:
		return fmt.Sprintf("hints (%s): %.1f %% stays, cost %.2f, busiest %.2f×", p.mode, 100*p.metrics.InZone, p.metrics.Cost, p.metrics.Worst)
	case p.hints != nil:
		return "hints: " + p.reason.text() + ", so every endpoint is hinted to its own"
	}
	return "no hints: " + p.reason.text()
}

// warnings are what there is to say about a plan besides bad parameters: costs that do
// not hold, and groups that cannot be planned.
func warnings(m *model, parts []*plannerv1alpha1.TrafficPlan) []string {
	var out []string
	warn := func(text string) {
		if text != "" && !slices.Contains(out, text) {
			out = append(out, text)
		}
	}
	for _, part := range parts {
		for i := range part.Spec.Groups {
			g := &part.Spec.Groups[i]
			switch g.Outcome {
			case plannerv1alpha1.OutcomeWeighted, plannerv1alpha1.OutcomeRuleFailed:
				continue
			case plannerv1alpha1.OutcomeTooManyZones:
				warn(fmt.Sprintf("no plan: there are more than %d zones", planner.MaxZones))
				continue
			case plannerv1alpha1.OutcomeTooLarge:
				warn(fmt.Sprintf("no plan: it would be larger than %d KiB", plannerv1alpha1.MaxPlanBytes>>10))
				continue
			}
			counts := map[locality.Zone]int64{}
			for _, z := range g.Zones {
				if z.Endpoints > 0 {
					counts[locality.Zone(z.Name)] = z.Endpoints
				}
			}
			in, _ := m.input(Params{Costs: part.Spec.Parameters.Costs}, &trafficplan.Group{Endpoints: counts})
			warn(in.warning)
		}
	}
	return out
}

// parameters are a condition where there are any, or something is wrong.
func (c *Controller) parameters(service *corev1.Service, parts []*plannerv1alpha1.TrafficPlan) (cond metav1.Condition, wanted bool) {
	cond = metav1.Condition{Type: ConditionParameters, Status: metav1.ConditionTrue, Reason: ReasonValid, Message: "all are in effect"}
	_, problems := ParamsOf(service.Annotations)
	warnings := warnings(c.model, parts)
	switch {
	case problems != nil:
		cond.Status, cond.Reason = metav1.ConditionFalse, ReasonInvalid
		cond.Message = strings.Join(append(problems, warnings...), "; ") + "; the last good parameters stay in effect"
		return cond, true
	case warnings != nil:
		cond.Status, cond.Reason = metav1.ConditionFalse, ReasonUnresolved
		cond.Message = strings.Join(warnings, "; ")
		return cond, true
	}
	for key := range service.Annotations {
		wanted = wanted || strings.HasPrefix(key, prefix)
	}
	return cond, wanted
}

// event of a Service.
type event struct {
	warning         bool
	reason, message string
}

// component that events come from: Kubernetes' name of who decides over hints.
const component = "endpoint-slice-controller"

func (c *Controller) event(ctx context.Context, service *corev1.Service, e event) {
	typ := corev1.EventTypeNormal
	if e.warning {
		typ = corev1.EventTypeWarning
	}
	now := metav1.NewTime(c.clock.Now())
	_, err := c.config.Client.Create(ctx, kind.Event, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: service.Namespace, GenerateName: service.Name + "-"},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: "v1", Kind: "Service", Namespace: service.Namespace, Name: service.Name,
			UID: service.UID, ResourceVersion: service.ResourceVersion,
		},
		Type: typ, Reason: e.reason, Message: e.message,
		Source: corev1.EventSource{Component: component}, ReportingController: component,
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
	})
	if err != nil && ctx.Err() == nil {
		c.log.Warn("event could not be written", "service", resource.KeyOf(service), "reason", e.reason, "error", err)
	}
}
