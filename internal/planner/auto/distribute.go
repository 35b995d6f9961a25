package auto

import (
	"slices"

	"github.com/proxima-mesh/proxima/internal/locality"
)

// Distribution is a value of spec.trafficDistribution.
type Distribution string

const (
	PreferClose    Distribution = "PreferClose"
	PreferSameZone Distribution = "PreferSameZone"
	PreferSameNode Distribution = "PreferSameNode"
)

// Distribute gives every ready endpoint the hints of a distribution: its own zone,
// and its own node for PreferSameNode. There is no threshold and no event. Hints of
// endpoints that are not ready stay. With any other value all hints are removed.
func Distribute(distribution Distribution, list []Slice) Result {
	switch distribution {
	case PreferClose, PreferSameZone, PreferSameNode:
	default:
		return Remove(list)
	}
	result := current(Request{Slices: list})
	for i, s := range list {
		for _, e := range s.Endpoints {
			if e.Ready && !sameHints(e.Hints, nearest(distribution, e)) {
				result.Write[i] = true
			}
		}
		if !result.Write[i] {
			continue
		}
		for k, e := range s.Endpoints {
			if e.Ready {
				result.Hints[i][k] = nearest(distribution, e)
			}
		}
	}
	return result
}

func nearest(distribution Distribution, e Endpoint) *Hints {
	h := &Hints{}
	if e.Zone != "" {
		h.ForZones = []locality.Zone{e.Zone}
	}
	if e.Node != "" && distribution == PreferSameNode {
		h.ForNodes = []string{e.Node}
	}
	if h.ForZones == nil && h.ForNodes == nil {
		return nil
	}
	return h
}

// sameHints takes no hints and empty hints for the same.
func sameHints(a, b *Hints) bool {
	if a == nil {
		a = &Hints{}
	}
	if b == nil {
		b = &Hints{}
	}
	return slices.Equal(a.ForZones, b.ForZones) && slices.Equal(a.ForNodes, b.ForNodes)
}
