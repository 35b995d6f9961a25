package ipam

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var (
	policyPath     = field.NewPath("spec", "ipFamilyPolicy")
	familiesPath   = field.NewPath("spec", "ipFamilies")
	clusterIPsPath = field.NewPath("spec", "clusterIPs")
)

// settleFamilies fills ipFamilyPolicy and ipFamilies of a Service that is not
// an ExternalName. The order of the steps is Kubernetes': each relies on what
// the ones before it have refused.
func settleFamilies(svc, old *corev1.Service, families []corev1.IPFamily) field.ErrorList {
	defaultPolicy(svc, old)
	if errs := checkShape(svc); len(errs) > 0 {
		return errs
	}
	errs := settleSingleStack(svc, old)
	errs = append(errs, inferFamilies(svc, families)...)
	if len(errs) > 0 {
		return errs
	}
	if isHeadless(svc) && len(svc.Spec.Selector) == 0 {
		// Nothing is allocated and nothing selected: any family will do, configured or not.
		if len(svc.Spec.IPFamilies) == 0 {
			svc.Spec.IPFamilies = []corev1.IPFamily{defaultFamily(families)}
		}
		if policyOf(svc) != corev1.IPFamilyPolicySingleStack {
			addOtherFamily(svc)
		}
		return nil
	}
	if policyOf(svc) == corev1.IPFamilyPolicyRequireDualStack && len(families) < 2 {
		errs = append(errs, field.Invalid(policyPath, svc.Spec.IPFamilyPolicy,
			"this cluster is not configured for dual-stack services"))
	}
	for i, f := range svc.Spec.IPFamilies {
		if !slices.Contains(families, f) {
			errs = append(errs, field.Invalid(familiesPath.Index(i), f, "not configured on this cluster"))
		}
	}
	if len(errs) > 0 {
		return errs
	}
	if len(svc.Spec.IPFamilies) == 0 {
		svc.Spec.IPFamilies = []corev1.IPFamily{defaultFamily(families)}
	}
	if policyOf(svc) != corev1.IPFamilyPolicySingleStack && len(families) == 2 {
		addOtherFamily(svc)
	}
	return nil
}

func defaultFamily(families []corev1.IPFamily) corev1.IPFamily {
	if len(families) == 0 {
		return corev1.IPv4Protocol
	}
	return families[0]
}

func addOtherFamily(svc *corev1.Service) {
	if len(svc.Spec.IPFamilies) != 1 {
		return
	}
	other := corev1.IPv6Protocol
	if svc.Spec.IPFamilies[0] == other {
		other = corev1.IPv4Protocol
	}
	svc.Spec.IPFamilies = append(svc.Spec.IPFamilies, other)
}

// defaultPolicy never lets a Service change between single and dual stack
// without being asked: an update without a policy keeps the old one.
func defaultPolicy(svc, old *corev1.Service) {
	if svc.Spec.IPFamilyPolicy != nil {
		return
	}
	policy := corev1.IPFamilyPolicySingleStack
	switch {
	case old != nil && old.Spec.IPFamilyPolicy != nil:
		policy = *old.Spec.IPFamilyPolicy
	case isHeadless(svc) && len(svc.Spec.Selector) == 0:
		policy = corev1.IPFamilyPolicyRequireDualStack
	}
	svc.Spec.IPFamilyPolicy = &policy
}

// settleSingleStack is the way from dual to single stack: by policy only.
func settleSingleStack(svc, old *corev1.Service) (errs field.ErrorList) {
	s := &svc.Spec
	single := policyOf(svc) == corev1.IPFamilyPolicySingleStack
	if old != nil && single {
		if slices.Equal(s.ClusterIPs, old.Spec.ClusterIPs) && len(s.ClusterIPs) > 1 {
			s.ClusterIPs = s.ClusterIPs[:1]
		}
		if slices.Equal(s.IPFamilies, old.Spec.IPFamilies) && len(s.IPFamilies) > 1 {
			s.IPFamilies = s.IPFamilies[:1]
		}
	}
	if old != nil && !single {
		if reduced(s.ClusterIPs, old.Spec.ClusterIPs) {
			errs = append(errs, field.Invalid(policyPath, s.IPFamilyPolicy,
				"must be 'SingleStack' to release the secondary cluster IP"))
		}
		if reduced(s.IPFamilies, old.Spec.IPFamilies) {
			errs = append(errs, field.Invalid(policyPath, s.IPFamilyPolicy,
				"must be 'SingleStack' to release the secondary IP family"))
		}
	}
	if single && len(s.ClusterIPs) == 2 {
		errs = append(errs, field.Invalid(policyPath, s.IPFamilyPolicy,
			"must be 'RequireDualStack' or 'PreferDualStack' when multiple cluster IPs are specified"))
	}
	if single && len(s.IPFamilies) == 2 {
		errs = append(errs, field.Invalid(policyPath, s.IPFamilyPolicy,
			"must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified"))
	}
	return errs
}

// reduced: from two to the first one alone.
func reduced[T comparable](now, before []T) bool {
	return len(before) == 2 && len(now) == 1 && now[0] == before[0]
}

// inferFamilies derives families from the addresses that the user gave.
func inferFamilies(svc *corev1.Service, families []corev1.IPFamily) (errs field.ErrorList) {
	for i, text := range svc.Spec.ClusterIPs {
		if text == corev1.ClusterIPNone {
			break
		}
		addr, err := netip.ParseAddr(text)
		if err != nil || i < len(svc.Spec.IPFamilies) {
			continue
		}
		f := familyOf(addr)
		if !slices.Contains(families, f) {
			errs = append(errs, field.Invalid(clusterIPsPath.Index(i), svc.Spec.ClusterIPs,
				fmt.Sprintf("%s is not configured on this cluster", f)))
			continue
		}
		svc.Spec.IPFamilies = append(svc.Spec.IPFamilies, f)
	}
	return errs
}

// checkShape refuses fields that contradict each other, whatever the ranges.
func checkShape(svc *corev1.Service) (errs field.ErrorList) {
	s := &svc.Spec
	policies := []corev1.IPFamilyPolicy{corev1.IPFamilyPolicySingleStack,
		corev1.IPFamilyPolicyPreferDualStack, corev1.IPFamilyPolicyRequireDualStack}
	if !slices.Contains(policies, policyOf(svc)) {
		errs = append(errs, field.NotSupported(policyPath, policyOf(svc), policies))
	}
	for i, f := range s.IPFamilies {
		if f != corev1.IPv4Protocol && f != corev1.IPv6Protocol {
			errs = append(errs, field.NotSupported(familiesPath.Index(i), f,
				[]corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}))
		}
		if slices.Contains(s.IPFamilies[:i], f) {
			errs = append(errs, field.Duplicate(familiesPath.Index(i), f))
		}
	}
	if len(s.ClusterIPs) > 2 {
		errs = append(errs, field.Invalid(clusterIPsPath, s.ClusterIPs, "may only hold up to 2 values"))
	}
	if len(s.ClusterIPs) > 0 && s.ClusterIPs[0] != s.ClusterIP {
		errs = append(errs, field.Invalid(clusterIPsPath, s.ClusterIPs, "first value must match `clusterIP`"))
	}
	return append(errs, checkClusterIPs(s)...)
}

func checkClusterIPs(s *corev1.ServiceSpec) (errs field.ErrorList) {
	var seen []corev1.IPFamily
	for i, text := range s.ClusterIPs {
		path := clusterIPsPath.Index(i)
		if text == corev1.ClusterIPNone {
			if len(s.ClusterIPs) > 1 {
				errs = append(errs, field.Invalid(clusterIPsPath, s.ClusterIPs, "'None' must be the first and only value"))
			}
			return errs
		}
		addr, err := netip.ParseAddr(text)
		if err != nil || addr.Zone() != "" || addr.Is4In6() {
			errs = append(errs, field.Invalid(path, text, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"))
			continue
		}
		f := familyOf(addr)
		if i < len(s.IPFamilies) && s.IPFamilies[i] != f {
			errs = append(errs, field.Invalid(path, text,
				fmt.Sprintf("expected an %v value as indicated by `ipFamilies[%v]`", s.IPFamilies[i], i)))
		}
		if slices.Contains(seen, f) {
			errs = append(errs, field.Invalid(clusterIPsPath, s.ClusterIPs, "may specify no more than one IP for each IP family"))
		}
		seen = append(seen, f)
	}
	return errs
}
