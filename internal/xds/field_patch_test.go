package xds_test

import (
	"fmt"
	"strings"
	"time"
)

// added reports the values of a header of the answer, joined by commas.
func added(header, want string) func(*stage) string {
	return func(s *stage) string {
		r := s.to("web", "/")
		if got := strings.Join(r.Header.Values(header), ","); r.Status != 200 || got != want {
			return fmt.Sprintf("%s: %q", r, got)
		}
		return ""
	}
}

const (
	// headerFilter adds its name to the header x-by of answers.
	headerFilter = `name: %[1]s
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation
      mutations: {response_mutations: [{append: {header: {key: x-by, value: "%[1]s"}, append_action: APPEND_IF_EXISTS_OR_ADD}}]}
`
	// refuseFilter closes all connections.
	refuseFilter = `name: refuse
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.filters.network.rbac.v3.RBAC
      stat_prefix: refuse
      rules: {action: DENY, policies: {all: {permissions: [{any: true}], principals: [{any: true}]}}}
`
	// directFilter answers connections itself.
	directFilter = `name: direct
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.filters.network.direct_response.v3.Config
      response: {inline_string: "HTTP/1.1 203 OK\r\nContent-Length: 0\r\n\r\n"}
`
	// addedRoute answers for a path.
	addedRoute = `name: added
    match: {path: /patched}
    direct_response: {status: 203}
`
)

func patch(typ, op, match, value string) string {
	text := "- type: " + typ + "\n  op: " + op + "\n"
	if match != "" {
		text += "  match: " + match + "\n"
	}
	if value != "" {
		text += "  value: |\n    " + value
	}
	return patches(strings.TrimRight(text, "\n") + "\n")
}

// countsAt: connections are counted by a listener under a name.
func countsAt(name string) func(*stage) string {
	return func(s *stage) string {
		filter := "^listener." + name + ".downstream_cx_total$"
		before := s.stat(filter)
		s.to("web", "/")
		if s.stat(filter) == before {
			return "no connection is counted"
		}
		return ""
	}
}

// patchCases are of ProxyPatches: each type and each operation.
func patchCases() []fieldCase {
	filterNamed := func(name string) string { return fmt.Sprintf(headerFilter, name) }
	web := "{name: shop/web:80}"
	out := "{origin: Outbound, listener: out|127.0.0.1:$WEB}"
	plainOut := "{origin: Outbound, port: $BYTES}"
	refusing := answers("bytes", "/", 0)
	routed := answers("web", "/patched", 203)
	two := func(match, op string) string { // a filter "first", and one relative to it
		return patches("- type: HTTPFilter\n  op: First\n  match: " + out + "\n  value: |\n    " + filterNamed("first") +
			"- type: HTTPFilter\n  op: " + op + "\n  match: " + match + "\n  value: |\n    " + filterNamed("second"))
	}
	relative := "{origin: Outbound, listener: out|127.0.0.1:$WEB, name: first}"
	return []fieldCase{
		{name: "Cluster Merge", effect: within("full", "/", 1500*time.Millisecond), objects: patch("Cluster", "Merge", "{name: shop/full:80}", "connect_timeout: 0.1s\n")},
		{name: "Cluster JSONPatch", effect: within("full", "/", 1500*time.Millisecond),
			objects: patch("Cluster", "JSONPatch", "{name: shop/full:80}", `[{"op": "replace", "path": "/connectTimeout", "value": "0.1s"}]`+"\n")},
		{name: "Cluster Remove", effect: answers("web", "/", 503), objects: patch("Cluster", "Remove", web, "")},
		{name: "Cluster Add", effect: func(s *stage) string {
			if _, list, err := s.proxy.Admin("GET", "/clusters"); err != nil || !strings.Contains(list, "added-by-patch::") {
				return "the cluster is not there"
			}
			return ""
		}, objects: patch("Cluster", "Add", "", "{name: added-by-patch, type: STATIC, connect_timeout: 1s, load_assignment: {cluster_name: added-by-patch}}\n")},
		{name: "Cluster by port and direction", effect: all(answers("web", "/", 503)), objects: patch("Cluster", "Remove", "{direction: Outbound, port: 80, name: shop/web:80}", "")},

		{name: "Listener Merge", effect: countsAt("patched"), objects: patch("Listener", "Merge", "{name: \"out|127.0.0.1:$WEB\"}", "stat_prefix: patched\n")},
		{name: "Listener JSONPatch", effect: countsAt("json"), objects: patch("Listener", "JSONPatch", "{name: \"out|127.0.0.1:$WEB\"}", `[{"op": "add", "path": "/statPrefix", "value": "json"}]`+"\n")},
		{name: "Listener Add", effect: func(s *stage) string {
			if r := s.get(s.ports["spare"], "/"); r.Status != 203 {
				return r.String()
			}
			return ""
		}, objects: patch("Listener", "Add", "", "name: added\n    address: {socket_address: {address: 127.0.0.1, port_value: $SPARE}}\n    filter_chains:\n    - filters:\n      - "+
			strings.ReplaceAll(directFilter, "\n    ", "\n        "))},
		{name: "Listener Remove", effect: answers("canary", "/", 0), objects: patch("Listener", "Remove", "{name: \"out|127.0.0.1:$CANARY\"}", "")},

		{name: "VirtualHost Merge", effect: added("x-by", "host"), quick: true,
			objects: patch("VirtualHost", "Merge", "{origin: Outbound}", "response_headers_to_add: [{header: {key: x-by, value: host}}]\n")},
		{name: "VirtualHost JSONPatch", effect: added("x-by", "host"),
			objects: patch("VirtualHost", "JSONPatch", "{origin: Outbound}", `[{"op": "add", "path": "/responseHeadersToAdd", "value": [{"header": {"key": "x-by", "value": "host"}}]}]`+"\n")},
		{name: "VirtualHost Add", effect: answers("web", "/", 203, ":authority", "patched.example"),
			objects: patch("VirtualHost", "Add", "{origin: Outbound}", "{name: added, domains: [patched.example], routes: [{match: {prefix: /}, direct_response: {status: 203}}]}\n")},
		{name: "VirtualHost Remove", effect: answers("web", "/", 404), objects: patch("VirtualHost", "Remove", "{listener: \"out|shop/web:80\"}", "")},

		{name: "Route First", effect: routed, quick: true, objects: patch("Route", "First", "{listener: \"out|shop/web:80\"}", addedRoute)},
		{name: "Route Add", effect: routed, given: httpRoute("web", "- {matches: [{path: {value: /a}}], "+toWeb+"}"), objects: patch("Route", "Add", "{origin: Outbound}", addedRoute)},
		{name: "Route Last", effect: routed, given: httpRoute("web", "- {matches: [{path: {value: /a}}], "+toWeb+"}"), objects: patch("Route", "Last", "{origin: Outbound}", addedRoute)},
		{name: "Route Before", effect: routed, given: httpRoute("web", "- {"+toWeb+"}"), objects: patch("Route", "Before", "{name: HTTPRoute/shop/r/0/0}", addedRoute)},
		{name: "Route After", effect: routed, given: httpRoute("web", "- {matches: [{path: {value: /a}}], "+toWeb+"}"),
			objects: patch("Route", "After", "{name: HTTPRoute/shop/r/0/0}", addedRoute)},
		{name: "Route Merge", effect: added("x-by", "route"), given: httpRoute("web", "- {"+toWeb+"}"),
			objects: patch("Route", "Merge", "{name: HTTPRoute/shop/r/0/0}", "response_headers_to_add: [{header: {key: x-by, value: route}}]\n")},
		{name: "Route JSONPatch", effect: answers("web", "/slow?ms=1000", 504), given: httpRoute("web", "- {"+toWeb+"}"),
			objects: patch("Route", "JSONPatch", "{name: HTTPRoute/shop/r/0/0}", `[{"op": "replace", "path": "/route/timeout", "value": "0.1s"}]`+"\n")},
		{name: "Route Remove", effect: answers("web", "/", 404), given: httpRoute("web", "- {"+toWeb+"}"), objects: patch("Route", "Remove", "{name: HTTPRoute/shop/r/0/0}", "")},

		{name: "NetworkFilter First", effect: refusing, quick: true, objects: patch("NetworkFilter", "First", plainOut, refuseFilter)},
		{name: "NetworkFilter Before", effect: refusing, objects: patch("NetworkFilter", "Before", "{origin: Outbound, port: $BYTES, name: envoy.filters.network.tcp_proxy}", refuseFilter)},
		{name: "NetworkFilter Last", effect: refusing, objects: patch("NetworkFilter", "Last", plainOut, refuseFilter)},
		{name: "NetworkFilter Add", effect: refusing, objects: patch("NetworkFilter", "Add", plainOut, refuseFilter)},
		{name: "NetworkFilter After", effect: refusing, objects: patches("- type: NetworkFilter\n  op: First\n  match: " + plainOut + "\n  value: |\n    " +
			`{name: limit, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.connection_limit.v3.ConnectionLimit, stat_prefix: l, max_connections: 100}}` + "\n" +
			"- type: NetworkFilter\n  op: After\n  match: {origin: Outbound, port: $BYTES, name: limit}\n  value: |\n    " + refuseFilter)},
		{name: "NetworkFilter Merge", effect: answers("bytes", "/", 0), objects: patch("NetworkFilter", "Merge",
			"{origin: Outbound, port: $BYTES, name: envoy.filters.network.tcp_proxy}", `{typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, cluster: blackhole}}`+"\n")},
		{name: "NetworkFilter JSONPatch", effect: answers("bytes", "/", 0), objects: patch("NetworkFilter", "JSONPatch",
			"{origin: Outbound, port: $BYTES, name: envoy.filters.network.tcp_proxy}", `[{"op": "replace", "path": "/typed_config/cluster", "value": "blackhole"}]`+"\n")},
		{name: "NetworkFilter Remove", effect: answers("web", "/", 200), given: bp("web", "rateLimit: [{tcp: {connections: 1, per: 1h}}]"),
			objects: patch("NetworkFilter", "Remove", "{name: envoy.filters.network.local_ratelimit}", "")},

		{name: "HTTPFilter First", effect: added("x-by", "one"), quick: true, objects: patch("HTTPFilter", "First", out, filterNamed("one"))},
		{name: "HTTPFilter Last", effect: added("x-by", "one"), objects: patch("HTTPFilter", "Last", out, filterNamed("one"))},
		{name: "HTTPFilter Add", effect: added("x-by", "one"), objects: patch("HTTPFilter", "Add", out, filterNamed("one"))},
		{name: "HTTPFilter Before", effect: added("x-by", "first,second"), objects: two(relative, "Before")},
		{name: "HTTPFilter After", effect: added("x-by", "second,first"), objects: two(relative, "After")},
		{name: "HTTPFilter Merge", effect: added("x-by", "merged"), objects: patches("- type: HTTPFilter\n  op: First\n  match: " + out + "\n  value: |\n    " + filterNamed("one") +
			"- type: HTTPFilter\n  op: Merge\n  match: {name: one}\n  value: |\n    " +
			`{typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation, mutations: {response_mutations: [{append: {header: {key: x-by, value: merged}}}]}}}` + "\n")},
		{name: "HTTPFilter JSONPatch", effect: added("x-by", "json"), objects: patches("- type: HTTPFilter\n  op: First\n  match: " + out + "\n  value: |\n    " + filterNamed("one") +
			"- type: HTTPFilter\n  op: JSONPatch\n  match: {name: one}\n  value: |\n    " +
			`[{"op": "replace", "path": "/typed_config/mutations/response_mutations/0/append/header/value", "value": "json"}]` + "\n")},
		{name: "HTTPFilter Remove", effect: answers("web", "/", 200), given: bp("web", "faults: [{abort: {httpStatus: 418}}]"),
			objects: patch("HTTPFilter", "Remove", "{name: envoy.filters.http.fault.0}", "")},
		{name: "HTTPFilter of calls", effect: func(s *stage) string {
			if got := s.get(s.in["http"], "/").Header.Get("x-by"); got != "in" {
				return "x-by is " + got
			}
			return ""
		}, objects: patch("HTTPFilter", "First", "{origin: Inbound, direction: Inbound}", filterNamed("in"))},
	}
}
