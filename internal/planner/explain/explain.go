// Package explain says why a plan is as it is, and what another situation would make
// of it.
//
// It owns the words and the shape of the answer (Explanation, the same for people
// and programs); the facts are those that the solver noted while it decided. Enter at
// Of; FailZone, AddEndpoints and ScaleDemand make the situations to ask about, without
// touching the real one. No I/O, no clock, nothing kept.
package explain

import (
	"fmt"
	"math"
	"strings"

	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/planner"
	"github.com/proxima-mesh/proxima/internal/planner/auto"
	"github.com/proxima-mesh/proxima/internal/planner/hint"
)

// Explanation of one plan.
type Explanation struct {
	// Inputs and the limit they give, as a multiple of the mean load.
	Params      planner.Params `json:"params"`
	Limit       float64        `json:"limit"`
	LightlyUsed bool           `json:"lightlyUsed,omitempty"`

	Zones   []Zone          `json:"zones"`
	Metrics planner.Metrics `json:"metrics"`
	// Warnings are what an operator should look at.
	Warnings []string `json:"warnings,omitempty"`
	// Kubernetes is what its own heuristic would have done; nil if the caller did not give the
	// information that it needs.
	Kubernetes *Kubernetes `json:"kubernetes,omitempty"`
}

// Zone is a zone as a source and as a destination.
type Zone struct {
	Name   locality.Zone   `json:"name"`
	Region locality.Region `json:"region,omitempty"`
	// Demand is the zone's share of all traffic.
	Demand float64 `json:"demand"`
	// Weight of its endpoints together.
	Weight int64 `json:"weight"`
	// NoNodes: what was measured does not count.
	NoNodes bool   `json:"noNodes,omitempty"`
	Rule    string `json:"rule"`
	// To is where its traffic goes, shares above 0 only.
	To []Share `json:"to,omitempty"`
	// Overload of its endpoints, as a multiple of the mean.
	Overload float64 `json:"overload"`
	// Full: its endpoints have all that the limit allows.
	Full bool `json:"full,omitempty"`
	// EndpointsMissing is how many more, of weight 1, would keep its traffic home; 0 if
	// it is home.
	EndpointsMissing int64 `json:"endpointsMissing,omitempty"`
}

// Share of a zone's traffic.
type Share struct {
	Zone  locality.Zone `json:"zone"`
	Share float64       `json:"share"`
}

// Kubernetes is what the heuristic of the mode Auto would do.
type Kubernetes struct {
	// Hints says whether it would give any. If not, traffic goes everywhere.
	Hints   bool            `json:"hints"`
	Refusal string          `json:"refusal,omitempty"`
	Metrics planner.Metrics `json:"metrics"`
}

// Cluster is what the comparison with Kubernetes needs beyond the problem.
type Cluster struct {
	Ratios auto.Ratios
	// Endpoints are the zones of the ready endpoints, by index.
	Endpoints []int
	// NoZone is the name under which endpoints without a zone are planned, empty if
	// that is not done. The heuristic gets none.
	NoZone locality.Zone
}

// Of explains the plan that was made for a problem. cluster may be nil.
func Of(plan *planner.Plan, problem *planner.Problem, cluster *Cluster) *Explanation {
	factor, lightlyUsed := plan.Factor()
	e := &Explanation{Params: plan.Params(), Limit: factor.Float(), LightlyUsed: lightlyUsed, Metrics: plan.Metrics()}
	for i := range plan.Topology().Len() {
		e.Zones = append(e.Zones, zoneOf(plan, problem, i))
	}
	e.warn(plan, problem)
	if cluster != nil {
		e.Kubernetes = KubernetesOf(plan.Topology(), problem, cluster)
	}
	return e
}

func zoneOf(plan *planner.Plan, problem *planner.Problem, i int) Zone {
	t := plan.Topology()
	z := Zone{
		Name: t.Zone(i).Name, Region: t.Zone(i).Region, Weight: problem.Weight[i],
		NoNodes: problem.NoNodes != nil && problem.NoNodes[i],
		Rule:    plan.Rule(i).String(), Overload: plan.Overload(i),
		Full: plan.Limit(i) > 0 && plan.Load(i) == plan.Limit(i),
	}
	if plan.Total() > 0 {
		z.Demand = float64(plan.Demand(i)) / float64(plan.Total())
	}
	for j := range t.Len() {
		if s := plan.Share(i, j); s > 0 {
			z.To = append(z.To, Share{t.Zone(j).Name, s})
		}
	}
	if f, _ := plan.Factor(); plan.Demand(i) > plan.Limit(i) {
		z.EndpointsMissing = missing(z.Demand, f.Float(), z.Weight, problem.Weight)
	}
	return z
}

// missing is the least k with f·(w+k)/(W+k) ≥ demand. Adding endpoints raises a
// zone's part of the limit; it is found unless f is 1 and all demand is here.
func missing(demand, f float64, own int64, weights []int64) int64 {
	sum := int64(0)
	for _, w := range weights {
		sum += w
	}
	if f <= demand {
		return 0
	}
	k := (demand*float64(sum) - f*float64(own)) / (f - demand)
	return max(1, int64(math.Ceil(k-1e-9)))
}

func (e *Explanation) warn(plan *planner.Plan, problem *planner.Problem) {
	if !plan.HasEndpoints() {
		e.Warnings = append(e.Warnings, "there is no ready endpoint: nothing can be sent anywhere")
	}
	p := e.Params
	if busy := (1 + p.Overload) * p.Utilisation; busy > 1 {
		e.Warnings = append(e.Warnings, fmt.Sprintf("endpoints are %.0f %% used: at the overload that is allowed they would need %.0f %%",
			100*p.Utilisation, 100*busy))
	}
	if p.Margin > p.Overload {
		e.Warnings = append(e.Warnings, "the margin is larger than the overload that is allowed: the limit is the mean load")
	}
	for i, z := range e.Zones {
		if z.NoNodes && problem.Demand[i] > 0 {
			e.Warnings = append(e.Warnings, fmt.Sprintf("zone %s has no live node: its demand counts as 0", z.Name))
		}
	}
}

// KubernetesOf runs the heuristic on the endpoints, as one new slice.
func KubernetesOf(t *planner.Topology, problem *planner.Problem, c *Cluster) *Kubernetes {
	slice := auto.Slice{}
	for _, z := range c.Endpoints {
		e := auto.Endpoint{Zone: t.Zone(z).Name, Ready: true}
		if e.Zone == c.NoZone {
			e.Zone = ""
		}
		slice.Endpoints = append(slice.Endpoints, e)
	}
	demand := make([]float64, t.Len())
	for i, d := range problem.Demand {
		if problem.NoNodes == nil || !problem.NoNodes[i] {
			demand[i] = d
		}
	}
	decision := auto.Decide(c.Ratios, auto.Request{Slices: []auto.Slice{slice}, AddressType: "IPv4"})
	k := &Kubernetes{Hints: decision.Hinted}
	if !decision.Hinted {
		k.Refusal, _, _ = strings.Cut(decision.Event.Message, ", addressType")
		k.Metrics = hint.Score(t, demand, c.Endpoints, nil)
		return k
	}
	masks := make([]hint.Mask, len(c.Endpoints))
	for n, h := range decision.Hints[0] {
		if z, ok := t.Index(h.ForZones[0]); ok && z < hint.MaxZones {
			masks[n] = 1 << z
		}
	}
	k.Metrics = hint.Score(t, demand, c.Endpoints, masks)
	return k
}
