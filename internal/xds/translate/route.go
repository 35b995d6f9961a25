package translate

import (
	"fmt"
	"net/http"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	corsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/cors/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	gateway "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/proxima-mesh/proxima/internal/policy"
)

// loadReportHeader has the load that a backend reports (ORCA); clients do not get it.
const loadReportHeader = "endpoint-load-metrics"

// ClusterName of a backend's port.
func ClusterName(ref policy.Ref, port int32) string {
	name := fmt.Sprintf("%s:%d", ref.Key, port)
	if ref.Kind == "ExternalService" {
		return "ext|" + name
	}
	return name
}

// noCluster is a name that no cluster has: what goes there is answered by 500.
const noCluster = "invalid"

// RouteConfiguration of a Service's port: its routes, or without any all to the cluster. b is what
// holds for clients of the port without a route.
func RouteConfiguration(name, cluster string, routes []policy.Route, b *policy.Backend) *routev3.RouteConfiguration {
	host := &routev3.VirtualHost{Name: name, Domains: []string{"*"}}
	for i := range routes {
		host.Routes = append(host.Routes, route(&routes[i]))
	}
	if len(routes) == 0 {
		action := &routev3.RouteAction{
			ClusterSpecifier:            &routev3.RouteAction_Cluster{Cluster: cluster},
			ClusterNotFoundResponseCode: routev3.RouteAction_SERVICE_UNAVAILABLE,
		}
		settings(action, b, nil)
		host.Routes = []*routev3.Route{{
			Name: name, Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
			Action: &routev3.Route_Route{Route: action}, TypedPerFilterConfig: clientFilters(b),
		}}
	}
	return &routev3.RouteConfiguration{
		Name: name, VirtualHosts: []*routev3.VirtualHost{host}, ValidateClusters: wrapperspb.Bool(false),
		ResponseHeadersToRemove: []string{loadReportHeader},
	}
}

func route(r *policy.Route) *routev3.Route {
	out := &routev3.Route{
		Name: fmt.Sprintf("%s/%s/%d/%d", r.Source.Kind, r.Source.Key, r.Rule, r.Match), Match: match(r),
		TypedPerFilterConfig: clientFilters(&r.Policy),
	}
	// A call without a backend is UNAVAILABLE (GRPCRouteRule.backendRefs), which Envoy makes of 503.
	missing, action := http.StatusInternalServerError, &routev3.RouteAction{ClusterNotFoundResponseCode: routev3.RouteAction_INTERNAL_SERVER_ERROR}
	if r.GRPC != nil {
		missing, action.ClusterNotFoundResponseCode = http.StatusServiceUnavailable, routev3.RouteAction_SERVICE_UNAVAILABLE
	}
	answered := false
	mirrors := r.Mirrors
	for i := range r.Filters {
		switch f := &r.Filters[i]; {
		case f.RequestHeaderModifier != nil:
			out.RequestHeadersToAdd, out.RequestHeadersToRemove = headers(f.RequestHeaderModifier)
		case f.ResponseHeaderModifier != nil:
			out.ResponseHeadersToAdd, out.ResponseHeadersToRemove = headers(f.ResponseHeaderModifier)
		case f.RequestRedirect != nil:
			out.Action, answered = redirect(r, f.RequestRedirect), true
		case f.URLRewrite != nil:
			rewrite(action, r, f.URLRewrite)
		case f.RequestMirror != nil && len(mirrors) > 0:
			action.RequestMirrorPolicies = append(action.RequestMirrorPolicies, mirror(f.RequestMirror, &mirrors[0])...)
			mirrors = mirrors[1:]
		case f.CORS != nil:
			setFilter(out, CORSFilter, cors(f.CORS))
		}
	}
	if answered {
		return out
	}
	if !backends(action, r.Backends) {
		out.Action = &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: uint32(missing)}}
		return out
	}
	settings(action, &r.Policy, r)
	out.Action = &routev3.Route_Route{Route: action}
	return out
}

func setFilter(r *routev3.Route, name string, config proto.Message) {
	if r.TypedPerFilterConfig == nil {
		r.TypedPerFilterConfig = map[string]*anypb.Any{}
	}
	r.TypedPerFilterConfig[name] = pack(config)
}

// match of a request. The hostnames of a route are not for a mesh: the address chose the Service.
func match(r *policy.Route) *routev3.RouteMatch {
	if r.GRPC != nil {
		return grpcMatch(r.GRPC)
	}
	m := &routev3.RouteMatch{}
	path(m, r.HTTP.Path)
	if r.HTTP.Method != nil {
		m.Headers = append(m.Headers, header(":method", exact(string(*r.HTTP.Method))))
	}
	for _, h := range r.HTTP.Headers {
		value := exact(h.Value)
		if h.Type != nil && *h.Type == gateway.HeaderMatchRegularExpression {
			value = expression(h.Value)
		}
		m.Headers = append(m.Headers, header(strings.ToLower(string(h.Name)), value))
	}
	for _, q := range r.HTTP.QueryParams {
		value := exact(q.Value)
		if q.Type != nil && *q.Type == gateway.QueryParamMatchRegularExpression {
			value = expression(q.Value)
		}
		m.QueryParameters = append(m.QueryParameters, &routev3.QueryParameterMatcher{
			Name: string(q.Name), QueryParameterMatchSpecifier: &routev3.QueryParameterMatcher_StringMatch{StringMatch: value},
		})
	}
	return m
}

func header(name string, value *matcherv3.StringMatcher) *routev3.HeaderMatcher {
	return &routev3.HeaderMatcher{Name: name, HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: value}}
}

// prefixOf a match, without the slash at its end; empty: every path has it.
func prefixOf(p *gateway.HTTPPathMatch) string {
	if p == nil || p.Value == nil {
		return ""
	}
	return strings.TrimRight(*p.Value, "/")
}

func path(m *routev3.RouteMatch, p *gateway.HTTPPathMatch) {
	switch {
	case p != nil && p.Type != nil && *p.Type == gateway.PathMatchExact && p.Value != nil:
		m.PathSpecifier = &routev3.RouteMatch_Path{Path: *p.Value}
	case p != nil && p.Type != nil && *p.Type == gateway.PathMatchRegularExpression && p.Value != nil:
		m.PathSpecifier = &routev3.RouteMatch_SafeRegex{SafeRegex: regex(*p.Value)}
	case prefixOf(p) == "":
		m.PathSpecifier = &routev3.RouteMatch_Prefix{Prefix: "/"}
	default:
		m.PathSpecifier = &routev3.RouteMatch_PathSeparatedPrefix{PathSeparatedPrefix: prefixOf(p)}
	}
}

func grpcMatch(g *gateway.GRPCRouteMatch) *routev3.RouteMatch {
	m := &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}, Grpc: &routev3.RouteMatch_GrpcRouteMatchOptions{}}
	if g.Method != nil {
		of := func(s *string) string {
			if s == nil {
				return ""
			}
			return *s
		}
		service, method := of(g.Method.Service), of(g.Method.Method)
		isRegex := g.Method.Type != nil && *g.Method.Type == gateway.GRPCMethodMatchRegularExpression
		const any = "[^/]+"
		switch {
		case !isRegex && service != "" && method != "":
			m.PathSpecifier = &routev3.RouteMatch_Path{Path: "/" + service + "/" + method}
		case !isRegex && service != "":
			m.PathSpecifier = &routev3.RouteMatch_Prefix{Prefix: "/" + service + "/"}
		case !isRegex && method != "":
			m.PathSpecifier = &routev3.RouteMatch_SafeRegex{SafeRegex: regex("/" + any + "/" + quote(method))}
		case isRegex:
			part := func(s string) string {
				if s == "" {
					return any
				}
				return "(?:" + s + ")"
			}
			m.PathSpecifier = &routev3.RouteMatch_SafeRegex{SafeRegex: regex("/" + part(service) + "/" + part(method))}
		}
	}
	for _, h := range g.Headers {
		value := exact(h.Value)
		if h.Type != nil && *h.Type == gateway.GRPCHeaderMatchRegularExpression {
			value = expression(h.Value)
		}
		m.Headers = append(m.Headers, header(strings.ToLower(string(h.Name)), value))
	}
	return m
}

func headers(h *gateway.HTTPHeaderFilter) (add []*corev3.HeaderValueOption, remove []string) {
	option := func(v gateway.HTTPHeader, action corev3.HeaderValueOption_HeaderAppendAction) *corev3.HeaderValueOption {
		return &corev3.HeaderValueOption{
			// A % would begin one of Envoy's command operators.
			Header:       &corev3.HeaderValue{Key: string(v.Name), Value: strings.ReplaceAll(v.Value, "%", "%%")},
			AppendAction: action,
		}
	}
	for _, v := range h.Set {
		add = append(add, option(v, corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD))
	}
	for _, v := range h.Add {
		add = append(add, option(v, corev3.HeaderValueOption_APPEND_IF_EXISTS_OR_ADD))
	}
	return add, h.Remove
}

func redirect(r *policy.Route, f *gateway.HTTPRequestRedirectFilter) *routev3.Route_Redirect {
	out := &routev3.RedirectAction{}
	if f.Scheme != nil {
		out.SchemeRewriteSpecifier = &routev3.RedirectAction_SchemeRedirect{SchemeRedirect: *f.Scheme}
	}
	if f.Hostname != nil {
		out.HostRedirect = string(*f.Hostname)
	}
	if f.Port != nil {
		out.PortRedirect = uint32(*f.Port) //nolint:gosec // validation bounds it
	}
	switch p := f.Path; {
	case p != nil && p.ReplaceFullPath != nil:
		out.PathRewriteSpecifier = &routev3.RedirectAction_PathRedirect{PathRedirect: *p.ReplaceFullPath}
	case p != nil && p.ReplacePrefixMatch != nil:
		if whole := replacePrefix(r, *p.ReplacePrefixMatch); whole != nil {
			out.PathRewriteSpecifier = &routev3.RedirectAction_RegexRewrite{RegexRewrite: whole}
		} else {
			out.PathRewriteSpecifier = &routev3.RedirectAction_PrefixRewrite{PrefixRewrite: strings.TrimRight(*p.ReplacePrefixMatch, "/")}
		}
	}
	status := http.StatusFound
	if f.StatusCode != nil {
		status = *f.StatusCode
	}
	out.ResponseCode = map[int]routev3.RedirectAction_RedirectResponseCode{
		http.StatusMovedPermanently: routev3.RedirectAction_MOVED_PERMANENTLY, http.StatusFound: routev3.RedirectAction_FOUND,
		http.StatusSeeOther: routev3.RedirectAction_SEE_OTHER, http.StatusTemporaryRedirect: routev3.RedirectAction_TEMPORARY_REDIRECT,
		http.StatusPermanentRedirect: routev3.RedirectAction_PERMANENT_REDIRECT,
	}[status]
	return &routev3.Route_Redirect{Redirect: out}
}

// replacePrefix is the rewrite of a whole path where Envoy's own of a prefix would double a slash,
// or lose one: nil where it is right.
func replacePrefix(r *policy.Route, with string) *matcherv3.RegexMatchAndSubstitute {
	prefix, with := prefixOf(r.HTTP.Path), strings.TrimRight(with, "/")
	if prefix != "" && with != "" {
		return nil
	}
	return &matcherv3.RegexMatchAndSubstitute{Pattern: regex("^" + quote(prefix) + "/*"), Substitution: literal(with) + "/"}
}

func rewrite(action *routev3.RouteAction, r *policy.Route, f *gateway.HTTPURLRewriteFilter) {
	if f.Hostname != nil {
		action.HostRewriteSpecifier = &routev3.RouteAction_HostRewriteLiteral{HostRewriteLiteral: string(*f.Hostname)}
	}
	switch p := f.Path; {
	case p != nil && p.ReplaceFullPath != nil:
		action.RegexRewrite = &matcherv3.RegexMatchAndSubstitute{Pattern: regex("^/.*$"), Substitution: literal(*p.ReplaceFullPath)}
	case p != nil && p.ReplacePrefixMatch != nil:
		if whole := replacePrefix(r, *p.ReplacePrefixMatch); whole != nil {
			action.RegexRewrite = whole
		} else {
			action.PrefixRewrite = strings.TrimRight(*p.ReplacePrefixMatch, "/")
		}
	}
}

// mirror of requests; one to a backend that cannot be used is left out.
func mirror(m *gateway.HTTPRequestMirrorFilter, to *policy.RouteBackend) []*routev3.RouteAction_RequestMirrorPolicy {
	if to.Invalid != "" {
		return nil
	}
	share := &typev3.FractionalPercent{Numerator: 100, Denominator: typev3.FractionalPercent_HUNDRED}
	switch {
	case m.Percent != nil:
		share.Numerator = uint32(*m.Percent) //nolint:gosec // validation bounds it
	case m.Fraction != nil:
		of := int32(100)
		if m.Fraction.Denominator != nil {
			of = *m.Fraction.Denominator
		}
		share = percentage(100 * float64(m.Fraction.Numerator) / float64(of))
	}
	return []*routev3.RouteAction_RequestMirrorPolicy{{
		Cluster:         ClusterName(to.Ref, to.Port),
		RuntimeFraction: &corev3.RuntimeFractionalPercent{DefaultValue: share},
	}}
}

func cors(c *gateway.HTTPCORSFilter) *corsv3.CorsPolicy {
	join := func(n int, item func(int) string) string {
		var all []string
		for i := range n {
			all = append(all, item(i))
		}
		return strings.Join(all, ",")
	}
	out := &corsv3.CorsPolicy{
		AllowMethods:                 join(len(c.AllowMethods), func(i int) string { return string(c.AllowMethods[i]) }),
		AllowHeaders:                 join(len(c.AllowHeaders), func(i int) string { return string(c.AllowHeaders[i]) }),
		ExposeHeaders:                join(len(c.ExposeHeaders), func(i int) string { return string(c.ExposeHeaders[i]) }),
		ForwardNotMatchingPreflights: wrapperspb.Bool(false),
	}
	if c.MaxAge > 0 {
		out.MaxAge = fmt.Sprint(c.MaxAge)
	}
	if c.AllowCredentials != nil {
		out.AllowCredentials = wrapperspb.Bool(*c.AllowCredentials)
	}
	for _, origin := range c.AllowOrigins {
		o := string(origin)
		if strings.Contains(o, "*") {
			out.AllowOriginStringMatch = append(out.AllowOriginStringMatch, expression(strings.ReplaceAll(quote(o), `\*`, `.*`)))
			continue
		}
		out.AllowOriginStringMatch = append(out.AllowOriginStringMatch, exact(o))
	}
	return out
}

// backends of a route; false: there are none to which anything can go.
func backends(action *routev3.RouteAction, all []policy.RouteBackend) bool {
	weighted := &routev3.WeightedCluster{}
	total, good := uint64(0), uint64(0)
	for i := range all {
		b := &all[i]
		if b.Weight <= 0 {
			continue
		}
		w := &routev3.WeightedCluster_ClusterWeight{Name: ClusterName(b.Ref, b.Port), Weight: wrapperspb.UInt32(uint32(b.Weight))}
		total += uint64(b.Weight)
		if b.Invalid != "" {
			w.Name = noCluster
		} else {
			good += uint64(b.Weight)
		}
		for j := range b.Filters {
			if h := b.Filters[j].RequestHeaderModifier; h != nil {
				w.RequestHeadersToAdd, w.RequestHeadersToRemove = headers(h)
			}
			if h := b.Filters[j].ResponseHeaderModifier; h != nil {
				w.ResponseHeadersToAdd, w.ResponseHeadersToRemove = headers(h)
			}
		}
		weighted.Clusters = append(weighted.Clusters, w)
	}
	if total == 0 || good == 0 {
		return false
	}
	action.ClusterSpecifier = &routev3.RouteAction_WeightedClusters{WeightedClusters: weighted}
	return true
}
