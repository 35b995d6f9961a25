package translate

import (
	"fmt"
	"math"

	xdscore "github.com/cncf/xds/go/xds/core/v3"
	xdsmatcher "github.com/cncf/xds/go/xds/type/matcher/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matchingv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/matching/v3"
	commonfaultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/common/fault/v3"
	actionv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/common/matcher/action/v3"
	corsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/cors/v3"
	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	limitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/local_ratelimit/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcplimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/local_ratelimit/v3"
	networkv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/matching/common_inputs/network/v3"
	sslv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/matching/common_inputs/ssl/v3"
	ipv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/matching/input_matchers/ip/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/policy"
)

// Names of HTTP filters. Those of faults and limits have a number behind them.
const (
	CORSFilter  = "envoy.filters.http.cors"
	faultFilter = "envoy.filters.http.fault"
	limitFilter = "envoy.filters.http.local_ratelimit"
)

func faultName(i int) string { return fmt.Sprintf("%s.%d", faultFilter, i) }
func limitName(i int) string { return fmt.Sprintf("%s.%d", limitFilter, i) }

// ClientFilters are the HTTP filters that the routes of a port need, before the router; they do
// nothing where a route does not configure them.
func ClientFilters(routes []policy.Route, b *policy.Backend) []*hcmv3.HttpFilter {
	faults, limits, cors := len(b.Faults), httpLimits(b.RateLimit), false
	for i := range routes {
		faults, limits = max(faults, len(routes[i].Policy.Faults)), max(limits, httpLimits(routes[i].Policy.RateLimit))
		for j := range routes[i].Filters {
			cors = cors || routes[i].Filters[j].CORS != nil
		}
	}
	var out []*hcmv3.HttpFilter
	if cors {
		out = append(out, httpFilter(CORSFilter, &corsv3.Cors{}))
	}
	for i := range limits {
		out = append(out, httpFilter(limitName(i), &limitv3.LocalRateLimit{StatPrefix: "ratelimit"}))
	}
	for i := range faults {
		out = append(out, httpFilter(faultName(i), &faultv3.HTTPFault{}))
	}
	return out
}

func httpLimits(all []mesh.RateLimit) int {
	n := 0
	for _, r := range all {
		if r.HTTP != nil {
			n++
		}
	}
	return n
}

func httpFilter(name string, config proto.Message) *hcmv3.HttpFilter {
	return &hcmv3.HttpFilter{Name: name, ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: pack(config)}}
}

// clientFilters of a route: the faults and limits of its policy.
func clientFilters(b *policy.Backend) map[string]*anypb.Any {
	out := map[string]*anypb.Any{}
	for i := range b.Faults {
		out[faultName(i)] = pack(fault(&b.Faults[i]))
	}
	n := 0
	for i := range b.RateLimit {
		if h := b.RateLimit[i].HTTP; h != nil {
			out[limitName(n)] = pack(limit(h))
			n++
		}
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

func fault(f *mesh.Fault) *faultv3.HTTPFault {
	share := percentage(100)
	if f.Percent != nil {
		share = percentage(*f.Percent)
	}
	out := &faultv3.HTTPFault{}
	if a := f.Abort; a != nil {
		out.Abort = &faultv3.FaultAbort{Percentage: share}
		switch {
		case a.HTTPStatus != nil:
			out.Abort.ErrorType = &faultv3.FaultAbort_HttpStatus{HttpStatus: uint32(*a.HTTPStatus)} //nolint:gosec // validation bounds it
		case a.GRPCStatus != nil:
			out.Abort.ErrorType = &faultv3.FaultAbort_GrpcStatus{GrpcStatus: uint32(*a.GRPCStatus)} //nolint:gosec // validation bounds it
		}
	}
	if f.Delay != nil {
		out.Delay = &commonfaultv3.FaultDelay{
			FaultDelaySecifier: &commonfaultv3.FaultDelay_FixedDelay{FixedDelay: span(f.Delay)}, Percentage: share,
		}
	}
	if f.Bandwidth != nil {
		// Envoy counts in KiB/s.
		kib := uint64(math.Ceil(float64(*f.Bandwidth) * 1000 / 8 / 1024))
		out.ResponseRateLimit = &commonfaultv3.FaultRateLimit{
			LimitType:  &commonfaultv3.FaultRateLimit_FixedLimit_{FixedLimit: &commonfaultv3.FaultRateLimit_FixedLimit{LimitKbps: kib}},
			Percentage: share,
		}
	}
	return out
}

func limit(h *mesh.HTTPRateLimit) *limitv3.LocalRateLimit {
	always := &corev3.RuntimeFractionalPercent{DefaultValue: percentage(100)}
	status := int32(429)
	if h.Status != nil {
		status = *h.Status
	}
	return &limitv3.LocalRateLimit{
		StatPrefix: "ratelimit", Status: &typev3.HttpStatus{Code: typev3.StatusCode(status)},
		TokenBucket:   bucket(h.Requests, &h.Per),
		FilterEnabled: always, FilterEnforced: always,
	}
}

func bucket(n int32, per *mesh.Duration) *typev3.TokenBucket {
	tokens := uint32(n) //nolint:gosec // validation bounds it
	return &typev3.TokenBucket{MaxTokens: tokens, TokensPerFill: wrapperspb.UInt32(tokens), FillInterval: span(per)}
}

// Callers resolves whom the limits and faults of a workload's policy are for.
type Callers func(from []mesh.PolicySource) []policy.Caller

// InboundFilters are the HTTP filters of a port of a workload, before the router: permission,
// limits, faults, in this order.
func InboundFilters(p *policy.WorkloadPort, permission *policy.Permission, callers Callers) []*hcmv3.HttpFilter {
	var out []*hcmv3.HttpFilter
	for i, r := range HTTPAccess(permission) {
		out = append(out, httpFilter(fmt.Sprintf("envoy.filters.http.rbac.%d", i), r))
	}
	n := 0
	for i := range p.RateLimit {
		if h := p.RateLimit[i].HTTP; h != nil {
			out = append(out, forCallers(limitName(n), limit(h), p.RateLimit[i].From, callers))
			n++
		}
	}
	for i := range p.Faults {
		out = append(out, forCallers(faultName(i), fault(&p.Faults[i]), p.Faults[i].From, callers))
	}
	return out
}

// forCallers is a filter that others pass by.
func forCallers(name string, config proto.Message, from []mesh.PolicySource, callers Callers) *hcmv3.HttpFilter {
	if len(from) == 0 {
		return httpFilter(name, config)
	}
	skip := &xdsmatcher.Matcher_OnMatch{OnMatch: &xdsmatcher.Matcher_OnMatch_Action{
		Action: &xdscore.TypedExtensionConfig{Name: "skip", TypedConfig: pack(&actionv3.SkipFilter{})},
	}}
	m := &xdsmatcher.Matcher{OnNoMatch: skip}
	if who := someCaller(callers(from)); who != nil {
		m = &xdsmatcher.Matcher{MatcherType: &xdsmatcher.Matcher_MatcherList_{MatcherList: &xdsmatcher.Matcher_MatcherList{
			Matchers: []*xdsmatcher.Matcher_MatcherList_FieldMatcher{{Predicate: not(who), OnMatch: skip}},
		}}}
	}
	return httpFilter(name, &matchingv3.ExtensionWithMatcher{
		ExtensionConfig: &corev3.TypedExtensionConfig{Name: name, TypedConfig: pack(config)}, XdsMatcher: m,
	})
}

type predicate = xdsmatcher.Matcher_MatcherList_Predicate

func not(p *predicate) *predicate {
	return &predicate{MatchType: &xdsmatcher.Matcher_MatcherList_Predicate_NotMatcher{NotMatcher: p}}
}

// anyOf several predicates; nil: there is none.
func anyOf(all []*predicate) *predicate {
	switch len(all) {
	case 0:
		return nil
	case 1:
		return all[0]
	}
	return &predicate{MatchType: &xdsmatcher.Matcher_MatcherList_Predicate_OrMatcher{
		OrMatcher: &xdsmatcher.Matcher_MatcherList_Predicate_PredicateList{Predicate: all},
	}}
}

func allOf(all []*predicate) *predicate {
	if len(all) == 1 {
		return all[0]
	}
	return &predicate{MatchType: &xdsmatcher.Matcher_MatcherList_Predicate_AndMatcher{
		AndMatcher: &xdsmatcher.Matcher_MatcherList_Predicate_PredicateList{Predicate: all},
	}}
}

func someCaller(callers []policy.Caller) *predicate {
	var some []*predicate
	for _, c := range callers {
		var all []*predicate
		for _, names := range c.Names {
			var one []*predicate
			for _, n := range names {
				one = append(one, uriSAN(n))
			}
			all = append(all, anyOf(one))
		}
		for _, addresses := range c.Addresses {
			all = append(all, sourceIn(addresses))
		}
		if len(all) > 0 {
			some = append(some, allOf(all))
		}
	}
	return anyOf(some)
}

func single(input proto.Message, name string, value *xdsmatcher.StringMatcher, custom proto.Message) *predicate {
	p := &xdsmatcher.Matcher_MatcherList_Predicate_SinglePredicate{Input: &xdscore.TypedExtensionConfig{Name: name, TypedConfig: pack(input)}}
	if value != nil {
		p.Matcher = &xdsmatcher.Matcher_MatcherList_Predicate_SinglePredicate_ValueMatch{ValueMatch: value}
	} else {
		p.Matcher = &xdsmatcher.Matcher_MatcherList_Predicate_SinglePredicate_CustomMatch{
			CustomMatch: &xdscore.TypedExtensionConfig{Name: "envoy.matching.matchers.ip", TypedConfig: pack(custom)},
		}
	}
	return &predicate{MatchType: &xdsmatcher.Matcher_MatcherList_Predicate_SinglePredicate_{SinglePredicate: p}}
}

func uriSAN(m mesh.ValueMatch) *predicate {
	value := &xdsmatcher.StringMatcher{MatchPattern: &xdsmatcher.StringMatcher_Exact{Exact: m.Value}}
	if m.Type == mesh.MatchPrefix {
		value = &xdsmatcher.StringMatcher{MatchPattern: &xdsmatcher.StringMatcher_Prefix{Prefix: m.Value}}
	}
	return single(&sslv3.UriSanInput{}, "envoy.matching.inputs.uri_san", value, nil)
}

func sourceIn(addresses []string) *predicate {
	config := &ipv3.Ip{StatPrefix: "callers"}
	for _, a := range addresses {
		if r := cidr(a); r != nil {
			config.CidrRanges = append(config.CidrRanges, r)
		}
	}
	return single(&networkv3.SourceIPInput{}, "envoy.matching.inputs.source_ip", nil, config)
}

// ConnectionLimits are the network filters that limit new connections to a port.
func ConnectionLimits(p *policy.WorkloadPort) []*tcplimitv3.LocalRateLimit {
	var out []*tcplimitv3.LocalRateLimit
	for i := range p.RateLimit {
		if t := p.RateLimit[i].TCP; t != nil {
			out = append(out, &tcplimitv3.LocalRateLimit{StatPrefix: "ratelimit", TokenBucket: bucket(t.Connections, &t.Per)})
		}
	}
	return out
}

// InboundConnections sets the timeouts of a connection manager for calls to a port.
func InboundConnections(m *hcmv3.HttpConnectionManager, p *policy.WorkloadPort) {
	m.StreamIdleTimeout = span(p.Timeout.StreamIdle)
	if m.CommonHttpProtocolOptions == nil {
		m.CommonHttpProtocolOptions = &corev3.HttpProtocolOptions{}
	}
	m.CommonHttpProtocolOptions.IdleTimeout = span(p.Timeout.Idle)
	m.CommonHttpProtocolOptions.MaxConnectionDuration = positive(p.Timeout.MaxConnection)
	m.CommonHttpProtocolOptions.MaxStreamDuration = positive(p.Timeout.MaxStream)
}

// InboundRoute sets the timeouts of the route to the workload itself; nothing is tried again.
func InboundRoute(a *routev3.RouteAction, p *policy.WorkloadPort) {
	a.Timeout, a.IdleTimeout = span(p.Timeout.Request), span(p.Timeout.StreamIdle)
}

// InboundCluster sets the limits of the cluster that is the workload itself.
func InboundCluster(c *clusterv3.Cluster, p *policy.WorkloadPort) {
	c.ConnectTimeout = span(p.Timeout.Connect)
	c.CircuitBreakers = breakers(c, &p.Limits, nil)
}

// TLSParameters of calls to a port.
func TLSParameters(t *mesh.WorkloadTLS) *tlsv3.TlsParameters {
	version := map[string]tlsv3.TlsParameters_TlsProtocol{mesh.TLS12: tlsv3.TlsParameters_TLSv1_2, mesh.TLS13: tlsv3.TlsParameters_TLSv1_3}
	out := &tlsv3.TlsParameters{
		TlsMinimumProtocolVersion: tlsv3.TlsParameters_TLSv1_3, TlsMaximumProtocolVersion: tlsv3.TlsParameters_TLSv1_3, CipherSuites: t.Ciphers,
	}
	if v, ok := version[t.Min]; ok {
		out.TlsMinimumProtocolVersion = v
	}
	if v, ok := version[t.Max]; ok {
		out.TlsMaximumProtocolVersion = v
	}
	return out
}
