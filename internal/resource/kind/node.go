package kind

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"

	"github.com/proxima-mesh/proxima/internal/resource"
)

// Node describes v1 Node. A node may bring its status when it registers.
var Node = &resource.Descriptor{
	GVK:        corev1.SchemeGroupVersion.WithKind("Node"),
	Resource:   "nodes",
	Singular:   "node",
	ShortNames: []string{"no"},
	Status:     true,

	New:     func() resource.Object { return &corev1.Node{} },
	NewList: func() runtime.Object { return &corev1.NodeList{} },

	Default: on(defaultNode),
	Prepare: change(func(obj, old *corev1.Node) {
		if old != nil {
			obj.Status = *old.Status.DeepCopy()
		}
	}),
	PrepareStatus:  change(func(obj, old *corev1.Node) { obj.Spec = *old.Spec.DeepCopy() }),
	Validate:       compare(validateNode),
	ValidateStatus: compare(validateNodeStatus),

	Fields: of(func(n *corev1.Node) fields.Set {
		return fields.Set{"spec.unschedulable": strconv.FormatBool(n.Spec.Unschedulable)}
	}),
	Columns: nodeColumns(),
	Cells:   of(nodeCells),
}

// defaultNode keeps podCIDR and podCIDRs in step, the list being the truth.
func defaultNode(n *corev1.Node) {
	if n.Status.Allocatable == nil && n.Status.Capacity != nil {
		n.Status.Allocatable = n.Status.Capacity.DeepCopy()
	}
	switch {
	case n.Spec.PodCIDR == "" && len(n.Spec.PodCIDRs) > 0:
		n.Spec.PodCIDR = n.Spec.PodCIDRs[0]
	case n.Spec.PodCIDR != "" && (len(n.Spec.PodCIDRs) == 0 || n.Spec.PodCIDRs[0] != n.Spec.PodCIDR):
		n.Spec.PodCIDRs = []string{n.Spec.PodCIDR}
	}
}

func validateNode(n, old *corev1.Node) field.ErrorList {
	path := field.NewPath("spec")
	var errs field.ErrorList
	if old == nil {
		errs = checkMeta(n, nil, false, validation.NameIsDNSSubdomain)
	} else {
		errs = checkMeta(n, old, false, validation.NameIsDNSSubdomain)
		if len(old.Spec.PodCIDRs) > 0 && !slices.Equal(n.Spec.PodCIDRs, old.Spec.PodCIDRs) {
			errs = append(errs, field.Forbidden(path.Child("podCIDRs"),
				"node updates may not change podCIDR except from \"\" to valid"))
		}
		if old.Spec.ProviderID != "" && n.Spec.ProviderID != old.Spec.ProviderID {
			errs = append(errs, field.Forbidden(path.Child("providerID"),
				"node updates may not change providerID except from \"\" to valid"))
		}
	}
	errs = append(errs, checkPodCIDRs(path.Child("podCIDRs"), n.Spec.PodCIDRs)...)
	// The path is that of Kubernetes, for clients that compare it.
	errs = append(errs, checkTaints(field.NewPath("metadata", "taints"), n.Spec.Taints)...)
	return append(errs, checkNodeStatus(n)...)
}

func validateNodeStatus(n, old *corev1.Node) field.ErrorList {
	return append(checkMeta(n, old, false, validation.NameIsDNSSubdomain), checkNodeStatus(n)...)
}

func checkPodCIDRs(path *field.Path, cidrs []string) field.ErrorList {
	var errs field.ErrorList
	for i, c := range cidrs {
		errs = append(errs, utilvalidation.IsValidCIDRForLegacyField(path.Index(i), c, true, nil)...)
	}
	if len(errs) == 0 && len(cidrs) > 1 && !dualStack(cidrs, netutils.IsIPv6CIDRString) {
		errs = append(errs, field.Invalid(path, cidrs, "may specify no more than one CIDR for each IP family"))
	}
	return errs
}

func checkTaints(path *field.Path, taints []corev1.Taint) field.ErrorList {
	type key struct {
		name   string
		effect corev1.TaintEffect
	}
	var errs field.ErrorList
	seen := set[key]{}
	for i, t := range taints {
		at := path.Index(i)
		errs = append(errs, metav1validation.ValidateLabelName(t.Key, at.Child("key"))...)
		if m := utilvalidation.IsValidLabelValue(t.Value); len(m) > 0 {
			errs = append(errs, field.Invalid(at.Child("value"), t.Value, strings.Join(m, ";")))
		}
		switch t.Effect {
		case corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute:
		case "":
			errs = append(errs, field.Required(at.Child("effect"), ""))
		default:
			errs = append(errs, field.NotSupported(at.Child("effect"), t.Effect, []corev1.TaintEffect{
				corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute}))
		}
		if !seen.add(key{t.Key, t.Effect}) {
			dup := field.Duplicate(at, t)
			dup.Detail = "taints must be unique by key and effect pair"
			errs = append(errs, dup)
		}
	}
	return errs
}

func checkNodeStatus(n *corev1.Node) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("status")
	errs = append(errs, checkQuantities(path.Child("capacity"), n.Status.Capacity)...)
	errs = append(errs, checkQuantities(path.Child("allocatable"), n.Status.Allocatable)...)
	seen := set[corev1.NodeAddress]{}
	for i, a := range n.Status.Addresses {
		if !seen.add(a) {
			errs = append(errs, field.Duplicate(path.Child("addresses").Index(i), a))
		}
	}
	return errs
}

func checkQuantities(path *field.Path, list corev1.ResourceList) field.ErrorList {
	var errs field.ErrorList
	for _, name := range slices.Sorted(maps.Keys(list)) {
		q := list[name]
		if q.Sign() < 0 {
			errs = append(errs, field.Invalid(path.Child(string(name)), q.String(), "must be greater than or equal to 0"))
		}
	}
	return errs
}

func nodeColumns() []metav1.TableColumnDefinition {
	status, info := corev1.NodeStatus{}.SwaggerDoc(), corev1.NodeSystemInfo{}.SwaggerDoc()
	return []metav1.TableColumnDefinition{
		nameColumn(),
		column("Status", "The status of the node"),
		column("Roles", "The roles of the node"),
		ageColumn(),
		column("Version", info["kubeletVersion"]),
		wide("Internal-IP", status["addresses"]),
		wide("External-IP", status["addresses"]),
		wide("OS-Image", info["osImage"]),
		wide("Kernel-Version", info["kernelVersion"]),
		wide("Container-Runtime", info["containerRuntimeVersion"]),
	}
}

func nodeCells(n *corev1.Node) []any {
	info := n.Status.NodeInfo
	return []any{
		n.Name, nodeState(n), orElse(strings.Join(nodeRoles(n), ","), none), age(n), info.KubeletVersion,
		nodeAddress(n, corev1.NodeInternalIP), nodeAddress(n, corev1.NodeExternalIP),
		orElse(info.OSImage, unknown), orElse(info.KernelVersion, unknown), orElse(info.ContainerRuntimeVersion, unknown),
	}
}

func nodeState(n *corev1.Node) string {
	state := "Unknown"
	for _, c := range n.Status.Conditions {
		if c.Type != corev1.NodeReady {
			continue
		}
		state = "NotReady"
		if c.Status == corev1.ConditionTrue {
			state = "Ready"
		}
	}
	if n.Spec.Unschedulable {
		state = fmt.Sprintf("%s,SchedulingDisabled", state)
	}
	if s := DrainOf(n).State(); s != "" {
		state = fmt.Sprintf("%s,%s", state, s)
	}
	return state
}

// nodeRoles reads both forms of role label that are in use.
func nodeRoles(n *corev1.Node) []string {
	const prefix, whole = "node-role.kubernetes.io/", "kubernetes.io/role"
	roles := set[string]{}
	for k, v := range n.Labels {
		if role, ok := strings.CutPrefix(k, prefix); ok && role != "" {
			roles.add(role)
		} else if k == whole && v != "" {
			roles.add(v)
		}
	}
	return slices.Sorted(maps.Keys(roles))
}

func nodeAddress(n *corev1.Node, kind corev1.NodeAddressType) string {
	for _, a := range n.Status.Addresses {
		if a.Type == kind {
			return a.Address
		}
	}
	return none
}
