package kind

import (
	"fmt"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	gateway "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/proxima-mesh/proxima/internal/resource"
)

// What routes may hold at most, as the definitions of the Gateway API 1.6 say.
const (
	maxRouteParents  = 32
	maxRouteNames    = 16
	maxRouteRules    = 16
	maxRouteMatches  = 64
	maxRouteFilters  = 16
	maxRouteBackends = 16
	maxRouteWeight   = 1000000
)

// gatewayVersion of the kinds of the Gateway API.
var gatewayVersion = schema.GroupVersion{Group: gateway.GroupVersion.Group, Version: gateway.GroupVersion.Version}

// HTTPRoute describes gateway.networking.k8s.io/v1 HTTPRoute. Nothing is defaulted: who reads a
// route knows what a missing field means.
var HTTPRoute = route("HTTPRoute", "httproutes", "httproute", httpRouteParts, compare(validateHTTPRoute),
	func() resource.Object { return &gateway.HTTPRoute{} }, func() runtime.Object { return &gateway.HTTPRouteList{} },
	of(func(r *gateway.HTTPRoute) []any { return routeCells(r, &r.Spec.CommonRouteSpec, r.Spec.Hostnames) }))

// GRPCRoute describes gateway.networking.k8s.io/v1 GRPCRoute.
var GRPCRoute = route("GRPCRoute", "grpcroutes", "grpcroute", grpcRouteParts, compare(validateGRPCRoute),
	func() resource.Object { return &gateway.GRPCRoute{} }, func() runtime.Object { return &gateway.GRPCRouteList{} },
	of(func(r *gateway.GRPCRoute) []any { return routeCells(r, &r.Spec.CommonRouteSpec, r.Spec.Hostnames) }))

// TCPRoute describes gateway.networking.k8s.io/v1 TCPRoute.
var TCPRoute = route("TCPRoute", "tcproutes", "tcproute", tcpRouteParts, compare(validateTCPRoute),
	func() resource.Object { return &gateway.TCPRoute{} }, func() runtime.Object { return &gateway.TCPRouteList{} },
	of(func(r *gateway.TCPRoute) []any { return routeCells(r, &r.Spec.CommonRouteSpec, nil) }))

// ReferenceGrant describes gateway.networking.k8s.io/v1 ReferenceGrant.
var ReferenceGrant = &resource.Descriptor{
	GVK:        gatewayVersion.WithKind("ReferenceGrant"),
	Resource:   "referencegrants",
	Singular:   "referencegrant",
	ShortNames: []string{"refgrant"},
	Categories: []string{"gateway-api"},
	Namespaced: true,
	Direction:  resource.GlobalToZone,

	New:     func() resource.Object { return &gateway.ReferenceGrant{} },
	NewList: func() runtime.Object { return &gateway.ReferenceGrantList{} },

	Prepare:  counted(func(g *gateway.ReferenceGrant) any { return g.Spec }),
	Validate: compare(validateReferenceGrant),

	Columns: []metav1.TableColumnDefinition{
		nameColumn(),
		column("From", "The kinds and namespaces whose objects may refer."),
		column("To", "What they may refer to, in this namespace."),
		ageColumn(),
	},
	Cells: of(func(g *gateway.ReferenceGrant) []any {
		var from, to listed
		for _, f := range g.Spec.From {
			from.add(fmt.Sprintf("%s/%s", f.Kind, f.Namespace))
		}
		for _, t := range g.Spec.To {
			name := "*"
			if t.Name != nil {
				name = string(*t.Name)
			}
			to.add(fmt.Sprintf("%s/%s", t.Kind, name))
		}
		return []any{g.Name, from.string(none), to.string(none), age(g)}
	}),
}

// prepared are the functions that keep spec and status of an object apart.
type prepared interface {
	prepare(obj, old resource.Object)
	prepareStatus(obj, old resource.Object)
}

var (
	httpRouteParts = parts[*gateway.HTTPRoute, gateway.HTTPRouteSpec, gateway.HTTPRouteStatus](
		func(r *gateway.HTTPRoute) (*gateway.HTTPRouteSpec, *gateway.HTTPRouteStatus) {
			return &r.Spec, &r.Status
		})
	grpcRouteParts = parts[*gateway.GRPCRoute, gateway.GRPCRouteSpec, gateway.GRPCRouteStatus](
		func(r *gateway.GRPCRoute) (*gateway.GRPCRouteSpec, *gateway.GRPCRouteStatus) {
			return &r.Spec, &r.Status
		})
	tcpRouteParts = parts[*gateway.TCPRoute, gateway.TCPRouteSpec, gateway.TCPRouteStatus](
		func(r *gateway.TCPRoute) (*gateway.TCPRouteSpec, *gateway.TCPRouteStatus) { return &r.Spec, &r.Status })
)

func route(kind, plural, singular string, p prepared, validate func(obj, old resource.Object) field.ErrorList,
	one func() resource.Object, list func() runtime.Object, cells func(resource.Object) []any) *resource.Descriptor {
	return &resource.Descriptor{
		GVK:        gatewayVersion.WithKind(kind),
		Resource:   plural,
		Singular:   singular,
		Categories: []string{"gateway-api"},
		Namespaced: true,
		Direction:  resource.GlobalToZone,
		Status:     true,

		New:     one,
		NewList: list,

		Prepare:        p.prepare,
		PrepareStatus:  p.prepareStatus,
		Validate:       validate,
		ValidateStatus: validateRouteStatus,

		Columns: []metav1.TableColumnDefinition{
			nameColumn(),
			column("Hostnames", "The hosts of the requests that the route is for."),
			column("Parents", "What the route is attached to."),
			ageColumn(),
		},
		Cells: cells,
	}
}

func routeCells(o metav1.Object, spec *gateway.CommonRouteSpec, hosts []gateway.Hostname) []any {
	var names, parents listed
	for _, h := range hosts {
		names.add(string(h))
	}
	for _, p := range spec.ParentRefs {
		kind := "Gateway"
		if p.Kind != nil {
			kind = string(*p.Kind)
		}
		parents.add(kind + "/" + string(p.Name))
	}
	return []any{o.GetName(), names.string(none), parents.string(none), age(o)}
}

func routeStatusOf(obj resource.Object) []gateway.RouteParentStatus {
	switch r := obj.(type) {
	case *gateway.HTTPRoute:
		return r.Status.Parents
	case *gateway.GRPCRoute:
		return r.Status.Parents
	case *gateway.TCPRoute:
		return r.Status.Parents
	}
	return nil
}

// maxParentStatuses is that of the definitions of routes.
const maxParentStatuses = 32

func validateRouteStatus(obj, old resource.Object) field.ErrorList {
	errs := checkMeta(obj, old, true, validation.NameIsDNSSubdomain)
	path := field.NewPath("status", "parents")
	all := routeStatusOf(obj)
	if len(all) > maxParentStatuses {
		return append(errs, field.TooMany(path, len(all), maxParentStatuses))
	}
	for i, p := range all {
		if !strings.Contains(string(p.ControllerName), "/") {
			errs = append(errs, field.Invalid(path.Index(i).Child("controllerName"), p.ControllerName, "must be DOMAIN/PATH"))
		}
		errs = append(errs, metav1validation.ValidateConditions(p.Conditions, path.Index(i).Child("conditions"))...)
	}
	return errs
}

// checkRoute checks what all routes have.
func checkRoute(spec *gateway.CommonRouteSpec, hosts []gateway.Hostname) field.ErrorList {
	path := field.NewPath("spec")
	var errs field.ErrorList
	if n := len(spec.ParentRefs); n > maxRouteParents {
		errs = append(errs, field.TooMany(path.Child("parentRefs"), n, maxRouteParents))
	}
	type identity struct {
		group, kind, namespace, name, section string
		port                                  int32
	}
	seen := set[identity]{}
	for i, p := range spec.ParentRefs {
		at := path.Child("parentRefs").Index(i)
		errs = append(errs, checkReference(at, opt(p.Group), opt(p.Kind), opt(p.Namespace), string(p.Name))...)
		if p.Port != nil {
			errs = append(errs, checkPort(at.Child("port"), *p.Port)...)
		}
		key := identity{opt(p.Group), opt(p.Kind), opt(p.Namespace), string(p.Name), opt(p.SectionName), 0}
		if p.Port != nil {
			key.port = *p.Port
		}
		if !seen.add(key) {
			errs = append(errs, field.Duplicate(at, string(p.Name)))
		}
	}
	if len(hosts) > maxRouteNames {
		errs = append(errs, field.TooMany(path.Child("hostnames"), len(hosts), maxRouteNames))
	}
	for i, h := range hosts {
		errs = append(errs, checkSubdomain(path.Child("hostnames").Index(i), strings.TrimPrefix(string(h), "*."))...)
	}
	return errs
}

// opt is the text of an optional field.
func opt[T ~string](p *T) string {
	if p == nil {
		return ""
	}
	return string(*p)
}

func checkReference(path *field.Path, group, kind, namespace, name string) field.ErrorList {
	var errs field.ErrorList
	if group != "" {
		errs = append(errs, checkSubdomain(path.Child("group"), group)...)
	}
	if kind != "" && len(utilvalidation.IsDNS1035Label(strings.ToLower(kind))) > 0 {
		errs = append(errs, field.Invalid(path.Child("kind"), kind, "must be the name of a kind, such as Service"))
	}
	if namespace != "" {
		errs = append(errs, checkLabel(path.Child("namespace"), namespace)...)
	}
	if name == "" {
		return append(errs, field.Required(path.Child("name"), ""))
	}
	return append(errs, checkSubdomain(path.Child("name"), name)...)
}

func checkRuleNames(names []*gateway.SectionName) field.ErrorList {
	var errs field.ErrorList
	seen := set[string]{}
	for i, n := range names {
		if n == nil {
			continue
		}
		at := field.NewPath("spec", "rules").Index(i).Child("name")
		errs = append(errs, checkSubdomain(at, string(*n))...)
		if !seen.add(string(*n)) {
			errs = append(errs, field.Duplicate(at, string(*n)))
		}
	}
	return errs
}

func checkRuleCount(n, low, high int) field.ErrorList {
	path := field.NewPath("spec", "rules")
	switch {
	case n < low:
		return field.ErrorList{field.Required(path, fmt.Sprintf("must contain at least %d rule", low))}
	case n > high:
		return field.ErrorList{field.TooMany(path, n, high)}
	}
	return nil
}

func checkBackendRef(path *field.Path, b *gateway.BackendRef) field.ErrorList {
	errs := checkBackendObject(path, &b.BackendObjectReference)
	return append(errs, checkRange(path.Child("weight"), b.Weight, 0, maxRouteWeight)...)
}

func checkBackendObject(path *field.Path, b *gateway.BackendObjectReference) field.ErrorList {
	errs := checkReference(path, opt(b.Group), opt(b.Kind), opt(b.Namespace), string(b.Name))
	switch {
	case b.Port != nil:
		errs = append(errs, checkPort(path.Child("port"), *b.Port)...)
	case opt(b.Group) == "" && orElse(opt(b.Kind), "Service") == "Service":
		errs = append(errs, field.Required(path.Child("port"), "must be a port of the Service"))
	}
	return errs
}

func validateTCPRoute(r, old *gateway.TCPRoute) field.ErrorList {
	errs := policyMeta(r, old)
	errs = append(errs, checkRoute(&r.Spec.CommonRouteSpec, nil)...)
	errs = append(errs, checkRuleCount(len(r.Spec.Rules), 1, 1)...)
	for i := range r.Spec.Rules {
		at := field.NewPath("spec", "rules").Index(i).Child("backendRefs")
		backends := r.Spec.Rules[i].BackendRefs
		switch n := len(backends); {
		case n == 0:
			errs = append(errs, field.Required(at, "must contain at least 1 backend"))
		case n > maxRouteBackends:
			errs = append(errs, field.TooMany(at, n, maxRouteBackends))
		}
		for j := range backends {
			errs = append(errs, checkBackendRef(at.Index(j), &backends[j])...)
		}
	}
	return errs
}

// maxGrantItems is that of the definition of ReferenceGrant.
const maxGrantItems = 16

func validateReferenceGrant(g, old *gateway.ReferenceGrant) field.ErrorList {
	errs := policyMeta(g, old)
	path := field.NewPath("spec")
	for _, list := range []struct {
		name string
		n    int
	}{{"from", len(g.Spec.From)}, {"to", len(g.Spec.To)}} {
		switch {
		case list.n == 0:
			errs = append(errs, field.Required(path.Child(list.name), "must contain at least 1 item"))
		case list.n > maxGrantItems:
			errs = append(errs, field.TooMany(path.Child(list.name), list.n, maxGrantItems))
		}
	}
	for i, f := range g.Spec.From {
		at := path.Child("from").Index(i)
		if f.Kind == "" {
			errs = append(errs, field.Required(at.Child("kind"), ""))
		}
		errs = append(errs, checkLabel(at.Child("namespace"), string(f.Namespace))...)
	}
	for i, t := range g.Spec.To {
		at := path.Child("to").Index(i)
		if t.Kind == "" {
			errs = append(errs, field.Required(at.Child("kind"), ""))
		}
		if t.Name != nil {
			errs = append(errs, checkSubdomain(at.Child("name"), string(*t.Name))...)
		}
	}
	return errs
}

// headerName is a token of HTTP (RFC 9110, 5.6.2).
var headerName = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+\\-.^_`|~]{1,256}$")
