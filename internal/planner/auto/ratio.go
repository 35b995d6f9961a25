// Package auto is Kubernetes' heuristic for topology hints, in the service
// annotation's mode Auto, and the hints of spec.trafficDistribution.
//
// It owns the arithmetic and the texts: given the same nodes, endpoints and earlier
// hints it gives the hints, refusals and events that k8s.io/endpointslice gives.
// Where that library leaves a choice to the order of a map, this one takes the
// first by zone name. Enter at RatiosOf, Decide and Distribute.
//
// It knows no API types, does no I/O and keeps nothing. Arguments are never changed.
package auto

import (
	"math/bits"

	"github.com/proxima-mesh/proxima/internal/locality"
)

// Labels of nodes that do not count. Their value does not matter.
const (
	labelControlPlane = "node-role.kubernetes.io/control-plane"
	labelMaster       = "node-role.kubernetes.io/master"
)

// Node is what the heuristic reads of a node.
type Node struct {
	// Zone is the value of topology.kubernetes.io/zone, empty if there is none.
	Zone locality.Zone
	// Ready is the Ready condition; a node without the condition is not ready.
	Ready bool
	// Excluded nodes run the control plane; see Excluded.
	Excluded bool
	// NanoCPU is allocatable CPU in billionths, the resolution of a quantity. 0 is
	// "not specified"; the API admits nothing below.
	NanoCPU int64
}

// Excluded says whether a node with these labels counts for nothing.
func Excluded(labels map[string]string) bool {
	if _, ok := labels[labelControlPlane]; ok {
		return true
	}
	_, ok := labels[labelMaster]
	return ok
}

// Ratios is the share of CPU by zone: what the heuristic takes for demand. The
// nil map says that nodes do not give enough information.
type Ratios map[locality.Zone]float64

// RatiosOf computes the ratios of a cluster. One node that counts but lacks a zone
// or CPU makes them nil, and so do fewer than two zones.
func RatiosOf(nodes []Node) Ratios {
	byZone := map[locality.Zone]wide{}
	var total wide
	for _, n := range nodes {
		if n.Excluded || !n.Ready {
			continue
		}
		if n.Zone == "" || n.NanoCPU <= 0 {
			return nil
		}
		byZone[n.Zone] = byZone[n.Zone].plus(n.NanoCPU)
		total = total.plus(n.NanoCPU)
	}
	if len(byZone) < 2 {
		return nil
	}
	ratios := make(Ratios, len(byZone))
	for zone, cpu := range byZone {
		ratios[zone] = float64(cpu.milli()) / float64(total.milli())
	}
	return ratios
}

// wide is a sum of nano CPUs: a few hundred thousand large nodes exceed 64 bits.
type wide struct{ hi, lo uint64 }

func (w wide) plus(n int64) wide {
	lo, carry := bits.Add64(w.lo, uint64(n), 0)
	return wide{w.hi + carry, lo}
}

// milli rounds up to thousandths, as a Quantity's MilliValue does.
func (w wide) milli() uint64 {
	const nanoPerMilli = 1_000_000
	w = w.plus(nanoPerMilli - 1)
	q, _ := bits.Div64(w.hi%nanoPerMilli, w.lo, nanoPerMilli)
	return q
}
