package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	gateway "sigs.k8s.io/gateway-api/apis/v1"

	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// RouteBackend is where a share of the traffic goes.
type RouteBackend struct {
	Ref    Ref
	Port   int32
	Weight int32
	// Filters of requests that go there alone.
	Filters []gateway.HTTPRouteFilter
	// Invalid says why the backend cannot be used; its share is refused.
	Invalid string
}

// Route is one match of a rule: what a request must be like, and what becomes of it. Requests are
// compared with routes in the order in which they are.
type Route struct {
	Source Source
	// Rule and Match are the positions in the object.
	Rule, Match int
	Hostnames   []string
	// HTTP is the match of an HTTPRoute; GRPC that of a GRPCRoute.
	HTTP *gateway.HTTPRouteMatch
	GRPC *gateway.GRPCRouteMatch
	// Filters of the rule; those of a GRPCRoute are the same, as far as it has them.
	Filters  []gateway.HTTPRouteFilter
	Backends []RouteBackend
	// Mirrors are the backends of filters of type RequestMirror, in their order.
	Mirrors  []RouteBackend
	Timeouts *gateway.HTTPRouteTimeouts
	Retry    *gateway.HTTPRouteRetry
	// Policy is what BackendPolicies say of this route; fields of the route itself win.
	Policy Backend

	created time.Time
}

// routes by what they are attached to.
type routes struct {
	all      map[Ref]resource.Object
	byParent map[Ref]map[Ref]struct{}
	// byBackend are the routes that name an object as a backend.
	byBackend map[Ref]map[Ref]struct{}
	// refused have fields that are not supported; they have no effect.
	refused map[Ref]struct{}
}

func newRoutes() *routes {
	return &routes{all: map[Ref]resource.Object{}, byParent: map[Ref]map[Ref]struct{}{}, byBackend: map[Ref]map[Ref]struct{}{},
		refused: map[Ref]struct{}{}}
}

func routeRef(obj resource.Object) Ref {
	switch obj.(type) {
	case *gateway.HTTPRoute:
		return Ref{"HTTPRoute", resource.KeyOf(obj)}
	case *gateway.GRPCRoute:
		return Ref{"GRPCRoute", resource.KeyOf(obj)}
	}
	return Ref{"TCPRoute", resource.KeyOf(obj)}
}

// ParentRefs of a route.
func ParentRefs(obj resource.Object) []gateway.ParentReference {
	switch r := obj.(type) {
	case *gateway.HTTPRoute:
		return r.Spec.ParentRefs
	case *gateway.GRPCRoute:
		return r.Spec.ParentRefs
	case *gateway.TCPRoute:
		return r.Spec.ParentRefs
	}
	return nil
}

// Parent that a route of a namespace names; false: it is no backend of a mesh (a Gateway).
func Parent(namespace string, p *gateway.ParentReference) (Ref, bool) {
	group, kind := gateway.GroupName, "Gateway"
	if p.Group != nil {
		group = string(*p.Group)
	}
	if p.Kind != nil {
		kind = string(*p.Kind)
	}
	if p.Namespace != nil {
		namespace = string(*p.Namespace)
	}
	ok := group == "" && kind == "Service" || group == mcs.GroupName && kind == "ServiceImport"
	return Ref{kind, resource.Key{Namespace: namespace, Name: string(p.Name)}}, ok
}

func (r *routes) set(obj resource.Object) Affected {
	ref := routeRef(obj)
	was := r.remove(ref)
	r.all[ref] = obj
	if len(Unsupported(obj)) > 0 {
		r.refused[ref] = struct{}{}
	}
	for _, p := range r.parents(ref) {
		file(r.byParent, p, ref)
	}
	for _, b := range backendsOf(obj) {
		file(r.byBackend, b, ref)
	}
	return was.and(Affected{Objects: append(r.parents(ref), backendsOf(obj)...)})
}

func (r *routes) remove(ref Ref) Affected {
	if _, ok := r.all[ref]; !ok {
		return Affected{}
	}
	parents := r.parents(ref)
	for _, p := range parents {
		unfile(r.byParent, p, ref)
	}
	for _, b := range backendsOf(r.all[ref]) {
		unfile(r.byBackend, b, ref)
	}
	affected := Affected{Objects: append(parents, backendsOf(r.all[ref])...)}
	delete(r.all, ref)
	delete(r.refused, ref)
	return affected
}

func file(m map[Ref]map[Ref]struct{}, at, ref Ref) {
	if m[at] == nil {
		m[at] = map[Ref]struct{}{}
	}
	m[at][ref] = struct{}{}
}

func unfile(m map[Ref]map[Ref]struct{}, at, ref Ref) {
	delete(m[at], ref)
	if len(m[at]) == 0 {
		delete(m, at)
	}
}

// backendsOf a route, with those of its mirrors.
func backendsOf(obj resource.Object) []Ref {
	var out []Ref
	add := func(b *gateway.BackendObjectReference) {
		ref := Ref{"Service", resource.Key{Namespace: obj.GetNamespace(), Name: string(b.Name)}}
		if b.Kind != nil {
			ref.Kind = string(*b.Kind)
		}
		if b.Namespace != nil {
			ref.Key.Namespace = string(*b.Namespace)
		}
		out = append(out, ref)
	}
	mirrors := func(filters []gateway.HTTPRouteFilter) {
		for i := range filters {
			if m := filters[i].RequestMirror; m != nil {
				add(&m.BackendRef)
			}
		}
	}
	switch r := obj.(type) {
	case *gateway.HTTPRoute:
		for i := range r.Spec.Rules {
			for j := range r.Spec.Rules[i].BackendRefs {
				add(&r.Spec.Rules[i].BackendRefs[j].BackendObjectReference)
			}
			mirrors(r.Spec.Rules[i].Filters)
		}
	case *gateway.GRPCRoute:
		for i := range r.Spec.Rules {
			for j := range r.Spec.Rules[i].BackendRefs {
				add(&r.Spec.Rules[i].BackendRefs[j].BackendObjectReference)
			}
			mirrors(grpcFilters(r.Spec.Rules[i].Filters))
		}
	case *gateway.TCPRoute:
		for i := range r.Spec.Rules {
			for j := range r.Spec.Rules[i].BackendRefs {
				add(&r.Spec.Rules[i].BackendRefs[j].BackendObjectReference)
			}
		}
	}
	return out
}

// using are the parents of routes that name an object as a backend.
func (r *routes) using(ref Ref) []Ref {
	var out []Ref
	for route := range r.byBackend[ref] {
		out = append(out, r.parents(route)...)
	}
	return unique(out)
}

func (r *routes) parents(ref Ref) []Ref {
	var out []Ref
	all := ParentRefs(r.all[ref])
	for i := range all {
		if p, ok := Parent(ref.Key.Namespace, &all[i]); ok && !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out
}

// Routed reports whether an HTTPRoute or a GRPCRoute names an object as a backend.
func (x *Index) Routed(ref Ref) bool {
	for route := range x.routes.byBackend[ref] {
		if _, refused := x.routes.refused[route]; !refused && route.Kind != "TCPRoute" {
			return true
		}
	}
	return false
}

// attached are the routes of some kinds for clients of a namespace: those of that namespace
// (consumer), and without any those of the backend's (producer).
func (x *Index) attached(client string, to Ref, port Port, kinds ...string) []Ref {
	var own, theirs []Ref
	for ref := range x.routes.byParent[to] {
		if _, refused := x.routes.refused[ref]; refused || !slices.Contains(kinds, ref.Kind) || !x.attaches(ref, to, port) {
			continue
		}
		switch ref.Key.Namespace {
		case to.Key.Namespace:
			theirs = append(theirs, ref)
		case client:
			own = append(own, ref)
		}
	}
	if len(own) > 0 {
		theirs = own
	}
	slices.SortFunc(theirs, func(a, b Ref) int {
		if c := ageOf(x.routes.all[a]).created.Compare(ageOf(x.routes.all[b]).created); c != 0 {
			return c
		}
		return strings.Compare(a.Key.String()+a.Kind, b.Key.String()+b.Kind)
	})
	return theirs
}

// anyPort stands for all ports of a backend.
var anyPort = Port{Number: -1}

// attaches reports whether a route names the backend as a whole, or the port.
func (x *Index) attaches(route, to Ref, port Port) bool {
	all := ParentRefs(x.routes.all[route])
	for i := range all {
		p, ok := Parent(route.Key.Namespace, &all[i])
		if !ok || p != to {
			continue
		}
		if port == anyPort {
			return true
		}
		if all[i].Port != nil && *all[i].Port != port.Number {
			continue
		}
		if s := all[i].SectionName; s != nil && !port.is(string(*s)) {
			continue
		}
		return true
	}
	return false
}

// HasRoutes reports whether HTTPRoutes or GRPCRoutes are attached for clients of a namespace.
func (x *Index) HasRoutes(client string, to Ref, port Port) bool {
	return len(x.attached(client, to, port, "HTTPRoute", "GRPCRoute")) > 0
}

// Routes of requests that clients of a namespace send to a port of a Service or ServiceImport.
// None: there are no routes, and requests go to it. Of a request that no route matches the answer
// is 404.
func (x *Index) Routes(client string, to Ref, port Port) []Route {
	var out []Route
	for _, ref := range x.attached(client, to, port, "HTTPRoute", "GRPCRoute") {
		base := Route{Source: Source(ref), created: ageOf(x.routes.all[ref]).created}
		layers := x.backendLayers(client, to, port)
		for _, e := range sorted(x.policies["BackendPolicy"].byTarget[ref]) {
			if e.source.Key.Namespace == ref.Key.Namespace {
				layers = append(layers, layer{e.source, levelRoute, producer, e.age, e.fields})
			}
		}
		base.Policy = backendOf(merge(fieldsOf(backendDefaults()), layers))
		switch r := x.routes.all[ref].(type) {
		case *gateway.HTTPRoute:
			out = append(out, x.httpRoutes(base, r)...)
		case *gateway.GRPCRoute:
			out = append(out, x.grpcRoutes(base, r)...)
		}
	}
	slices.SortStableFunc(out, func(a, b Route) int { return compareRoutes(&a, &b) })
	return out
}

func (x *Index) httpRoutes(base Route, r *gateway.HTTPRoute) []Route {
	var out []Route
	for _, h := range r.Spec.Hostnames {
		base.Hostnames = append(base.Hostnames, string(h))
	}
	rules := r.Spec.Rules
	if len(rules) == 0 {
		rules = []gateway.HTTPRouteRule{{}}
	}
	for i := range rules {
		rule := &rules[i]
		route := base
		route.Rule, route.Filters, route.Timeouts, route.Retry = i, rule.Filters, rule.Timeouts, rule.Retry
		for j := range rule.BackendRefs {
			b := x.routeBackend(base.Source, &rule.BackendRefs[j].BackendRef)
			b.Filters = rule.BackendRefs[j].Filters
			route.Backends = append(route.Backends, b)
		}
		route.Mirrors = x.mirrors(base.Source, rule.Filters)
		matches := rule.Matches
		if len(matches) == 0 {
			matches = []gateway.HTTPRouteMatch{{}}
		}
		for j := range matches {
			route.Match, route.HTTP = j, &matches[j]
			out = append(out, route)
		}
	}
	return out
}

func (x *Index) grpcRoutes(base Route, r *gateway.GRPCRoute) []Route {
	var out []Route
	for _, h := range r.Spec.Hostnames {
		base.Hostnames = append(base.Hostnames, string(h))
	}
	rules := r.Spec.Rules
	if len(rules) == 0 {
		rules = []gateway.GRPCRouteRule{{}}
	}
	for i := range rules {
		rule := &rules[i]
		route := base
		route.Rule, route.Filters = i, grpcFilters(rule.Filters)
		for j := range rule.BackendRefs {
			b := x.routeBackend(base.Source, &rule.BackendRefs[j].BackendRef)
			b.Filters = grpcFilters(rule.BackendRefs[j].Filters)
			route.Backends = append(route.Backends, b)
		}
		route.Mirrors = x.mirrors(base.Source, route.Filters)
		matches := rule.Matches
		if len(matches) == 0 {
			matches = []gateway.GRPCRouteMatch{{}}
		}
		for j := range matches {
			route.Match, route.GRPC = j, &matches[j]
			out = append(out, route)
		}
	}
	return out
}

// grpcFilters as those of HTTP, whose parts they share.
func grpcFilters(in []gateway.GRPCRouteFilter) []gateway.HTTPRouteFilter {
	var out []gateway.HTTPRouteFilter
	for _, f := range in {
		out = append(out, gateway.HTTPRouteFilter{
			Type: gateway.HTTPRouteFilterType(f.Type), RequestHeaderModifier: f.RequestHeaderModifier,
			ResponseHeaderModifier: f.ResponseHeaderModifier, RequestMirror: f.RequestMirror, ExtensionRef: f.ExtensionRef,
		})
	}
	return out
}

func (x *Index) mirrors(source Source, filters []gateway.HTTPRouteFilter) []RouteBackend {
	var out []RouteBackend
	for i := range filters {
		if m := filters[i].RequestMirror; m != nil {
			out = append(out, x.routeBackend(source, &gateway.BackendRef{BackendObjectReference: m.BackendRef}))
		}
	}
	return out
}

// TCPBackends are where connections of clients of a namespace to a port go; none: there is no
// TCPRoute, and they go to the Service. The oldest route counts.
func (x *Index) TCPBackends(client string, to Ref, port Port) []RouteBackend {
	attached := x.attached(client, to, port, "TCPRoute")
	if len(attached) == 0 {
		return nil
	}
	ref := attached[0]
	r := x.routes.all[ref].(*gateway.TCPRoute)
	var out []RouteBackend
	for i := range r.Spec.Rules {
		for j := range r.Spec.Rules[i].BackendRefs {
			out = append(out, x.routeBackend(Source(ref), &r.Spec.Rules[i].BackendRefs[j]))
		}
	}
	return out
}

// routeBackend resolves a backend that a route names. One of another namespace needs a ReferenceGrant,
// unless it is what the route is attached to: there its requests go without the route (a consumer's
// route, GEP-1294).
func (x *Index) routeBackend(source Source, b *gateway.BackendRef) RouteBackend {
	group, kind, namespace := "", "Service", source.Key.Namespace
	if b.Group != nil {
		group = string(*b.Group)
	}
	if b.Kind != nil {
		kind = string(*b.Kind)
	}
	if b.Namespace != nil {
		namespace = string(*b.Namespace)
	}
	out := RouteBackend{Ref: Ref{kind, resource.Key{Namespace: namespace, Name: string(b.Name)}}, Weight: 1}
	if b.Weight != nil {
		out.Weight = *b.Weight
	}
	if b.Port != nil {
		out.Port = *b.Port
	}
	known := map[string]string{"Service": "", "ServiceImport": mcs.GroupName, "ExternalService": "mesh.proxima.dev"}
	target, found := x.backends[out.Ref]
	switch want, ok := known[kind]; {
	case !ok || want != group:
		out.Invalid = fmt.Sprintf("InvalidKind: a backend of kind %s (group %q) is not supported", kind, group)
	case namespace != source.Key.Namespace && !slices.Contains(x.routes.parents(Ref(source)), out.Ref) && !x.granted(source, group, out.Ref):
		out.Invalid = fmt.Sprintf("RefNotPermitted: no ReferenceGrant in namespace %s lets %s refer to %s %s",
			namespace, source, kind, out.Ref.Key)
	case !found:
		out.Invalid = fmt.Sprintf("BackendNotFound: there is no %s %s", kind, out.Ref.Key)
	case out.Port == 0 && len(target.ports) == 1:
		out.Port = target.ports[0].Number
	case !slices.ContainsFunc(target.ports, func(p Port) bool { return p.Number == out.Port }):
		out.Invalid = fmt.Sprintf("BackendNotFound: %s %s has no port %d", kind, out.Ref.Key, out.Port)
	}
	return out
}

// granted reports whether a route may refer to an object of another namespace.
func (x *Index) granted(from Source, group string, to Ref) bool {
	for key, g := range x.grants {
		if key.Namespace != to.Key.Namespace {
			continue
		}
		allowed := slices.ContainsFunc(g.Spec.From, func(f gateway.ReferenceGrantFrom) bool {
			return string(f.Group) == gateway.GroupName && string(f.Kind) == from.Kind && string(f.Namespace) == from.Key.Namespace
		})
		if allowed && slices.ContainsFunc(g.Spec.To, func(t gateway.ReferenceGrantTo) bool {
			return string(t.Group) == group && string(t.Kind) == to.Kind && (t.Name == nil || string(*t.Name) == to.Key.Name)
		}) {
			return true
		}
	}
	return false
}

// rank of a path: an exact one before an expression before a prefix, the longer one first.
func (r *Route) rank() (kind, length, method, headers, params int) {
	if r.GRPC != nil {
		if m := r.GRPC.Method; m != nil {
			for _, part := range []*string{m.Service, m.Method} {
				if part != nil {
					length += len(*part)
				}
			}
			kind = 1
			if m.Service != nil && m.Method != nil && (m.Type == nil || *m.Type == gateway.GRPCMethodMatchExact) {
				kind = 3
			}
		}
		return kind, length, 0, len(r.GRPC.Headers), 0
	}
	if p := r.HTTP.Path; p != nil {
		if p.Value != nil {
			length = len(*p.Value)
		}
		switch {
		case p.Type == nil, *p.Type == gateway.PathMatchPathPrefix:
			kind = 1
		case *p.Type == gateway.PathMatchRegularExpression:
			kind = 2
		default:
			kind = 3
		}
	} else {
		kind, length = 1, 1
	}
	if r.HTTP.Method != nil {
		method = 1
	}
	return kind, length, method, len(r.HTTP.Headers), len(r.HTTP.QueryParams)
}

// compareRoutes orders by precedence, as the Gateway API says (HTTPRouteRule.matches).
func compareRoutes(a, b *Route) int {
	ak, al, am, ah, ap := a.rank()
	bk, bl, bm, bh, bp := b.rank()
	for _, d := range []int{bk - ak, bl - al, bm - am, bh - ah, bp - ap} {
		if d != 0 {
			return d
		}
	}
	if !a.created.Equal(b.created) {
		return a.created.Compare(b.created)
	}
	if c := strings.Compare(a.Source.Key.String(), b.Source.Key.String()); c != 0 {
		return c
	}
	if a.Rule != b.Rule {
		return a.Rule - b.Rule
	}
	return a.Match - b.Match
}

// Unsupported names the fields of a route that are not supported, and why. A route with such a field
// is refused in its status, and has no effect.
func Unsupported(obj resource.Object) []string {
	var out []string
	say := func(rule int, field, why string) {
		out = append(out, fmt.Sprintf("spec.rules[%d].%s: %s", rule, field, why))
	}
	const (
		persistence = "session persistence is not supported: use a BackendPolicy with a hash"
		auth        = "external authorization is not supported: use a TrafficPermission"
		extension   = "there are no extensions"
	)
	filters := func(rule int, path string, all []gateway.HTTPRouteFilter) {
		for i := range all {
			switch at := fmt.Sprintf("%s[%d]", path, i); {
			case all[i].ExternalAuth != nil:
				say(rule, at+".externalAuth", auth)
			case all[i].ExtensionRef != nil:
				say(rule, at+".extensionRef", extension)
			}
		}
	}
	switch r := obj.(type) {
	case *gateway.HTTPRoute:
		for i := range r.Spec.Rules {
			rule := &r.Spec.Rules[i]
			if rule.SessionPersistence != nil {
				say(i, "sessionPersistence", persistence)
			}
			filters(i, "filters", rule.Filters)
			for j := range rule.BackendRefs {
				filters(i, fmt.Sprintf("backendRefs[%d].filters", j), rule.BackendRefs[j].Filters)
				for _, f := range rule.BackendRefs[j].Filters {
					if f.Type != gateway.HTTPRouteFilterRequestHeaderModifier && f.Type != gateway.HTTPRouteFilterResponseHeaderModifier &&
						f.ExternalAuth == nil && f.ExtensionRef == nil {
						say(i, fmt.Sprintf("backendRefs[%d].filters", j), "a backend has filters of headers alone: put "+string(f.Type)+" into the rule")
					}
				}
			}
		}
	case *gateway.GRPCRoute:
		for i := range r.Spec.Rules {
			rule := &r.Spec.Rules[i]
			if rule.SessionPersistence != nil {
				say(i, "sessionPersistence", persistence)
			}
			filters(i, "filters", grpcFilters(rule.Filters))
			for j := range rule.BackendRefs {
				filters(i, fmt.Sprintf("backendRefs[%d].filters", j), grpcFilters(rule.BackendRefs[j].Filters))
			}
		}
	}
	return out
}

// Attached reports whether a route is attached to a parent that it names: why not, or "".
func (x *Index) Attached(namespace string, p *gateway.ParentReference) string {
	ref, ok := Parent(namespace, p)
	b := x.backends[ref]
	switch {
	case !ok:
		return "it is no Service"
	case b == nil:
		return fmt.Sprintf("there is no %s %s", ref.Kind, ref.Key)
	case p.Port != nil && !slices.ContainsFunc(b.ports, func(q Port) bool { return q.Number == *p.Port }):
		return fmt.Sprintf("%s %s has no port %d", ref.Kind, ref.Key, *p.Port)
	case p.SectionName != nil && !slices.ContainsFunc(b.ports, func(q Port) bool { return q.is(string(*p.SectionName)) }):
		return fmt.Sprintf("%s %s has no port %s", ref.Kind, ref.Key, *p.SectionName)
	}
	return ""
}

// RouteObjects are the routes of the index, in order of kind and name.
func (x *Index) RouteObjects() []resource.Object {
	var out []resource.Object
	for _, ref := range unique(slices.Collect(maps.Keys(x.routes.all))) {
		out = append(out, x.routes.all[ref])
	}
	return out
}

// RouteBackends of a route, each once, with why it cannot be used.
func (x *Index) RouteBackends(ref Ref) []RouteBackend {
	base := Route{Source: Source(ref)}
	var all []RouteBackend
	switch r := x.routes.all[ref].(type) {
	case *gateway.HTTPRoute:
		for _, route := range x.httpRoutes(base, r) {
			all = append(append(all, route.Backends...), route.Mirrors...)
		}
	case *gateway.GRPCRoute:
		for _, route := range x.grpcRoutes(base, r) {
			all = append(append(all, route.Backends...), route.Mirrors...)
		}
	case *gateway.TCPRoute:
		for i := range r.Spec.Rules {
			for j := range r.Spec.Rules[i].BackendRefs {
				all = append(all, x.routeBackend(base.Source, &r.Spec.Rules[i].BackendRefs[j]))
			}
		}
	}
	type id struct {
		ref  Ref
		port int32
	}
	once := map[id]RouteBackend{}
	for _, b := range all {
		b.Filters, b.Weight = nil, 0
		once[id{b.Ref, b.Port}] = b
	}
	out := slices.Collect(maps.Values(once))
	slices.SortFunc(out, func(a, b RouteBackend) int {
		if c := strings.Compare(a.Ref.Kind+a.Ref.Key.String(), b.Ref.Kind+b.Ref.Key.String()); c != 0 {
			return c
		}
		return int(a.Port - b.Port)
	})
	return out
}
