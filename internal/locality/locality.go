// Package locality has the types that name places: sites, regions and topology zones.
//
// A [Zone] is where a node runs, a [Site] what a control plane serves; a site can have
// nodes of several zones. The planner's key is (site, topology zone). The types are for
// parameters and fields inside the program: API objects and wire messages have strings.
// Names are compared as they are; the package validates nothing.
package locality

// Labels of Nodes, as k8s.io/api/core/v1 has them. They are repeated here as the planner
// uses this package, and imports no API types.
const (
	labelZone   = "topology.kubernetes.io/zone"
	labelRegion = "topology.kubernetes.io/region"
)

// Zone is a topology zone: the value of a Node's label topology.kubernetes.io/zone. Empty:
// in no zone.
type Zone string

// Region is the value of a Node's label topology.kubernetes.io/region. Empty: in no
// region.
type Region string

// Site is what has a control plane of its own, with the name of its Zone object
// (mesh.proxima.dev). It is not a topology zone.
type Site string

// Local is the site of a standalone control plane.
const Local Site = "local"

// ZoneOf returns the topology zone in the labels of a Node.
func ZoneOf(labels map[string]string) Zone { return Zone(labels[labelZone]) }

// RegionOf returns the region in the labels of a Node.
func RegionOf(labels map[string]string) Region { return Region(labels[labelRegion]) }

// Zones converts names; nil: there are none.
func Zones(names ...string) []Zone {
	var out []Zone
	for _, name := range names {
		out = append(out, Zone(name))
	}
	return out
}

// Names is the reverse of Zones.
func Names(zones []Zone) []string {
	var out []string
	for _, zone := range zones {
		out = append(out, string(zone))
	}
	return out
}
