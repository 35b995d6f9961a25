package xds_test

import (
	"fmt"
	"net/http"
	"strings"
	"time"
)

// served reports which endpoints answer requests of a Service; paths begin with what is bad.
func served(service, path string, n int, want func(map[string]int) bool) func(*stage) string {
	return func(s *stage) string {
		got := map[string]int{}
		for _, b := range s.bodies(n, s.ports[service], path, nil) {
			got[b]++
		}
		if !want(got) {
			return fmt.Sprint("answers ", got)
		}
		return ""
	}
}

// only some of the answers, and all of those.
func only(names ...string) func(map[string]int) bool {
	return func(got map[string]int) bool {
		for _, n := range names {
			if got[n] == 0 {
				return false
			}
		}
		return len(got) == len(names)
	}
}

// inTurn reports whether three endpoints answer one after the other.
func inTurn(service string, want bool) func(*stage) string {
	return func(s *stage) string {
		got := s.bodies(15, s.ports[service], "/", nil)
		is := true
		for i := 3; i < len(got); i++ {
			is = is && got[i] == got[i-3] && got[i] != got[i-1]
		}
		if is != want {
			return strings.Join(got, " ")
		}
		return ""
	}
}

// sticks: requests that are alike go to one endpoint, and others to others.
func sticks(service string, like func(i int) []string, path func(i int) string) func(*stage) string {
	return func(s *stage) string {
		seen := map[string]struct{}{}
		for i := range 12 {
			got := map[string]struct{}{}
			for range 4 {
				r := s.get(s.ports[service], path(i), like(i)...)
				if r.Status != http.StatusOK {
					return r.String()
				}
				got[r.Body] = struct{}{}
				seen[r.Body] = struct{}{}
			}
			if len(got) != 1 {
				return fmt.Sprintf("requests of %d go to %v", i, got)
			}
		}
		if len(seen) < 2 {
			return fmt.Sprint("all go to ", seen)
		}
		return ""
	}
}

// afterSickness: an endpoint that was healthy becomes sick (and healthy again). It is used or not, a
// few checks later.
func afterSickness(name string, again, used bool) func(*stage) string {
	return func(s *stage) string {
		defer s.tries.is("")
		s.tries.is("")
		settle := func(want bool) bool {
			for end := time.Now().Add(time.Second); ; {
				got := false
				for _, b := range s.bodies(15, s.ports["many"], "/", nil) {
					got = got || b == name
				}
				if got == want || time.Now().After(end) {
					return got
				}
			}
		}
		if !again && !settle(true) {
			return "it is not used at first"
		}
		s.tries.is(name)
		got := settle(false)
		if again {
			s.tries.is("")
			got = settle(true)
		}
		if got != used {
			return fmt.Sprint("it is used: ", got)
		}
		return ""
	}
}

// sickness is a health check by which an endpoint goes, as long as the stage says that it is sick.
func sickness(service string) string {
	return strings.Replace(bp(service, "healthCheck: {type: HTTP, path: /health, interval: 50ms, unhealthy: 1}\noutlier: {panic: 0}"), "{name: p}", "{name: q}", 1)
}

// sick: while one endpoint is sick, these answer.
func sick(name, service string, want ...string) func(*stage) string {
	return func(s *stage) string {
		s.tries.is(name)
		return served(service, "/", 20, only(want...))(s)
	}
}

// balanceCases are of BackendPolicies: outliers, health checks, balancers, localities.
func balanceCases() []fieldCase {
	const quickly = "interval: 50ms, ejection: 60s, "
	hash := func(h string) string { return "balancer: {hash: [" + h + "]}" }
	none := func(int) []string { return nil }
	root := func(int) string { return "/" }
	return []fieldCase{
		{name: "outlier.local", given: given("retry: {tcpAttempts: 1}"), objects: bp("half", "outlier: {local: 0}"), effect: failures("half", true),
			without: failures("half", false)},
		{name: "outlier.gateway", objects: bp("many", "outlier: {"+quickly+"gateway: 2}"), effect: served("many", "/bad/m1/503", 20, only("m2", "m3"))},
		{name: "outlier.total", objects: bp("many", "outlier: {"+quickly+"total: 2}"), effect: served("many", "/bad/m1/500", 20, only("m2", "m3"))},
		{name: "outlier.successRate", objects: bp("many", "outlier: {interval: 300ms, ejection: 60s, successRate: {factor: 900, minHosts: 2, minRequests: 5}}"),
			effect: served("many", "/bad/m1/500", 60, only("m2", "m3"))},
		{name: "outlier.failurePercent", objects: bp("many", "outlier: {interval: 300ms, ejection: 60s, failurePercent: {threshold: 60, minHosts: 2, minRequests: 5}}"),
			effect: served("many", "/bad/m1/500", 60, only("m2", "m3"))},
		{name: "outlier.ejection", given: given("outlier: {gateway: 1, interval: 50ms}"), objects: bp("many", "outlier: {ejection: 100ms}"),
			effect: func(s *stage) string { // it is asked again soon
				bad := 0
				for end := time.Now().Add(time.Second); time.Now().Before(end) && bad < 2; {
					if s.to("many", "/bad/m1/503").Status == 503 {
						bad++
					}
				}
				if bad < 2 {
					return fmt.Sprint(bad, " failures in a second")
				}
				return ""
			}},
		{name: "outlier.maxPercent", given: given("outlier: {gateway: 1, ejection: 60s}"), objects: bp("many", "outlier: {maxPercent: 0}"),
			effect: served("many", "/bad/m1/503", 20, only("m2", "m3", "503")), without: served("many", "/bad/m1/503", 20, only("m2", "m3"))},
		{name: "outlier.panic", given: given("outlier: {gateway: 1, ejection: 60s}"), objects: bp("many", "outlier: {panic: 100}"),
			effect: served("many", "/bad/m1/503", 20, only("m2", "m3", "503")), without: served("many", "/bad/m1/503", 20, only("m2", "m3"))},

		{name: "healthCheck HTTP", quick: true, effect: served("many", "/", 20, only("m2", "m3")),
			objects: bp("many", "healthCheck: {type: HTTP, path: /bad/m1/503, interval: 50ms, healthy: 1, unhealthy: 1}")},
		{name: "healthCheck.statuses", effect: served("many", "/", 20, only("m1")),
			objects: bp("many", "healthCheck: {type: HTTP, path: /bad/m1/503, host: check.example, statuses: [503], interval: 50ms, unhealthy: 1}\noutlier: {panic: 0}")},
		{name: "healthCheck.timeout", effect: served("many", "/", 20, only("m2", "m3")),
			objects: bp("many", "healthCheck: {type: HTTP, path: /late/m1/300, interval: 50ms, timeout: 100ms, unhealthy: 1}")},
		{name: "healthCheck.unhealthy", given: given("healthCheck: {type: HTTP, path: /health, interval: 50ms, unhealthy: 1}"),
			objects: bp("many", "healthCheck: {unhealthy: 1000}"), effect: afterSickness("m1", false, true), without: afterSickness("m1", false, false)},
		{name: "healthCheck.healthy", given: given("healthCheck: {type: HTTP, path: /health, interval: 50ms, unhealthy: 1}"),
			objects: bp("many", "healthCheck: {healthy: 1000}"), effect: afterSickness("m1", true, false), without: afterSickness("m1", true, true)},
		{name: "healthCheck TCP", given: given("retry: {tcpAttempts: 1}\noutlier: {local: 0}"), effect: failures("half", false),
			objects: bp("half", "healthCheck: {type: TCP, interval: 50ms, unhealthy: 1}")},
		{name: "healthCheck GRPC", objects: bp("api", "healthCheck: {type: GRPC, service: only-g2, interval: 50ms, unhealthy: 1}"), effect: func(s *stage) string {
			for range 10 {
				if _, header := s.call(s.ports["api"]); strings.Join(header.Get("served-by"), "") != "g2" {
					return fmt.Sprint(header)
				}
			}
			return ""
		}},

		{name: "balancer RoundRobin", objects: bp("many", "balancer: {type: RoundRobin}"), quick: true, effect: inTurn("many", true), without: inTurn("many", false)},
		{name: "balancer Random", objects: bp("pair", "balancer: {type: Random}"), effect: inTurn("pair", false), without: inTurn("pair", true)},
		{name: "balancer LeastRequest", objects: bp("pair", "balancer: {type: LeastRequest}"), effect: inTurn("pair", false), without: inTurn("pair", true)},
		{name: "balancer RingHash by header", objects: bp("many", hash("{type: Header, name: user}")), quick: true,
			effect: sticks("many", func(i int) []string { return []string{"user", fmt.Sprint(i)} }, root)},
		{name: "balancer Maglev by header", objects: bp("many", "balancer: {type: Maglev, hash: [{type: Header, name: user}]}"),
			effect: sticks("many", func(i int) []string { return []string{"user", fmt.Sprint(i)} }, root)},
		{name: "balancer by cookie", objects: bp("many", hash("{type: Cookie, name: user, ttl: 1h}")),
			effect: all(sticks("many", func(i int) []string { return []string{"cookie", fmt.Sprint("user=", i)} }, root), func(s *stage) string {
				if c := s.to("many", "/").Header.Get("set-cookie"); !strings.HasPrefix(c, "user=") || !strings.Contains(c, "Max-Age=3600") {
					return "cookie " + c
				}
				return ""
			})},
		{name: "balancer by query", objects: bp("many", hash("{type: Query, name: user}")),
			effect: sticks("many", none, func(i int) string { return fmt.Sprint("/?user=", i) })},
		{name: "balancer by source/HTTP", objects: bp("many", hash("{type: SourceIP}")),
			effect: served("many", "/", 12, func(got map[string]int) bool { return len(got) == 1 })},
		{name: "balancer by source/TCP", objects: bp("pair", "balancer: {type: RingHash, hash: [{type: SourceIP}]}"),
			effect: served("pair", "/", 12, func(got map[string]int) bool { return len(got) == 1 })},

		{name: "locality Off", objects: bp("zones", "locality: {mode: \"Off\"}"), effect: served("zones", "/", 20, only("za", "zb")), quick: true,
			without: served("zones", "/", 20, only("za"))},
		{name: "locality Strict", objects: bp("trio", "locality: {mode: Strict}"), effect: served("trio", "/", 20, only("ta")), quick: true,
			without: served("trio", "/", 20, only("ta", "tb", "tc"))},
		{name: "locality Strict without endpoints", given: sickness("trio"), objects: bp("trio", "locality: {mode: Strict}"),
			effect: sick("ta", "trio", "503"), without: sick("ta", "trio", "tb", "tc")},
		{name: "locality.failover Only", given: sickness("trio"), objects: bp("trio", "locality: {failover: [{from: [b], to: None}, {from: [a], to: Only, zones: [b]}]}"),
			effect: sick("ta", "trio", "tb"), without: sick("ta", "trio", "tb", "tc"), quick: true},
		{name: "locality.failover keeps to the zone", objects: bp("trio", "locality: {failover: [{to: Any}]}"), effect: served("trio", "/", 20, only("ta")),
			without: served("trio", "/", 20, only("ta", "tb", "tc"))},
		{name: "locality.failover AnyExcept", given: sickness("trio"), objects: bp("trio", "locality: {failover: [{to: AnyExcept, zones: [b]}]}"),
			effect: sick("ta", "trio", "tc"), without: sick("ta", "trio", "tb", "tc")},
		{name: "locality.failover None", given: sickness("trio"), objects: bp("trio", "locality: {failover: [{to: None}]}"),
			effect: sick("ta", "trio", "503"), without: sick("ta", "trio", "tb", "tc")},
		{name: "locality.affinity", objects: bp("racks", "locality: {affinity: [{label: shelf}, {label: rack, weight: 30}]}"), quick: true,
			effect:  served("racks", "/", 62, func(got map[string]int) bool { return got["rb"] > 0 && got["rb"] <= 6 && got["ra"]+got["rb"] == 62 }),
			without: served("racks", "/", 62, func(got map[string]int) bool { return got["rb"] > 15 && got["ra"] > 15 })},
	}
}
