package kuma

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gateway "sigs.k8s.io/gateway-api/apis/v1"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
)

// eachRoute calls f with each to item that a route can be attached to: its Service, and the namespace of the
// route. One of the Service's namespace is for all clients, one of another for the clients of that.
func (o *object) eachRoute(f func(parent target, namespace string, rules []*node)) {
	top := o.spec.child("targetRef")
	if !o.wholeTarget(top) {
		o.fail(top.at("kind"), "a route is for all clients of a Service, or those of a namespace: it cannot select them")
		for _, key := range []string{"name", "tags", "labels", "namespace", "sectionName"} {
			top.raw(key)
		}
		o.spec.skip("to")
		return
	}
	for _, item := range o.spec.list("to") {
		ref := item.child("targetRef")
		if o.wholeTarget(ref) {
			o.fail(item.at("targetRef"), "a route is attached to a Service: name it")
			item.skip("rules")
			continue
		}
		item.refuse("hostnames", "only gateways look at them: a route is for what is sent to its Service")
		parent, ok := o.backend(ref)
		if !ok {
			continue
		}
		namespace := parent.namespace
		if o.namespaced() {
			namespace = o.namespace
		}
		f(parent, namespace, item.list("rules"))
	}
}

// parentOf a route.
func (o *object) parentOf(t target, namespace string) gateway.ParentReference {
	r := t.TargetRefs[0]
	p := gateway.ParentReference{Group: new(gateway.Group(r.Group)), Kind: new(gateway.Kind(r.Kind)), Name: gateway.ObjectName(r.Name)}
	if t.namespace != namespace {
		p.Namespace = new(gateway.Namespace(t.namespace))
	}
	if n, err := strconv.ParseInt(r.SectionName, 10, 32); err == nil && n > 0 && n < 1<<16 {
		p.Port = new(gateway.PortNumber(n))
	} else if r.SectionName != "" {
		p.SectionName = new(gateway.SectionName(r.SectionName))
	}
	return p
}

// backendOf a route: a Service with a port.
func (o *object) backendOf(t target, namespace, at string) (gateway.BackendRef, bool) {
	r := t.TargetRefs[0]
	port, err := strconv.ParseInt(r.SectionName, 10, 32)
	if err != nil || port < 1 || port >= 1<<16 {
		o.fail(at, fmt.Sprintf("the backend of a route is a port, and %s %s is named without its number", r.Kind, r.Name))
		return gateway.BackendRef{}, false
	}
	b := gateway.BackendRef{BackendObjectReference: gateway.BackendObjectReference{
		Group: new(gateway.Group(r.Group)), Kind: new(gateway.Kind(r.Kind)), Name: gateway.ObjectName(r.Name), Port: new(gateway.PortNumber(port)),
	}}
	if t.namespace != namespace {
		b.Namespace = new(gateway.Namespace(t.namespace))
		o.grant(namespace, t)
	}
	return b, true
}

// grant routes of a namespace the backend, which is in another one.
func (o *object) grant(from string, t target) {
	if o.granted == nil {
		o.granted = map[[3]string]bool{}
	}
	r := t.TargetRefs[0]
	at := [3]string{from, t.namespace, r.Kind + "/" + r.Name}
	if o.granted[at] {
		return
	}
	o.granted[at] = true
	g := &gateway.ReferenceGrant{TypeMeta: gatewayType("ReferenceGrant"), ObjectMeta: o.meta(t.namespace)}
	g.Name = fmt.Sprintf("%s-from-%s-to-%s", unfit.ReplaceAllString(o.name, "-"), from, r.Name)
	for _, kind := range []gateway.Kind{"HTTPRoute", "TCPRoute"} {
		g.Spec.From = append(g.Spec.From, gateway.ReferenceGrantFrom{Group: gateway.GroupName, Kind: kind, Namespace: gateway.Namespace(from)})
	}
	g.Spec.To = []gateway.ReferenceGrantTo{{Group: gateway.Group(r.Group), Kind: gateway.Kind(r.Kind), Name: new(gateway.ObjectName(r.Name))}}
	o.grants = append(o.grants, g)
}

func gatewayType(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: gateway.GroupVersion.String(), Kind: kind}
}

// meshBackends of a rule; none are named: the Service that the route is attached to.
func (o *object) meshBackends(conf *node, parent target, namespace string) (out []gateway.BackendRef) {
	all := conf.list("backendRefs")
	if len(all) == 0 {
		if b, ok := o.backendOf(parent, namespace, o.spec.at("to")); ok {
			out = append(out, b)
		}
		return out
	}
	for _, n := range all {
		if b, ok := o.meshBackend(n, namespace); ok {
			b.Weight = n.number("weight")
			out = append(out, b)
		}
	}
	return out
}

func (o *object) meshBackend(n *node, namespace string) (gateway.BackendRef, bool) {
	if n == nil {
		return gateway.BackendRef{}, false
	}
	for _, key := range []string{"tags", "labels"} {
		if len(n.labels(key)) > 0 {
			o.fail(n.at(key), "a backend is a Service: make one that selects these workloads, and name it")
			return gateway.BackendRef{}, false
		}
	}
	t, ok := o.backend(n)
	if !ok {
		o.drop = true
		return gateway.BackendRef{}, false
	}
	if port := n.number("port"); port != nil {
		t.TargetRefs[0].SectionName = strconv.Itoa(int(*port))
	}
	return o.backendOf(t, namespace, n.path)
}

func (o *object) meshTCPRoute() {
	o.eachRoute(func(parent target, namespace string, rules []*node) {
		r := &gateway.TCPRoute{TypeMeta: gatewayType("TCPRoute"), ObjectMeta: o.meta(namespace)}
		r.Spec.ParentRefs = []gateway.ParentReference{o.parentOf(parent, namespace)}
		for _, rule := range rules {
			r.Spec.Rules = append(r.Spec.Rules, gateway.TCPRouteRule{BackendRefs: o.meshBackends(rule.child("default"), parent, namespace)})
		}
		o.out = append(o.out, r)
	})
	o.addGrants()
}

func (o *object) addGrants() {
	o.out = append(o.out, o.grants...)
}

func (o *object) meshHTTPRoute() {
	o.eachRoute(func(parent target, namespace string, rules []*node) {
		r := &gateway.HTTPRoute{TypeMeta: gatewayType("HTTPRoute"), ObjectMeta: o.meta(namespace)}
		r.Spec.ParentRefs = []gateway.ParentReference{o.parentOf(parent, namespace)}
		for _, rule := range rules {
			conf := rule.child("default")
			out := gateway.HTTPRouteRule{Filters: o.filters(conf, namespace)}
			for _, m := range rule.list("matches") {
				out.Matches = append(out.Matches, o.match(m))
			}
			if !redirects(out.Filters) {
				for _, b := range o.meshBackends(conf, parent, namespace) {
					out.BackendRefs = append(out.BackendRefs, gateway.HTTPBackendRef{BackendRef: b})
				}
			}
			r.Spec.Rules = append(r.Spec.Rules, o.perMatch(rule, out)...)
		}
		o.out = append(o.out, r)
	})
	o.addGrants()
}

// perMatch makes rules of one match each of a rule that replaces a prefix, which is that of the match.
func (o *object) perMatch(n *node, rule gateway.HTTPRouteRule) (out []gateway.HTTPRouteRule) {
	replaces := func(m *gateway.HTTPPathModifier) bool {
		return m != nil && m.Type == gateway.PrefixMatchHTTPPathModifier
	}
	if !slices.ContainsFunc(rule.Filters, func(f gateway.HTTPRouteFilter) bool {
		return f.URLRewrite != nil && replaces(f.URLRewrite.Path) || f.RequestRedirect != nil && replaces(f.RequestRedirect.Path)
	}) {
		return []gateway.HTTPRouteRule{rule}
	}
	for i, m := range rule.Matches {
		if m.Path == nil || *m.Path.Type != gateway.PathMatchPathPrefix {
			o.fail(fmt.Sprintf("%s[%d]", n.at("matches"), i), "the rule replaces a prefix, and this match has none")
		}
		one := *rule.DeepCopy()
		one.Matches = []gateway.HTTPRouteMatch{m}
		out = append(out, one)
	}
	if len(out) == 0 {
		o.fail(n.at("matches"), "the rule replaces a prefix, and no match has one")
	}
	return out
}

func redirects(all []gateway.HTTPRouteFilter) bool {
	for i := range all {
		if all[i].RequestRedirect != nil {
			return true
		}
	}
	return false
}

func (o *object) match(n *node) (m gateway.HTTPRouteMatch) {
	if p := n.child("path"); p != nil {
		types := map[string]gateway.PathMatchType{
			"Exact": gateway.PathMatchExact, "PathPrefix": gateway.PathMatchPathPrefix, "Prefix": gateway.PathMatchPathPrefix,
			"RegularExpression": gateway.PathMatchRegularExpression,
		}
		typ, ok := types[p.text("type")]
		if !ok {
			o.fail(p.at("type"), "is no way to match a path")
		}
		m.Path = &gateway.HTTPPathMatch{Type: &typ, Value: new(p.text("value"))}
	}
	if method := n.text("method"); method != "" {
		m.Method = new(gateway.HTTPMethod(method))
	}
	for _, h := range n.list("headers") {
		if typ, value, ok := o.valueMatch(h); ok {
			m.Headers = append(m.Headers, gateway.HTTPHeaderMatch{
				Type: new(gateway.HeaderMatchType(typ)), Name: gateway.HTTPHeaderName(h.text("name")), Value: value,
			})
		}
	}
	for _, q := range n.list("queryParams") {
		if typ, value, ok := o.valueMatch(q); ok {
			m.QueryParams = append(m.QueryParams, gateway.HTTPQueryParamMatch{
				Type: new(gateway.QueryParamMatchType(typ)), Name: gateway.HTTPHeaderName(q.text("name")), Value: value,
			})
		}
	}
	return m
}

const (
	exact      = "Exact"
	expression = "RegularExpression"
)

// valueMatch of a header or parameter: a type of the Gateway API, and its value.
func (o *object) valueMatch(n *node) (typ, value string, ok bool) {
	value = n.text("value")
	switch kind := n.text("type"); kind {
	case "", exact:
		return exact, value, true
	case expression:
		return expression, value, true
	case "Present":
		return expression, ".*", true
	case "Prefix":
		return expression, regexp.QuoteMeta(value) + ".*", true
	default:
		n.text("name")
		o.fail(n.at("type"), kind+" cannot be said in a route of the Gateway API")
		return "", "", false
	}
}

// filters of a rule. Each type has its settings in a field of that name.
func (o *object) filters(conf *node, namespace string) (out []gateway.HTTPRouteFilter) {
	for _, n := range conf.list("filters") {
		f := gateway.HTTPRouteFilter{Type: gateway.HTTPRouteFilterType(n.text("type"))}
		switch f.Type {
		case gateway.HTTPRouteFilterRequestHeaderModifier:
			f.RequestHeaderModifier = headerFilter(n.child("requestHeaderModifier"))
		case gateway.HTTPRouteFilterResponseHeaderModifier:
			f.ResponseHeaderModifier = headerFilter(n.child("responseHeaderModifier"))
		case gateway.HTTPRouteFilterRequestRedirect:
			f.RequestRedirect = o.redirect(n.child("requestRedirect"))
		case gateway.HTTPRouteFilterURLRewrite:
			w := n.child("urlRewrite")
			if w.flag("hostToBackendHostname") {
				o.fail(w.at("hostToBackendHostname"), "give the name in hostname")
			}
			f.URLRewrite = &gateway.HTTPURLRewriteFilter{Hostname: hostname(w, "hostname"), Path: o.pathModifier(w.child("path"))}
		case gateway.HTTPRouteFilterRequestMirror:
			m := n.child("requestMirror")
			b, ok := o.meshBackend(m.child("backendRef"), namespace)
			if !ok {
				continue
			}
			f.RequestMirror = &gateway.HTTPRequestMirrorFilter{BackendRef: b.BackendObjectReference, Fraction: fraction(m.fraction("percentage"))}
		default:
			o.fail(n.at("type"), string(f.Type)+" is no filter of the Gateway API")
			continue
		}
		out = append(out, f)
	}
	return out
}

// fraction of a percentage, to a thousandth.
func fraction(percent *float64) *gateway.Fraction {
	if percent == nil {
		return nil
	}
	return &gateway.Fraction{Numerator: int32(math.Round(min(max(*percent, 0), 100) * 1000)), Denominator: new(int32(100_000))}
}

func headerFilter(n *node) *gateway.HTTPHeaderFilter {
	f := &gateway.HTTPHeaderFilter{}
	for _, h := range n.list("set") {
		f.Set = append(f.Set, gateway.HTTPHeader{Name: gateway.HTTPHeaderName(h.text("name")), Value: h.text("value")})
	}
	for _, h := range n.list("add") {
		f.Add = append(f.Add, gateway.HTTPHeader{Name: gateway.HTTPHeaderName(h.text("name")), Value: h.text("value")})
	}
	f.Remove = n.texts("remove")
	return f
}

func hostname(n *node, key string) *gateway.PreciseHostname {
	if text := n.text(key); text != "" {
		return new(gateway.PreciseHostname(text))
	}
	return nil
}

func (o *object) redirect(n *node) *gateway.HTTPRequestRedirectFilter {
	f := &gateway.HTTPRequestRedirectFilter{Hostname: hostname(n, "hostname"), Path: o.pathModifier(n.child("path")), Port: n.number("port")}
	if scheme := n.text("scheme"); scheme != "" {
		f.Scheme = &scheme
	}
	if code := n.number("statusCode"); code != nil {
		f.StatusCode = new(int(*code))
	}
	return f
}

func (o *object) pathModifier(n *node) *gateway.HTTPPathModifier {
	if n == nil {
		return nil
	}
	m := &gateway.HTTPPathModifier{Type: gateway.HTTPPathModifierType(n.text("type"))}
	switch m.Type {
	case gateway.FullPathHTTPPathModifier:
		m.ReplaceFullPath = new(n.text("replaceFullPath"))
	case gateway.PrefixMatchHTTPPathModifier:
		m.ReplacePrefixMatch = new(n.text("replacePrefixMatch"))
	default:
		o.fail(n.at("type"), string(m.Type)+" is no way to change a path")
	}
	return m
}

// trafficRoute of the older generation: shares of a Service's connections, or routes of its requests.
func (o *object) trafficRoute() {
	if o.matches("sources") != nil {
		o.spec.skip("conf")
		o.spec.skip("destinations")
		o.fail(o.spec.at("sources"), "a route is for all clients of a Service, or those of a namespace: it cannot select them")
		return
	}
	conf, destinations := o.spec.child("conf"), o.matches("destinations")
	if destinations == nil {
		o.everywhere(conf)
		return
	}
	for _, labels := range destinations {
		name := labels[tagService]
		if name == "" || len(labels) > 1 {
			o.fail(o.spec.at("destinations"), "a route is attached to a Service, named by "+tagService+" alone")
			continue
		}
		parent := o.service(name)
		if rules := conf.list("http"); len(rules) > 0 {
			o.oldHTTP(parent, rules, conf)
		} else if conf.has("split") || conf.has("destination") {
			r := &gateway.TCPRoute{TypeMeta: gatewayType("TCPRoute"), ObjectMeta: o.meta(parent.namespace)}
			r.Spec.ParentRefs = []gateway.ParentReference{o.parentOf(parent, parent.namespace)}
			r.Spec.Rules = []gateway.TCPRouteRule{{BackendRefs: o.shares(conf, parent.namespace)}}
			o.out = append(o.out, r)
		}
		o.oldBalancer(parent, conf)
	}
	o.addGrants()
}

// everywhere: what is for all Services can say nothing but how their endpoints are chosen.
func (o *object) everywhere(conf *node) {
	to := conf.labels("destination")
	if conf.has("http") || conf.has("split") || len(to) > 1 || to[tagService] != "*" && to[tagService] != "" {
		o.fail(o.spec.at("destinations"), "a route is attached to a Service: name it")
		return
	}
	o.oldBalancer(o.wholeMesh(), conf)
	o.done = true // everything goes where it is addressed to, as it does anyway
}

func (o *object) oldBalancer(t target, conf *node) {
	b := conf.child("loadBalancer")
	types := map[string]string{
		"roundRobin": "RoundRobin", "leastRequest": "LeastRequest", "ringHash": "RingHash", "random": "Random", "maglev": "Maglev",
	}
	for _, key := range []string{"roundRobin", "leastRequest", "ringHash", "random", "maglev"} {
		if b.has(key) {
			b.child(key)
			o.addBackend(t).Balancer = &mesh.BackendBalancer{Type: types[key]}
			return
		}
	}
}

// shares of a split, or all of it for one destination.
func (o *object) shares(conf *node, namespace string) (out []gateway.BackendRef) {
	add := func(labels map[string]string, weight *int32, at string) {
		name := labels[tagService]
		if name == "" || len(labels) > 1 {
			o.fail(at, "a backend is a Service: make one that selects these workloads, and name it by "+tagService+" alone")
			return
		}
		if b, ok := o.backendOf(o.service(name), namespace, at); ok {
			b.Weight = weight
			out = append(out, b)
		}
	}
	for _, n := range conf.list("split") {
		add(n.labels("destination"), n.number("weight"), n.at("destination"))
	}
	if conf.has("destination") {
		add(conf.labels("destination"), nil, conf.at("destination"))
	}
	return out
}

func (o *object) oldHTTP(parent target, rules []*node, conf *node) {
	r := &gateway.HTTPRoute{TypeMeta: gatewayType("HTTPRoute"), ObjectMeta: o.meta(parent.namespace)}
	r.Spec.ParentRefs = []gateway.ParentReference{o.parentOf(parent, parent.namespace)}
	add := func(match *node, of *node, filters []gateway.HTTPRouteFilter) {
		rule := gateway.HTTPRouteRule{Filters: filters}
		if match != nil {
			rule.Matches = []gateway.HTTPRouteMatch{o.oldMatch(match)}
		}
		for _, b := range o.shares(of, parent.namespace) {
			rule.BackendRefs = append(rule.BackendRefs, gateway.HTTPBackendRef{BackendRef: b})
		}
		r.Spec.Rules = append(r.Spec.Rules, rule)
	}
	for _, n := range rules {
		add(n.child("match"), n, o.modify(n.child("modify")))
	}
	if conf.has("split") || conf.has("destination") {
		add(nil, conf, nil)
	}
	o.out = append(o.out, r)
}

// oldMatch of the older generation: each text is exact, a prefix or an expression.
func (o *object) oldMatch(n *node) (m gateway.HTTPRouteMatch) {
	if p := n.child("path"); p != nil {
		for _, way := range []struct {
			key string
			typ gateway.PathMatchType
		}{{"exact", gateway.PathMatchExact}, {"prefix", gateway.PathMatchPathPrefix}, {"regex", gateway.PathMatchRegularExpression}} {
			if p.has(way.key) {
				m.Path = &gateway.HTTPPathMatch{Type: new(way.typ), Value: new(p.text(way.key))}
			}
		}
	}
	if method := n.child("method"); method != nil {
		m.Method = new(gateway.HTTPMethod(method.text("exact"))) // an expression stays unread, and is named
	}
	headers := n.child("headers")
	if headers == nil {
		return m
	}
	for _, name := range sortedKeys(headers.values) {
		h := headers.child(name)
		out := gateway.HTTPHeaderMatch{Type: new(gateway.HeaderMatchExact), Name: gateway.HTTPHeaderName(name), Value: h.text("exact")}
		if h.has("prefix") {
			out.Type, out.Value = new(gateway.HeaderMatchRegularExpression), regexp.QuoteMeta(h.text("prefix"))+".*"
		} else if h.has("regex") {
			out.Type, out.Value = new(gateway.HeaderMatchRegularExpression), h.text("regex")
		}
		m.Headers = append(m.Headers, out)
	}
	return m
}

// modify of the older generation.
func (o *object) modify(n *node) (out []gateway.HTTPRouteFilter) {
	if n == nil {
		return nil
	}
	rewrite := gateway.HTTPURLRewriteFilter{}
	if p := n.child("path"); p != nil {
		if p.has("rewritePrefix") {
			rewrite.Path = &gateway.HTTPPathModifier{Type: gateway.PrefixMatchHTTPPathModifier, ReplacePrefixMatch: new(p.text("rewritePrefix"))}
		}
		o.failAt(p, "regex", "a path is replaced as a whole, or its prefix: expressions are not")
	}
	if h := n.child("host"); h != nil {
		rewrite.Hostname = hostname(h, "value")
		o.failAt(h, "fromPath", "the host of a request does not follow from its path")
	}
	if rewrite.Path != nil || rewrite.Hostname != nil {
		out = append(out, gateway.HTTPRouteFilter{Type: gateway.HTTPRouteFilterURLRewrite, URLRewrite: &rewrite})
	}
	if f := oldHeaders(n.child("requestHeaders")); f != nil {
		out = append(out, gateway.HTTPRouteFilter{Type: gateway.HTTPRouteFilterRequestHeaderModifier, RequestHeaderModifier: f})
	}
	if f := oldHeaders(n.child("responseHeaders")); f != nil {
		out = append(out, gateway.HTTPRouteFilter{Type: gateway.HTTPRouteFilterResponseHeaderModifier, ResponseHeaderModifier: f})
	}
	return out
}

func (o *object) failAt(n *node, key, reason string) {
	if n.has(key) {
		n.skip(key)
		o.fail(n.at(key), reason)
	}
}

// oldHeaders adds a header to those that are there, or replaces them.
func oldHeaders(n *node) *gateway.HTTPHeaderFilter {
	if n == nil {
		return nil
	}
	f := &gateway.HTTPHeaderFilter{}
	for _, h := range n.list("add") {
		one := gateway.HTTPHeader{Name: gateway.HTTPHeaderName(h.text("name")), Value: h.text("value")}
		if h.flag("append") {
			f.Add = append(f.Add, one)
		} else {
			f.Set = append(f.Set, one)
		}
	}
	for _, h := range n.list("remove") {
		f.Remove = append(f.Remove, h.text("name"))
	}
	return f
}
