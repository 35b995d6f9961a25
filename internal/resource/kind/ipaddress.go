package kind

import (
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/proxima-mesh/proxima/internal/resource"
)

// IPAddress describes networking.k8s.io/v1 IPAddress. Its columns are
// Kubernetes', which prints no age.
var IPAddress = &resource.Descriptor{
	GVK:        networkingv1.SchemeGroupVersion.WithKind("IPAddress"),
	Resource:   "ipaddresses",
	Singular:   "ipaddress",
	ShortNames: []string{"ip"},

	New:     func() resource.Object { return &networkingv1.IPAddress{} },
	NewList: func() runtime.Object { return &networkingv1.IPAddressList{} },

	Validate: compare(validateIPAddress),

	Columns: []metav1.TableColumnDefinition{
		nameColumn(),
		column("ParentRef", networkingv1.IPAddressSpec{}.SwaggerDoc()["parentRef"]),
	},
	Cells: of(func(a *networkingv1.IPAddress) []any { return []any{a.Name, parentCell(a.Spec.ParentRef)} }),
}

func validateIPAddress(a, old *networkingv1.IPAddress) field.ErrorList {
	path := field.NewPath("spec", "parentRef")
	if old != nil {
		errs := checkMeta(a, old, false, nameIsIP)
		return append(errs, validation.ValidateImmutableField(a.Spec.ParentRef, old.Spec.ParentRef, path)...)
	}
	errs := checkMeta(a, nil, false, nameIsIP)
	p := a.Spec.ParentRef
	if p == nil {
		return append(errs, field.Required(path, ""))
	}
	if p.Group != "" { // empty is the core group
		errs = append(errs, checkSubdomain(path.Child("group"), p.Group)...)
	}
	errs = append(errs, checkSegment(path.Child("resource"), p.Resource)...)
	errs = append(errs, checkSegment(path.Child("name"), p.Name)...)
	if p.Namespace != "" {
		errs = append(errs, checkSegment(path.Child("namespace"), p.Namespace)...)
	}
	return errs
}

// nameIsIP accepts the canonical form of an address alone, so that the name
// makes the address unique.
func nameIsIP(name string, _ bool) []string {
	var messages []string
	for _, err := range utilvalidation.IsValidIP(nil, name) {
		messages = append(messages, err.Detail)
	}
	return messages
}

// checkSegment checks what becomes a part of a URL.
func checkSegment(path *field.Path, value string) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	return invalid(path, value, content.IsPathSegmentName(value))
}

func parentCell(p *networkingv1.ParentReference) string {
	if p == nil {
		return none
	}
	parts := []string{strings.ToLower(schema.GroupResource{Group: p.Group, Resource: p.Resource}.String())}
	if p.Namespace != "" {
		parts = append(parts, p.Namespace)
	}
	return strings.Join(append(parts, p.Name), "/")
}
