package kind

import (
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
)

func checkPolicyStatus(s *mesh.PolicyStatus) field.ErrorList {
	path := field.NewPath("status")
	errs := metav1validation.ValidateConditions(s.Conditions, path.Child("conditions"))
	if s.Services < 0 {
		errs = append(errs, field.Invalid(path.Child("services"), s.Services, "must not be negative"))
	}
	return append(errs, checkZoneStatuses(s.Zones)...)
}

func policyColumn() metav1.TableColumnDefinition {
	return column("Status", "Whether the policy is in effect; else why not. At global: in which zones it is not.")
}

func servicesColumn() metav1.TableColumnDefinition {
	return wide("Services", "The number of Services that use it at this control plane.")
}

// policyCell says in one word whether a policy is in effect: here, or in the zones.
func policyCell(s *mesh.PolicyStatus) string {
	return stateOrZones(s.Conditions, s.Zones, policyState)
}

// stateOrZones is the state here, or where zones have reported: in which of them the policy is not in effect.
func stateOrZones(own []metav1.Condition, zones []mesh.PolicyZoneStatus, state func([]metav1.Condition) string) string {
	if len(zones) == 0 {
		return state(own)
	}
	var not []string
	for _, z := range zones {
		if state := state(z.Conditions); state != policyGood && state != unknownState {
			not = append(not, z.Zone+": "+state)
		}
	}
	if len(not) == 0 {
		return policyGood
	}
	return strings.Join(not, ", ")
}

const (
	policyGood   = mesh.PolicyAccepted
	unknownState = "Unknown"
)

// policyState is the reason of the first condition that does not hold.
func policyState(conditions []metav1.Condition) string {
	accepted := meta.FindStatusCondition(conditions, mesh.PolicyAccepted)
	if accepted == nil {
		return unknownState
	}
	for _, typ := range []string{mesh.PolicyAccepted, mesh.PolicyResolved} {
		if c := meta.FindStatusCondition(conditions, typ); c != nil && c.Status != metav1.ConditionTrue {
			return c.Reason
		}
	}
	return policyGood
}
