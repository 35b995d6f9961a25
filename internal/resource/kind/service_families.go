package kind

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const fixed = "may not change once set"

// checkClusterIPs checks clusterIP, clusterIPs, ipFamilies and ipFamilyPolicy
// against one another. All may still be empty: the registry fills them.
func checkClusterIPs(s *corev1.Service) field.ErrorList {
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		return nil // checkExternalName forbids them all
	}
	var errs field.ErrorList
	spec, path := &s.Spec, field.NewPath("spec", "clusterIPs")
	switch {
	case spec.ClusterIP == "" && len(spec.ClusterIPs) > 0:
		errs = append(errs, field.Invalid(path, spec.ClusterIPs, "must be empty when `clusterIP` is not specified"))
	case spec.ClusterIP != "" && len(spec.ClusterIPs) == 0:
		errs = append(errs, field.Required(path, ""))
	case spec.ClusterIP != "" && spec.ClusterIPs[0] != spec.ClusterIP:
		errs = append(errs, field.Invalid(path, spec.ClusterIPs, "first value must match `clusterIP`"))
	}
	errs = append(errs, checkFamilies(spec)...)
	bad := checkClusterIPValues(spec, path)
	if len(spec.ClusterIPs) > 2 {
		errs = append(errs, field.Invalid(path, spec.ClusterIPs, "may only hold up to 2 values"))
	}
	if len(bad) > 0 { // what follows would only confuse
		return append(errs, bad...)
	}
	if len(spec.ClusterIPs) > 1 && !dualStack(spec.ClusterIPs, isIPv6) {
		errs = append(errs, field.Invalid(path, spec.ClusterIPs, "may specify no more than one IP for each IP family"))
	}
	if headless(s) {
		return errs
	}
	for i := range min(len(spec.ClusterIPs), len(spec.IPFamilies)) {
		family, v6 := spec.IPFamilies[i], isIPv6(spec.ClusterIPs[i])
		if (family == corev1.IPv4Protocol && v6) || (family == corev1.IPv6Protocol && !v6) {
			errs = append(errs, field.Invalid(path.Index(i), spec.ClusterIPs[i],
				fmt.Sprintf("expected an %s value as indicated by `ipFamilies[%d]`", family, i)))
		}
	}
	return errs
}

func checkFamilies(spec *corev1.ServiceSpec) field.ErrorList {
	var errs field.ErrorList
	seen := set[corev1.IPFamily]{}
	for i, f := range spec.IPFamilies {
		path := field.NewPath("spec", "ipFamilies").Index(i)
		if f != corev1.IPv4Protocol && f != corev1.IPv6Protocol {
			errs = append(errs, field.NotSupported(path, f, []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}))
		}
		if !seen.add(f) {
			errs = append(errs, field.Duplicate(path, f))
		}
	}
	if p := spec.IPFamilyPolicy; p != nil {
		switch *p {
		case corev1.IPFamilyPolicySingleStack, corev1.IPFamilyPolicyPreferDualStack, corev1.IPFamilyPolicyRequireDualStack:
		default:
			errs = append(errs, field.NotSupported(field.NewPath("spec", "ipFamilyPolicy"), *p, []corev1.IPFamilyPolicy{
				corev1.IPFamilyPolicyPreferDualStack, corev1.IPFamilyPolicyRequireDualStack, corev1.IPFamilyPolicySingleStack}))
		}
	}
	return errs
}

func checkClusterIPValues(spec *corev1.ServiceSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, ip := range spec.ClusterIPs {
		if i == 0 && ip == corev1.ClusterIPNone {
			if len(spec.ClusterIPs) > 1 {
				errs = append(errs, field.Invalid(path, spec.ClusterIPs, "'None' must be the first and only value"))
			}
			continue
		}
		errs = append(errs, utilvalidation.IsValidIPForLegacyField(path.Index(i), ip, true, nil)...)
	}
	return errs
}

// dualStack is true for one value of each family.
func dualStack(values []string, v6 func(string) bool) bool {
	return len(values) == 2 && v6(values[0]) != v6(values[1])
}

// checkClusterIPsUpdate lets the second address come and go, and nothing else,
// unless a type without addresses is involved.
func checkClusterIPsUpdate(s, old *corev1.Service) field.ErrorList {
	if !addressed(s, old) || (headless(s) && headless(old)) {
		return nil
	}
	was, is := old.Spec.ClusterIPs, s.Spec.ClusterIPs
	path := field.NewPath("spec", "clusterIPs")
	var errs field.ErrorList
	if len(was) > 0 && len(is) == 0 {
		return append(errs, field.Invalid(path.Index(0), is, "primary clusterIP can not be unset"))
	}
	if len(was) == len(is) {
		for i := range was {
			if was[i] != is[i] {
				errs = append(errs, field.Invalid(path.Index(i), is, fixed))
			}
		}
		return errs
	}
	if len(was) > 0 && was[0] != is[0] {
		errs = append(errs, field.Invalid(path.Index(0), is, fixed))
	}
	if len(was) > len(is) && len(is) == 1 {
		errs = append(errs, checkReleased(s, "clusterIP")...)
	}
	return errs
}

// checkFamiliesUpdate is checkClusterIPsUpdate for the families.
func checkFamiliesUpdate(s, old *corev1.Service) field.ErrorList {
	if !addressed(s, old) || headless(s) || headless(old) {
		return nil
	}
	was, is := old.Spec.IPFamilies, s.Spec.IPFamilies
	path := field.NewPath("spec", "ipFamilies").Index(0)
	var errs field.ErrorList
	if len(was) > 0 && len(is) == 0 {
		return append(errs, field.Invalid(path, is, "primary ipFamily can not be unset"))
	}
	if (len(was) == len(is) && !slices.Equal(was, is)) ||
		(len(was) > 0 && len(was) != len(is) && was[0] != is[0]) {
		errs = append(errs, field.Invalid(path, is, fixed))
	}
	if len(was) > len(is) && len(is) == 1 {
		errs = append(errs, checkReleased(s, "ipFamily")...)
	}
	return errs
}

// addressed is true if neither side of an update is an ExternalName.
func addressed(s, old *corev1.Service) bool {
	return s.Spec.Type != corev1.ServiceTypeExternalName && old.Spec.Type != corev1.ServiceTypeExternalName
}

func checkReleased(s *corev1.Service, what string) field.ErrorList {
	p := s.Spec.IPFamilyPolicy
	if p != nil && *p == corev1.IPFamilyPolicySingleStack {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("spec", "ipFamilyPolicy"), p,
		"must be set to 'SingleStack' when releasing the secondary "+what)}
}
