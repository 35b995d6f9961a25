package topology

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	plannerv1alpha1 "github.com/proxima-mesh/proxima/api/planner/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/controller/endpointslice"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/planner/auto"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/topology/trafficplan"
)

// outcome is what was decided about the hints of a Service and family.
type outcome struct {
	mode Kind
	// hinted: it has hints. message is the text of the last event, warning its kind.
	hinted, warning bool
	message         string
}

// hinting is what is remembered of a Service's hints. params are those that hold where
// annotations cannot be used and there is no plan; groups are the searched hints.
type hinting struct {
	families map[discoveryv1.AddressType]outcome
	params   Params
	groups   map[trafficplan.Name]*hintPlan
}

// advice is one answer to the EndpointSlice controller.
type advice struct {
	c       *Controller
	service *corev1.Service
	params  Params
	plan    []*plannerv1alpha1.TrafficPlan
	state   *hinting
	// outcomes are to be remembered, and events to be written, once the slices are.
	outcomes map[discoveryv1.AddressType]outcome
	events   []event
}

// Advise implements endpointslice.Advisor.
func (c *Controller) Advise(service *corev1.Service) (endpointslice.HintFunc, func(context.Context)) {
	if !c.config.Catalog.Listed(basis...) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.kept[resource.KeyOf(service)] = struct{}{} // its mode cannot be told; the first delta queues it
		return keepHints, nil
	}
	snapshot := c.config.Catalog.Snapshot()
	mode, key := c.modeOf(snapshot, service), resource.KeyOf(service)
	if mode.Kind == Distribution {
		return nil, c.disabling(service)
	}
	if _, ready := c.model.current(); !ready {
		return keepHints, nil // nodes are not known yet: the first delta queues the Service
	}
	a := &advice{c: c, service: service, plan: partsOf(snapshot, key), outcomes: map[discoveryv1.AddressType]outcome{}}
	a.state, a.params = c.hinting(service, a.plan)
	hints := a.auto
	switch mode.Kind {
	case Planned:
		hints = a.planned
	case Custom:
		hints = a.custom(mode.Name)
	}
	return hints, a.onWritten
}

// Forget implements endpointslice.Advisor.
func (c *Controller) Forget(key resource.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.hints, key)
}

// hinting of a Service, and the parameters that hold for it.
func (c *Controller) hinting(service *corev1.Service, plan []*plannerv1alpha1.TrafficPlan) (*hinting, Params) {
	key := resource.KeyOf(service)
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.hints[key]
	if h == nil {
		h = &hinting{families: map[discoveryv1.AddressType]outcome{}, params: DefaultParams(), groups: map[trafficplan.Name]*hintPlan{}}
		c.hints[key] = h
	}
	if _, problems := ParamsOf(service.Annotations); problems == nil || len(plan) > 0 {
		h.params = c.paramsOf(service, plan)
	}
	return h, h.params
}

// keepHints leaves every hint as it is.
func keepHints(_ *corev1.Service, _ discoveryv1.AddressType, all []endpointslice.HintSlice) {
	for _, s := range all {
		for i := range s.Endpoints {
			s.Hints[i] = s.Endpoints[i].Hints
		}
	}
}

// auto is Kubernetes' heuristic.
func (a *advice) auto(_ *corev1.Service, family discoveryv1.AddressType, all []endpointslice.HintSlice) {
	cluster, _ := a.c.model.current()
	was := a.was(family, Auto)
	r := auto.Decide(cluster.ratios, auto.Request{
		Slices: autoSlices(all), AddressType: string(family), Hinted: was.hinted, Overload: a.params.Overload,
	})
	give(all, r.Hints)
	is := outcome{mode: Auto, hinted: r.Hinted, message: was.message, warning: was.warning}
	if r.Event != nil {
		is.message, is.warning = r.Event.Message, r.Event.Warning
		a.queueEvent(was, event{r.Event.Warning, r.Event.Reason, r.Event.Message})
	}
	a.outcomes[family] = is
}

// was is the outcome before for a family in this mode.
func (a *advice) was(family discoveryv1.AddressType, mode Kind) outcome {
	if t, ok := a.state.families[family]; ok && t.mode == mode {
		return t
	}
	return outcome{mode: mode}
}

// queueEvent for when the slices are written, unless it is the last one of the family.
func (a *advice) queueEvent(was outcome, e event) {
	if e.message != was.message {
		a.events = append(a.events, e)
	}
}

// onWritten is called when the slices are in place. After a restart, events are left out
// if the Service's condition is what it would be: they were written then.
func (a *advice) onWritten(ctx context.Context) {
	key := resource.KeyOf(a.service)
	a.c.mu.Lock()
	first := len(a.state.families) == 0
	same := maps.Equal(a.state.families, a.outcomes)
	a.state.families = a.outcomes
	a.c.mu.Unlock()
	if len(a.events) > 0 && !(first && a.c.conditionStands(a.service)) {
		for _, e := range a.events {
			a.c.event(ctx, a.service, e)
		}
	}
	if !same {
		a.c.status.Add(key)
	}
}

// disabling says, once the slices are written, that a Service whose mode is gone has
// no hints of it any more; nil: it never had.
func (c *Controller) disabling(service *corev1.Service) func(context.Context) {
	key := resource.KeyOf(service)
	c.mu.Lock()
	state := c.hints[key]
	c.mu.Unlock()
	if state == nil {
		return nil
	}
	return func(ctx context.Context) {
		c.Forget(key)
		for _, family := range sortedKeys(state.families) {
			if t := state.families[family]; t.mode == Auto && t.hinted {
				e := auto.Disabled(string(family))
				c.event(ctx, service, event{e.Warning, e.Reason, e.Message})
			}
		}
		c.status.Add(key)
	}
}

// autoSlices translates slices for package auto.
func autoSlices(all []endpointslice.HintSlice) []auto.Slice {
	out := make([]auto.Slice, len(all))
	for i, s := range all {
		switch {
		case s.New:
			out[i].State = auto.Create
		case s.Changed:
			out[i].State = auto.Update
		default:
			out[i].State = auto.Unchanged
		}
		out[i].Endpoints = make([]auto.Endpoint, len(s.Endpoints))
		for k := range s.Endpoints {
			e := &s.Endpoints[k]
			out[i].Endpoints[k] = auto.Endpoint{
				Zone: locality.Zone(value(e.Zone)), Node: value(e.NodeName), Hints: autoHints(e.Hints),
				Ready: e.Conditions.Ready != nil && *e.Conditions.Ready,
			}
		}
	}
	return out
}

func value(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func autoHints(h *discoveryv1.EndpointHints) *auto.Hints {
	if h == nil {
		return nil
	}
	out := &auto.Hints{}
	for _, z := range h.ForZones {
		out.ForZones = append(out.ForZones, locality.Zone(z.Name))
	}
	for _, n := range h.ForNodes {
		out.ForNodes = append(out.ForNodes, n.Name)
	}
	return out
}

// give writes hints to slices. What is as it was stays the very same.
func give(all []endpointslice.HintSlice, hints [][]*auto.Hints) {
	for i, s := range all {
		for k := range s.Endpoints {
			s.Hints[k] = apiHints(s.Endpoints[k].Hints, hints[i][k])
		}
	}
}

func apiHints(was *discoveryv1.EndpointHints, is *auto.Hints) *discoveryv1.EndpointHints {
	if is == nil {
		return nil
	}
	if was != nil {
		h := autoHints(was)
		if slices.Equal(h.ForZones, is.ForZones) && slices.Equal(h.ForNodes, is.ForNodes) {
			return was
		}
	}
	out := &discoveryv1.EndpointHints{}
	for _, z := range is.ForZones {
		out.ForZones = append(out.ForZones, discoveryv1.ForZone{Name: string(z)})
	}
	for _, n := range is.ForNodes {
		out.ForNodes = append(out.ForNodes, discoveryv1.ForNode{Name: n})
	}
	return out
}
