package kind

import (
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"

	"github.com/proxima-mesh/proxima/internal/resource"
)

// ServiceCIDR describes networking.k8s.io/v1 ServiceCIDR.
var ServiceCIDR = &resource.Descriptor{
	GVK:      networkingv1.SchemeGroupVersion.WithKind("ServiceCIDR"),
	Resource: "servicecidrs",
	Singular: "servicecidr",
	Status:   true,

	New:     func() resource.Object { return &networkingv1.ServiceCIDR{} },
	NewList: func() runtime.Object { return &networkingv1.ServiceCIDRList{} },

	Prepare:       change(prepareServiceCIDR),
	PrepareStatus: change(func(obj, old *networkingv1.ServiceCIDR) { obj.Spec = *old.Spec.DeepCopy() }),
	Validate:      compare(validateServiceCIDR),
	ValidateStatus: compare(func(obj, old *networkingv1.ServiceCIDR) field.ErrorList {
		return checkMeta(obj, old, false, validation.NameIsDNSSubdomain)
	}),

	Columns: []metav1.TableColumnDefinition{
		nameColumn(), column("CIDRs", networkingv1.ServiceCIDRSpec{}.SwaggerDoc()["cidrs"]), ageColumn(),
	},
	Cells: of(func(c *networkingv1.ServiceCIDR) []any {
		return []any{c.Name, strings.Join(c.Spec.CIDRs, ","), age(c)}
	}),
}

func prepareServiceCIDR(c, old *networkingv1.ServiceCIDR) {
	c.Status = networkingv1.ServiceCIDRStatus{}
	if old != nil {
		c.Status = *old.Status.DeepCopy()
	}
}

// validateServiceCIDR lets a range of one family gain the other one; otherwise
// ranges are immutable, as addresses have been given out of them.
func validateServiceCIDR(c, old *networkingv1.ServiceCIDR) field.ErrorList {
	if old == nil {
		errs := checkMeta(c, nil, false, validation.NameIsDNSSubdomain)
		return append(errs, checkCIDRs(c.Spec.CIDRs)...)
	}
	errs := checkMeta(c, old, false, validation.NameIsDNSSubdomain)
	path := field.NewPath("spec", "cidrs")
	was, is := old.Spec.CIDRs, c.Spec.CIDRs
	grows := len(was) == 1 && len(is) == 2
	if len(was) != len(is) && !grows {
		return append(errs, field.Invalid(path, is, validation.FieldImmutableErrorMsg))
	}
	for i := range was {
		if was[i] != is[i] {
			errs = append(errs, field.Invalid(path.Index(i), is[i], validation.FieldImmutableErrorMsg))
		}
	}
	if grows {
		errs = append(errs, checkCIDRs(is)...)
	}
	return errs
}

func checkCIDRs(cidrs []string) field.ErrorList {
	path := field.NewPath("spec", "cidrs")
	if len(cidrs) == 0 {
		return field.ErrorList{field.Required(path, "at least one CIDR required")}
	}
	if len(cidrs) > 2 {
		return field.ErrorList{field.Invalid(path, cidrs, "may only hold up to 2 values")}
	}
	var errs field.ErrorList
	for i, c := range cidrs {
		errs = append(errs, utilvalidation.IsValidCIDR(path.Index(i), c)...)
	}
	if len(errs) == 0 && len(cidrs) == 2 && !dualStack(cidrs, netutils.IsIPv6CIDRString) {
		errs = append(errs, field.Invalid(path, cidrs,
			"may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64"))
	}
	return errs
}
