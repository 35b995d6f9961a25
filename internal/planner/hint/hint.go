// Package hint approximates a plan's weights for consumers that read only zone
// hints, such as kube-proxy: each endpoint names up to 8 zones, and a zone's traffic
// goes evenly to the endpoints that name it, or to all where none does.
//
// It owns the search for the best such hints. Enter at Searcher.Search; Score says
// what given hints do, however they were chosen. It does no I/O, reads no clock and draws
// no random numbers: equal requests give equal hints.
package hint

import (
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/proxima-mesh/proxima/internal/planner"
)

const (
	// MaxZones is the largest topology for which hints are searched.
	MaxZones = 64
	// MaxPerEndpoint is how many zones an endpoint may name (discovery.k8s.io/v1,
	// maxZoneHints).
	MaxPerEndpoint = 8

	// fair is the overload that costs nothing in soft mode, and the limit in strict.
	fair = 1 + planner.DefaultOverload
	// softLimit is never exceeded in soft mode.
	softLimit = 1.5
	// overloadWeight is what a point of load above fair weighs against a point of cost in
	// soft mode. At 1 the best hints that there are cost within 2 points of the weights in
	// only 77 % of random services (bench/planner); at this, in 81 %.
	overloadWeight = 0.75

	tolerance = 1e-9
)

// Mode is the annotation's hints: soft or strict.
type Mode uint8

const (
	// Soft weighs cost against overload from 1.2 times the mean load up to 1.5: three
	// points of cost for four of load.
	Soft Mode = iota
	// Strict never plans an endpoint above 1.2 times the mean.
	Strict
)

// Mask is a set of zones, by index.
type Mask uint64

// Has says whether a zone is named.
func (m Mask) Has(zone int) bool { return m>>zone&1 == 1 }

// Zones lists the zones named, ascending.
func (m Mask) Zones() []int {
	var zones []int
	for ; m != 0; m &= m - 1 {
		zones = append(zones, bits.TrailingZeros64(uint64(m)))
	}
	return zones
}

// Request is one service port.
type Request struct {
	// Demand by zone, as in planner.Problem.
	Demand []float64
	// Endpoints are the zones of the ready endpoints, by index.
	Endpoints []int
	// Previous are the hints published now, by endpoint, or nil. An endpoint without is 0.
	Previous []Mask
	Mode     Mode
}

// Reason why hints are as they are.
type Reason uint8

const (
	Published Reason = iota
	// NoEndpoints: nothing to hint.
	NoEndpoints
	// TooManyZones: more than MaxZones.
	TooManyZones
)

var reasonNames = [...]string{"Published", "NoEndpoints", "TooManyZones"}

func (r Reason) String() string { return reasonNames[r] }

// Result holds the hints by endpoint. Masks is nil unless Reason is Published;
// without hints all traffic goes everywhere, and Metrics say what that does.
type Result struct {
	Masks   []Mask
	Metrics planner.Metrics
	Reason  Reason
}

// Value of metrics, the less the better; infinite above the mode's limit.
func (m Mode) Value(x planner.Metrics, maxCost float64) float64 {
	cost := 0.0
	if maxCost > 0 {
		cost = x.Cost / maxCost
	}
	switch {
	case x.Worst > m.limit()+tolerance:
		return math.Inf(1)
	case m == Strict:
		return cost
	default:
		return cost + overloadWeight*max(0, x.Worst-fair)
	}
}

func (m Mode) limit() float64 {
	if m == Strict {
		return fair
	}
	return softLimit
}

// Score says what becomes of demand under hints: those of this package, or any
// others. Masks nil is no hints; so is any endpoint without, as consumers then
// ignore all.
func Score(t *planner.Topology, demand []float64, endpoints []int, masks []Mask) planner.Metrics {
	metrics := planner.Metrics{InZone: 1}
	total, n := 0.0, len(endpoints)
	for _, d := range demand {
		total += d
	}
	if total == 0 || n == 0 {
		return metrics
	}
	ignored := len(masks) < n || slices.Contains(masks, 0)
	load := make([]float64, n)
	metrics.InZone = 0
	for z, d := range demand {
		if d == 0 {
			continue
		}
		named := 0
		for e := range endpoints {
			if !ignored && masks[e].Has(z) {
				named++
			}
		}
		each := d / total / float64(n)
		if named > 0 {
			each = d / total / float64(named)
		}
		for e, at := range endpoints {
			if named > 0 && !masks[e].Has(z) {
				continue
			}
			load[e] += each
			metrics.Cost += each * t.Cost(z, at)
			if at == z {
				metrics.InZone += each
			}
		}
	}
	metrics.Worst = slices.Max(load) * float64(n)
	return metrics
}

func (r *Request) check(t *planner.Topology) error {
	if len(r.Demand) != t.Len() {
		return &planner.FieldError{Field: "demand", Reason: fmt.Sprintf("%d values for %d zones", len(r.Demand), t.Len())}
	}
	for z, d := range r.Demand {
		if !(d >= 0 && d <= 1e15) {
			return &planner.FieldError{Field: fmt.Sprintf("demand[%q]", t.Zone(z).Name), Reason: fmt.Sprintf("%g, not 0 to 1e15", d)}
		}
	}
	for e, z := range r.Endpoints {
		if z < 0 || z >= t.Len() {
			return &planner.FieldError{Field: fmt.Sprintf("endpoints[%d]", e), Reason: fmt.Sprintf("zone %d of %d", z, t.Len())}
		}
	}
	if r.Previous != nil && len(r.Previous) != len(r.Endpoints) {
		return &planner.FieldError{Field: "previous", Reason: fmt.Sprintf("%d masks for %d endpoints", len(r.Previous), len(r.Endpoints))}
	}
	return nil
}
