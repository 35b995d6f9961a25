package kind

import (
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// maxShiftReason bounds spec.reason, in characters: it is shown in a line.
const maxShiftReason = 512

// ZoneShift describes mesh.proxima.dev/v1alpha1 ZoneShift. It stays in its site: topology
// zones are those of one control plane's nodes.
var ZoneShift = &resource.Descriptor{
	GVK:        mesh.SchemeGroupVersion.WithKind("ZoneShift"),
	Resource:   "zoneshifts",
	Singular:   "zoneshift",
	Categories: []string{"proxima"},
	Status:     true,

	New:     func() resource.Object { return &mesh.ZoneShift{} },
	NewList: func() runtime.Object { return &mesh.ZoneShiftList{} },

	Prepare:       zoneShiftParts.prepare,
	PrepareStatus: zoneShiftParts.prepareStatus,
	Validate:      compare(validateZoneShift),
	ValidateStatus: compare(func(z, old *mesh.ZoneShift) field.ErrorList {
		errs := checkMeta(z, old, false, validation.NameIsDNSSubdomain)
		return append(errs, metav1validation.ValidateConditions(z.Status.Conditions, field.NewPath("status", "conditions"))...)
	}),

	Columns: []metav1.TableColumnDefinition{
		nameColumn(),
		column("Out", "The zone or node whose endpoints get new connections only where no other one is ready."),
		column("State", "InEffect, or why it is not."),
		column("Left", "The time until it ends by itself."),
		column("Reason", "Why it is out, as its author wrote."),
		ageColumn(),
		wide("Services", "The number of Services that had endpoints there when it came into effect."),
		wide("Endpoints", "The number of endpoints that were ready there when it came into effect."),
	},
	Cells: of(func(z *mesh.ZoneShift) []any {
		return []any{
			z.Name, ShiftTarget(&z.Spec), ShiftState(z), timeLeft(z.Spec.Until.Time), z.Spec.Reason, age(z), z.Status.Services, z.Status.Endpoints,
		}
	}),
}

var zoneShiftParts = parts[*mesh.ZoneShift, mesh.ZoneShiftSpec, mesh.ZoneShiftStatus](
	func(z *mesh.ZoneShift) (*mesh.ZoneShiftSpec, *mesh.ZoneShiftStatus) { return &z.Spec, &z.Status })

// ShiftTarget is what a ZoneShift takes out, in words: "zone a" or "node n".
func ShiftTarget(spec *mesh.ZoneShiftSpec) string {
	if spec.Node != "" {
		return "node " + spec.Node
	}
	return "zone " + spec.Zone
}

// ShiftCovers reports whether a ZoneShift takes out endpoints in a zone, on a node.
func ShiftCovers(spec *mesh.ZoneShiftSpec, zone, node string) bool {
	return spec.Zone != "" && spec.Zone == zone || spec.Node != "" && spec.Node == node
}

// ShiftInEffect reports whether the endpoints of a ZoneShift are out: its status says so.
func ShiftInEffect(z *mesh.ZoneShift) bool {
	return z.DeletionTimestamp == nil && meta.IsStatusConditionTrue(z.Status.Conditions, mesh.ZoneShiftActive)
}

// ShiftState is the reason of the condition Active; Pending: the controller has not decided.
func ShiftState(z *mesh.ZoneShift) string {
	if c := meta.FindStatusCondition(z.Status.Conditions, mesh.ZoneShiftActive); c != nil {
		return c.Reason
	}
	return "Pending"
}

// ShiftUndo is the command that ends a ZoneShift.
func ShiftUndo(spec *mesh.ZoneShiftSpec) string {
	if spec.Node != "" {
		return "proxima zone shift --node " + spec.Node + " --end"
	}
	return "proxima zone shift " + spec.Zone + " --end"
}

func timeLeft(until time.Time) string {
	if left := time.Until(until); left > 0 {
		return duration.HumanDuration(left)
	}
	return none
}

func validateZoneShift(z, old *mesh.ZoneShift) field.ErrorList {
	errs := checkMetaOf(z, old, false, validation.NameIsDNSSubdomain)
	spec, path := &z.Spec, field.NewPath("spec")
	switch {
	case spec.Zone == "" && spec.Node == "":
		errs = append(errs, field.Required(path.Child("zone"), "name a zone, or a node in `node`"))
	case spec.Zone != "" && spec.Node != "":
		errs = append(errs, field.Forbidden(path.Child("node"), "may not be set together with `zone`: make one ZoneShift for each"))
	case spec.Zone != "":
		errs = append(errs, invalid(path.Child("zone"), spec.Zone, utilvalidation.IsValidLabelValue(spec.Zone))...)
	default:
		errs = append(errs, checkSubdomain(path.Child("node"), spec.Node)...)
	}
	if old != nil {
		errs = append(errs, validation.ValidateImmutableField(spec.Zone, old.Spec.Zone, path.Child("zone"))...)
		errs = append(errs, validation.ValidateImmutableField(spec.Node, old.Spec.Node, path.Child("node"))...)
	}
	errs = append(errs, checkUntil(path.Child("until"), z, old)...)
	switch n := utf8.RuneCountInString(spec.Reason); {
	case n == 0:
		errs = append(errs, field.Required(path.Child("reason"), "say why: others read it when they look for the cause"))
	case n > maxShiftReason:
		errs = append(errs, field.TooLong(path.Child("reason"), "", maxShiftReason))
	}
	return errs
}

// checkUntil requires an end that is not too far away, and at the creation not over. An end
// that stays as it was is not judged again.
func checkUntil(path *field.Path, z, old *mesh.ZoneShift) field.ErrorList {
	until := z.Spec.Until.Time
	if old != nil && old.Spec.Until.Time.Equal(until) {
		return nil
	}
	if until.IsZero() {
		return field.ErrorList{field.Required(path, "when it ends by itself")}
	}
	left := time.Until(until)
	text := until.UTC().Format(time.RFC3339)
	switch {
	case left > mesh.MaxZoneShift+time.Minute: // clocks differ
		return field.ErrorList{field.Invalid(path, text,
			"must be at most "+duration.HumanDuration(mesh.MaxZoneShift)+" away: extend it when it is needed for longer")}
	case left <= 0 && old == nil:
		return field.ErrorList{field.Invalid(path, text, "must be in the future")}
	}
	return nil
}
