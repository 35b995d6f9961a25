package kind

import (
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
	gateway "sigs.k8s.io/gateway-api/apis/v1"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
)

func validateHTTPRoute(r, old *gateway.HTTPRoute) field.ErrorList {
	errs := policyMeta(r, old)
	errs = append(errs, checkRoute(&r.Spec.CommonRouteSpec, r.Spec.Hostnames)...)
	errs = append(errs, checkRuleCount(len(r.Spec.Rules), 0, maxRouteRules)...)
	names := make([]*gateway.SectionName, len(r.Spec.Rules))
	for i := range r.Spec.Rules {
		names[i] = r.Spec.Rules[i].Name
		errs = append(errs, checkHTTPRule(field.NewPath("spec", "rules").Index(i), &r.Spec.Rules[i])...)
	}
	return append(errs, checkRuleNames(names)...)
}

func checkHTTPRule(path *field.Path, r *gateway.HTTPRouteRule) field.ErrorList {
	var errs field.ErrorList
	if n := len(r.Matches); n > maxRouteMatches {
		return field.ErrorList{field.TooMany(path.Child("matches"), n, maxRouteMatches)}
	}
	for i := range r.Matches {
		errs = append(errs, checkHTTPMatch(path.Child("matches").Index(i), &r.Matches[i])...)
	}
	errs = append(errs, checkHTTPFilters(path.Child("filters"), r.Filters)...)
	redirects := false
	for i := range r.Filters {
		redirects = redirects || r.Filters[i].RequestRedirect != nil
		errs = append(errs, checkPrefixRewrite(path.Child("filters").Index(i), &r.Filters[i], r.Matches)...)
	}
	if redirects && len(r.BackendRefs) > 0 {
		errs = append(errs, field.Forbidden(path.Child("backendRefs"), "may not be set together with a filter of type RequestRedirect"))
	}
	if n := len(r.BackendRefs); n > maxRouteBackends {
		return append(errs, field.TooMany(path.Child("backendRefs"), n, maxRouteBackends))
	}
	for i := range r.BackendRefs {
		at := path.Child("backendRefs").Index(i)
		errs = append(errs, checkBackendRef(at, &r.BackendRefs[i].BackendRef)...)
		errs = append(errs, checkHTTPFilters(at.Child("filters"), r.BackendRefs[i].Filters)...)
	}
	if t := r.Timeouts; t != nil {
		errs = append(errs, checkGatewayDuration(path.Child("timeouts", "request"), t.Request)...)
		errs = append(errs, checkGatewayDuration(path.Child("timeouts", "backendRequest"), t.BackendRequest)...)
		if t.Request != nil && t.BackendRequest != nil && len(errs) == 0 {
			whole, each := mesh.Duration(*t.Request).Value(), mesh.Duration(*t.BackendRequest).Value()
			if whole > 0 && each > whole {
				errs = append(errs, field.Invalid(path.Child("timeouts", "backendRequest"), string(*t.BackendRequest),
					"must not be more than `request`"))
			}
		}
	}
	if t := r.Retry; t != nil {
		for i, c := range t.Codes {
			errs = append(errs, checkRange(path.Child("retry", "codes").Index(i), new(int32(c)), 400, 599)...)
		}
		if t.Attempts != nil && (*t.Attempts < 0 || *t.Attempts > 100) {
			errs = append(errs, field.Invalid(path.Child("retry", "attempts"), *t.Attempts, "must be from 0 to 100"))
		}
		errs = append(errs, checkGatewayDuration(path.Child("retry", "backoff"), t.Backoff)...)
	}
	return errs
}

func checkGatewayDuration(path *field.Path, d *gateway.Duration) field.ErrorList {
	return checkDuration(path, (*mesh.Duration)(d), 0, true)
}

func checkHTTPMatch(path *field.Path, m *gateway.HTTPRouteMatch) field.ErrorList {
	var errs field.ErrorList
	if p := m.Path; p != nil {
		errs = append(errs, checkHTTPPath(path.Child("path"), p)...)
	}
	headers := set[string]{}
	for i, h := range m.Headers {
		at := path.Child("headers").Index(i)
		errs = append(errs, checkHeaderMatch(at, string(h.Name), h.Value, opt(h.Type))...)
		if !headers.add(strings.ToLower(string(h.Name))) {
			errs = append(errs, field.Duplicate(at.Child("name"), string(h.Name)))
		}
	}
	params := set[string]{}
	for i, q := range m.QueryParams {
		at := path.Child("queryParams").Index(i)
		errs = append(errs, checkHeaderMatch(at, string(q.Name), q.Value, opt(q.Type))...)
		if !params.add(string(q.Name)) {
			errs = append(errs, field.Duplicate(at.Child("name"), string(q.Name)))
		}
	}
	if m.Method != nil {
		errs = append(errs, checkChoice(path.Child("method"), string(*m.Method),
			"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH")...)
	}
	return errs
}

func checkHTTPPath(path *field.Path, p *gateway.HTTPPathMatch) field.ErrorList {
	errs := checkChoice(path.Child("type"), opt(p.Type),
		string(gateway.PathMatchExact), string(gateway.PathMatchPathPrefix), string(gateway.PathMatchRegularExpression))
	value := opt(p.Value)
	switch {
	case p.Value == nil:
	case len(value) > maxPolicyText:
		errs = append(errs, field.TooLong(path.Child("value"), "", maxPolicyText))
	case opt(p.Type) == string(gateway.PathMatchRegularExpression):
		errs = append(errs, checkExpression(path.Child("value"), value)...)
	case !strings.HasPrefix(value, "/"):
		errs = append(errs, field.Invalid(path.Child("value"), value, "must begin with /"))
	default:
		for _, bad := range []string{"//", "/./", "/../", "%2f", "%2F", "#"} {
			if strings.Contains(value, bad) {
				errs = append(errs, field.Invalid(path.Child("value"), value, "must not contain "+bad))
			}
		}
		if strings.HasSuffix(value, "/..") || strings.HasSuffix(value, "/.") {
			errs = append(errs, field.Invalid(path.Child("value"), value, "must not end with /.. or /."))
		}
	}
	return errs
}

// checkHeaderMatch of a header or a parameter.
func checkHeaderMatch(path *field.Path, name, value, typ string) field.ErrorList {
	errs := checkChoice(path.Child("type"), typ, string(gateway.HeaderMatchExact), string(gateway.HeaderMatchRegularExpression))
	if !headerName.MatchString(name) {
		errs = append(errs, field.Invalid(path.Child("name"), name, "must be a token of HTTP"))
	}
	switch {
	case value == "":
		errs = append(errs, field.Required(path.Child("value"), ""))
	case typ == string(gateway.HeaderMatchRegularExpression):
		errs = append(errs, checkExpression(path.Child("value"), value)...)
	}
	return errs
}

func checkHTTPFilters(path *field.Path, all []gateway.HTTPRouteFilter) field.ErrorList {
	if n := len(all); n > maxRouteFilters {
		return field.ErrorList{field.TooMany(path, n, maxRouteFilters)}
	}
	var errs field.ErrorList
	once := set[gateway.HTTPRouteFilterType]{}
	for i := range all {
		f := &all[i]
		repeats := f.Type == gateway.HTTPRouteFilterRequestMirror || f.Type == gateway.HTTPRouteFilterExtensionRef
		if !repeats && !once.add(f.Type) {
			errs = append(errs, field.Duplicate(path.Index(i).Child("type"), string(f.Type)))
		}
		errs = append(errs, checkHTTPFilter(path.Index(i), f)...)
	}
	_, redirects := once[gateway.HTTPRouteFilterRequestRedirect]
	_, rewrites := once[gateway.HTTPRouteFilterURLRewrite]
	if redirects && rewrites {
		errs = append(errs, field.Forbidden(path, "may have a filter of type RequestRedirect or of URLRewrite, not both"))
	}
	return errs
}

// httpFilterParts are the part of each type of a filter, and whether it is set.
func httpFilterParts(f *gateway.HTTPRouteFilter) []filterPart {
	return []filterPart{
		{"RequestHeaderModifier", "requestHeaderModifier", f.RequestHeaderModifier != nil},
		{"ResponseHeaderModifier", "responseHeaderModifier", f.ResponseHeaderModifier != nil},
		{"RequestMirror", "requestMirror", f.RequestMirror != nil},
		{"RequestRedirect", "requestRedirect", f.RequestRedirect != nil},
		{"URLRewrite", "urlRewrite", f.URLRewrite != nil},
		{"CORS", "cors", f.CORS != nil},
		{"ExternalAuth", "externalAuth", f.ExternalAuth != nil},
		{"ExtensionRef", "extensionRef", f.ExtensionRef != nil},
	}
}

type filterPart struct {
	typ, field string
	set        bool
}

// checkFilterType: the part of its type is set, and no other.
func checkFilterType(path *field.Path, typ string, all []filterPart) field.ErrorList {
	var errs field.ErrorList
	var types []string
	known := false
	for _, p := range all {
		types = append(types, p.typ)
		switch same := p.typ == typ; {
		case same && !p.set:
			known = true
			errs = append(errs, field.Required(path.Child(p.field), "must be set when `type` is '"+typ+"'"))
		case same:
			known = true
		case p.set:
			errs = append(errs, field.Forbidden(path.Child(p.field), "may only be set when `type` is '"+p.typ+"'"))
		}
	}
	if !known {
		errs = append(errs, field.NotSupported(path.Child("type"), typ, types))
	}
	return errs
}

func checkHTTPFilter(path *field.Path, f *gateway.HTTPRouteFilter) field.ErrorList {
	errs := checkFilterType(path, string(f.Type), httpFilterParts(f))
	errs = append(errs, checkHeaderFilter(path.Child("requestHeaderModifier"), f.RequestHeaderModifier)...)
	errs = append(errs, checkHeaderFilter(path.Child("responseHeaderModifier"), f.ResponseHeaderModifier)...)
	errs = append(errs, checkMirror(path.Child("requestMirror"), f.RequestMirror)...)
	if r := f.RequestRedirect; r != nil {
		at := path.Child("requestRedirect")
		errs = append(errs, checkChoice(at.Child("scheme"), opt(r.Scheme), "http", "https")...)
		if r.Hostname != nil {
			errs = append(errs, checkSubdomain(at.Child("hostname"), string(*r.Hostname))...)
		}
		if r.Port != nil {
			errs = append(errs, checkPort(at.Child("port"), *r.Port)...)
		}
		if c := r.StatusCode; c != nil && *c != 301 && *c != 302 && *c != 303 && *c != 307 && *c != 308 {
			errs = append(errs, field.Invalid(at.Child("statusCode"), *c, "must be 301, 302, 303, 307 or 308"))
		}
		errs = append(errs, checkPathModifier(at.Child("path"), r.Path)...)
	}
	if r := f.URLRewrite; r != nil {
		if r.Hostname != nil {
			errs = append(errs, checkSubdomain(path.Child("urlRewrite", "hostname"), string(*r.Hostname))...)
		}
		errs = append(errs, checkPathModifier(path.Child("urlRewrite", "path"), r.Path)...)
	}
	if c := f.CORS; c != nil && c.MaxAge < 0 {
		errs = append(errs, field.Invalid(path.Child("cors", "maxAge"), c.MaxAge, "must not be negative"))
	}
	return errs
}

func checkMirror(path *field.Path, m *gateway.HTTPRequestMirrorFilter) field.ErrorList {
	if m == nil {
		return nil
	}
	errs := checkBackendObject(path.Child("backendRef"), &m.BackendRef)
	errs = append(errs, checkRange(path.Child("percent"), m.Percent, 0, 100)...)
	if m.Percent != nil && m.Fraction != nil {
		errs = append(errs, field.Forbidden(path.Child("fraction"), "may not be set together with `percent`"))
	}
	if f := m.Fraction; f != nil {
		of := int32(100)
		if f.Denominator != nil {
			of = *f.Denominator
		}
		if of < 1 || f.Numerator < 0 || f.Numerator > of {
			errs = append(errs, field.Invalid(path.Child("fraction"), f.Numerator, "must be from 0 to 1"))
		}
	}
	return errs
}

func checkPathModifier(path *field.Path, p *gateway.HTTPPathModifier) field.ErrorList {
	if p == nil {
		return nil
	}
	return checkFilterType(path, string(p.Type), []filterPart{
		{string(gateway.FullPathHTTPPathModifier), "replaceFullPath", p.ReplaceFullPath != nil},
		{string(gateway.PrefixMatchHTTPPathModifier), "replacePrefixMatch", p.ReplacePrefixMatch != nil},
	})
}

// checkPrefixRewrite: a prefix is replaced where exactly one is matched.
func checkPrefixRewrite(path *field.Path, f *gateway.HTTPRouteFilter, matches []gateway.HTTPRouteMatch) field.ErrorList {
	var p *gateway.HTTPPathModifier
	switch {
	case f.RequestRedirect != nil:
		p, path = f.RequestRedirect.Path, path.Child("requestRedirect", "path")
	case f.URLRewrite != nil:
		p, path = f.URLRewrite.Path, path.Child("urlRewrite", "path")
	}
	if p == nil || p.ReplacePrefixMatch == nil {
		return nil
	}
	prefix := len(matches) == 1 && matches[0].Path != nil &&
		orElse(opt(matches[0].Path.Type), string(gateway.PathMatchPathPrefix)) == string(gateway.PathMatchPathPrefix)
	if !prefix {
		return field.ErrorList{field.Invalid(path.Child("replacePrefixMatch"), *p.ReplacePrefixMatch,
			"needs exactly one match, of type PathPrefix")}
	}
	return nil
}

func checkHeaderFilter(path *field.Path, h *gateway.HTTPHeaderFilter) field.ErrorList {
	if h == nil {
		return nil
	}
	var errs field.ErrorList
	if len(h.Set)+len(h.Add)+len(h.Remove) == 0 {
		return field.ErrorList{field.Required(path, "must specify `set`, `add` or `remove`")}
	}
	for _, list := range []struct {
		name string
		all  []gateway.HTTPHeader
	}{{"set", h.Set}, {"add", h.Add}} {
		if len(list.all) > maxRouteFilters {
			errs = append(errs, field.TooMany(path.Child(list.name), len(list.all), maxRouteFilters))
			continue
		}
		for i, v := range list.all {
			at := path.Child(list.name).Index(i)
			if !headerName.MatchString(string(v.Name)) {
				errs = append(errs, field.Invalid(at.Child("name"), string(v.Name), "must be a token of HTTP"))
			}
			if v.Value == "" || strings.ContainsAny(v.Value, "\r\n\x00") {
				errs = append(errs, field.Invalid(at.Child("value"), v.Value, "must be text without line breaks"))
			}
		}
	}
	for i, name := range h.Remove {
		if !headerName.MatchString(name) {
			errs = append(errs, field.Invalid(path.Child("remove").Index(i), name, "must be a token of HTTP"))
		}
	}
	return errs
}

func validateGRPCRoute(r, old *gateway.GRPCRoute) field.ErrorList {
	errs := policyMeta(r, old)
	errs = append(errs, checkRoute(&r.Spec.CommonRouteSpec, r.Spec.Hostnames)...)
	errs = append(errs, checkRuleCount(len(r.Spec.Rules), 0, maxRouteRules)...)
	names := make([]*gateway.SectionName, len(r.Spec.Rules))
	for i := range r.Spec.Rules {
		names[i] = r.Spec.Rules[i].Name
		errs = append(errs, checkGRPCRule(field.NewPath("spec", "rules").Index(i), &r.Spec.Rules[i])...)
	}
	return append(errs, checkRuleNames(names)...)
}

func checkGRPCRule(path *field.Path, r *gateway.GRPCRouteRule) field.ErrorList {
	var errs field.ErrorList
	if n := len(r.Matches); n > maxRouteMatches {
		return field.ErrorList{field.TooMany(path.Child("matches"), n, maxRouteMatches)}
	}
	for i := range r.Matches {
		m, at := &r.Matches[i], path.Child("matches").Index(i)
		if m.Method != nil {
			errs = append(errs, checkGRPCMethod(at.Child("method"), m.Method)...)
		}
		for j, h := range m.Headers {
			errs = append(errs, checkHeaderMatch(at.Child("headers").Index(j), string(h.Name), h.Value, opt(h.Type))...)
		}
	}
	errs = append(errs, checkGRPCFilters(path.Child("filters"), r.Filters)...)
	if n := len(r.BackendRefs); n > maxRouteBackends {
		return append(errs, field.TooMany(path.Child("backendRefs"), n, maxRouteBackends))
	}
	for i := range r.BackendRefs {
		at := path.Child("backendRefs").Index(i)
		errs = append(errs, checkBackendRef(at, &r.BackendRefs[i].BackendRef)...)
		errs = append(errs, checkGRPCFilters(at.Child("filters"), r.BackendRefs[i].Filters)...)
	}
	return errs
}

func checkGRPCMethod(path *field.Path, m *gateway.GRPCMethodMatch) field.ErrorList {
	errs := checkChoice(path.Child("type"), opt(m.Type), string(gateway.GRPCMethodMatchExact),
		string(gateway.GRPCMethodMatchRegularExpression))
	if opt(m.Service) == "" && opt(m.Method) == "" {
		return append(errs, field.Required(path, "must specify `service`, `method` or both"))
	}
	for name, value := range map[string]string{"service": opt(m.Service), "method": opt(m.Method)} {
		switch {
		case opt(m.Type) == string(gateway.GRPCMethodMatchRegularExpression):
			errs = append(errs, checkExpression(path.Child(name), value)...)
		case strings.ContainsAny(value, "/ \t"):
			errs = append(errs, field.Invalid(path.Child(name), value, "must be a name without / and space"))
		}
	}
	return errs
}

func checkGRPCFilters(path *field.Path, all []gateway.GRPCRouteFilter) field.ErrorList {
	if n := len(all); n > maxRouteFilters {
		return field.ErrorList{field.TooMany(path, n, maxRouteFilters)}
	}
	var errs field.ErrorList
	for i := range all {
		f, at := &all[i], path.Index(i)
		errs = append(errs, checkFilterType(at, string(f.Type), []filterPart{
			{"RequestHeaderModifier", "requestHeaderModifier", f.RequestHeaderModifier != nil},
			{"ResponseHeaderModifier", "responseHeaderModifier", f.ResponseHeaderModifier != nil},
			{"RequestMirror", "requestMirror", f.RequestMirror != nil},
			{"ExtensionRef", "extensionRef", f.ExtensionRef != nil},
		})...)
		errs = append(errs, checkHeaderFilter(at.Child("requestHeaderModifier"), f.RequestHeaderModifier)...)
		errs = append(errs, checkHeaderFilter(at.Child("responseHeaderModifier"), f.ResponseHeaderModifier)...)
		errs = append(errs, checkMirror(at.Child("requestMirror"), f.RequestMirror)...)
	}
	return errs
}
