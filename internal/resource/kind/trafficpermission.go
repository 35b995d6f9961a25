package kind

import (
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// TrafficPermission describes mesh.proxima.dev/v1alpha1 TrafficPermission.
var TrafficPermission = &resource.Descriptor{
	GVK:        mesh.SchemeGroupVersion.WithKind("TrafficPermission"),
	Resource:   "trafficpermissions",
	Singular:   "trafficpermission",
	ShortNames: []string{"tperm"},
	Categories: []string{"proxima"},
	Namespaced: true,
	Status:     true,
	Direction:  resource.GlobalToZone,

	New:     func() resource.Object { return &mesh.TrafficPermission{} },
	NewList: func() runtime.Object { return &mesh.TrafficPermissionList{} },

	Prepare:        trafficPermissionParts.prepare,
	PrepareStatus:  trafficPermissionParts.prepareStatus,
	Validate:       compare(validateTrafficPermission),
	ValidateStatus: compare(validateTrafficPermissionStatus),

	Columns: trafficPolicyColumns(),
	Cells: of(func(p *mesh.TrafficPermission) []any {
		return trafficPolicyCells(p, &p.Spec.PolicyTarget, &p.Status)
	}),
}

var trafficPermissionParts = parts[*mesh.TrafficPermission, mesh.TrafficPermissionSpec, mesh.TrafficPolicyStatus](
	func(p *mesh.TrafficPermission) (*mesh.TrafficPermissionSpec, *mesh.TrafficPolicyStatus) {
		return &p.Spec, &p.Status
	})

func validateTrafficPermissionStatus(p, old *mesh.TrafficPermission) field.ErrorList {
	return append(policyMeta(p, old), checkTrafficPolicyStatus(&p.Status)...)
}

func validateTrafficPermission(p, old *mesh.TrafficPermission) field.ErrorList {
	errs := policyMeta(p, old)
	path := field.NewPath("spec")
	errs = append(errs, checkTarget(p, &p.Spec.PolicyTarget, workloadTargets()...)...)
	errs = append(errs, checkOwnWorkloads(p.Namespace, p.Spec.TargetRefs)...)
	errs = append(errs, checkPolicyPorts(path.Child("ports"), p.Spec.Ports)...)
	if len(p.Spec.Deny)+len(p.Spec.Allow) == 0 {
		errs = append(errs, field.Required(path, "must specify `deny`, `allow` or both"))
	}
	errs = append(errs, checkPermissionRules(path.Child("deny"), p.Spec.Deny)...)
	return append(errs, checkPermissionRules(path.Child("allow"), p.Spec.Allow)...)
}

func checkPermissionRules(path *field.Path, rules []mesh.PermissionRule) field.ErrorList {
	if len(rules) > maxPolicyItems {
		return field.ErrorList{field.TooMany(path, len(rules), maxPolicyItems)}
	}
	var errs field.ErrorList
	for i, r := range rules {
		at := path.Index(i)
		errs = append(errs, checkSources(at.Child("from"), r.From)...)
		if len(r.To) > maxPolicyItems {
			errs = append(errs, field.TooMany(at.Child("to"), len(r.To), maxPolicyItems))
			continue
		}
		for j := range r.To {
			errs = append(errs, checkPermissionRequest(at.Child("to").Index(j), &r.To[j])...)
		}
	}
	return errs
}

func checkPermissionRequest(path *field.Path, r *mesh.PermissionRequest) field.ErrorList {
	if len(r.Methods)+len(r.Paths)+len(r.Hosts) == 0 {
		return field.ErrorList{field.Required(path, "must specify `methods`, `paths` or `hosts`")}
	}
	var errs field.ErrorList
	for i, m := range r.Methods {
		if m == "" || m != strings.ToUpper(m) || strings.ContainsAny(m, " \t/") {
			errs = append(errs, field.Invalid(path.Child("methods").Index(i), m, "must be a method in upper case, such as GET"))
		}
	}
	errs = append(errs, checkValueMatches(path.Child("paths"), r.Paths, "/", mesh.MatchExact, mesh.MatchPrefix, mesh.MatchRegularExpression)...)
	for i, h := range r.Hosts {
		errs = append(errs, checkSubdomain(path.Child("hosts").Index(i), h)...)
	}
	return errs
}
