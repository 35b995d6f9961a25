package topology

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/controller/endpointslice"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/planner/auto"
)

// maxHints of one kind that an endpoint may have (discovery.k8s.io/v1).
const maxHints = 8

// Question is what a Heuristic is asked: the hints of one Service and address family.
type Question struct {
	// Service must not be changed.
	Service *corev1.Service
	Family  discoveryv1.AddressType
	// Zones of the cluster, ascending.
	Zones     []ZoneFacts
	Endpoints []EndpointFacts
}

// ZoneFacts are what is known of a zone.
type ZoneFacts struct {
	Name   locality.Zone
	Region locality.Region
	// CPU is the zone's share of the allocatable CPU of nodes that count.
	CPU float64
	// Live: there is a node that is ready.
	Live bool
}

// EndpointFacts are what is known of an endpoint.
type EndpointFacts struct {
	Address, Node string
	Zone          locality.Zone
	Ready         bool
	// Hints that it has; nil: none. Not to be changed.
	Hints *auto.Hints
}

// Decision is what a Heuristic says.
type Decision struct {
	// Hints of each of the question's endpoints, nil for none.
	Hints []*auto.Hints
	// Weights of each of the question's endpoints for connections from each of its zones:
	// agents divide a zone's connections in proportion, and send nothing where it is 0. A
	// zone for which all are 0 goes by hints. Nil: hints alone decide.
	Weights [][]float64
}

// Heuristic decides hints and weights. It must be pure: asked with its own answer in
// place it gives the same one, or slices would be written without end. It must be quick,
// as a Service and the views of agents wait for it, and safe for concurrent use.
type Heuristic interface {
	// Decide answers. After an error hints and weights stay as they are, and the condition
	// and an event say why.
	Decide(Question) (Decision, error)
}

// Heuristics finds a Heuristic by the value of the annotation, a name with a domain as
// prefix. Names may come and go: those of TopologyHeuristic objects with their objects,
// which a Controller follows in the catalog.
type Heuristics interface {
	Find(name string) (Heuristic, bool)
}

// Registry is a fixed set of Heuristics.
type Registry map[string]Heuristic

// Find implements Heuristics.
func (r Registry) Find(name string) (Heuristic, bool) {
	h, ok := r[name]
	return h, ok
}

// Reasons of events about heuristics.
const (
	// reasonUnknown: the Service is routed as if it had no such mode, as in Kubernetes.
	reasonUnknown = "TopologyHeuristicUnknown"
	reasonAbsent  = "TopologyHeuristicAbsent"
	reasonFailed  = "TopologyHeuristicFailed"
)

// custom asks the heuristic of a name.
func (a *advice) custom(name string) endpointslice.HintFunc {
	return func(service *corev1.Service, family discoveryv1.AddressType, all []endpointslice.HintSlice) {
		was := a.was(family, Custom)
		is := outcome{mode: Custom}
		hints, reason, err := a.ask(name, service, family, all)
		if err != nil {
			is.message, is.warning = err.Error(), true
			a.queueEvent(was, event{true, reason, is.message})
			if reason == reasonUnknown {
				endpointslice.TrafficDistribution(service, family, all)
			} else {
				keepHints(service, family, all)
			}
		} else {
			is.hinted = true
			give(all, hints)
		}
		a.outcomes[family] = is
	}
}

func (a *advice) ask(
	name string,
	service *corev1.Service,
	family discoveryv1.AddressType,
	all []endpointslice.HintSlice,
) (hints [][]*auto.Hints, reason string, err error) {
	d, reason, err := a.c.decide(name, a.c.question(service, family, advisedFacts(all)))
	if err != nil {
		return nil, reason, fmt.Errorf("%w, addressType: %s", err, family)
	}
	return shape(d.Hints, all), "", nil
}

// decide asks the heuristic of a name, and checks its answer. reason is that of an event.
func (c *Controller) decide(name string, q Question) (d Decision, reason string, err error) {
	var found Heuristic
	if c.config.Heuristics != nil {
		found, _ = c.config.Heuristics.Find(name)
	}
	if found == nil && strings.HasPrefix(name, meshv1alpha1.TopologyHeuristicPrefix) {
		// A rule that is deleted, or not there yet: it may come with the next change.
		return d, reasonAbsent, fmt.Errorf("topology mode %q is not known here, hints are left as they are", name)
	}
	if found == nil {
		return d, reasonUnknown, fmt.Errorf("topology mode %q is not known here: hints are those of spec.trafficDistribution", name)
	}
	d, err = found.Decide(q)
	if err == nil {
		err = d.check(q)
	}
	if err != nil {
		return Decision{}, reasonFailed, fmt.Errorf("topology mode %q failed, hints are left as they are: %w", name, err)
	}
	return d, "", nil
}

// question about endpoints, with the cluster as it is.
func (c *Controller) question(service *corev1.Service, family discoveryv1.AddressType, endpoints []EndpointFacts) Question {
	q := Question{Service: service, Family: family, Endpoints: endpoints}
	cluster, _ := c.model.current()
	cpu := 0.0
	for _, p := range cluster.prior {
		cpu += p
	}
	for i, z := range cluster.zones {
		f := ZoneFacts{Name: z.Name, Region: z.Region, Live: !cluster.noNodes[i]}
		if cpu > 0 {
			f.CPU = cluster.prior[i] / cpu
		}
		q.Zones = append(q.Zones, f)
	}
	return q
}

// advisedFacts are those of endpoints in slices that are about to be written.
func advisedFacts(all []endpointslice.HintSlice) []EndpointFacts {
	var out []EndpointFacts
	for _, s := range autoSlices(all) {
		for _, e := range s.Endpoints {
			out = append(out, EndpointFacts{Zone: e.Zone, Node: e.Node, Ready: e.Ready, Hints: e.Hints})
		}
	}
	n := 0
	for _, s := range all {
		for i := range s.Endpoints {
			if len(s.Endpoints[i].Addresses) > 0 {
				out[n].Address = s.Endpoints[i].Addresses[0]
			}
			n++
		}
	}
	return out
}

// check that an answer can be used.
func (d *Decision) check(q Question) error {
	if len(d.Hints) != len(q.Endpoints) {
		return fmt.Errorf("%d hints for %d endpoints", len(d.Hints), len(q.Endpoints))
	}
	for i, h := range d.Hints {
		if h == nil {
			continue
		}
		for _, list := range [][]string{locality.Names(h.ForZones), h.ForNodes} {
			if len(list) > maxHints {
				return fmt.Errorf("endpoint %d: %d hints, at most %d are allowed", i, len(list), maxHints)
			}
			sorted := slices.Sorted(slices.Values(list))
			if len(slices.Compact(sorted)) < len(list) || slices.Contains(list, "") {
				return fmt.Errorf("endpoint %d: hints [%s] are empty or doubled", i, strings.Join(list, " "))
			}
		}
	}
	if d.Weights == nil {
		return nil
	}
	if len(d.Weights) != len(q.Endpoints) {
		return fmt.Errorf("weights of %d endpoints for %d", len(d.Weights), len(q.Endpoints))
	}
	for i, weights := range d.Weights {
		if len(weights) != len(q.Zones) {
			return fmt.Errorf("endpoint %d: %d weights for %d zones", i, len(weights), len(q.Zones))
		}
		for z, w := range weights {
			if !(w >= 0 && w <= maxRuledWeight) {
				return fmt.Errorf("endpoint %d: weight %v for zone %s, not a number from 0 to %g", i, w, q.Zones[z].Name, float64(maxRuledWeight))
			}
		}
	}
	return nil
}

// maxRuledWeight is far above what views distinguish, and sums of it are exact.
const maxRuledWeight = 1e9

// shape brings hints into the shape of the slices.
func shape(hints []*auto.Hints, all []endpointslice.HintSlice) [][]*auto.Hints {
	out := make([][]*auto.Hints, len(all))
	for i, s := range all {
		out[i], hints = hints[:len(s.Endpoints)], hints[len(s.Endpoints):]
	}
	return out
}
