package topology

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/loop"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/topology/trafficplan"
)

// Reasons of the conditions of ZoneCosts and TopologyHeuristics, besides those of Services.
const (
	ReasonAccepted     = "Accepted"
	ReasonResolved     = "Resolved"
	ReasonNotUsed      = "NotUsed"
	ReasonUnknownZones = "UnknownZones"
	ReasonRuleFailed   = "RuleFailed"
)

// Costs is the name of the ZoneCosts that a Service is to be planned with; empty: it is
// not planned. There may be none of that name.
func (m Modes) Costs(service *corev1.Service) string {
	if m.Of(service).Kind != Planned {
		return ""
	}
	return cmp.Or(service.Annotations[AnnotationCosts], DefaultCosts)
}

// Heuristic is the name of the TopologyHeuristic that holds for a Service; empty: none.
func (m Modes) Heuristic(service *corev1.Service) string {
	mode := m.Of(service)
	if name, ok := strings.CutPrefix(mode.Name, meshv1alpha1.TopologyHeuristicPrefix); ok && mode.Kind == Custom {
		return name
	}
	return ""
}

// Keys of the queue of policies have the kind where others have a namespace.
func costsKey(name string) resource.Key {
	return resource.Key{Namespace: kind.ZoneCosts.Singular, Name: name}
}
func heuristicKey(name string) resource.Key {
	return resource.Key{Namespace: kind.TopologyHeuristic.Singular, Name: name}
}

// use is what the statuses of policies tell of a Service.
type use struct {
	costs, heuristic string
	// failed is why the heuristic could not be evaluated; empty: it could.
	failed string
}

// useBy a Service; nil: none.
func (m Modes) useBy(service *corev1.Service) use {
	if service == nil {
		return use{}
	}
	u := use{costs: m.Costs(service), heuristic: m.Heuristic(service)}
	if plan := meta.FindStatusCondition(service.Status.Conditions, ConditionPlan); u.heuristic != "" && plan != nil &&
		plan.Status == metav1.ConditionFalse && plan.Reason == ReasonHeuristic {
		u.failed = plan.Message
	}
	return u
}

// dispatchPolicies queues the policies whose status may be another after a delta.
func (c *Controller) dispatchPolicies(d catalog.Delta) { c.concernedPolicies(&d, c.policies.Add) }

func (c *Controller) concernedPolicies(d *catalog.Delta, queue func(resource.Key)) {
	for _, change := range d.ZoneCosts {
		queue(costsKey(change.Key.Name))
	}
	for _, change := range d.Heuristics {
		queue(heuristicKey(change.Key.Name))
	}
	before, after := c.modes(d.Before), c.modes(d.After)
	for _, change := range d.Services {
		was, is := before.useBy(change.Old), after.useBy(change.New)
		if was == is {
			continue // most changes are of the status
		}
		for _, u := range []use{was, is} {
			if u.costs != "" {
				queue(costsKey(u.costs))
			}
			if u.heuristic != "" {
				queue(heuristicKey(u.heuristic))
			}
		}
	}
}

// dispatchCosts queues all ZoneCosts, as zones or costs have changed: after the model has
// taken that in, by which their statuses are made.
func (c *Controller) dispatchCosts(s *catalog.Snapshot) {
	for key := range s.ZoneCosts.All() {
		c.policies.Add(costsKey(key.Name))
	}
}

// dispatchUses queues all policies, as Services may have another mode by default.
func (c *Controller) dispatchUses(s *catalog.Snapshot) {
	c.dispatchCosts(s)
	for key := range s.Heuristics.All() {
		c.policies.Add(heuristicKey(key.Name))
	}
}

// writePolicyStatus brings the status of a policy to what it should be.
func (c *Controller) writePolicyStatus(ctx context.Context, key resource.Key) error {
	s := c.config.Catalog.Snapshot()
	if _, ready := c.model.current(); !ready {
		return loop.ErrStale
	}
	name := catalog.Key{Name: key.Name}
	if key.Namespace == kind.ZoneCosts.Singular {
		if costs, ok := s.ZoneCosts.Get(name); ok {
			next := costs.DeepCopy()
			c.costsStatus(s, next)
			return c.updateStatus(ctx, key, kind.ZoneCosts, next, equality.Semantic.DeepEqual(next.Status, costs.Status))
		}
	} else if heuristic, ok := s.Heuristics.Get(name); ok {
		next := heuristic.DeepCopy()
		c.heuristicStatus(s, next)
		return c.updateStatus(ctx, key, kind.TopologyHeuristic, next, equality.Semantic.DeepEqual(next.Status, heuristic.Status))
	}
	c.policies.Forget(key)
	return nil
}

func (c *Controller) updateStatus(ctx context.Context, key resource.Key, d *resource.Descriptor, next resource.Object, same bool) error {
	if same {
		return nil
	}
	c.policies.Writes(key)
	_, err := c.config.Client.UpdateStatus(ctx, d, next)
	return loop.Outcome(fmt.Sprintf("write status of %s %s", d.Singular, key.Name), err)
}

// costsStatus sets the status of a ZoneCosts.
func (c *Controller) costsStatus(s *catalog.Snapshot, costs *meshv1alpha1.ZoneCosts) {
	users, modes := int32(0), c.modes(s)
	for _, service := range s.Services.All() {
		if modes.Costs(service) == costs.Name {
			users++
		}
	}
	accepted := metav1.Condition{Status: metav1.ConditionTrue, Reason: ReasonAccepted, Message: "the planner uses these costs"}
	resolved := resolvedFor(users, "are planned with it", "no Service of this zone is planned with it")
	in, _ := c.model.input(Params{Costs: costs.Name}, &trafficplan.Group{}) // an error leaves the warning
	switch {
	case unusable(&costs.Spec) != "":
		accepted = metav1.Condition{Status: metav1.ConditionFalse, Reason: ReasonInvalid, Message: in.warning}
	case in.warning != "":
		resolved = metav1.Condition{Status: metav1.ConditionFalse, Reason: ReasonUnknownZones, Message: in.warning}
	}
	c.setPolicyStatus(&costs.Status, costs.Generation, users, accepted, resolved)
}

// Checked is a Heuristic that may be known not to work, whatever it is asked.
type Checked interface {
	// Problem is why every decision fails; nil: it is not known that one does.
	Problem() error
}

// heuristicStatus sets the status of a TopologyHeuristic.
func (c *Controller) heuristicStatus(s *catalog.Snapshot, h *meshv1alpha1.TopologyHeuristic) {
	users, modes := int32(0), c.modes(s)
	var failed []string
	for key, service := range s.Services.All() {
		if modes.Heuristic(service) != h.Name {
			continue
		}
		users++
		if why := modes.useBy(service).failed; why != "" {
			failed = append(failed, fmt.Sprintf("%s: %s", key, why))
		}
	}
	accepted := metav1.Condition{Status: metav1.ConditionTrue, Reason: ReasonAccepted, Message: "the rule compiles"}
	if c.config.Heuristics != nil {
		found, _ := c.config.Heuristics.Find(meshv1alpha1.TopologyHeuristicPrefix + h.Name)
		if checked, ok := found.(Checked); ok && checked.Problem() != nil {
			accepted = metav1.Condition{Status: metav1.ConditionFalse, Reason: ReasonInvalid, Message: checked.Problem().Error()}
		}
	}
	resolved := resolvedFor(users, "have chosen it", "no Service of this zone has chosen it")
	if failed != nil {
		slices.Sort(failed)
		more := ""
		if n := len(failed) - 1; n > 0 {
			more = fmt.Sprintf("; and %d more", n)
		}
		resolved = metav1.Condition{Status: metav1.ConditionFalse, Reason: ReasonRuleFailed, Message: failed[0] + more}
	}
	c.setPolicyStatus(&h.Status, h.Generation, users, accepted, resolved)
}

func resolvedFor(users int32, what, none string) metav1.Condition {
	if users == 0 {
		return metav1.Condition{Status: metav1.ConditionTrue, Reason: ReasonNotUsed, Message: none}
	}
	return metav1.Condition{Status: metav1.ConditionTrue, Reason: ReasonResolved, Message: fmt.Sprintf("Services that %s: %d", what, users)}
}

// setPolicyStatus leaves what zones observe.
func (c *Controller) setPolicyStatus(s *meshv1alpha1.PolicyStatus, generation int64, users int32, accepted, resolved metav1.Condition) {
	s.ObservedGeneration, s.Services = generation, users
	accepted.Type, resolved.Type = meshv1alpha1.PolicyAccepted, meshv1alpha1.PolicyResolved
	for _, cond := range []metav1.Condition{accepted, resolved} {
		cond.ObservedGeneration, cond.LastTransitionTime = generation, metav1.NewTime(c.clock.Now())
		if len(cond.Message) > maxMessage {
			cond.Message = cond.Message[:maxMessage]
		}
		meta.SetStatusCondition(&s.Conditions, cond)
	}
}
