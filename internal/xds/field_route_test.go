package xds_test

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
)

func httpRoute(parent, rules string) string {
	return "kind: HTTPRoute\nmetadata: {name: r}\nspec:\n  parentRefs: [{group: \"\", kind: Service, name: " + parent + "}]\n  rules:\n" + indented(rules) + "---\n"
}

func grpcRoute(rules string) string {
	return "kind: GRPCRoute\nmetadata: {name: r}\nspec:\n  parentRefs: [{group: \"\", kind: Service, name: api}]\n  rules:\n" + indented(rules) + "---\n"
}

const (
	toWeb    = "backendRefs: [{name: web, port: 80}]"
	toCanary = "backendRefs: [{name: canary, port: 80}]"
)

// goes to an endpoint.
func goes(service, path, want string, headers ...string) func(*stage) string {
	return func(s *stage) string {
		if r := s.to(service, path, headers...); r.Status != 200 || r.Header.Get("served-by") != want {
			return path + ": " + r.String()
		}
		return ""
	}
}

// shares of two answers, each at least a fifth of 40.
func shares(service string, first, second string) func(*stage) string {
	return served(service, "/", 40, func(got map[string]int) bool {
		return got[first] >= 8 && got[second] >= 8 && got[first]+got[second] == 40
	})
}

// echoed is what the endpoint was asked.
func echoed(service, path string, right func(*echo) bool, headers ...string) func(*stage) string {
	return func(s *stage) string {
		if e := s.echo(service, path, headers...); e == nil || !right(e) {
			return fmt.Sprintf("%s: it was asked %+v", path, e)
		}
		return ""
	}
}

// redirects to a location.
func redirects(path string, status int, location string) func(*stage) string {
	return func(s *stage) string {
		r := s.to("web", path)
		if got := r.Header.Get("Location"); r.Status != status || got != strings.ReplaceAll(location, "$AT", fmt.Sprint("127.0.0.1:", s.ports["web"])) {
			return fmt.Sprint(r.Status, " ", got)
		}
		return ""
	}
}

// routeCases are of HTTPRoutes, GRPCRoutes and TCPRoutes.
func routeCases() []fieldCase {
	match := func(m string) string {
		return httpRoute("web", "- {matches: ["+m+"], "+toCanary+"}\n- {"+toWeb+"}")
	}
	filter := func(path, f string) string {
		return httpRoute("web", "- {matches: [{path: {value: "+path+"}}], filters: ["+f+"], "+toWeb+"}\n- {"+toWeb+"}")
	}
	return append([]fieldCase{
		{name: "HTTPRoute weights", objects: httpRoute("web", "- {backendRefs: [{name: web, port: 80, weight: 1}, {name: canary, port: 80, weight: 1}]}"),
			quick: true, effect: shares("web", "web", "canary")},
		{name: "HTTPRoute weight 0", objects: httpRoute("web", "- {backendRefs: [{name: web, port: 80, weight: 0}, {name: canary, port: 80}]}"),
			effect: served("web", "/", 10, only("canary"))},
		{name: "HTTPRoute path Exact", objects: match("{path: {type: Exact, value: /a}}"), effect: all(goes("web", "/a?x=1", "canary"), goes("web", "/a/b", "web"))},
		{name: "HTTPRoute path PathPrefix", objects: match("{path: {type: PathPrefix, value: /a/}}"), quick: true,
			effect: all(goes("web", "/a", "canary"), goes("web", "/a/b", "canary"), goes("web", "/ab", "web"))},
		{name: "HTTPRoute path RegularExpression", objects: match("{path: {type: RegularExpression, value: \"/a[0-9]+\"}}"),
			effect: all(goes("web", "/a7", "canary"), goes("web", "/a7x", "web"))},
		{name: "HTTPRoute method", objects: match("{method: POST}"), effect: all(goes("web", "/", "canary", ":method", "POST"), goes("web", "/", "web"))},
		{name: "HTTPRoute headers", objects: match("{headers: [{name: X-Who, value: ann}, {name: num, type: RegularExpression, value: \"[0-9]+\"}]}"),
			effect: all(goes("web", "/", "canary", "x-who", "ann", "num", "12"), goes("web", "/", "web", "x-who", "ann"), goes("web", "/", "web", "x-who", "ann", "num", "1x"))},
		{name: "HTTPRoute queryParams", objects: match("{queryParams: [{name: who, value: ann}, {name: num, type: RegularExpression, value: \"[0-9]+\"}]}"),
			effect: all(goes("web", "/?who=ann&num=12", "canary"), goes("web", "/?who=ann", "web"))},
		{name: "HTTPRoute without a match", objects: httpRoute("web", "- {matches: [{path: {value: /a}}], "+toWeb+"}"),
			effect: all(goes("web", "/a", "web"), answers("web", "/b", 404))},
		{name: "HTTPRoute backend that is not there", objects: httpRoute("web", "- {backendRefs: [{name: gone, port: 80}]}"), effect: answers("web", "/", 500)},
		{name: "HTTPRoute backend of another namespace", effect: answers("web", "/", 500),
			given:   "kind: Service\nmetadata: {name: theirs, namespace: other}\nspec: {clusterIP: 10.96.0.210, clusterIPs: [10.96.0.210], ports: [{port: 80, targetPort: 80, protocol: TCP}]}\n---\n",
			objects: httpRoute("web", "- {backendRefs: [{name: theirs, namespace: other, port: 80}]}")},
		{name: "HTTPRoute to an import", effect: goes("web", "/", "canary"),
			objects: httpRoute("web", "- {backendRefs: [{group: multicluster.x-k8s.io, kind: ServiceImport, name: imported, port: 80}]}")},
		{name: "HTTPRoute of an import", effect: goes("shared", "/", "web"), quick: true,
			objects: strings.Replace(httpRoute("imported", "- {"+toWeb+"}"), "group: \"\", kind: Service", "group: multicluster.x-k8s.io, kind: ServiceImport", 1)},

		{name: "HTTPRoute RequestHeaderModifier", quick: true,
			objects: filter("/echo", "{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: a, value: \"100%\"}], add: [{name: b, value: two}], remove: [c]}}"),
			effect: echoed("web", "/echo", func(e *echo) bool {
				return e.Header.Get("A") == "100%" && len(e.Header["A"]) == 1 && strings.Join(e.Header["B"], ",") == "one,two" && e.Header.Get("C") == ""
			}, "a", "x", "b", "one", "c", "x")},
		{name: "HTTPRoute ResponseHeaderModifier", objects: filter("/echo",
			"{type: ResponseHeaderModifier, responseHeaderModifier: {set: [{name: served-by, value: us}], add: [{name: b, value: two}], remove: [gone]}}"),
			effect: func(s *stage) string {
				if h := s.to("web", "/echo").Header; h.Get("served-by") != "us" || h.Get("b") != "two" || h.Get("gone") != "" {
					return fmt.Sprint(h)
				}
				return ""
			}},
		{name: "HTTPRoute RequestRedirect", quick: true, effect: redirects("/old/x?q=1", 301, "https://pay.example:8443/new/x?q=1"),
			objects: httpRoute("web", "- matches: [{path: {value: /old}}]\n  filters: [{type: RequestRedirect, requestRedirect: {scheme: https, hostname: pay.example, port: 8443, statusCode: 301, "+
				"path: {type: ReplacePrefixMatch, replacePrefixMatch: /new}}}]\n- {"+toWeb+"}")},
		{name: "HTTPRoute RequestRedirect of the whole path", effect: redirects("/old/x", 302, "http://$AT/whole"),
			objects: httpRoute("web", "- matches: [{path: {value: /old}}]\n  filters: [{type: RequestRedirect, requestRedirect: {path: {type: ReplaceFullPath, replaceFullPath: /whole}}}]\n- {"+toWeb+"}")},
		{name: "HTTPRoute RequestRedirect to another scheme", effect: redirects("/old/x", 302, "https://pay.example/old/x"),
			objects: httpRoute("web", "- matches: [{path: {value: /old}}]\n  filters: [{type: RequestRedirect, requestRedirect: {scheme: https, hostname: pay.example}}]\n- {"+toWeb+"}")},
		{name: "HTTPRoute URLRewrite hostname", objects: filter("/echo", "{type: URLRewrite, urlRewrite: {hostname: pay.example}}"),
			effect: echoed("web", "/echo", func(e *echo) bool { return e.Host == "pay.example" })},
		{name: "HTTPRoute URLRewrite prefix", objects: filter("/api", "{type: URLRewrite, urlRewrite: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /echo}}}"),
			effect: all(echoed("web", "/api/x?q=1", func(e *echo) bool { return e.URI == "/echo/x?q=1" }), echoed("web", "/api", func(e *echo) bool { return e.URI == "/echo" }))},
		{name: "HTTPRoute URLRewrite prefix to the root", objects: filter("/api", "{type: URLRewrite, urlRewrite: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /}}}"),
			effect: echoed("web", "/api/echo?q=1", func(e *echo) bool { return e.URI == "/echo?q=1" })},
		{name: "HTTPRoute URLRewrite of the whole path", objects: filter("/api", "{type: URLRewrite, urlRewrite: {path: {type: ReplaceFullPath, replaceFullPath: /echo}}}"),
			effect: echoed("web", "/api/x?q=1", func(e *echo) bool { return e.URI == "/echo?q=1" })},
		{name: "HTTPRoute RequestMirror", objects: filter("/mirrored", "{type: RequestMirror, requestMirror: {backendRef: {name: canary, port: 80}}}"),
			effect: mirrored(20, 20)},
		{name: "HTTPRoute RequestMirror percent", objects: filter("/mirrored", "{type: RequestMirror, requestMirror: {percent: 50, backendRef: {name: canary, port: 80}}}"),
			effect: mirrored(4, 16)},
		{name: "HTTPRoute RequestMirror fraction", objects: filter("/mirrored",
			"{type: RequestMirror, requestMirror: {fraction: {numerator: 1, denominator: 2}, backendRef: {name: canary, port: 80}}}"), effect: mirrored(4, 16)},
		{name: "HTTPRoute two RequestMirrors", objects: filter("/mirrored", "{type: RequestMirror, requestMirror: {percent: 0, backendRef: {name: web, port: 80}}}, "+
			"{type: RequestMirror, requestMirror: {backendRef: {name: canary, port: 80}}}"), effect: mirrored(20, 20)},
		{name: "HTTPRoute CORS", effect: preflight, quick: true,
			objects: filter("/", "{type: CORS, cors: {allowOrigins: [\"https://*.example\"], allowMethods: [GET, PUT], allowHeaders: [x-who], exposeHeaders: [x-out], allowCredentials: true, maxAge: 60}}")},
		{name: "HTTPRoute CORS of everybody", objects: filter("/", "{type: CORS, cors: {allowOrigins: [\"*\"], allowMethods: [\"*\"], allowHeaders: [\"*\"], exposeHeaders: [\"*\"]}}"),
			effect: func(s *stage) string {
				r := s.to("web", "/", ":method", "OPTIONS", "origin", "https://any.example", "access-control-request-method", "PUT", "access-control-request-headers", "x-a")
				if r.Status != 200 || r.Header.Get("access-control-allow-origin") == "" || r.Header.Get("access-control-allow-methods") == "" {
					return fmt.Sprint(r.Status, r.Header)
				}
				return ""
			}},
		{name: "HTTPRoute filters of a backend", objects: httpRoute("web", "- backendRefs:\n  - {name: web, port: 80, filters: [{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: a, value: b}]}}]}"),
			effect: echoed("web", "/echo", func(e *echo) bool { return e.Header.Get("A") == "b" })},
		{name: "HTTPRoute timeouts.request", objects: httpRoute("web", "- {timeouts: {request: 100ms}, "+toWeb+"}"), quick: true, effect: answers("web", "/slow?ms=1000", 504)},
		{name: "HTTPRoute timeouts.request none", given: given("timeout: {request: 100ms}"), objects: httpRoute("web", "- {timeouts: {request: 0s}, "+toWeb+"}"),
			effect: answers("web", "/slow?ms=300", 200)},
		{name: "HTTPRoute timeouts.backendRequest", objects: httpRoute("web", "- {timeouts: {backendRequest: 100ms}, "+toWeb+"}"),
			effect: all(answers("web", "/slow?ms=1000", 504), within("web", "/slow?ms=1000", 700*time.Millisecond))},
		{name: "HTTPRoute retry", objects: httpRoute("web", "- {retry: {attempts: 3, codes: [418], backoff: 10ms}, "+toWeb+"}"), effect: failing("web", 3, 418, 200)},
		{name: "BackendPolicy of an HTTPRoute", given: httpRoute("web", "- {"+toWeb+"}"), effect: answers("web", "/slow?ms=1000", 504),
			objects: "kind: BackendPolicy\nmetadata: {name: p}\nspec: {targetRefs: [{group: gateway.networking.k8s.io, kind: HTTPRoute, name: r}], timeout: {request: 100ms}}\n"},
	}, otherRouteCases()...)
}

// mirrored requests among 20.
func mirrored(least, most int) func(*stage) string {
	return func(s *stage) string {
		before := s.tries.of("mirrored to canary")
		for range 20 {
			s.to("web", "/mirrored")
		}
		n := 0
		for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			if n = s.tries.of("mirrored to canary") - before; n >= most {
				break
			}
		}
		if n < least || n > most {
			return fmt.Sprint(n, " of 20 requests")
		}
		return ""
	}
}

func preflight(s *stage) string {
	r := s.to("web", "/", ":method", "OPTIONS", "origin", "https://shop.example", "access-control-request-method", "PUT", "access-control-request-headers", "x-who")
	for name, want := range map[string]string{
		"allow-origin": "https://shop.example", "allow-methods": "GET,PUT", "allow-headers": "x-who", "allow-credentials": "true", "max-age": "60",
	} {
		if got := r.Header.Get("access-control-" + name); strings.ReplaceAll(got, " ", "") != want {
			return fmt.Sprintf("%s is %q (%d)", name, got, r.Status)
		}
	}
	if got := s.to("web", "/", "origin", "https://shop.example").Header.Get("access-control-expose-headers"); got != "x-out" {
		return "expose-headers is " + got
	}
	if got := s.to("web", "/", "origin", "https://shop.test").Header.Get("access-control-allow-origin"); got != "" {
		return "another origin may, too: " + got
	}
	return ""
}

// called is the server that answers a call; "": none does.
func called(want string, code codes.Code, pairs ...string) func(*stage) string {
	return func(s *stage) string {
		for range 6 { // there are two endpoints
			got, header := s.call(s.ports["api"], pairs...)
			if by := strings.Join(header.Get("served-by"), ""); got != code || want != "" && by != want {
				return fmt.Sprint(got, " by ", by)
			}
		}
		return ""
	}
}

func otherRouteCases() []fieldCase {
	const toOne = "backendRefs: [{name: api, port: 80}]"
	unmatched := func(m string) string { return grpcRoute("- {matches: [" + m + "], " + toOne + "}") }
	const other = "method: {service: other.Service}"
	return []fieldCase{
		{name: "GRPCRoute service", objects: unmatched("{" + other + "}"), quick: true, effect: called("", codes.Unimplemented)},
		{name: "GRPCRoute service and method", objects: unmatched("{method: {service: grpc.health.v1.Health, method: Watch}}"), effect: called("", codes.Unimplemented)},
		{name: "GRPCRoute method alone", quick: true, effect: called("", codes.Unavailable),
			objects: grpcRoute("- {matches: [{method: {method: Check}}], backendRefs: [{name: gone, port: 80}]}\n- {" + toOne + "}")},
		{name: "GRPCRoute method RegularExpression", effect: called("", codes.Unavailable),
			objects: grpcRoute("- {matches: [{method: {type: RegularExpression, service: \"grpc[.].*\", method: \"Ch.*\"}}], backendRefs: [{name: gone, port: 80}]}\n- {" + toOne + "}")},
		{name: "GRPCRoute headers", effect: all(called("", codes.Unavailable, "who", "ann"), called("", codes.OK, "who", "bob")),
			objects: grpcRoute("- {matches: [{headers: [{name: who, value: ann}]}], backendRefs: [{name: gone, port: 80}]}\n- {" + toOne + "}")},
		{name: "GRPCRoute RequestHeaderModifier", effect: func(s *stage) string {
			if _, header := s.call(s.ports["api"]); strings.Join(header.Get("saw-added"), "") != "yes" {
				return fmt.Sprint(header)
			}
			return ""
		}, objects: grpcRoute("- {filters: [{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: added, value: \"yes\"}]}}], " + toOne + "}")},
		{name: "TCPRoute weights", effect: shares("bytes", "web", "canary"),
			objects: "kind: TCPRoute\nmetadata: {name: r}\nspec:\n  parentRefs: [{group: \"\", kind: Service, name: bytes}]\n" +
				"  rules: [{backendRefs: [{name: web, port: 80, weight: 1}, {name: canary, port: 80, weight: 1}]}]\n"},
		{name: "TCPRoute to nothing", effect: answers("bytes", "/", 0),
			objects: "kind: TCPRoute\nmetadata: {name: r}\nspec:\n  parentRefs: [{group: \"\", kind: Service, name: bytes, port: 80}]\n  rules: [{backendRefs: [{name: gone, port: 80}]}]\n"},
	}
}
