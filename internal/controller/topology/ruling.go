package topology

import (
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/planner"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// A heuristic is asked twice: for hints while slices are about to be written (heuristic.go),
// and for weights once they are there, whoever wrote them (this file).

// rulingTime is how long the reader of a delta waits for heuristics; Services that are
// not through by then follow a moment later, with the weights that they had.
const rulingTime = 50 * time.Millisecond

// ruling is what the heuristic of a Service said of one family's endpoints. It is never
// changed; another one takes its place.
type ruling struct {
	// asked is what the answer is to; nil: it must be asked again.
	asked *Question
	// zones where connections come from, weights for them by address; nil: the heuristic
	// gave none. Zones without any weight are not in it.
	zones   map[string]int
	weights map[string][]uint32
	// err is why the last answer could not be used. Then zones and weights are those
	// before, as long as they know every endpoint.
	err error
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

// rulings of a Service by family, brought up to what the catalog holds. It says whether
// weights changed. No lock is held while a heuristic is asked.
func (c *Controller) rule(key resource.Key) (changed bool) {
	c.mu.RLock()
	e := c.entries[key]
	if e == nil || e.mode.Kind != Custom || c.snapshot == nil {
		c.mu.RUnlock()
		return false
	}
	name, turn, was, snapshot := e.mode.Name, e.turn, e.rulings, c.snapshot
	c.mu.RUnlock()
	service, ok := snapshot.Services.Get(key)
	if !ok {
		return false
	}
	is := map[discoveryv1.AddressType]*ruling{}
	for family, endpoints := range endpointFacts(snapshot.SlicesOf(key)) {
		q := c.question(service, family, endpoints)
		before := was[family]
		if before != nil && q.same(before.asked) {
			is[family] = before
			continue
		}
		d, _, err := c.decide(name, q)
		is[family] = ruled(&q, d, err, before)
		changed = changed || !is[family].carriesSame(before)
	}
	for family, r := range was {
		changed = changed || is[family] == nil && r.weights != nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries[key] != e || e.turn != turn {
		return false // it is asked anew, or is about to be
	}
	e.rulings = is
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
			f := EndpointFacts{Zone: value(e.Zone), Node: value(e.NodeName), Ready: usable(e), Hints: autoHints(e.Hints)}
			if len(e.Addresses) > 0 {
				f.Address = e.Addresses[0]
			}
			out[slice.AddressType] = append(out[slice.AddressType], f)
		}
	}
	return out
}

// ruled is the ruling that follows from an answer.
func ruled(q *Question, d Decision, err error, before *ruling) *ruling {
	r := &ruling{asked: q, err: err}
	if err != nil {
		if before != nil && before.knows(q) {
			r.zones, r.weights = before.zones, before.weights
		}
		return r
	}
	if d.Weights == nil {
		return r
	}
	r.zones, r.weights = map[string]int{}, map[string][]uint32{}
	for _, e := range q.Endpoints {
		if e.Ready {
			r.weights[e.Address] = nil
		}
	}
	column := make([]float64, len(q.Endpoints))
	for z, zone := range q.Zones {
		for i, e := range q.Endpoints {
			if column[i] = 0; e.Ready {
				column[i] = d.Weights[i][z]
			}
		}
		carried := carriedWeights(column)
		if carried == nil {
			continue
		}
		r.zones[zone.Name] = len(r.zones)
		for i, e := range q.Endpoints {
			if e.Ready {
				r.weights[e.Address] = append(r.weights[e.Address][:len(r.zones)-1], carried[i])
			}
		}
	}
	return r
}

// knows says whether every endpoint that is ready has weights.
func (r *ruling) knows(q *Question) bool {
	for _, e := range q.Endpoints {
		if _, known := r.weights[e.Address]; e.Ready && !known {
			return false
		}
	}
	return r.weights != nil
}

// carriesSame says whether views carry the same.
func (r *ruling) carriesSame(other *ruling) bool {
	if other == nil {
		return r.weights == nil
	}
	if len(r.zones) != len(other.zones) || len(r.weights) != len(other.weights) || (r.weights == nil) != (other.weights == nil) {
		return false
	}
	for zone, k := range r.zones {
		if at, ok := other.zones[zone]; !ok || at != k {
			return false
		}
	}
	for address, weights := range r.weights {
		if !slices.Equal(weights, other.weights[address]) {
			return false
		}
	}
	return true
}

// carriedWeights are weights as views carry them: small whole numbers, exact if they are
// such, else in proportion to the highest. What is above 0 is never 0. Nil: all are 0.
func carriedWeights(weights []float64) []uint32 {
	highest := slices.Max(append([]float64{0}, weights...))
	if highest == 0 {
		return nil
	}
	unit := maxWeight / highest
	if highest <= maxWeight && !slices.ContainsFunc(weights, func(w float64) bool { return w != math.Trunc(w) }) {
		unit = 1
	}
	out, divisor := make([]uint32, len(weights)), uint32(0)
	for i, w := range weights {
		if w > 0 {
			out[i] = uint32(max(1, math.Round(min(w*unit, maxWeight))))
			divisor = gcd(out[i], divisor)
		}
	}
	for i := range out {
		out[i] /= max(1, divisor)
	}
	return out
}

// of a slice's endpoints, for a zone; nil: none are given. Endpoints that the heuristic
// has not been asked about yet get nothing, which lasts a moment.
func (r *ruling) of(zone string, slice *discoveryv1.EndpointSlice) []uint32 {
	if r == nil {
		return nil
	}
	k, ok := r.zones[zone]
	if !ok {
		return nil
	}
	weights := make([]uint32, len(slice.Endpoints))
	for i := range slice.Endpoints {
		e := &slice.Endpoints[i]
		if usable(e) && len(e.Addresses) > 0 {
			if list := r.weights[e.Addresses[0]]; list != nil {
				weights[i] = list[k]
			}
		}
	}
	return weights
}

// ruleAll asks the heuristics of Services, for a while. Those that remain are asked when
// their conditions are looked at.
func (c *Controller) ruleAll(w *work) {
	begin := c.clock.Now()
	for key := range w.rules {
		if c.clock.Since(begin) > c.rulingTime {
			break
		}
		if c.rule(key) {
			w.plans[key] = struct{}{}
		}
	}
}

// publish has views look at the weights of a Service that changed while no delta was planned.
func (c *Controller) publish(key resource.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending[key] = struct{}{}
	if c.interrupt != nil {
		c.interrupt()
	}
}

// stale has the heuristic be asked again; until then what it said holds. The
// controller's lock is held.
func (e *entry) stale() {
	e.turn++
	is := make(map[discoveryv1.AddressType]*ruling, len(e.rulings))
	for family, r := range e.rulings {
		again := *r
		again.asked = nil
		is[family] = &again
	}
	e.rulings = is
}

// weighed says whether heuristics gave weights, and why they could not be asked, if so.
func (e *entry) weighed() (weights bool, problem error) {
	for _, family := range sortedKeys(e.rulings) {
		r := e.rulings[family]
		weights = weights || r.weights != nil
		if r.err != nil {
			problem = fmt.Errorf("%w, addressType: %s", r.err, family)
		}
	}
	return weights, problem
}

// rulingCondition is the condition of a Service whose heuristic is asked.
func (e *entry) rulingCondition(families []told) (cond metav1.Condition, ok bool) {
	cond = metav1.Condition{Type: ConditionPlan, Status: metav1.ConditionTrue, Reason: ReasonHeuristic}
	weights, problem := e.weighed()
	var failed []string
	told := false
	for _, f := range families {
		if f.mode != Custom {
			continue
		}
		if told = true; !f.hinted {
			failed = append(failed, f.message)
		}
	}
	if e.selects && !told {
		return cond, false // its slices have not been looked at
	}
	if failed == nil && problem != nil {
		failed = []string{problem.Error()}
	}
	switch {
	case failed != nil:
		cond.Status, cond.Message = metav1.ConditionFalse, strings.Join(failed, "; ")
		if weights {
			cond.Message += "; the last good weights stay in effect"
		}
	case e.selects && weights:
		cond.Message = fmt.Sprintf("hints and weights are those of %s", e.mode.Name)
	case e.selects:
		cond.Message = fmt.Sprintf("hints are those of %s", e.mode.Name)
	case weights:
		cond.Message = fmt.Sprintf("weights are those of %s; its EndpointSlices are somebody else's, who decides over hints", e.mode.Name)
	default:
		cond.Status = metav1.ConditionFalse
		cond.Message = fmt.Sprintf("%s gives no weights, and its EndpointSlices are somebody else's, who decides over hints", e.mode.Name)
	}
	return cond, true
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
	Name string `json:"name"`
	// Demand is the zone's share of all, 0 to 1.
	Demand float64 `json:"demand"`
	// Weighed: by weights; else by hints, which leave all endpoints alike to a zone that
	// none names.
	Weighed bool       `json:"weighed"`
	To      []ToShares `json:"to,omitempty"`
}

// ToShares is the share of a zone's connections that another zone's endpoints get.
type ToShares struct {
	Zone  string  `json:"zone"`
	Share float64 `json:"share"`
}

// rulingReports of a Service; units say what its demand is.
func (c *Controller) rulingReports(e *entry, units []*unit) []RulingReport {
	var out []RulingReport
	for _, family := range sortedKeys(e.rulings) {
		r := e.rulings[family]
		if r.weights == nil || r.asked == nil {
			continue
		}
		for _, u := range units {
			if u.family == family && u.topology != nil {
				out = append(out, r.report(family, u))
				break
			}
		}
	}
	return out
}

func (r *ruling) report(family discoveryv1.AddressType, u *unit) RulingReport {
	out := RulingReport{Family: string(family)}
	demand := shares(u.problem.Demand)
	load := map[string]float64{}
	endpoints := r.ready()
	for z := range u.topology.Len() {
		zone := u.topology.Zone(z)
		k, weighed := r.zones[zone.Name]
		row := RuledZone{Name: zone.Name, Demand: demand[z], Weighed: weighed}
		if zone.Name == noZone {
			continue
		}
		total, to := 0.0, map[string]float64{}
		weight := func(address string) float64 {
			if list := r.weights[address]; weighed && list != nil {
				return float64(list[k])
			} else if weighed {
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
			if at, ok := u.topology.Index(name); ok {
				out.Metrics.Cost += share * demand[z] * u.topology.Cost(z, at)
			}
			if e.Zone == zone.Name {
				out.Metrics.InZone += share * demand[z]
			}
		}
		for _, name := range sortedKeys(to) {
			if weighed && to[name] > 0 {
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

// ready endpoints that were asked about, each once.
func (r *ruling) ready() (out []EndpointFacts) {
	seen := map[string]bool{}
	for _, e := range r.asked.Endpoints {
		if e.Ready && !seen[e.Address] {
			seen[e.Address] = true
			out = append(out, e)
		}
	}
	return out
}

// text of a ruling; from is the zone that the reader asks about, or empty.
func (r *RulingReport) text(b *strings.Builder, from string) {
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
