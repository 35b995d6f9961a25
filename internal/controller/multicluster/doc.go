// Package multicluster keeps the Multi-Cluster Services API (KEP-1645) of one zone: what the
// zone exports, and what all zones export to it.
//
// Exports writes the status of this zone's ServiceExports: whether the Service can be
// exported, what it offers, and whether zones disagree. Imports derives, from the exports of
// all zones, one ServiceImport for each name and one Service that has its virtual IP, the
// derived Service. Both are drivers of pure functions: ReconcileExport, Merge and
// ReconcileImport.
//
// The package moves nothing between zones: exports of other zones are copies that the
// synchronisation of zones writes. It knows no gateways.
package multicluster

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
)

// LabelManagedBy marks the objects that this package creates.
const (
	LabelManagedBy = meshv1alpha1.GroupName + "/managed-by"
	managedBy      = "multicluster"
)

// owned reports whether this package created an object.
func owned(labels map[string]string) bool { return labels[LabelManagedBy] == managedBy }

// Offer is what one zone exports under a name.
type Offer struct {
	Zone string
	*mcs.AvailableService
	// Labels and Annotations for the import.
	Labels, Annotations map[string]string
}

// OffersOf returns the offers among exports of one name that a mesh of this site can use, the
// oldest first: it decides where they disagree (KEP-1645, "Constraints and Conflict
// Resolution").
func OffersOf(site, mesh string, exports []*mcs.ServiceExport) []Offer {
	var out []Offer
	for _, e := range exports {
		a := e.Status.Available
		if a == nil || a.Mesh != mesh || !e.DeletionTimestamp.IsZero() {
			continue
		}
		zone := e.Labels[meshv1alpha1.LabelZone]
		if zone != "" && len(a.ToZones) > 0 && !slices.Contains(a.ToZones, site) {
			continue
		}
		out = append(out, Offer{
			Zone: cmp.Or(zone, site), AvailableService: a,
			Labels: e.Spec.ExportedLabels, Annotations: e.Spec.ExportedAnnotations,
		})
	}
	slices.SortStableFunc(out, func(a, b Offer) int {
		return cmp.Or(a.ExportTime.Compare(b.ExportTime.Time), cmp.Compare(a.Zone, b.Zone))
	})
	return out
}

// protocolOf a port; empty means TCP.
func protocolOf(p corev1.Protocol) corev1.Protocol { return cmp.Or(p, corev1.ProtocolTCP) }
