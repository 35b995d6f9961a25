package topology

import (
	"fmt"
	"iter"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	plannerv1alpha1 "github.com/proxima-mesh/proxima/api/planner/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/planner"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/topology/trafficplan"
)

// A heuristic is evaluated twice: for hints while slices are about to be written
// (heuristic.go), and for weights once they are there (this file).

// evaluations of the heuristic of a Service, by family. The map is never changed.
type evaluations map[discoveryv1.AddressType]evaluation

// evaluation is the outcome of a heuristic for an input.
type evaluation struct {
	input *Question
	// weighted: there are weights, of this outcome or of one before.
	weighted bool
	// failed is why the outcome could not be used.
	failed error
}

// same says whether two questions have the same answer, but for demand: hints are what
// came of an answer, and the Service counts by its annotations and labels.
func (q *Question) same(other *Question) bool {
	return other != nil && q.Family == other.Family && slices.Equal(q.Zones, other.Zones) &&
		slices.EqualFunc(q.Endpoints, other.Endpoints, func(a, b EndpointFacts) bool {
			a.Hints, b.Hints = nil, nil
			return a == b
		})
}

// evaluateRule evaluates the heuristic of a Service for those families whose input is
// another than before. It returns a group for each family that has weights.
func (c *Controller) evaluateRule(
	e *entry, snapshot *catalog.Snapshot, service *corev1.Service, was map[trafficplan.Name]*plannerv1alpha1.PortGroup,
) ([]plannerv1alpha1.PortGroup, func()) {
	key := resource.KeyOf(service)
	before := e.rule
	if c.takeChanged(key) {
		before = nil
	}
	made := evaluations{}
	var out []plannerv1alpha1.PortGroup
	endpoints := endpointFacts(snapshot.SlicesOf(key))
	for _, family := range sortedKeys(endpoints) {
		var present *plannerv1alpha1.PortGroup
		for name, g := range was {
			if name.Family == family {
				present = g
			}
		}
		q := c.question(service, family, endpoints[family])
		if last, ok := before[family]; ok && last.weighted == (present != nil) && q.same(last.input) {
			made[family] = last
			if present != nil {
				out = append(out, *present)
			}
			continue
		}
		d, _, err := c.decide(e.mode.Name, q)
		group, ports := weightedGroup(&q, d, err, present), portsOf(snapshot.SlicesOf(key), family)
		made[family] = evaluation{&q, group != nil && len(ports) > 0, err}
		if !made[family].weighted {
			continue
		}
		group.Ports = ports
		group.Published, group.Reason = metav1.NewTime(c.clock.Now()), plannerv1alpha1.PublishEndpointsChanged
		out = append(out, *group)
	}
	return out, func() { e.rule = made }
}

// takeChanged says whether the heuristic of a Service is another than when it was
// evaluated last.
func (c *Controller) takeChanged(key resource.Key) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, changed := c.changed[key]
	delete(c.changed, key)
	return changed
}

// endpointFacts of the endpoints in slices, by family.
func endpointFacts(all iter.Seq2[resource.Key, *discoveryv1.EndpointSlice]) map[discoveryv1.AddressType][]EndpointFacts {
	out := map[discoveryv1.AddressType][]EndpointFacts{}
	for _, slice := range all {
		if slice.AddressType != discoveryv1.AddressTypeIPv4 && slice.AddressType != discoveryv1.AddressTypeIPv6 {
			continue
		}
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			f := EndpointFacts{Zone: locality.Zone(value(e.Zone)), Node: value(e.NodeName), Ready: trafficplan.Ready(e), Hints: autoHints(e.Hints)}
			if len(e.Addresses) > 0 {
				f.Address = e.Addresses[0]
			}
			out[slice.AddressType] = append(out[slice.AddressType], f)
		}
	}
	return out
}

// portsOf the slices of a family, ascending.
func portsOf(all iter.Seq2[resource.Key, *discoveryv1.EndpointSlice], family discoveryv1.AddressType) []string {
	names := map[string]bool{}
	for _, slice := range all {
		for _, port := range slice.Ports {
			if slice.AddressType == family {
				names[trafficplan.PortName(port)] = true
			}
		}
	}
	return sortedKeys(names)
}

// weightedGroup is the group that follows from an answer, or from the present one if
// the heuristic failed. Nil: there are no weights.
func weightedGroup(q *Question, d Decision, err error, was *plannerv1alpha1.PortGroup) *plannerv1alpha1.PortGroup {
	g := &plannerv1alpha1.PortGroup{AddressType: string(q.Family), Outcome: plannerv1alpha1.OutcomeWeighted}
	switch {
	case err != nil && was != nil && knows(was, q):
		g.Outcome, g.Zones, g.Endpoints = plannerv1alpha1.OutcomeRuleFailed, was.Zones, was.Endpoints
		return g
	case err != nil, d.Weights == nil:
		return nil
	}
	rows := map[string][]uint32{}
	for _, e := range q.Endpoints {
		if e.Ready {
			rows[e.Address] = make([]uint32, len(q.Zones))
		}
	}
	counts := map[locality.Zone]int64{}
	for _, e := range readyOnce(q.Endpoints) {
		counts[e.Zone]++
	}
	column := make([]float64, len(q.Endpoints))
	for z, zone := range q.Zones {
		for i, e := range q.Endpoints {
			if column[i] = 0; e.Ready {
				column[i] = d.Weights[i][z]
			}
		}
		weights, reason := trafficplan.Proportions(column), plannerv1alpha1.ZoneRule
		if weights == nil {
			reason = plannerv1alpha1.ZoneNoWeights
		}
		g.Zones = append(g.Zones, plannerv1alpha1.SourceZone{Name: string(zone.Name), Endpoints: counts[zone.Name], Reason: reason})
		for i, e := range q.Endpoints {
			if e.Ready && weights != nil {
				rows[e.Address][z] = weights[i]
			}
		}
	}
	for _, address := range sortedKeys(rows) {
		g.Endpoints = append(g.Endpoints, plannerv1alpha1.WeightedEndpoint{Address: address, Weights: rows[address]})
	}
	return g
}

// knows says whether every endpoint that is ready has weights.
func knows(g *plannerv1alpha1.PortGroup, q *Question) bool {
	for _, e := range q.Endpoints {
		_, known := slices.BinarySearchFunc(g.Endpoints, e.Address, func(w plannerv1alpha1.WeightedEndpoint, address string) int {
			return strings.Compare(w.Address, address)
		})
		if e.Ready && !known {
			return false
		}
	}
	return true
}

// readyOnce are the endpoints that are ready, each address once.
func readyOnce(all []EndpointFacts) (out []EndpointFacts) {
	seen := map[string]bool{}
	for _, e := range all {
		if e.Ready && !seen[e.Address] {
			seen[e.Address] = true
			out = append(out, e)
		}
	}
	return out
}

// failed says why the heuristic of a Service could not be evaluated; nil: it could.
func (e evaluations) failed() (problem error) {
	for _, family := range sortedKeys(e) {
		if err := e[family].failed; err != nil {
			problem = fmt.Errorf("%w, addressType: %s", err, family)
		}
	}
	return problem
}

// weighted says whether a family has weights.
func (e evaluations) weighted() bool {
	for _, of := range e {
		if of.weighted {
			return true
		}
	}
	return false
}

// RulingReport is how a heuristic's weights divide the connections of one family.
type RulingReport struct {
	Family string      `json:"family"`
	Zones  []RuledZone `json:"zones"`
	// Metrics of it under the present demand.
	Metrics planner.Metrics `json:"metrics"`
}

// RuledZone is where the connections of a zone go.
type RuledZone struct {
	Name locality.Zone `json:"name"`
	// Demand is the zone's share of all, 0 to 1.
	Demand float64 `json:"demand"`
	// Weighed: by weights; else by hints, which leave all endpoints alike to a zone that
	// none names.
	Weighed bool       `json:"weighed"`
	To      []ToShares `json:"to,omitempty"`
}

// ToShares is the share of a zone's connections that another zone's endpoints get.
type ToShares struct {
	Zone  locality.Zone `json:"zone"`
	Share float64       `json:"share"`
}

// rulingReports of a Service whose plan has weights; candidates say what its demand is.
func rulingReports(
	snapshot *catalog.Snapshot, key resource.Key, groups []*plannerv1alpha1.PortGroup, candidates []*candidate,
) []RulingReport {
	var out []RulingReport
	endpoints := endpointFacts(snapshot.SlicesOf(key))
	for _, g := range groups {
		for _, u := range candidates {
			if string(u.group.Name.Family) == g.AddressType {
				out = append(out, rulingReport(g, readyOnce(endpoints[u.group.Name.Family]), u))
				break
			}
		}
	}
	return out
}

func rulingReport(g *plannerv1alpha1.PortGroup, endpoints []EndpointFacts, u *candidate) RulingReport {
	out := RulingReport{Family: g.AddressType}
	t, demand := u.in.topology, u.best.demand.shares
	load := map[string]float64{}
	weights := make(map[string][]uint32, len(g.Endpoints))
	for _, e := range g.Endpoints {
		weights[e.Address] = e.Weights
	}
	for z := range t.Len() {
		zone := t.Zone(z)
		if zone.Name == noZone {
			continue
		}
		k := slices.IndexFunc(g.Zones, func(s plannerv1alpha1.SourceZone) bool {
			return s.Name == string(zone.Name) && s.Reason == plannerv1alpha1.ZoneRule
		})
		row := RuledZone{Name: zone.Name, Demand: demand[z], Weighed: k >= 0}
		total, to := 0.0, map[locality.Zone]float64{}
		weight := func(address string) float64 {
			if list := weights[address]; row.Weighed && list != nil {
				return float64(list[k])
			} else if row.Weighed {
				return 0
			}
			return 1
		}
		for _, e := range endpoints {
			total += weight(e.Address)
		}
		for _, e := range endpoints {
			if total == 0 {
				continue
			}
			share := weight(e.Address) / total
			to[e.Zone] += share
			load[e.Address] += share * demand[z]
			name := e.Zone
			if name == "" {
				name = noZone
			}
			if at, ok := t.Index(name); ok {
				out.Metrics.Cost += share * demand[z] * t.Cost(z, at)
			}
			if e.Zone == zone.Name {
				out.Metrics.InZone += share * demand[z]
			}
		}
		for _, name := range sortedKeys(to) {
			if row.Weighed && to[name] > 0 {
				row.To = append(row.To, ToShares{name, to[name]})
			}
		}
		out.Zones = append(out.Zones, row)
	}
	for _, l := range load {
		out.Metrics.Worst = max(out.Metrics.Worst, l*float64(len(endpoints)))
	}
	return out
}

// text of a ruling; from is the zone that the reader asks about, or empty.
func (r *RulingReport) text(b *strings.Builder, from locality.Zone) {
	fmt.Fprintf(b, "weights of %s, by the rule\n", r.Family)
	for _, z := range r.Zones {
		mark := "  "
		if z.Name == from {
			mark = "> "
		}
		var parts []string
		for _, to := range z.To {
			if to.Zone == z.Name {
				parts = append([]string{fmt.Sprintf("%.1f %% stays", 100*to.Share)}, parts...)
				continue
			}
			name := to.Zone
			if name == "" {
				name = "endpoints of no zone"
			}
			parts = append(parts, fmt.Sprintf("%.1f %% to %s", 100*to.Share, name))
		}
		where := strings.Join(parts, ", ")
		if !z.Weighed {
			where = "the rule gives it no weights: by hints"
		}
		fmt.Fprintf(b, "%s%s: %.1f %% of demand; %s\n", mark, z.Name, 100*z.Demand, where)
	}
	fmt.Fprintf(b, "  %s\n", measures(r.Metrics))
}

// selects says whether the EndpointSlices of a Service are the EndpointSlice controller's.
func selects(service *corev1.Service) bool { return len(service.Spec.Selector) > 0 }
