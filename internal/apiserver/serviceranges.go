package apiserver

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/endpoints/request"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// rangeStrategy keeps workloads out of the service ranges: an address there is a
// Service's, now or later, and connections to it would lead back to the agent that
// makes them. A Dataplane is refused. Slices and Endpoints, which Kubernetes
// takes, are answered with a warning; so is a new range that covers endpoints. It also keeps
// external addresses of Services in the ranges for them.
type rangeStrategy struct {
	strategy
	server *Server
}

// InServiceRange reports whether an address is in a range of virtual IPs. Safe
// once the server is ready; false without Services.
func (s *Server) InServiceRange(a netip.Addr) bool {
	return s.services != nil && s.services.addresses.Contains(a.Unmap())
}

// rangedKinds are those that rangeStrategy is for.
var rangedKinds = []schema.GroupVersionKind{
	meshv1alpha1.SchemeGroupVersion.WithKind("Dataplane"), discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"),
	corev1.SchemeGroupVersion.WithKind("Endpoints"), networkingv1.SchemeGroupVersion.WithKind("ServiceCIDR"),
	corev1.SchemeGroupVersion.WithKind("Service"),
}

func (s *Server) specializeRanged(schemes *schemes) {
	for _, gvk := range rangedKinds {
		k := s.kinds[gvk]
		if k == nil {
			continue
		}
		ranged := rangeStrategy{newStrategy(schemes.serving, k.kind), s}
		k.registry.CreateStrategy, k.registry.UpdateStrategy = ranged, ranged
	}
}

// Validate implements rest.RESTCreateStrategy.
func (r rangeStrategy) Validate(ctx context.Context, obj runtime.Object) field.ErrorList {
	return append(r.strategy.Validate(ctx, obj), r.refuse(obj, nil)...)
}

// ValidateUpdate implements rest.RESTUpdateStrategy. What is there already may
// stay: the range may be younger.
func (r rangeStrategy) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	return append(r.strategy.ValidateUpdate(ctx, obj, old), r.refuse(obj, old)...)
}

func (r rangeStrategy) refuse(obj, old runtime.Object) field.ErrorList {
	if svc, ok := obj.(*corev1.Service); ok {
		return r.refuseExternal(svc, old)
	}
	dp, ok := obj.(*meshv1alpha1.Dataplane)
	if !ok {
		return nil
	}
	var kept []string
	if before, ok := old.(*meshv1alpha1.Dataplane); ok {
		kept = before.Spec.Addresses
	}
	var errs field.ErrorList
	for i, text := range dp.Spec.Addresses {
		if r.virtual(text) && !slices.Contains(kept, text) {
			errs = append(errs, field.Invalid(field.NewPath("spec", "addresses").Index(i), text,
				"may not be in a service range, which is for virtual IPs of Services: give an address of the workload"))
		}
	}
	return errs
}

// refuseExternal refuses external addresses outside of the ranges for them. Those that the
// Service has already may stay: the ranges may be younger.
func (r rangeStrategy) refuseExternal(svc *corev1.Service, old runtime.Object) (errs field.ErrorList) {
	ranges := r.server.cfg.ExternalIPRanges
	if ranges == nil {
		return nil
	}
	var kept []string
	if before, ok := old.(*corev1.Service); ok {
		kept = before.Spec.ExternalIPs
	}
	allowed := "no external address is allowed here"
	if len(ranges) > 0 {
		allowed = fmt.Sprintf("must be in one of the ranges that are allowed here: %s", ranges)
	}
	for i, text := range svc.Spec.ExternalIPs {
		a, err := netip.ParseAddr(text)
		inside := slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(a.Unmap()) })
		if err == nil && !inside && !slices.Contains(kept, text) { // one that is none is refused for that
			errs = append(errs, field.Invalid(field.NewPath("spec", "externalIPs").Index(i), text, allowed+" (--external-ip-ranges of the control plane)"))
		}
	}
	return errs
}

func (r rangeStrategy) virtual(text string) bool {
	a, err := netip.ParseAddr(text)
	return err == nil && r.server.InServiceRange(a)
}

// WarningsOnCreate implements rest.RESTCreateStrategy.
func (r rangeStrategy) WarningsOnCreate(ctx context.Context, obj runtime.Object) []string {
	warnings := r.strategy.WarningsOnCreate(ctx, obj)
	if cidr, ok := obj.(*networkingv1.ServiceCIDR); ok && !isOwnWrite(ctx) {
		return append(warnings, r.covered(ctx, cidr)...)
	}
	return append(warnings, r.warn(obj)...)
}

// WarningsOnUpdate implements rest.RESTUpdateStrategy.
func (r rangeStrategy) WarningsOnUpdate(ctx context.Context, obj, old runtime.Object) []string {
	return append(r.strategy.WarningsOnUpdate(ctx, obj, old), r.warn(obj)...)
}

// isOwnWrite: the server itself makes the default range, and reads no warnings.
func isOwnWrite(ctx context.Context) bool {
	u, ok := request.UserFrom(ctx)
	return ok && u.GetName() == ownUser
}

// ownUser is the name under which the server writes.
const ownUser = "system:apiserver"

func (r rangeStrategy) warn(obj runtime.Object) []string {
	var found []string
	for _, text := range endpointAddresses(obj) {
		if r.virtual(text) && !slices.Contains(found, text) {
			found = append(found, text)
		}
	}
	if len(found) == 0 {
		return nil
	}
	return []string{"endpoints in a service range: " + firstOf(found) +
		"; where a Service has the address, agents leave the endpoint out, as connections would lead back to them"}
}

// endpointAddresses of an EndpointSlice or Endpoints.
func endpointAddresses(obj runtime.Object) []string {
	var out []string
	switch o := obj.(type) {
	case *discoveryv1.EndpointSlice:
		for _, e := range o.Endpoints {
			out = append(out, e.Addresses...)
		}
	case *corev1.Endpoints:
		for _, s := range o.Subsets {
			for _, a := range s.Addresses {
				out = append(out, a.IP)
			}
		}
	case *meshv1alpha1.Dataplane:
		return o.Spec.Addresses
	}
	return out
}

// covered warns of objects that a new range covers. It reads them all: ranges are
// seldom made.
func (r rangeStrategy) covered(ctx context.Context, cidr *networkingv1.ServiceCIDR) []string {
	var prefixes []netip.Prefix
	for _, text := range cidr.Spec.CIDRs {
		if p, err := netip.ParsePrefix(text); err == nil {
			prefixes = append(prefixes, p)
		}
	}
	covers := func(text string) bool {
		a, err := netip.ParseAddr(text)
		return err == nil && slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a.Unmap()) })
	}
	client := r.server.Client(ownUser)
	var found []string
	for _, gvk := range rangedKinds[:2] {
		k := r.server.kinds[gvk]
		if k == nil {
			continue
		}
		objects, _, err := client.List(ctx, k.kind, resource.ListOptions{})
		if err != nil {
			return []string{fmt.Sprintf("whether endpoints lie in the range could not be checked: %v", err)}
		}
		for _, o := range objects {
			if slices.ContainsFunc(endpointAddresses(o), covers) {
				found = append(found, k.kind.Singular+" "+resource.KeyOf(o).String())
			}
		}
	}
	if len(found) == 0 {
		return nil
	}
	return []string{"the range covers addresses of " + firstOf(found) + ": give them others, as Services will get these"}
}

// firstOf a list, as text.
func firstOf(list []string) string {
	if more := len(list) - maxNamed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(list[:maxNamed], ", "), more)
	}
	return strings.Join(list, ", ")
}
