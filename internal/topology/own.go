package topology

import (
	"fmt"
	"maps"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/proxima-mesh/proxima/heuristic"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/planner/auto"
)

// Own finds the heuristics that a program was built with, and others after them.
type Own struct {
	Set   heuristic.Set
	Other Heuristics // nil: there are no others
}

// Find implements Heuristics.
func (o Own) Find(name string) (Heuristic, bool) {
	if h, ok := o.Set[name]; ok {
		return own{h}, true
	}
	if o.Other == nil {
		return nil, false
	}
	return o.Other.Find(name)
}

// own is a heuristic in Go.
type own struct{ heuristic heuristic.Heuristic }

// Decide implements Heuristic. A panic of somebody else's code becomes an error.
func (o own) Decide(q Question) (d Decision, err error) {
	defer func() {
		if p := recover(); p != nil {
			d, err = Decision{}, fmt.Errorf("it panicked: %v", p)
		}
	}()
	ask := heuristic.Question{
		Namespace: q.Service.Namespace, Service: q.Service.Name, Labels: maps.Clone(q.Service.Labels), Annotations: maps.Clone(q.Service.Annotations),
		IPv6:  q.Family == discoveryv1.AddressTypeIPv6,
		Zones: make([]heuristic.Zone, len(q.Zones)), Endpoints: make([]heuristic.Endpoint, len(q.Endpoints)),
	}
	for i, z := range q.Zones {
		ask.Zones[i] = heuristic.Zone{Name: string(z.Name), Region: string(z.Region), CPU: z.CPU, Live: z.Live}
	}
	for i, e := range q.Endpoints {
		ask.Endpoints[i] = heuristic.Endpoint{Address: e.Address, Node: e.Node, Zone: string(e.Zone), Ready: e.Ready}
	}
	answer, err := o.heuristic.Decide(ask)
	if err != nil {
		return Decision{}, err
	}
	d = Decision{Hints: make([]*auto.Hints, len(answer.Zones)), Weights: answer.Weights}
	for i, zones := range answer.Zones {
		if len(zones) > 0 {
			d.Hints[i] = &auto.Hints{ForZones: locality.Zones(zones...)}
		}
	}
	if answer.Zones == nil {
		d.Hints = make([]*auto.Hints, len(q.Endpoints))
	}
	return d, nil
}
