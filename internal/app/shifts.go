package app

import (
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/backend"
	"github.com/proxima-mesh/proxima/internal/controller/zoneshift"
	"github.com/proxima-mesh/proxima/internal/identity/access"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// shifts judge new ZoneShifts, so that who writes one learns at once why it cannot be. The
// catalog is set before the server runs.
type shifts struct {
	catalog *catalog.Catalog
	// global: there are no nodes.
	global bool
}

// allow refuses a new ZoneShift of a zone or node that does not exist, and one that would
// leave a Service without another endpoint. The controller judges later changes, and what
// is written at the same time.
func (s *shifts) allow(w access.Write) error {
	z, ok := w.Object.(*meshv1alpha1.ZoneShift)
	if !ok || z == nil || w.Old != nil || w.Subresource != "" {
		return nil
	}
	gr := kind.ZoneShift.GroupResource()
	if s.global {
		return apierrors.NewForbidden(gr, z.Name, errors.New("topology zones and nodes are taken out at the control plane of their site; "+
			"\"proxima zone disable SITE\" takes out a whole site here"))
	}
	if !s.catalog.Listed(catalog.ZoneShifts) {
		return apierrors.NewServiceUnavailable("the control plane is still reading its store; try again in a moment")
	}
	snapshot := s.catalog.Snapshot()
	if !zoneshift.Known(snapshot, &z.Spec) {
		return apierrors.NewInvalid(kind.ZoneShift.GVK.GroupKind(), z.Name, field.ErrorList{unknownTarget(snapshot, &z.Spec)})
	}
	if z.Spec.Force {
		return nil
	}
	effect := zoneshift.Evaluate(snapshot, &z.Spec, backend.ShiftsOf(snapshot), nil)
	last := effect.LastEndpoints()
	if len(last) == 0 {
		return nil
	}
	err := apierrors.NewConflict(gr, z.Name, errors.New(zoneshift.Refusal(&z.Spec, last)))
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{
		Type: meshv1alpha1.CauseLastEndpoints, Field: "spec.force", Message: strings.Join(last, ", "),
	})
	return err
}

func unknownTarget(s *catalog.Snapshot, spec *meshv1alpha1.ZoneShiftSpec) *field.Error {
	path := field.NewPath("spec")
	if spec.Node != "" {
		return field.NotFound(path.Child("node"), spec.Node)
	}
	zones := zoneshift.Zones(s)
	if len(zones) == 0 {
		return field.Invalid(path.Child("zone"), spec.Zone, "no node has a zone (label topology.kubernetes.io/zone)")
	}
	return field.Invalid(path.Child("zone"), spec.Zone, fmt.Sprintf("there is no such zone; there are %s", strings.Join(zones, ", ")))
}
