// Package ruleset lets Services use the rules of TopologyHeuristic objects as their
// topology mode.
//
// It owns the way from an object to a program, and from what the topology controller
// asks to what an expression sees. Enter at New: a Controller is that one's Heuristics,
// and Run tells it when a rule has changed. The language is package planner/rule's;
// who asks, and what becomes of an answer or a failure, is package topology's.
package ruleset

import (
	"context"
	"fmt"
	"strings"
	"sync"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/planner/auto"
	"github.com/proxima-mesh/proxima/internal/planner/rule"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/topology"
)

// Config of a Controller.
type Config struct {
	// Catalog that holds the TopologyHeuristics.
	Catalog *catalog.Catalog
	// Demand is what expressions see of it.
	Demand topology.Demand
	// Recheck has Services looked at again that use a mode, as its rule has changed.
	Recheck func(mode string)
}

// Controller finds rules by the name of a mode. Make it with New. Its methods are safe
// for concurrent use.
type Controller struct {
	config Config

	mu sync.Mutex
	// rules that were asked for, by the name of their object.
	rules map[string]*compiled
}

var _ topology.Heuristics = (*Controller)(nil)

// New makes a controller. It finds what the catalog holds at any time; Run tells of
// changes.
func New(config Config) *Controller {
	return &Controller{config: config, rules: map[string]*compiled{}}
}

// Run has Services looked at again whose rules change, until ctx ends; it returns nil
// then.
func (c *Controller) Run(ctx context.Context) error {
	sub := c.config.Catalog.Subscribe(catalog.Heuristics)
	defer sub.Close()
	for {
		d, err := sub.Next(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		for _, change := range d.Heuristics {
			if change.New == nil {
				c.forget(change.Key.Name)
			}
			if change.Old == nil || change.New == nil || change.Old.Generation != change.New.Generation {
				c.config.Recheck(meshv1alpha1.TopologyHeuristicPrefix + change.Key.Name)
			}
		}
	}
}

func (c *Controller) forget(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.rules, name)
}

// Find implements topology.Heuristics.
func (c *Controller) Find(mode string) (topology.Heuristic, bool) {
	name, ours := strings.CutPrefix(mode, meshv1alpha1.TopologyHeuristicPrefix)
	if !ours {
		return nil, false
	}
	object, ok := c.config.Catalog.Snapshot().Heuristics.Get(catalog.Key{Name: name})
	if !ok {
		return nil, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.rules[name]; r != nil && r.object == object {
		return r, true
	}
	r := &compiled{object: object, demand: c.config.Demand}
	r.program, r.err = rule.Compile(kind.HeuristicSpec(object))
	c.rules[name] = r
	return r, true
}

// compiled is a rule that was compiled.
type compiled struct {
	object *meshv1alpha1.TopologyHeuristic
	demand topology.Demand
	// program; or why there is none, which an older version let pass.
	program *rule.Program
	err     error
}

// Decide implements topology.Heuristic.
func (r *compiled) Decide(q topology.Question) (topology.Decision, error) {
	if r.err != nil {
		return topology.Decision{}, fmt.Errorf("topologyheuristic %s: %w", r.object.Name, r.err)
	}
	result, err := r.program.Eval(context.Background(), r.input(q)) // it has a timeout of its own
	if err != nil {
		return topology.Decision{}, fmt.Errorf("topologyheuristic %s: %w", r.object.Name, err)
	}
	hints := make([]*auto.Hints, len(result.Zones))
	for i, zones := range result.Zones {
		if zones != nil {
			hints[i] = &auto.Hints{ForZones: zones}
		}
	}
	return topology.Decision{Hints: hints, Weights: result.Weights}, nil
}

// input is what expressions see of a question.
func (r *compiled) input(q topology.Question) rule.Input {
	in := rule.Input{
		Service:   rule.Service{Namespace: q.Service.Namespace, Name: q.Service.Name},
		Zones:     make([]rule.Zone, len(q.Zones)),
		Endpoints: make([]rule.Endpoint, len(q.Endpoints)),
	}
	at := make(map[string]int, len(q.Zones))
	for i, z := range q.Zones {
		at[z.Name] = i
		in.Zones[i] = rule.Zone{Name: z.Name, Region: z.Region, Live: z.Live, CPU: z.CPU}
	}
	ready := 0
	for i, e := range q.Endpoints {
		in.Endpoints[i] = rule.Endpoint{Address: e.Address, Zone: e.Zone, Node: e.Node, Ready: e.Ready}
		k, ok := at[e.Zone]
		if ok {
			in.Endpoints[i].Region = q.Zones[k].Region
		}
		if e.Ready {
			ready++
			if ok {
				in.Zones[k].Endpoints++
			}
		}
	}
	for i := range in.Zones {
		if ready > 0 {
			in.Zones[i].Capacity = float64(in.Zones[i].Endpoints) / float64(ready)
		}
	}
	r.measure(q, &in)
	return in
}

// measure fills in the demand of all ports of the Service, which share endpoints: each
// port counts by its connections, or all alike if there are none.
func (r *compiled) measure(q topology.Question, in *rule.Input) {
	names, prior, noNodes := make([]string, len(q.Zones)), make([]float64, len(q.Zones)), make([]bool, len(q.Zones))
	for i, z := range q.Zones {
		names[i], prior[i], noNodes[i] = z.Name, z.CPU, !z.Live
	}
	sum := make([]float64, len(names))
	total := 0.0
	for _, port := range q.Service.Spec.Ports {
		e := r.demand.Shares(proxy.PortName{ServiceName: proxy.ServiceName{Namespace: q.Service.Namespace, Name: q.Service.Name}, Port: port.Name}, names, prior, noNodes)
		weigh := e.Rate
		if !e.Measured {
			weigh = 0
		}
		in.Service.Measured = in.Service.Measured || e.Measured
		in.Service.Rate += weigh
		if weigh == 0 {
			weigh = nothing
		}
		total += weigh
		for i, share := range e.Shares {
			sum[i] += share * weigh
		}
	}
	for i := range sum {
		if total > 0 {
			in.Zones[i].Demand = sum[i] / total
		}
	}
}

// nothing is what a port without connections weighs beside others: it decides alone.
const nothing = 1e-9
