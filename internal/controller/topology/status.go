package topology

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/loop"
	"github.com/proxima-mesh/proxima/internal/resource"
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
)

// statusWindow between two writes of the conditions of one Service.
const statusWindow = time.Second

// maxMessage of a condition (metav1.Condition).
const maxMessage = 32768

// dispatch queues Services whose conditions somebody may have touched.
func (c *Controller) dispatch(d catalog.Delta) {
	c.stating.Store(true)
	for _, change := range d.Services {
		if change.New != nil {
			c.status.Add(change.Key)
		}
	}
}

// restate has the conditions of a Service looked at again.
func (c *Controller) restate(key resource.Key) {
	if c.stating.Load() { // else all will be
		c.status.Add(key)
	}
}

// state brings the conditions of a Service to what they should be.
func (c *Controller) state(ctx context.Context, key resource.Key) error {
	snapshot := c.config.Catalog.Snapshot()
	service, ok := snapshot.Services.Get(key)
	if !ok {
		c.status.Forget(key)
		return nil
	}
	ledger := c.status.Ledger(key)
	if !loop.Shows(ledger, snapshot.Services.Revision(), service) {
		return loop.ErrStale
	}
	if c.rule(key) { // it was not its turn while the delta was planned
		c.publish(key)
	}
	want, settled := c.conditions(service)
	if !settled {
		return nil
	}
	next := service.DeepCopy()
	if !setConditions(&next.Status.Conditions, want, metav1.NewTime(c.clock.Now())) {
		return nil
	}
	c.status.Writes(key)
	made, err := c.config.Client.UpdateStatus(ctx, next)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case apierrors.IsConflict(err):
		return loop.ErrStale
	case err != nil:
		return fmt.Errorf("write conditions of service %s: %w", key, err)
	}
	ledger.Wrote(made)
	return nil
}

// setConditions makes ours among conditions those that are wanted, and says whether
// that changed anything.
func setConditions(conditions *[]metav1.Condition, want []metav1.Condition, now metav1.Time) (changed bool) {
	for _, typ := range []string{ConditionPlan, ConditionParameters} {
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

// conditions that a Service should have. settled is false while it is not known.
func (c *Controller) conditions(service *corev1.Service) (want []metav1.Condition, settled bool) {
	key := resource.KeyOf(service)
	families, plans := c.hinted(key)
	c.mu.RLock()
	defer c.mu.RUnlock()
	e := c.entries[key]
	switch {
	case !c.primed:
		return nil, false
	case e == nil && ModeOf(service).Kind != Distribution:
		return nil, false // it has just come
	case e == nil:
		return nil, true
	}
	plan, ok := e.plan(families, plans)
	if !ok {
		return nil, false
	}
	want = append(want, plan)
	if parameters, ok := e.parameters(service); ok {
		want = append(want, parameters)
	}
	for i := range want {
		want[i].ObservedGeneration = service.Generation
	}
	return want, true
}

// hinted is a copy of what is known of a Service's hints.
func (c *Controller) hinted(key resource.Key) (families []told, plans map[unitName]*hintPlan) {
	c.hintMu.Lock()
	defer c.hintMu.Unlock()
	h := c.hints[key]
	if h == nil {
		return nil, nil
	}
	for _, f := range sortedKeys(h.families) {
		families = append(families, h.families[f])
	}
	plans = make(map[unitName]*hintPlan, len(h.plans))
	for name, p := range h.plans {
		plans[name] = p
	}
	return families, plans
}

func (e *entry) plan(families []told, plans map[unitName]*hintPlan) (metav1.Condition, bool) {
	if e.mode.Kind == Planned {
		return e.planned(plans), true
	}
	if e.mode.Kind == Custom {
		return e.rulingCondition(families)
	}
	cond := metav1.Condition{Type: ConditionPlan, Status: metav1.ConditionTrue, Reason: ReasonHintsEnabled}
	var messages []string
	for _, f := range families {
		if f.mode != e.mode.Kind {
			continue
		}
		if !f.hinted {
			cond.Status, cond.Reason = metav1.ConditionFalse, ReasonHintsDisabled
		}
		messages = append(messages, f.message)
	}
	if messages == nil {
		return cond, false // its slices have not been looked at
	}
	cond.Message = strings.Join(messages, "; ")
	return cond, true
}

// planned is the condition of a Service that the planner plans: a line for each unit.
func (e *entry) planned(plans map[unitName]*hintPlan) metav1.Condition {
	cond := metav1.Condition{Type: ConditionPlan, Status: metav1.ConditionTrue, Reason: ReasonPlanned}
	var lines []string
	for _, u := range e.sorted() {
		line := u.summary()
		switch {
		case u.published == nil:
			cond.Status, cond.Reason = metav1.ConditionFalse, ReasonNotPlanned
		case !u.published.HasEndpoints():
			if cond.Status == metav1.ConditionTrue {
				cond.Status, cond.Reason = metav1.ConditionFalse, ReasonNoEndpoints
			}
		default:
			line += "; " + plans[u.unitName].summary()
		}
		lines = append(lines, line)
	}
	if lines == nil {
		cond.Status, cond.Reason, lines = metav1.ConditionFalse, ReasonNoEndpoints, []string{"there is no endpoint"}
	}
	cond.Message = strings.Join(lines, "\n")
	return cond
}

func (e *entry) sorted() []*unit {
	units := make([]*unit, 0, len(e.units))
	for _, u := range e.units {
		units = append(units, u)
	}
	slices.SortFunc(units, func(a, b *unit) int {
		return strings.Compare(string(a.family)+"/"+a.ports, string(b.family)+"/"+b.ports)
	})
	return units
}

// title names a unit for people.
func (u *unit) title() string {
	ports := strings.TrimSpace(strings.ReplaceAll(u.ports, ",", ", "))
	if ports == "" {
		ports = "unnamed port"
	}
	return fmt.Sprintf("%s %s", ports, u.family)
}

// summary of a plan as it was made: it changes when the plan does.
func (u *unit) summary() string {
	switch {
	case u.published == nil:
		return u.title() + ": no plan"
	case !u.published.HasEndpoints():
		return u.title() + ": there is no ready endpoint"
	}
	m := u.published.Metrics()
	limit, _ := u.published.Factor()
	endpoints, zones := int64(0), 0
	for _, n := range u.counts {
		endpoints += n
		zones++
	}
	return fmt.Sprintf("%s: %s in %s, demand %s; %.1f %% stays in its zone, cost %.2f, busiest endpoint %.2f× the mean (limit %.2f×)",
		u.title(), count(endpoints, "endpoint"), count(int64(zones), "zone"), u.basis(), 100*m.InZone, m.Cost, m.Worst, limit.Float())
}

func count(n int64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// summary of hints; p may be nil.
func (p *hintPlan) summary() string {
	switch {
	case p == nil:
		return "no hints are given: the slices are not looked at yet, or somebody else's"
	case p.why != "" && p.hints == nil:
		return "no hints: " + p.why
	case p.why != "":
		return "hints: " + p.why
	}
	return fmt.Sprintf("hints (%s): %.1f %% stays, cost %.2f, busiest %.2f×", p.mode, 100*p.metrics.InZone, p.metrics.Cost, p.metrics.Worst)
}

// parameters is told where there are any, or something is wrong.
func (e *entry) parameters(service *corev1.Service) (cond metav1.Condition, tell bool) {
	cond = metav1.Condition{Type: ConditionParameters, Status: metav1.ConditionTrue, Reason: ReasonValid, Message: "all are in effect"}
	switch {
	case e.problems != nil:
		cond.Status, cond.Reason = metav1.ConditionFalse, ReasonInvalid
		cond.Message = strings.Join(append(slices.Clone(e.problems), e.warnings...), "; ") + "; the last good parameters stay in effect"
		return cond, true
	case e.warnings != nil:
		cond.Status, cond.Reason = metav1.ConditionFalse, ReasonUnresolved
		cond.Message = strings.Join(e.warnings, "; ")
		return cond, true
	}
	for key := range service.Annotations {
		tell = tell || strings.HasPrefix(key, prefix)
	}
	return cond, tell
}

// event is told on a Service.
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
	_, err := c.config.Client.Create(ctx, &corev1.Event{
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
