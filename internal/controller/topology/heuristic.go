package topology

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/proxima-mesh/proxima/internal/controller/endpointslice"
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
	Name, Region string
	// CPU is the zone's share of the allocatable CPU of nodes that count.
	CPU float64
	// Live: there is a node that is ready.
	Live bool
}

// EndpointFacts are what is known of an endpoint.
type EndpointFacts struct {
	Address, Zone, Node string
	Ready               bool
	// Hints that it has; nil: none. Not to be changed.
	Hints *auto.Hints
}

// Heuristic decides hints. It must be pure: asked with its own answer in place it
// gives the same one, or slices would be written without end. It must be quick, as a
// Service waits for it, and safe for concurrent use.
type Heuristic interface {
	// Hints returns those of each of the question's endpoints, nil for none. After an
	// error hints stay as they are, and an event says why.
	Hints(Question) ([]*auto.Hints, error)
}

// Heuristics finds a Heuristic by the value of the annotation, a name with a domain as
// prefix. Names may come and go; Controller.Recheck has Services of one looked at again.
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
	reasonUnknown = "TopologyHeuristicUnknown"
	reasonFailed  = "TopologyHeuristicFailed"
)

// custom asks the heuristic of a name.
func (a *advice) custom(name string) endpointslice.HintFunc {
	return func(service *corev1.Service, family discoveryv1.AddressType, all []endpointslice.HintSlice) {
		was := a.was(family, Custom)
		is := told{mode: Custom}
		hints, reason, err := a.ask(name, service, family, all)
		if err != nil {
			is.message, is.warning = err.Error(), true
			a.say(was, event{true, reason, is.message})
			keepHints(service, family, all)
		} else {
			is.hinted = true
			give(all, hints)
		}
		a.made[family] = is
	}
}

func (a *advice) ask(name string, service *corev1.Service, family discoveryv1.AddressType, all []endpointslice.HintSlice) (hints [][]*auto.Hints, reason string, err error) {
	var found Heuristic
	if a.c.config.Heuristics != nil {
		found, _ = a.c.config.Heuristics.Find(name)
	}
	if found == nil {
		return nil, reasonUnknown, fmt.Errorf("topology mode %q is not known here, hints are left as they are, addressType: %s", name, family)
	}
	answer, err := found.Hints(a.c.question(service, family, all))
	if err == nil {
		hints, err = shape(answer, all)
	}
	if err != nil {
		return nil, reasonFailed, fmt.Errorf("topology mode %q failed, hints are left as they are: %w, addressType: %s", name, err, family)
	}
	return hints, "", nil
}

func (c *Controller) question(service *corev1.Service, family discoveryv1.AddressType, all []endpointslice.HintSlice) Question {
	q := Question{Service: service, Family: family}
	c.mu.RLock()
	cluster := c.atlas.cluster
	c.mu.RUnlock()
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
	for _, s := range autoSlices(all) {
		for _, e := range s.Endpoints {
			q.Endpoints = append(q.Endpoints, EndpointFacts{Zone: e.Zone, Node: e.Node, Ready: e.Ready, Hints: e.Hints})
		}
	}
	n := 0
	for _, s := range all {
		for i := range s.Endpoints {
			if len(s.Endpoints[i].Addresses) > 0 {
				q.Endpoints[n].Address = s.Endpoints[i].Addresses[0]
			}
			n++
		}
	}
	return q
}

// shape checks an answer and brings it into the shape of the slices.
func shape(answer []*auto.Hints, all []endpointslice.HintSlice) ([][]*auto.Hints, error) {
	want := 0
	for _, s := range all {
		want += len(s.Endpoints)
	}
	if len(answer) != want {
		return nil, fmt.Errorf("%d hints for %d endpoints", len(answer), want)
	}
	for i, h := range answer {
		if h == nil {
			continue
		}
		for _, list := range [][]string{h.ForZones, h.ForNodes} {
			if len(list) > maxHints {
				return nil, fmt.Errorf("endpoint %d: %d hints, at most %d are allowed", i, len(list), maxHints)
			}
			sorted := slices.Sorted(slices.Values(list))
			if len(slices.Compact(sorted)) < len(list) || slices.Contains(list, "") {
				return nil, fmt.Errorf("endpoint %d: hints [%s] are empty or doubled", i, strings.Join(list, " "))
			}
		}
	}
	out := make([][]*auto.Hints, len(all))
	for i, s := range all {
		out[i], answer = answer[:len(s.Endpoints)], answer[len(s.Endpoints):]
	}
	return out, nil
}
