// Package ruleset lets Services use the rules of TopologyHeuristic objects as their
// topology mode.
//
// It owns the way from an object to a program, and from a question of the topology
// controller to the input of an expression. Enter at New: a Rules is that controller's
// Heuristics. The language is package planner/rule's; what becomes of an answer or a
// failure is package topology's, which also follows the objects.
package ruleset

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/planner/auto"
	"github.com/proxima-mesh/proxima/internal/planner/rule"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/topology"
)

// Config of Rules.
type Config struct {
	// Catalog that holds the TopologyHeuristics.
	Catalog *catalog.Catalog
	// Demand is what expressions see of it.
	Demand topology.Demand
}

// Rules finds rules by the name of a mode. Make it with New. Safe for concurrent use.
type Rules struct {
	config Config

	mu sync.Mutex
	// compiled rules, by the name of their object.
	compiled map[string]*compiled
}

var _ topology.Heuristics = (*Rules)(nil)

// New makes Rules, which find what the catalog holds at any time.
func New(config Config) *Rules {
	return &Rules{config: config, compiled: map[string]*compiled{}}
}

// Find implements topology.Heuristics. A rule is compiled when it is looked for, and
// again when its object has changed.
func (r *Rules) Find(mode string) (topology.Heuristic, bool) {
	name, ours := strings.CutPrefix(mode, meshv1alpha1.TopologyHeuristicPrefix)
	if !ours {
		return nil, false
	}
	objects := r.config.Catalog.Snapshot().Heuristics
	object, ok := objects.Get(catalog.Key{Name: name})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.prune(objects)
	if !ok {
		return nil, false
	}
	if c := r.compiled[name]; c != nil && (c.object == object || equality.Semantic.DeepEqual(c.object.Spec, object.Spec)) {
		return c, true
	}
	c := &compiled{object: object, demand: r.config.Demand}
	c.program, c.err = rule.Compile(kind.HeuristicSpec(object))
	r.compiled[name] = c
	return c, true
}

// prune drops the rules whose objects are gone, if there are more rules than objects.
func (r *Rules) prune(objects catalog.Table[*meshv1alpha1.TopologyHeuristic]) {
	if len(r.compiled) <= objects.Len() {
		return
	}
	maps.DeleteFunc(r.compiled, func(name string, _ *compiled) bool {
		_, ok := objects.Get(catalog.Key{Name: name})
		return !ok
	})
}

// compiled is a rule that was compiled.
type compiled struct {
	object *meshv1alpha1.TopologyHeuristic
	demand topology.Demand
	// program; or why there is none, which an older version let pass.
	program *rule.Program
	err     error
}

// Problem implements topology.Checked.
func (r *compiled) Problem() error { return r.err }

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
			hints[i] = &auto.Hints{ForZones: locality.Zones(zones...)}
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
	at := make(map[locality.Zone]int, len(q.Zones))
	for i, z := range q.Zones {
		at[z.Name] = i
		in.Zones[i] = rule.Zone{Name: string(z.Name), Region: string(z.Region), Live: z.Live, CPU: z.CPU}
	}
	ready := 0
	for i, e := range q.Endpoints {
		in.Endpoints[i] = rule.Endpoint{Address: e.Address, Zone: string(e.Zone), Node: e.Node, Ready: e.Ready}
		k, ok := at[e.Zone]
		if ok {
			in.Endpoints[i].Region = string(q.Zones[k].Region)
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

// measure fills in the demand of the family of all ports of the Service, which share endpoints:
// each port counts by its connections, or all alike if there are none.
func (r *compiled) measure(q topology.Question, in *rule.Input) {
	names, prior, noNodes := make([]locality.Zone, len(q.Zones)), make([]float64, len(q.Zones)), make([]bool, len(q.Zones))
	for i, z := range q.Zones {
		names[i], prior[i], noNodes[i] = z.Name, z.CPU, !z.Live
	}
	family := proxy.IPv4
	if q.Family == discoveryv1.AddressTypeIPv6 {
		family = proxy.IPv6
	}
	sum := make([]float64, len(names))
	total := 0.0
	for _, port := range q.Service.Spec.Ports {
		e := r.demand.Shares(
			proxy.PortName{ServiceName: proxy.ServiceName{Namespace: q.Service.Namespace, Name: q.Service.Name}, Port: port.Name},
			family, names, prior, noNodes)
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

// nothing is what a port without connections weighs against others: it decides alone.
const nothing = 1e-9
