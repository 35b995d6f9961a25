package xds_test

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// enteringWithin is how long a request to a port of the workload takes at most.
func enteringWithin(port, path string, most time.Duration) func(*stage) string {
	return func(s *stage) string {
		if r := s.get(s.in[port], path); r.Took > most {
			return r.String()
		}
		return ""
	}
}

// negotiates a version of TLS, and a cipher; 0: any.
func negotiates(version, cipher uint16, change func(*tls.Config)) func(*stage) string {
	return func(s *stage) string {
		state, err := s.handshake(s.in["http"], change)
		switch {
		case err != nil:
			return err.Error()
		case state.Version != version, cipher != 0 && state.CipherSuite != cipher:
			return tls.VersionName(state.Version) + " " + tls.CipherSuiteName(state.CipherSuite)
		}
		return ""
	}
}

// workloadCases are of WorkloadPolicies, but for what is observed.
func workloadCases() []fieldCase {
	anyTLS := func(*tls.Config) {}
	old := func(c *tls.Config) { c.MaxVersion = tls.VersionTLS12 }
	calls := answers("secured", "/", 200) // by mutual TLS, as before
	return []fieldCase{
		{name: "tls.mode Strict", objects: wp("tls: {mode: Strict}"), quick: true, effect: all(entering("http", "/", 0), calls),
			without: all(entering("http", "/", 200), calls)},
		{name: "tls.mode Permissive", objects: wp("tls: {mode: Permissive}"), effect: all(entering("http", "/", 200), calls),
			given: "kind: Mesh\nmetadata: {name: default}\nspec: {mtls: {enabledBackend: b, backends: [{name: b, type: Builtin, mode: Strict}]}}\n"},
		{name: "tls.min", objects: wp("tls: {min: \"1.2\"}"), quick: true, effect: all(negotiates(tls.VersionTLS12, 0, old), negotiates(tls.VersionTLS13, 0, anyTLS), calls)},
		{name: "tls.max", objects: wp("tls: {min: \"1.2\", max: \"1.2\"}"), effect: all(negotiates(tls.VersionTLS12, 0, anyTLS), calls)},
		{name: "tls.ciphers", objects: wp("tls: {min: \"1.2\", max: \"1.2\", ciphers: [ECDHE-ECDSA-AES256-GCM-SHA384]}"),
			effect: all(negotiates(tls.VersionTLS12, tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, anyTLS), calls)},

		{name: "in timeout.connect", objects: wp("timeout: {connect: 100ms}"), effect: enteringWithin("full", "/", time.Second)},
		{name: "in timeout.idle/HTTP", objects: wp("timeout: {idle: 100ms}"),
			effect: all(entering("http", "/", 200), held(inPort("http"), 600*time.Millisecond))},
		{name: "in timeout.idle/TCP", objects: wp("timeout: {idle: 100ms}"), effect: held(inPort("tcp"), 600*time.Millisecond)},
		{name: "in timeout.request", objects: wp("timeout: {request: 100ms}"), quick: true, effect: entering("http", "/slow?ms=1000", 504)},
		{name: "in timeout.streamIdle", objects: wp("timeout: {streamIdle: 100ms}"), effect: enteringWithin("http", "/stall", 700*time.Millisecond)},
		{name: "in timeout.maxStream", objects: wp("timeout: {maxStream: 200ms}"), effect: enteringWithin("http", "/drip", 700*time.Millisecond)},
		{name: "in timeout.maxConnection/TCP", objects: wp("timeout: {maxConnection: 200ms}"), effect: enteringWithin("tcp", "/drip", 700*time.Millisecond)},
		{name: "in timeout.maxConnection/HTTP", objects: wp("timeout: {maxConnection: 200ms}"), effect: held(inPort("http"), 700*time.Millisecond)},

		{name: "in limits.connections", objects: wp("limits: {connections: 1}\nports: [tcp]"), effect: func(s *stage) string {
			if got := s.together(3, s.in["tcp"], func(int) string { return "/slow?ms=200" }); got[200] != 1 {
				return fmt.Sprint("statuses ", got)
			}
			return ""
		}},
		{name: "in limits.requests", objects: wp("limits: {requests: 2}"), effect: func(s *stage) string {
			if got := s.together(4, s.in["http"], func(int) string { return "/slow?ms=200" }); got[200] != 2 || got[503] != 2 {
				return fmt.Sprint("statuses ", got)
			}
			return ""
		}},
		{name: "in limits.connections/HTTP", objects: wp("limits: {connections: 2}"), effect: refusesBeyond(inPort("http"), 2)},
		{name: "in limits.pending", objects: wp("limits: {connections: 1, pending: 0}"), effect: waitsFor(inPort("http"))},

		{name: "backends", objects: wp("backends: [{name: other}, {kind: ServiceImport, namespace: shop, name: far}]"),
			given: "kind: Service\nmetadata: {name: other}\nspec: {clusterIP: 10.96.0.200, clusterIPs: [10.96.0.200], ports: [{port: 80, targetPort: 80, protocol: TCP}]}\n---\n" +
				"kind: Service\nmetadata: {name: derived, labels: {multicluster.kubernetes.io/service-name: far}}\n" +
				"spec: {clusterIP: 10.96.0.201, clusterIPs: [10.96.0.201], ports: [{port: 80, targetPort: 80, protocol: TCP}]}\n---\n",
			effect: func(s *stage) string {
				_, list, err := s.proxy.Admin(http.MethodGet, "/clusters")
				if err != nil || !strings.Contains(list, "shop/other:80") || !strings.Contains(list, "shop/derived:80") {
					return fmt.Sprint("clusters ", err)
				}
				return ""
			}},

		{name: "in rateLimit.http", objects: wp("rateLimit: [{http: {requests: 1, per: 1h, status: 503}}]"), quick: true, effect: entering("http", "/", 503)},
		{name: "in rateLimit.http from addresses", objects: wp("rateLimit: [{from: [{addresses: [127.0.0.0/8]}], http: {requests: 1, per: 1h}}]"),
			effect: entering("http", "/", 429)},
		{name: "in rateLimit.http from others", objects: wp("rateLimit: [{from: [{namespaces: [shop]}], http: {requests: 1, per: 1h}}]"),
			effect: all(answers("secured", "/", 429), entering("http", "/", 200))},
		{name: "in rateLimit.http from accounts", objects: wp("rateLimit: [{from: [{serviceAccounts: [shop/default]}], http: {requests: 1, per: 1h}}]"),
			effect: all(answers("secured", "/", 429), entering("http", "/", 200))},
		{name: "in rateLimit.http from SPIFFE", effect: all(answers("secured", "/", 429), entering("http", "/", 200)),
			objects: wp("rateLimit: [{from: [{spiffe: [{type: Prefix, value: \"spiffe://default.mesh/ns/shop/\"}]}], http: {requests: 1, per: 1h}}]")},
		{name: "in rateLimit.http from labels", objects: wp("rateLimit: [{from: [{labels: {matchLabels: {app: client}}}], http: {requests: 1, per: 1h}}]"),
			effect: all(answers("secured", "/", 429), entering("http", "/", 200))},
		{name: "in rateLimit.http from a mesh", objects: wp("rateLimit: [{from: [{mesh: default}], http: {requests: 1, per: 1h}}]"),
			effect: all(answers("secured", "/", 429), entering("http", "/", 200))},
		{name: "in rateLimit.tcp", objects: wp("rateLimit: [{tcp: {connections: 1, per: 1h}}]"), effect: entering("tcp", "/", 0)},

		{name: "in faults.abort", objects: wp("faults: [{from: [{namespaces: [shop]}], abort: {httpStatus: 418}}]"), quick: true,
			effect: all(answers("secured", "/", 418), entering("http", "/", 200))},
		{name: "in faults from addresses", objects: wp("faults: [{from: [{addresses: [127.0.0.1]}], abort: {httpStatus: 418}}]"), effect: entering("http", "/", 418)},
		{name: "in faults from SPIFFE", effect: all(answers("secured", "/", 418), entering("http", "/", 200)),
			objects: wp("faults: [{from: [{spiffe: [{value: spiffe://default.mesh/ns/shop/sa/default}]}], abort: {httpStatus: 418}}]")},
		{name: "in faults from accounts", objects: wp("faults: [{from: [{serviceAccounts: [shop/default]}, {labels: {matchLabels: {app: nobody}}}], abort: {httpStatus: 418}}]"),
			effect: all(answers("secured", "/", 418), entering("http", "/", 200))},
		{name: "in faults from a mesh", objects: wp("faults: [{from: [{mesh: default}], percent: 100, abort: {httpStatus: 418}}]"),
			effect: all(answers("secured", "/", 418), entering("http", "/", 200))},
		{name: "in faults.abort.grpcStatus", objects: wp("faults: [{abort: {grpcStatus: 8}}]"), effect: func(s *stage) string {
			if code, _ := s.call(s.in["grpc"]); code != 8 {
				return code.String()
			}
			return ""
		}},
		{name: "in faults.delay", objects: wp("faults: [{delay: 300ms}]"), effect: func(s *stage) string {
			if r := s.get(s.in["http"], "/"); r.Status != 200 || r.Took < 300*time.Millisecond {
				return r.String()
			}
			return ""
		}},
		{name: "in faults.bandwidth", objects: wp("faults: [{bandwidth: 800}]"), effect: func(s *stage) string {
			if r := s.get(s.in["http"], "/kb/50"); r.Status != 200 || r.Took < 300*time.Millisecond {
				return r.String()
			}
			return ""
		}},
		{name: "ports", objects: wp("ports: [http]\nfaults: [{abort: {httpStatus: 418}}]"), effect: all(entering("http", "/", 418), func(s *stage) string {
			if code, _ := s.call(s.in["grpc"]); code != 0 {
				return "the other port: " + code.String()
			}
			return ""
		})},
		{name: "by a port's tags", effect: entering("http", "/", 418),
			objects: "kind: WorkloadPolicy\nmetadata: {name: w}\nspec: {selector: {matchLabels: {part: http}}, faults: [{abort: {httpStatus: 418}}]}\n"},
		{name: "of a Dataplane", effect: entering("http", "/", 418),
			objects: "kind: WorkloadPolicy\nmetadata: {name: w}\n" +
				"spec: {targetRefs: [{group: mesh.proxima.dev, kind: Dataplane, name: client-1}], faults: [{abort: {httpStatus: 418}}]}\n"},
	}
}

// logs: a text, with $PATH as the path of a request, is written to the output of the Envoy, or to a
// file of its.
func logs(file string, want ...string) func(*stage, string) string {
	return func(s *stage, path string) string {
		for end := time.Now().Add(500 * time.Millisecond); ; time.Sleep(10 * time.Millisecond) {
			text := s.proxy.Stdout.String()
			if file != "" {
				text = s.file(file)
			}
			missing := ""
			for _, w := range want {
				if w = strings.ReplaceAll(w, "$PATH", path); !strings.Contains(text, w) {
					missing = w
				}
			}
			if missing == "" {
				return ""
			}
			if time.Now().After(end) {
				return "the log has no " + missing
			}
		}
	}
}

// collects: messages with these texts come to the collector, and one with the path.
func collects(want ...string) func(*stage, string) string {
	return func(s *stage, path string) string {
		for _, w := range append(want, "$PATH") {
			w = strings.ReplaceAll(w, "$PATH", path)
			for end := time.Now().Add(1500 * time.Millisecond); !s.collector.has(w); time.Sleep(10 * time.Millisecond) { // it sends each second
				if time.Now().After(end) {
					return "the collector has no " + w
				}
			}
		}
		return ""
	}
}

// once a request with a path of its own was answered, to Service web.
func once(then func(s *stage, path string) string) func(*stage) string {
	return func(s *stage) string {
		path := "/" + s.tries.key()
		s.to("web", path, "user", "ann")
		return then(s, path)
	}
}

// arrives: a message about requests comes to the collector, of a tracer that sends every few seconds.
func arrives(message string) func(*stage) string {
	return func(s *stage) string {
		before := s.collector.count(message)
		for end := time.Now().Add(9 * time.Second); s.collector.count(message) == before; time.Sleep(50 * time.Millisecond) {
			if s.to("web", "/"); time.Now().After(end) {
				return "the collector has no " + message
			}
		}
		return ""
	}
}

func nothing(*stage) string { return "" }

// observeCases are of logs and traces.
func observeCases() []fieldCase {
	return []fieldCase{
		{name: "accessLog.stdout", objects: wp("accessLog: [{stdout: {}, format: \"out %REQ(:PATH)% %RESPONSE_CODE%\"}]"), quick: true,
			effect: once(logs("", "out $PATH 200\n"))},
		{name: "accessLog.stdout of calls", objects: wp("accessLog: [{stdout: {}, format: \"in %REQ(:PATH)%\"}]"), effect: func(s *stage) string {
			path := "/" + s.tries.key()
			s.get(s.in["http"], path)
			return logs("", "in $PATH\n")(s, path)
		}},
		{name: "accessLog.file", objects: wp("accessLog: [{file: {path: $DIR/access.log}}]"), effect: once(logs("access.log", "\"GET $PATH HTTP/1.1\" 200"))},
		{name: "accessLog.of", objects: wp("accessLog: [{stdout: {}, of: Errors, format: \"bad %REQ(:PATH)%\"}]"), effect: once(func(s *stage, good string) string {
			bad := "/fail/1?code=500&key=" + s.tries.key()
			s.to("web", bad)
			if saw := logs("", "bad $PATH\n")(s, bad); saw != "" {
				return saw
			}
			if strings.Contains(s.proxy.Stdout.String(), "bad "+good) {
				return "the log has what did not fail"
			}
			return ""
		})},
		{name: "accessLog of TCP", objects: wp("accessLog: [{stdout: {}, format: \"tcp %UPSTREAM_CLUSTER%\"}]"), effect: func(s *stage) string {
			before := strings.Count(s.proxy.Stdout.String(), "tcp ")
			s.to("bytes", "/")
			s.get(s.in["tcp"], "/")
			for end := time.Now().Add(500 * time.Millisecond); strings.Count(s.proxy.Stdout.String(), "tcp ") < before+2; time.Sleep(10 * time.Millisecond) {
				if time.Now().After(end) {
					return "the log has no line of the connections"
				}
			}
			return ""
		}},
		{name: "accessLog.otlp", objects: wp("accessLog: [{otlp: {address: \"$OTLP\"}, format: \"sent %REQ(:PATH)%\"}]"), effect: once(collects("sent $PATH"))},
		{name: "tracing.otlp", objects: wp("tracing: {otlp: {address: \"$OTLP\"}}"), effect: once(collects("span "))},
		{name: "tracing.tags", objects: wp("tracing: {otlp: {address: \"$OTLP\"}, tags: [{name: who, header: user}, {name: team, value: blue}]}"),
			effect: once(collects("who", "ann", "team", "blue"))},
		{name: "tracing.sample", given: "kind: WorkloadPolicy\nmetadata: {name: z}\nspec: {tracing: {otlp: {address: \"$OTLP\"}}}\n---\n",
			objects: wp("tracing: {otlp: {address: \"$OTLP\"}, sample: 0}"), without: once(collects()), effect: once(func(s *stage, path string) string {
				time.Sleep(1200 * time.Millisecond) // what does not come cannot be waited for
				if s.collector.has(path) {
					return "there is a span"
				}
				return ""
			})},
		{name: "tracing.zipkin", objects: wp("tracing: {zipkin: {address: \"$HTTP\", path: /spans}}"), effect: arrives("/spans "), without: nothing},
		{name: "tracing.datadog", objects: wp("tracing: {datadog: {address: \"$HTTP\"}}"), effect: arrives("/v0.4/traces "), without: nothing},
	}
}
