package xds_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/xds"
)

// program is a gRPC client without a proxy, of Service api with the servers g1, g2 and g3. Service
// other has the server o1.
type program struct {
	*stage
	conn *grpc.ClientConn
}

func newProgram(t *testing.T) *program {
	t.Helper()
	c := &tries{n: map[string]int{}}
	objects := append(endpointsOf("api", at{port: c.grpcEndpoint(t, "g1"), zone: "a"}, at{port: c.grpcEndpoint(t, "g2"), zone: "a"},
		at{port: c.grpcEndpoint(t, "g3"), zone: "a"}), endpointsOf("other", at{port: c.grpcEndpoint(t, "o1"), zone: "a"})...)
	objects = append(objects, dataplane("client-1", "127.0.0.1"), service("api", "10.96.0.20", port("main", 80, "grpc")),
		service("other", "10.96.0.21", port("main", 80, "grpc")))
	p := &program{stage: &stage{plane: newPlane(t, objects...), tries: c, collector: &collector{}}}
	resolver, err := xds.NewXDSResolverWithConfigForTesting(fmt.Appendf(nil, `{
		"xds_servers": [{"server_uri": %q, "channel_creds": [{"type": "insecure"}], "server_features": ["xds_v3"]}],
		"node": {"id": "default/shop/client-1"}}`, p.address))
	if err != nil {
		t.Fatal(err)
	}
	p.conn, err = grpc.NewClient("xds:///api.shop.svc.cluster.local:80", grpc.WithResolvers(resolver), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.conn.Close() })
	return p
}

// ask the health service, with metadata of names and values in turn: the server, or the code.
func (p *program) ask(pairs ...string) string {
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(p.t.Context(), pairs...), 5*time.Second)
	defer cancel()
	var header metadata.MD
	if _, err := healthpb.NewHealthClient(p.conn).Check(ctx, &healthpb.HealthCheckRequest{}, grpc.Header(&header)); err != nil {
		return status.Code(err).String()
	}
	return strings.Join(header.Get("served-by"), "")
}

// asked n times: how often each answer came.
func (p *program) asked(n int, pairs ...string) map[string]int {
	out := map[string]int{}
	for range n {
		out[p.ask(pairs...)]++
	}
	return out
}

// TestGRPCPolicies: an unmodified gRPC-Go does what policies and routes say, as far as it can.
func TestGRPCPolicies(t *testing.T) {
	p := newProgram(t)
	is := func(want string, pairs ...string) func(*stage) string {
		return func(*stage) string {
			if got := p.ask(pairs...); got != want {
				return got
			}
			return ""
		}
	}
	counts := func(n int, right func(map[string]int) bool, pairs ...string) func(*stage) string {
		return func(*stage) string {
			if got := p.asked(n, pairs...); !right(got) {
				return fmt.Sprint(got)
			}
			return ""
		}
	}
	const toOther = "backendRefs: [{name: other, port: 80}]"
	const toAPI = "backendRefs: [{name: api, port: 80}]"
	unavailable := fmt.Sprint(uint32(codes.Unavailable))
	for _, c := range []fieldCase{
		{name: "GRPCRoute method", objects: grpcRoute("- {matches: [{method: {service: grpc.health.v1.Health, method: Check}}], " + toOther + "}"), effect: is("o1")},
		{name: "GRPCRoute headers", objects: grpcRoute("- {matches: [{headers: [{name: who, value: ann}]}], " + toOther + "}\n- {" + toAPI + "}"),
			effect: all(is("o1", "who", "ann"), counts(9, only("g1", "g2", "g3")))},
		{name: "GRPCRoute weights", objects: grpcRoute("- {backendRefs: [{name: api, port: 80, weight: 1}, {name: other, port: 80, weight: 1}]}"),
			effect: counts(40, func(got map[string]int) bool { return got["o1"] > 7 && got["o1"] < 33 })},
		{name: "HTTPRoute", objects: httpRoute("api", "- {matches: [{path: {value: /grpc.health.v1.Health}}], "+toOther+"}"), effect: is("o1")},
		{name: "without a backend", objects: grpcRoute("- {backendRefs: [{name: gone, port: 80}]}"), effect: is("Unavailable")},
		{name: "timeout.request", objects: bp("api", "timeout: {request: 100ms}"), effect: is("DeadlineExceeded", "ms", "300")},
		{name: "HTTPRoute timeouts", objects: httpRoute("api", "- {timeouts: {request: 100ms}, "+toAPI+"}"), effect: is("DeadlineExceeded", "ms", "300")},
		{name: "retry.grpc", objects: bp("api", "retry: {grpc: [unavailable], attempts: 3, backoff: {base: 1ms, max: 2ms}}"), effect: func(*stage) string {
			if got := p.ask("fail", "3", "code", unavailable, "key", p.tries.key()); !strings.HasPrefix(got, "g") {
				return got
			}
			return ""
		}},
		{name: "faults.abort", objects: bp("api", "faults: [{abort: {grpcStatus: 8}}]"), effect: is("ResourceExhausted")},
		{name: "faults.delay", objects: bp("api", "faults: [{delay: 300ms}]"), effect: func(*stage) string {
			start := time.Now()
			if got := p.ask(); !strings.HasPrefix(got, "g") || time.Since(start) < 300*time.Millisecond {
				return fmt.Sprint(got, " after ", time.Since(start))
			}
			return ""
		}},
		{name: "limits.requests", objects: bp("api", "limits: {requests: 1}"), effect: func(*stage) string {
			var mu sync.Mutex
			var calls sync.WaitGroup
			refused := 0
			for range 3 {
				calls.Go(func() {
					if p.ask("ms", "200") == "Unavailable" {
						mu.Lock()
						refused++
						mu.Unlock()
					}
				})
			}
			calls.Wait()
			if refused == 0 {
				return "no call is refused"
			}
			return ""
		}},
		{name: "balancer.hash", objects: bp("api", "balancer: {hash: [{type: Header, name: who}]}"), effect: func(*stage) string {
			seen := map[string]int{}
			for i := range 12 {
				got := p.asked(4, "who", fmt.Sprint(i))
				if len(got) != 1 {
					return fmt.Sprint(got)
				}
				for name := range got {
					seen[name]++
				}
			}
			if len(seen) < 2 {
				return fmt.Sprint("all go to ", seen)
			}
			return ""
		}},
		{name: "outlier.failurePercent", effect: counts(30, only("g2", "g3"), "bad", "g1"),
			objects: bp("api", "outlier: {interval: 200ms, ejection: 60s, failurePercent: {threshold: 60, minHosts: 2, minRequests: 4}}")},
	} {
		t.Run(c.name, func(t *testing.T) { p.run(t, &c) })
	}
}
