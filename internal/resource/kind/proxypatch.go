package kind

import (
	"encoding/json"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// ProxyPatch describes mesh.proxima.dev/v1alpha1 ProxyPatch.
var ProxyPatch = &resource.Descriptor{
	GVK:        mesh.SchemeGroupVersion.WithKind("ProxyPatch"),
	Resource:   "proxypatches",
	Singular:   "proxypatch",
	ShortNames: []string{"pp"},
	Categories: []string{"proxima"},
	Namespaced: true,
	Status:     true,
	Direction:  resource.GlobalToZone,

	New:     func() resource.Object { return &mesh.ProxyPatch{} },
	NewList: func() runtime.Object { return &mesh.ProxyPatchList{} },

	Prepare:        proxyPatchParts.prepare,
	PrepareStatus:  proxyPatchParts.prepareStatus,
	Validate:       compare(validateProxyPatch),
	ValidateStatus: compare(validateProxyPatchStatus),

	Columns: trafficPolicyColumns(),
	Cells: of(func(p *mesh.ProxyPatch) []any {
		return trafficPolicyCells(p, &p.Spec.PolicyTarget, &p.Status)
	}),
}

var proxyPatchParts = parts[*mesh.ProxyPatch, mesh.ProxyPatchSpec, mesh.TrafficPolicyStatus](
	func(p *mesh.ProxyPatch) (*mesh.ProxyPatchSpec, *mesh.TrafficPolicyStatus) { return &p.Spec, &p.Status })

func validateProxyPatchStatus(p, old *mesh.ProxyPatch) field.ErrorList {
	return append(policyMeta(p, old), checkTrafficPolicyStatus(&p.Status)...)
}

func validateProxyPatch(p, old *mesh.ProxyPatch) field.ErrorList {
	errs := policyMeta(p, old)
	errs = append(errs, checkTarget(p, &p.Spec.PolicyTarget, workloadTargets()...)...)
	errs = append(errs, checkOwnWorkloads(p.Namespace, p.Spec.TargetRefs)...)
	path := field.NewPath("spec", "patches")
	switch {
	case len(p.Spec.Patches) == 0:
		errs = append(errs, field.Required(path, "must contain at least 1 patch"))
	case len(p.Spec.Patches) > maxPolicyItems:
		return append(errs, field.TooMany(path, len(p.Spec.Patches), maxPolicyItems))
	}
	for i := range p.Spec.Patches {
		errs = append(errs, checkPatch(path.Index(i), &p.Spec.Patches[i])...)
	}
	return errs
}

// patchOps are the operations of each type.
func patchOps() map[string][]string {
	whole := []string{mesh.PatchAdd, mesh.PatchMerge, mesh.PatchJSON, mesh.PatchRemove}
	placed := append(slices.Clone(whole), mesh.PatchFirst, mesh.PatchLast, mesh.PatchBefore, mesh.PatchAfter)
	return map[string][]string{
		mesh.PatchCluster: whole, mesh.PatchListener: whole, mesh.PatchVirtualHost: whole,
		mesh.PatchRoute: placed, mesh.PatchNetworkFilter: placed, mesh.PatchHTTPFilter: placed,
	}
}

func checkPatch(path *field.Path, p *mesh.ProxyPatchItem) field.ErrorList {
	var errs field.ErrorList
	ops, known := patchOps()[p.Type]
	if !known {
		errs = append(errs, field.NotSupported(path.Child("type"), p.Type, []string{
			mesh.PatchCluster, mesh.PatchListener, mesh.PatchRoute, mesh.PatchVirtualHost, mesh.PatchNetworkFilter, mesh.PatchHTTPFilter,
		}))
	} else if !slices.Contains(ops, p.Op) {
		errs = append(errs, field.NotSupported(path.Child("op"), p.Op, ops))
	}
	if (p.Op == mesh.PatchBefore || p.Op == mesh.PatchAfter) && (p.Match == nil || p.Match.Name == "") {
		errs = append(errs, field.Required(path.Child("match", "name"), "must name what the value is placed "+strings.ToLower(p.Op)))
	}
	errs = append(errs, checkPatchValue(path.Child("value"), p)...)
	m := p.Match
	if m == nil {
		return errs
	}
	errs = append(errs, checkChoice(path.Child("match", "origin"), m.Origin,
		mesh.OriginInbound, mesh.OriginOutbound, mesh.OriginPassthrough, mesh.OriginProxy)...)
	errs = append(errs, checkChoice(path.Child("match", "direction"), m.Direction, mesh.OriginInbound, mesh.OriginOutbound)...)
	if m.Port != 0 {
		errs = append(errs, checkPort(path.Child("match", "port"), m.Port)...)
	}
	if m.Listener != "" && (p.Type == mesh.PatchCluster || p.Type == mesh.PatchListener) {
		errs = append(errs, field.Forbidden(path.Child("match", "listener"), "may only be set for routes, virtual hosts and filters"))
	}
	return errs
}

// checkPatchValue checks the form alone: what Envoy's messages have, the status says.
func checkPatchValue(path *field.Path, p *mesh.ProxyPatchItem) field.ErrorList {
	switch {
	case p.Op == mesh.PatchRemove && p.Value != "":
		return field.ErrorList{field.Forbidden(path, "may not be set when `op` is 'Remove'")}
	case p.Op == mesh.PatchRemove:
		return nil
	case p.Value == "":
		return field.ErrorList{field.Required(path, "")}
	case len(p.Value) > maxPatchValue:
		return field.ErrorList{field.TooLong(path, "", maxPatchValue)}
	}
	text, err := yaml.YAMLToJSONStrict([]byte(p.Value))
	if err != nil {
		return field.ErrorList{field.Invalid(path, p.Value, "must be YAML or JSON: "+err.Error())}
	}
	if p.Op != mesh.PatchJSON {
		var object map[string]any
		if json.Unmarshal(text, &object) != nil || object == nil {
			return field.ErrorList{field.Invalid(path, p.Value, "must be an object")}
		}
		return nil
	}
	var ops []struct{ Op, Path string }
	if json.Unmarshal(text, &ops) != nil || len(ops) == 0 {
		return field.ErrorList{field.Invalid(path, p.Value, "must be a list of operations, each with op and path (RFC 6902)")}
	}
	for _, op := range ops {
		if !slices.Contains([]string{"add", "remove", "replace", "move", "copy", "test"}, op.Op) || !strings.HasPrefix(op.Path, "/") {
			return field.ErrorList{field.Invalid(path, p.Value, "must be a list of operations, each with op and path (RFC 6902)")}
		}
	}
	return nil
}
