package backend

import (
	corev1 "k8s.io/api/core/v1"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// Shifts are the zones and nodes that are taken out for a time. nil: there are none.
type Shifts []*mesh.ZoneShift

// ShiftsOf are those in effect in a snapshot.
func ShiftsOf(s *catalog.Snapshot) (out Shifts) {
	for _, z := range s.ZoneShifts.All() {
		if kind.ShiftInEffect(z) {
			out = append(out, z)
		}
	}
	return out
}

// Of is the shift that takes out endpoints in a zone or on a node; nil: none does. An empty
// name is no zone, or no node.
func (s Shifts) Of(zone, node string) *mesh.ZoneShift {
	for _, z := range s {
		if kind.ShiftCovers(&z.Spec, zone, node) {
			return z
		}
	}
	return nil
}

// shifted calls queue for every Service that selects a workload which a change of ZoneShifts
// takes out, or puts back. Its cost is that of the zones and nodes concerned, and of finding
// the workloads that name a zone of their own.
func shifted(d catalog.Delta, queue func(service resource.Key)) {
	for _, change := range d.ZoneShifts {
		was, is := change.Old != nil && kind.ShiftInEffect(change.Old), change.New != nil && kind.ShiftInEffect(change.New)
		if was == is {
			continue
		}
		shift := change.New
		if !is {
			shift = change.Old
		}
		inShift(d.After, &shift.Spec, queue)
	}
}

// inShift calls queue for every Service that selects a workload in a zone or on a node.
func inShift(s *catalog.Snapshot, spec *mesh.ZoneShiftSpec, queue func(service resource.Key)) {
	if spec.Node != "" {
		OnNode(s, spec.Node, queue)
		return
	}
	for key, node := range s.Nodes.All() {
		if node.Labels[corev1.LabelTopologyZone] == spec.Zone {
			OnNode(s, key.Name, queue)
		}
	}
	for _, dataplane := range s.Dataplanes.All() {
		if dataplane.Labels[corev1.LabelTopologyZone] == spec.Zone {
			Behind(s, dataplane, queue)
		}
	}
}
