package kind

import (
	"errors"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/planner/rule"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// TopologyHeuristic describes mesh.proxima.dev/v1alpha1 TopologyHeuristic.
var TopologyHeuristic = &resource.Descriptor{
	GVK:        mesh.SchemeGroupVersion.WithKind("TopologyHeuristic"),
	Resource:   "topologyheuristics",
	Singular:   "topologyheuristic",
	Categories: []string{"proxima"},
	Direction:  resource.GlobalToZone,
	Status:     true,

	New:     func() resource.Object { return &mesh.TopologyHeuristic{} },
	NewList: func() runtime.Object { return &mesh.TopologyHeuristicList{} },

	Default:  on(func(h *mesh.TopologyHeuristic) { fill(&h.Spec.Fallback, mesh.HeuristicFallbackAll) }),
	Prepare:  heuristicParts.prepare,
	Validate: compare(validateTopologyHeuristic),

	PrepareStatus:  heuristicParts.prepareStatus,
	ValidateStatus: compare(validateHeuristicStatus),

	Columns: []metav1.TableColumnDefinition{
		nameColumn(),
		column("Mode", "The value of the annotation service.kubernetes.io/topology-mode by which a Service chooses it."),
		column("Fallback", "What becomes of a zone that may use no endpoint."),
		policyColumn(),
		ageColumn(),
		servicesColumn(),
		wide("Zones", "The expression for the zones that should use an endpoint."),
		wide("Weight", "The expression for the weight of an endpoint in a zone."),
	},
	Cells: of(func(h *mesh.TopologyHeuristic) []any {
		return []any{
			h.Name, mesh.TopologyHeuristicPrefix + h.Name, h.Spec.Fallback, policyCell(&h.Status), age(h), h.Status.Services,
			oneLine(h.Spec.Zones), oneLine(h.Spec.Weight),
		}
	}),
}

var heuristicParts = parts[*mesh.TopologyHeuristic, mesh.TopologyHeuristicSpec, mesh.PolicyStatus](
	func(h *mesh.TopologyHeuristic) (*mesh.TopologyHeuristicSpec, *mesh.PolicyStatus) {
		return &h.Spec, &h.Status
	})

func validateHeuristicStatus(h, old *mesh.TopologyHeuristic) field.ErrorList {
	return append(checkMeta(h, old, false, validation.NameIsDNSSubdomain), checkPolicyStatus(&h.Status)...)
}

func oneLine(expression string) string { return strings.Join(strings.Fields(expression), " ") }

// HeuristicSpec is the spec of a TopologyHeuristic in the form that is compiled.
func HeuristicSpec(h *mesh.TopologyHeuristic) rule.Spec {
	spec := rule.Spec{Zones: h.Spec.Zones, Weight: h.Spec.Weight, Fallback: rule.Fallback(h.Spec.Fallback)}
	for _, v := range h.Spec.Variables {
		spec.Variables = append(spec.Variables, rule.Variable{Name: v.Name, Expression: v.Expression})
	}
	return spec
}

func validateTopologyHeuristic(h, old *mesh.TopologyHeuristic) field.ErrorList {
	var was metav1.Object
	if old != nil {
		was = old
		// What an older version took stays writable in everything else.
		if equality.Semantic.DeepEqual(h.Spec, old.Spec) {
			return checkMeta(h, was, false, validation.NameIsDNSSubdomain)
		}
	}
	errs := checkMeta(h, was, false, validation.NameIsDNSSubdomain)
	_, err := rule.Compile(HeuristicSpec(h))
	var problems rule.Errors
	switch {
	case errors.As(err, &problems):
		for _, p := range problems {
			errs = append(errs, field.Invalid(field.NewPath("spec", p.Field), field.OmitValueType{}, p.Reason))
		}
	case err != nil:
		errs = append(errs, field.InternalError(field.NewPath("spec"), err))
	}
	return errs
}
