package xds_test

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
)

// failing is the answer to a request that fails n times before it is answered.
func failing(service string, n, code, want int) func(*stage) string {
	return func(s *stage) string {
		return answers(service, fmt.Sprintf("/fail/%d?key=%s&code=%d", n, s.tries.key(), code), want)(s)
	}
}

// ended: the connection that a proxy opened for a request ends soon after it.
func ended(service string) func(*stage) string {
	return func(s *stage) string {
		filter := "^cluster.shop/" + service + "_80.upstream_cx_active$"
		if r := s.to(service, "/"); r.Status != 200 {
			return r.String()
		}
		for end := time.Now().Add(700 * time.Millisecond); s.stat(filter) != 0; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				return fmt.Sprint(s.stat(filter), " connections are open")
			}
		}
		return ""
	}
}

// held is how long a connection without bytes is open: at most this.
func held(port func(*stage) int32, most time.Duration) func(*stage) string {
	return func(s *stage) string {
		c, err := (&net.Dialer{}).DialContext(s.t.Context(), "tcp", fmt.Sprint("127.0.0.1:", port(s)))
		if err != nil {
			return err.Error()
		}
		defer c.Close()
		_ = c.SetReadDeadline(time.Now().Add(most))
		if _, err := c.Read(make([]byte, 1)); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return "the connection is open after " + most.String()
			}
		}
		return ""
	}
}

func outPort(service string) func(*stage) int32 {
	return func(s *stage) int32 { return s.ports[service] }
}
func inPort(name string) func(*stage) int32 { return func(s *stage) int32 { return s.in[name] } }

// retried is the answer to several requests at once, each of which is tried again once, and then
// takes 300 ms.
func retried(service string, n int, overflow bool) func(*stage) string {
	return func(s *stage) string {
		got := s.together(n, s.ports[service], func(int) string {
			return fmt.Sprintf("/fail/1?key=%s&code=502&ms=300", s.tries.key())
		})
		if overflow != (got[http.StatusBadGateway] > 0) || got[http.StatusOK]+got[http.StatusBadGateway] != n {
			return fmt.Sprint("statuses ", got)
		}
		return ""
	}
}

// retriedAmong: five requests are tried again while others are open.
func retriedAmong(service string, others int) func(*stage) string {
	return func(s *stage) string {
		got := s.together(others+5, s.ports[service], func(i int) string {
			if i < others {
				return "/slow?ms=1500"
			}
			return fmt.Sprintf("/fail/1?key=%s&code=502&after=400&ms=300", s.tries.key())
		})
		if got[http.StatusOK] != others+5 {
			return fmt.Sprint("statuses ", got)
		}
		return ""
	}
}

// failures among connections to a TCP Service, by requests.
func failures(service string, some bool) func(*stage) string {
	return func(s *stage) string {
		n := 0
		for range 12 {
			if s.to(service, "/").Status != http.StatusOK {
				n++
			}
		}
		if some != (n > 0) {
			return fmt.Sprint(n, " of 12 fail")
		}
		return ""
	}
}

// refusesBeyond a limit of connections: of more requests than twice as many at the same time, as many are
// answered at once, as many wait for them, and the others are refused at once.
func refusesBeyond(port func(*stage) int32, connections int) func(*stage) string {
	return func(s *stage) string {
		all := s.replies(2*connections+3, port(s), func(int) string { return "/slow?ms=400" })
		refused := 0
		for _, r := range all {
			switch {
			case r.Status == http.StatusServiceUnavailable && r.Took < 300*time.Millisecond && strings.Contains(r.Body, "overflow"):
				refused++
			case r.Status != http.StatusOK || r.Took > 1100*time.Millisecond:
				return fmt.Sprint(all)
			}
		}
		if most := connections + 3; refused < 3 || refused > most {
			return fmt.Sprint(refused, " are refused of ", all)
		}
		return ""
	}
}

// waitsFor a connection: of requests at the same time, none is refused, and they are answered one by one.
func waitsFor(port func(*stage) int32) func(*stage) string {
	return func(s *stage) string {
		all, longest := s.replies(4, port(s), func(int) string { return "/slow?ms=200" }), time.Duration(0)
		for _, r := range all {
			longest = max(longest, r.Took)
			if r.Status != http.StatusOK {
				return fmt.Sprint(all)
			}
		}
		if longest < 700*time.Millisecond {
			return fmt.Sprint(all)
		}
		return ""
	}
}

// calledTogether: calls of gRPC at the same time are answered, none after another.
func calledTogether(service string, n int) func(*stage) string {
	return func(s *stage) string {
		start, failed := time.Now(), make([]codes.Code, n)
		var all sync.WaitGroup
		for i := range n {
			all.Go(func() { failed[i], _ = s.call(s.ports[service], "ms", "300") })
		}
		all.Wait()
		if took := time.Since(start); slices.Max(failed) != codes.OK || took > 2*time.Second {
			return fmt.Sprint(failed, " after ", took)
		}
		return ""
	}
}

// backendCases are of BackendPolicies: timeouts, retries, limits.
func backendCases() []fieldCase {
	second := func(s *stage) string { return within("web", "/slow?ms=1000", 700*time.Millisecond)(s) }
	return []fieldCase{
		{name: "timeout.connect", objects: bp("full", "timeout: {connect: 100ms}"), effect: within("full", "/", time.Second)},
		{name: "timeout.idle/HTTP", objects: bp("web", "timeout: {idle: 100ms}"), quick: true,
			effect: ended("web")},
		{name: "timeout.idle/TCP", objects: bp("bytes", "timeout: {idle: 100ms}"), effect: held(outPort("bytes"), 500*time.Millisecond)},
		{name: "timeout.request", objects: bp("web", "timeout: {request: 100ms}"), quick: true, effect: answers("web", "/slow?ms=1000", 504)},
		{name: "timeout.perTry", objects: bp("web", "timeout: {perTry: 100ms}"), effect: all(answers("web", "/slow?ms=1000", 504), second)},
		{name: "timeout.streamIdle", objects: bp("web", "timeout: {streamIdle: 100ms}"), effect: all(within("web", "/stall", 700*time.Millisecond), second)},
		{name: "timeout.maxStream", objects: bp("web", "timeout: {maxStream: 200ms}"), effect: within("web", "/drip", 700*time.Millisecond)},
		{name: "timeout.maxConnection/HTTP", objects: bp("web", "timeout: {maxConnection: 100ms}"),
			effect: ended("web")},
		{name: "timeout.maxConnection/TCP", objects: bp("bytes", "timeout: {maxConnection: 200ms}"),
			effect: within("bytes", "/drip", 700*time.Millisecond)},

		{name: "retry.attempts", given: given("retry: {codes: [502]}"), objects: bp("web", "retry: {attempts: 4}"), effect: failing("web", 4, 502, 200)},
		{name: "retry.attempts none", given: given("retry: {codes: [502]}"), objects: bp("web", "retry: {attempts: 0}"), effect: failing("web", 1, 502, 502)},
		{name: "retry.codes", objects: bp("web", "retry: {codes: [418]}"), quick: true, effect: failing("web", 2, 418, 200)},
		{name: "retry.conditions 5xx", objects: bp("web", "retry: {conditions: [5xx]}"), effect: failing("web", 2, 500, 200)},
		{name: "retry.conditions gateway-error", objects: bp("web", "retry: {conditions: [gateway-error]}"), quick: true,
			effect: all(failing("web", 2, 503, 200), failing("web", 2, 500, 500))},
		{name: "retry.conditions retriable-4xx", objects: bp("web", "retry: {conditions: [retriable-4xx]}"), effect: failing("web", 2, 409, 200)},
		{name: "retry.conditions reset", objects: bp("web", "retry: {conditions: [reset]}"), effect: func(s *stage) string {
			return answers("web", "/reset/2?key="+s.tries.key(), 200)(s)
		}},
		{name: "retry.grpc", objects: bp("api", "retry: {grpc: [unavailable]}"), quick: true, effect: func(s *stage) string {
			if code, _ := s.call(s.ports["api"], "fail", "2", "code", fmt.Sprint(uint32(codes.Unavailable)), "key", s.tries.key()); code != codes.OK {
				return code.String()
			}
			return ""
		}},
		{name: "retry.backoff", given: given("retry: {codes: [502], attempts: 5}"), objects: bp("web", "retry: {backoff: {base: 500ms, max: 500ms}}"),
			effect: func(s *stage) string { // the waits are random, up to these; by default 625 ms in all
				if r := s.to("web", "/fail/5?code=502&key="+s.tries.key()); r.Status != 200 || r.Took < 700*time.Millisecond {
					return r.String()
				}
				return ""
			}},
		{name: "retry.backoff.max", given: given("retry: {codes: [502], attempts: 8, backoff: {base: 100ms, max: 100ms}}"), objects: bp("web", "retry: {backoff: {max: 10s}}"),
			effect: func(s *stage) string { // eight waits of at most 100 ms, or of ever longer ones
				if r := s.to("web", "/fail/8?code=502&key="+s.tries.key()); r.Took < 900*time.Millisecond {
					return r.String()
				}
				return ""
			}},
		{name: "retry.budget", given: given("retry: {codes: [502]}"),
			objects: bp("web", "retry: {budget: {percent: 0, minRetryRate: {count: 60, interval: 1m}}}"),
			effect:  retried("web", 6, true)},
		{name: "retry.budget.percent", given: given("retry: {codes: [502], budget: {percent: 0, minRetryRate: {count: 1}}}"),
			objects: bp("web", "retry: {budget: {percent: 100}}"), effect: retriedAmong("web", 12)},
		{name: "retry.tcpAttempts", given: given("outlier: {local: 0}"), objects: bp("half", "retry: {tcpAttempts: 1}"),
			effect: failures("half", true), without: failures("half", false)},

		{name: "limits.connections", objects: bp("bytes", "limits: {connections: 1}"), quick: true, effect: func(s *stage) string {
			if got := s.together(3, s.ports["bytes"], func(int) string { return "/slow?ms=200" }); got[200] != 1 {
				return fmt.Sprint("statuses ", got)
			}
			return ""
		}},
		{name: "limits.connections/HTTP", objects: bp("web", "limits: {connections: 2}"), quick: true, effect: refusesBeyond(outPort("web"), 2)},
		{name: "limits.connections/HTTP reached at once", objects: bp("web", "limits: {connections: 6}"), effect: func(s *stage) string {
			if got := s.together(6, s.ports["web"], func(int) string { return "/slow?ms=200" }); got[200] != 6 {
				return fmt.Sprint("statuses ", got)
			}
			return refusesBeyond(outPort("web"), 6)(s)
		}},
		{name: "limits.connections/HTTP2", given: given("limits: {connections: 1}"), objects: bp("api", "limits: {requests: 2}"),
			effect: func(s *stage) string {
				if calledTogether("api", 20)(s) == "" {
					return "20 calls at the same time are answered"
				}
				return ""
			}, without: calledTogether("api", 20)},
		{name: "limits.pending", given: given("limits: {connections: 1}"), objects: bp("web", "limits: {pending: 3}"), quick: true,
			effect: waitsFor(outPort("web")), without: refusesBeyond(outPort("web"), 1)},
		{name: "limits.pending none", given: given("limits: {connections: 1}"), objects: bp("web", "limits: {pending: 0}"),
			effect: waitsFor(outPort("web")), without: refusesBeyond(outPort("web"), 1)},
		{name: "limits.requests", objects: bp("web", "limits: {requests: 2}"), quick: true, effect: func(s *stage) string {
			if got := s.together(4, s.ports["web"], func(int) string { return "/slow?ms=200" }); got[200] != 2 || got[503] != 2 {
				return fmt.Sprint("statuses ", got)
			}
			return ""
		}},
		{name: "limits.retries", given: given("retry: {codes: [502]}"), objects: bp("web", "limits: {retries: 1}"), effect: retried("web", 6, true)},

		{name: "rateLimit.http", objects: bp("web", "rateLimit: [{http: {requests: 1, per: 1h, status: 503}}]"), quick: true,
			effect: answers("web", "/", 503)},
		{name: "rateLimit.tcp", objects: bp("bytes", "rateLimit: [{tcp: {connections: 1, per: 1h}}]"), effect: answers("bytes", "/", 0)},
		{name: "faults.abort.httpStatus", objects: bp("web", "faults: [{abort: {httpStatus: 418}}]"), quick: true, effect: answers("web", "/", 418)},
		{name: "faults.abort.grpcStatus", objects: bp("api", "faults: [{abort: {grpcStatus: 14}}]"), effect: func(s *stage) string {
			if code, _ := s.call(s.ports["api"]); code != codes.Unavailable {
				return code.String()
			}
			return ""
		}},
		{name: "faults.percent", objects: bp("web", "faults: [{percent: 50, abort: {httpStatus: 418}}]"), effect: func(s *stage) string {
			n := 0
			for range 40 {
				if s.to("web", "/").Status == 418 {
					n++
				}
			}
			if n < 6 || n > 34 {
				return fmt.Sprint(n, " of 40 requests")
			}
			return ""
		}},
		{name: "faults.delay", objects: bp("web", "faults: [{delay: 300ms}]"), effect: func(s *stage) string {
			if r := s.to("web", "/"); r.Status != 200 || r.Took < 300*time.Millisecond {
				return r.String()
			}
			return ""
		}},
		{name: "faults.bandwidth", objects: bp("web", "faults: [{bandwidth: 800}]"), effect: func(s *stage) string {
			if r := s.to("web", "/kb/50"); r.Status != 200 || r.Took < 300*time.Millisecond { // 50 kB at 98 KiB/s
				return r.String()
			}
			return ""
		}},
		{name: "sectionName", effect: answers("web", "/slow?ms=1000", 504),
			objects: "kind: BackendPolicy\nmetadata: {name: s}\nspec: {targetRefs: [{kind: Service, name: web, sectionName: main}], timeout: {request: 100ms}}\n"},
		{name: "of a ServiceImport", effect: answers("shared", "/slow?ms=1000", 504),
			objects: "kind: BackendPolicy\nmetadata: {name: s}\nspec: {targetRefs: [{group: multicluster.x-k8s.io, kind: ServiceImport, namespace: shop, name: imported}], timeout: {request: 100ms}}\n"},
		{name: "of a Mesh", effect: answers("web", "/slow?ms=1000", 504), quick: true,
			objects: "kind: BackendPolicy\nmetadata: {name: s, namespace: proxima-system}\nspec: {targetRefs: [{group: mesh.proxima.dev, kind: Mesh, name: default}], timeout: {request: 100ms}}\n"},
	}
}
