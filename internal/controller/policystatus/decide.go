// Package policystatus says in the status of policies of traffic, and of routes, what becomes of
// them: whether they are accepted, what they name in vain, which policies override them, and by
// whom they are not enforced.
//
// The decisions (Policy, Route) are pure, by package policy's index, which also configures proxies.
// Enter at New. It writes nothing but status.
package policystatus

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gateway "sigs.k8s.io/gateway-api/apis/v1"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/policy"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/xds/translate"
)

// ControllerName is that of this control plane in the status of routes.
const ControllerName gateway.GatewayController = "mesh.proxima.dev/controller"

// Reasons of conditions.
const (
	ReasonAccepted       = "Accepted"
	ReasonInvalid        = "Invalid"
	ReasonTargetNotFound = "TargetNotFound"
	ReasonResolved       = "ResolvedRefs"
	ReasonOverridden     = "Overridden"
	ReasonNotEnforced    = "NotEnforced"
	ReasonProgrammed     = "Programmed"
	ReasonPending        = "Pending"
)

// Enforcement is what the proxies that a policy concerns make of it.
type Enforcement struct {
	// Selected proxies, and those that have acknowledged the policy.
	Selected, Acknowledged int
	// Behind are some of those that have not, NAMESPACE/NAME and why.
	Behind []string
	// Missing says what is not enforced: workloads, fields, and why. Empty: all is.
	Missing []string
}

// programmed is the condition that follows.
func (e *Enforcement) programmed() (all bool, reason, message string) {
	message = fmt.Sprintf("acknowledged by %d of %d workloads", e.Acknowledged, e.Selected)
	if e.Acknowledged >= e.Selected {
		return true, ReasonProgrammed, message
	}
	if len(e.Behind) > 0 {
		message += "; behind: " + named(e.Behind)
	}
	return false, ReasonPending, message
}

// Proxies know what of policies is enforced. Implementations do not block.
type Proxies interface {
	// Enforced says it of a policy that concerns these targets.
	Enforced(policy.Source, []policy.Ref) Enforcement
}

// NoProxies is where nothing is known of what proxies have acknowledged.
type NoProxies struct{}

// Enforced implements Proxies.
func (NoProxies) Enforced(policy.Source, []policy.Ref) Enforcement {
	return Enforcement{Missing: []string{"proxies alone enforce it, not workloads without one, and this version does not report which proxies have it"}}
}

// maxNamed bounds how much a message names.
const maxNamed = 10

func named(all []string) string {
	if len(all) > maxNamed {
		return strings.Join(all[:maxNamed], "; ") + fmt.Sprintf("; and %d more", len(all)-maxNamed)
	}
	return strings.Join(all, "; ")
}

// Policy decides on the status of a policy.
func Policy(x *policy.Index, source policy.Source, obj resource.Object, proxies Proxies, now time.Time) (mesh.TrafficPolicyStatus, bool) {
	report, ok := x.Report(source)
	if !ok {
		return mesh.TrafficPolicyStatus{}, false
	}
	was := StatusOf(obj)
	out := *was.DeepCopy()
	out.ObservedGeneration, out.Targets = obj.GetGeneration(), int32(min(len(report.Targets), 1<<31-1)) //nolint:gosec // bounded
	set := func(typ string, holds bool, reason, message string) {
		status := metav1.ConditionFalse
		if holds {
			status = metav1.ConditionTrue
		}
		meta.SetStatusCondition(&out.Conditions, metav1.Condition{
			Type: typ, Status: status, Reason: reason, Message: message, ObservedGeneration: obj.GetGeneration(),
			LastTransitionTime: metav1.NewTime(now),
		})
	}
	switch bad := mistakes(obj); {
	case len(bad) > 0:
		set(mesh.PolicyAccepted, false, ReasonInvalid, named(bad))
	case len(report.Missing) > 0 && len(report.Targets) == 0:
		set(mesh.PolicyAccepted, false, ReasonTargetNotFound, named(report.Missing))
	default:
		set(mesh.PolicyAccepted, true, ReasonAccepted, "")
	}
	if len(report.Missing) > 0 {
		set(mesh.PolicyResolvedRefs, false, ReasonTargetNotFound, named(report.Missing))
	} else {
		set(mesh.PolicyResolvedRefs, true, ReasonResolved, "")
	}
	if len(report.Overridden) > 0 {
		var all []string
		for _, o := range report.Overridden {
			all = append(all, fmt.Sprintf("spec.%s by %s", o.Field, o.By))
		}
		set(mesh.PolicyOverridden, true, ReasonOverridden, named(all))
	} else {
		meta.RemoveStatusCondition(&out.Conditions, mesh.PolicyOverridden)
	}
	e := proxies.Enforced(source, report.Targets)
	if len(e.Missing) > 0 && len(report.Targets) > 0 {
		set(mesh.PolicyPartiallyEnforced, true, ReasonNotEnforced, named(e.Missing))
	} else {
		meta.RemoveStatusCondition(&out.Conditions, mesh.PolicyPartiallyEnforced)
	}
	if e.Selected > 0 {
		all, reason, message := e.programmed()
		set(mesh.PolicyProgrammed, all, reason, message)
	} else {
		meta.RemoveStatusCondition(&out.Conditions, mesh.PolicyProgrammed)
	}
	return out, !equality.Semantic.DeepEqual(&out, was)
}

// mistakes of a policy that validation cannot see.
func mistakes(obj resource.Object) []string {
	p, ok := obj.(*mesh.ProxyPatch)
	if !ok {
		return nil
	}
	var out []string
	for i := range p.Spec.Patches {
		if err := translate.Check(&p.Spec.Patches[i]); err != nil {
			out = append(out, fmt.Sprintf("spec.patches[%d]: %v", i, err))
		}
	}
	return out
}

// StatusOf a policy; nil: it has none.
func StatusOf(obj resource.Object) *mesh.TrafficPolicyStatus {
	switch p := obj.(type) {
	case *mesh.TrafficPermission:
		return &p.Status
	case *mesh.BackendPolicy:
		return &p.Status
	case *mesh.WorkloadPolicy:
		return &p.Status
	case *mesh.ProxyPatch:
		return &p.Status
	}
	return nil
}

// Route decides on what the status of a route says of the parents that are Services. What other
// controllers say stays.
func Route(x *policy.Index, obj resource.Object, proxies Proxies, now time.Time) ([]gateway.RouteParentStatus, bool) {
	was := *ParentsOf(obj)
	out := slices.DeleteFunc(slices.Clone(was), func(p gateway.RouteParentStatus) bool { return p.ControllerName == ControllerName })
	unsupported := policy.Unsupported(obj)
	source := policy.Source{Kind: kindOf(obj), Key: resource.KeyOf(obj)}
	var invalid []string
	reason := string(gateway.RouteReasonResolvedRefs)
	for _, b := range x.RouteBackends(policy.Ref(source)) {
		if b.Invalid != "" {
			word, text, _ := strings.Cut(b.Invalid, ": ")
			if len(invalid) == 0 {
				reason = word
			}
			invalid = append(invalid, text)
		}
	}
	refs := policy.ParentRefs(obj)
	for i := range refs {
		parent, ok := policy.Parent(obj.GetNamespace(), &refs[i])
		if !ok {
			continue
		}
		status := gateway.RouteParentStatus{ParentRef: refs[i], ControllerName: ControllerName}
		for _, p := range was {
			if p.ControllerName == ControllerName && equality.Semantic.DeepEqual(p.ParentRef, refs[i]) {
				status.Conditions = slices.Clone(p.Conditions)
			}
		}
		set := func(typ gateway.RouteConditionType, holds bool, reason, message string) {
			state := metav1.ConditionFalse
			if holds {
				state = metav1.ConditionTrue
			}
			meta.SetStatusCondition(&status.Conditions, metav1.Condition{
				Type: string(typ), Status: state, Reason: reason, Message: message, ObservedGeneration: obj.GetGeneration(),
				LastTransitionTime: metav1.NewTime(now),
			})
		}
		switch why := x.Attached(obj.GetNamespace(), &refs[i]); {
		case len(unsupported) > 0:
			set(gateway.RouteConditionAccepted, false, string(gateway.RouteReasonUnsupportedValue), named(unsupported))
		case why != "":
			set(gateway.RouteConditionAccepted, false, string(gateway.RouteReasonNoMatchingParent), why)
		default:
			set(gateway.RouteConditionAccepted, true, string(gateway.RouteReasonAccepted), "")
		}
		set(gateway.RouteConditionResolvedRefs, len(invalid) == 0, reason, named(invalid))
		e := proxies.Enforced(source, []policy.Ref{parent})
		if len(e.Missing) > 0 {
			set(mesh.PolicyPartiallyEnforced, true, ReasonNotEnforced, named(e.Missing))
		} else {
			meta.RemoveStatusCondition(&status.Conditions, mesh.PolicyPartiallyEnforced)
		}
		if e.Selected > 0 {
			all, why, message := e.programmed()
			set(mesh.PolicyProgrammed, all, why, message)
		} else {
			meta.RemoveStatusCondition(&status.Conditions, mesh.PolicyProgrammed)
		}
		out = append(out, status)
	}
	return out, !equality.Semantic.DeepEqual(out, was)
}

// ParentsOf the status of a route.
func ParentsOf(obj resource.Object) *[]gateway.RouteParentStatus {
	switch r := obj.(type) {
	case *gateway.HTTPRoute:
		return &r.Status.Parents
	case *gateway.GRPCRoute:
		return &r.Status.Parents
	case *gateway.TCPRoute:
		return &r.Status.Parents
	}
	return new([]gateway.RouteParentStatus)
}

func kindOf(obj resource.Object) string {
	switch obj.(type) {
	case *gateway.HTTPRoute:
		return "HTTPRoute"
	case *gateway.GRPCRoute:
		return "GRPCRoute"
	}
	return "TCPRoute"
}
