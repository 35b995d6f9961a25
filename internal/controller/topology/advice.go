package topology

import (
	"context"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/proxima-mesh/proxima/internal/controller/endpointslice"
	"github.com/proxima-mesh/proxima/internal/planner/auto"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// told is what was decided about the hints of a Service and family, and said.
type told struct {
	mode Kind
	// hinted: it has hints. message is the text of the last event, warning its kind.
	hinted, warning bool
	message         string
	// allocated counts Auto's hints by zone.
	allocated map[string]int
}

// hinting is what is remembered of a Service's hints. Only the sync of its key
// touches families; plans are the searched hints of its units.
type hinting struct {
	families map[discoveryv1.AddressType]told
	plans    map[unitName]*hintPlan
}

// advice is one answer to the EndpointSlice controller.
type advice struct {
	c       *Controller
	service *corev1.Service
	params  Params
	state   *hinting
	// made is what is to be remembered, and told, once the slices are written.
	made map[discoveryv1.AddressType]told
	said []event
}

// Advise implements endpointslice.Advisor.
func (c *Controller) Advise(service *corev1.Service) (endpointslice.HintFunc, func(context.Context)) {
	mode := ModeOf(service)
	key := resource.KeyOf(service)
	if mode.Kind == Distribution {
		return nil, c.disabling(service)
	}
	c.mu.RLock()
	ready := c.primed
	c.mu.RUnlock()
	if !ready {
		return keepHints, nil // nodes are not known yet: the first plan queues the Service
	}
	a := &advice{c: c, service: service, params: c.paramsFor(service), state: c.hinting(key), made: map[discoveryv1.AddressType]told{}}
	hints := a.auto
	switch mode.Kind {
	case Planned:
		hints = a.planned
	case Custom:
		hints = a.custom(mode.Name)
	}
	return hints, a.commit
}

// Forget implements endpointslice.Advisor.
func (c *Controller) Forget(key resource.Key) {
	c.hintMu.Lock()
	defer c.hintMu.Unlock()
	delete(c.hints, key)
}

func (c *Controller) hinting(key resource.Key) *hinting {
	c.hintMu.Lock()
	defer c.hintMu.Unlock()
	h := c.hints[key]
	if h == nil {
		h = &hinting{families: map[discoveryv1.AddressType]told{}, plans: map[unitName]*hintPlan{}}
		c.hints[key] = h
	}
	return h
}

// paramsFor is what holds for a Service: its annotations or, if they cannot be used,
// what held before.
func (c *Controller) paramsFor(service *corev1.Service) Params {
	params, problems := ParamsOf(service.Annotations)
	if problems == nil {
		return params
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	if e := c.entries[resource.KeyOf(service)]; e != nil {
		return e.params
	}
	return DefaultParams()
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
	a.c.mu.RLock()
	ratios := a.c.atlas.cluster.ratios
	a.c.mu.RUnlock()
	was := a.was(family, Auto)
	r := auto.Decide(ratios, auto.Request{
		Slices: autoSlices(all), AddressType: string(family), Hinted: was.hinted, Overload: a.params.Overload,
	})
	give(all, r.Hints)
	is := told{mode: Auto, hinted: r.Hinted, message: was.message, warning: was.warning, allocated: r.Allocated}
	if r.Event != nil {
		is.message, is.warning = r.Event.Message, r.Event.Warning
		a.say(was, event{r.Event.Warning, r.Event.Reason, r.Event.Message})
	}
	a.made[family] = is
}

// was is what was said before of a family in this mode. What an earlier run of this
// program said is on the Service.
func (a *advice) was(family discoveryv1.AddressType, mode Kind) told {
	if t, ok := a.state.families[family]; ok && t.mode == mode {
		return t
	}
	return told{mode: mode}
}

// say has an event written once the slices are, unless it is no news.
func (a *advice) say(was told, e event) {
	if e.message == was.message {
		return
	}
	if was.message == "" {
		if c := meta.FindStatusCondition(a.service.Status.Conditions, ConditionPlan); c != nil && strings.Contains(c.Message, e.message) {
			return
		}
	}
	a.said = append(a.said, e)
}

// commit is called when the slices are in place.
func (a *advice) commit(ctx context.Context) {
	a.c.hintMu.Lock()
	same := maps.EqualFunc(a.state.families, a.made, func(x, y told) bool {
		return x.mode == y.mode && x.hinted == y.hinted && x.warning == y.warning && x.message == y.message
	})
	a.state.families = a.made
	a.c.hintMu.Unlock()
	for _, e := range a.said {
		a.c.event(ctx, a.service, e)
	}
	if !same {
		a.c.restate(resource.KeyOf(a.service))
	}
}

// disabling says, once the slices are written, that a Service whose mode is gone has
// no hints of it any more; nil: it never had.
func (c *Controller) disabling(service *corev1.Service) func(context.Context) {
	key := resource.KeyOf(service)
	c.hintMu.Lock()
	state := c.hints[key]
	c.hintMu.Unlock()
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
		c.restate(key)
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
				Zone: value(e.Zone), Node: value(e.NodeName), Hints: autoHints(e.Hints),
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
		out.ForZones = append(out.ForZones, z.Name)
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
		out.ForZones = append(out.ForZones, discoveryv1.ForZone{Name: z})
	}
	for _, n := range is.ForNodes {
		out.ForNodes = append(out.ForNodes, discoveryv1.ForNode{Name: n})
	}
	return out
}
