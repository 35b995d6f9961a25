package translate

import (
	"slices"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/policy"
)

// What gRPC programs without a proxy do of policies and routes. They refuse messages with what they
// do not know of some fields, so only what they honour is left (gRFC A28, A31, A33, A42, A44, A50).

// grpcConditions are those of retries that gRPC knows (A44).
func grpcConditions() []string {
	return []string{"cancelled", "deadline-exceeded", "internal", "resource-exhausted", "unavailable"}
}

// GRPCRoutes is RouteConfiguration for a gRPC program: matches, weights, timeouts, retries, hashes of
// headers, and faults.
func GRPCRoutes(name, cluster string, routes []policy.Route, b *policy.Backend) *routev3.RouteConfiguration {
	out := RouteConfiguration(name, cluster, routes, b)
	out.ResponseHeadersToRemove = nil
	for _, host := range out.VirtualHosts {
		for _, r := range host.Routes {
			grpcRoute(r)
		}
	}
	return out
}

func grpcRoute(r *routev3.Route) {
	for name := range r.TypedPerFilterConfig {
		if !strings.HasPrefix(name, faultFilter) {
			delete(r.TypedPerFilterConfig, name)
		}
	}
	if prefix, ok := r.GetMatch().GetPathSpecifier().(*routev3.RouteMatch_PathSeparatedPrefix); ok { // which gRPC does not have
		r.Match.PathSpecifier = &routev3.RouteMatch_SafeRegex{SafeRegex: regex(quote(prefix.PathSeparatedPrefix) + "(/.*)?")}
	}
	a := r.GetRoute()
	if a == nil {
		return // an action that gRPC does not have: calls fail with UNAVAILABLE
	}
	kept := &routev3.RouteAction{ClusterSpecifier: a.ClusterSpecifier, MaxStreamDuration: longest(a)}
	for _, h := range a.HashPolicy {
		if h.GetHeader() != nil {
			kept.HashPolicy = append(kept.HashPolicy, h)
		}
	}
	if retry := a.RetryPolicy; retry != nil {
		on := slices.DeleteFunc(strings.Split(retry.RetryOn, ","), func(c string) bool { return !slices.Contains(grpcConditions(), c) })
		if len(on) > 0 && retry.NumRetries.GetValue() > 0 {
			kept.RetryPolicy = &routev3.RetryPolicy{RetryOn: strings.Join(on, ","), NumRetries: retry.NumRetries, RetryBackOff: retry.RetryBackOff}
		}
	}
	r.Action = &routev3.Route_Route{Route: kept}
}

// longest that a call may last: gRPC has one time for what Envoy has two for (A31).
func longest(a *routev3.RouteAction) *routev3.RouteAction_MaxStreamDuration {
	var least *durationpb.Duration
	for _, d := range []*durationpb.Duration{a.Timeout, a.MaxStreamDuration.GetMaxStreamDuration()} {
		if d.AsDuration() > 0 && (least == nil || d.AsDuration() < least.AsDuration()) {
			least = d
		}
	}
	if least == nil {
		return nil
	}
	return &routev3.RouteAction_MaxStreamDuration{MaxStreamDuration: least}
}

// GRPCCluster sets what a gRPC program does of a policy: its balancer, the limit of requests, and
// outliers by rates. Balancers that it does not have are replaced by those that are nearest.
func GRPCCluster(c *clusterv3.Cluster, b *policy.Backend) {
	switch {
	case len(b.Balancer.Hash) > 0, b.Balancer.Type == mesh.BalanceRingHash, b.Balancer.Type == mesh.BalanceMaglev:
		c.LbPolicy = clusterv3.Cluster_RING_HASH
	case b.Balancer.Type == mesh.BalanceLeastRequest:
		c.LbPolicy = clusterv3.Cluster_LEAST_REQUEST
	default:
		c.LbPolicy = clusterv3.Cluster_ROUND_ROBIN
	}
	c.CircuitBreakers = &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{{MaxRequests: orMost(b.Limits.Requests)}}}
	if b.Outlier.SuccessRate == nil && b.Outlier.FailurePercent == nil {
		return
	}
	all := outlier(&b.Outlier)
	c.OutlierDetection = &clusterv3.OutlierDetection{
		Interval: all.Interval, BaseEjectionTime: all.BaseEjectionTime, MaxEjectionTime: all.MaxEjectionTime, MaxEjectionPercent: all.MaxEjectionPercent,
		EnforcingSuccessRate: all.EnforcingSuccessRate, SuccessRateStdevFactor: all.SuccessRateStdevFactor,
		SuccessRateMinimumHosts: all.SuccessRateMinimumHosts, SuccessRateRequestVolume: all.SuccessRateRequestVolume,
		EnforcingFailurePercentage: all.EnforcingFailurePercentage, FailurePercentageThreshold: all.FailurePercentageThreshold,
		FailurePercentageMinimumHosts: all.FailurePercentageMinimumHosts, FailurePercentageRequestVolume: all.FailurePercentageRequestVolume,
	}
}

// GRPCClientFilters are those that a gRPC program has of ClientFilters: faults.
func GRPCClientFilters(routes []policy.Route, b *policy.Backend) []*hcmv3.HttpFilter {
	return slices.DeleteFunc(ClientFilters(routes, b), func(f *hcmv3.HttpFilter) bool { return !strings.HasPrefix(f.Name, faultFilter) })
}
