package translate

import (
	"fmt"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	previousv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/host/previous_hosts/v3"
	prioritiesv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/priority/previous_priorities/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	hashv3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/policy"
)

// settings of a policy on the action of a route. Timeouts and retries of the route itself win.
func settings(action *routev3.RouteAction, b *policy.Backend, r *policy.Route) {
	action.Timeout = span(b.Timeout.Request)
	action.IdleTimeout = span(b.Timeout.StreamIdle)
	if most := positive(b.Timeout.MaxStream); most != nil {
		action.MaxStreamDuration = &routev3.RouteAction_MaxStreamDuration{MaxStreamDuration: most}
	}
	retry := retryPolicy(b)
	if r != nil && r.Timeouts != nil {
		if t := r.Timeouts.Request; t != nil {
			action.Timeout = span((*mesh.Duration)(t))
		}
		if t := r.Timeouts.BackendRequest; t != nil {
			retry.PerTryTimeout = positive((*mesh.Duration)(t))
		}
	}
	if r != nil && r.Retry != nil {
		routeRetry(retry, b, r)
	}
	action.RetryPolicy = retry
	for _, h := range b.Balancer.Hash {
		action.HashPolicy = append(action.HashPolicy, hash(h))
	}
}

// hostSelections is how often Envoy chooses again, for a retry, before it takes an endpoint that failed already. A plan may give
// that endpoint 90 % of the requests of a zone: one of 16 further choices is another with 81 % probability, one of 3 with 27 %.
const hostSelections = 16

// triesPerPriority of a request, before its retries leave the endpoints of that priority. The first retry stays, as one endpoint may
// have failed; the second one leaves, as all that a plan gives to a zone may be in a zone that failed.
const triesPerPriority = 2

// RetryElsewhere sets where a policy's retries go: not to an endpoint that failed already, and from the second one on to those of the
// next priority, which are of other zones or sites.
func RetryElsewhere(p *routev3.RetryPolicy) {
	p.RetryHostPredicate = []*routev3.RetryPolicy_RetryHostPredicate{{
		Name:       "envoy.retry_host_predicates.previous_hosts",
		ConfigType: &routev3.RetryPolicy_RetryHostPredicate_TypedConfig{TypedConfig: pack(&previousv3.PreviousHostsPredicate{})},
	}}
	p.HostSelectionRetryMaxAttempts = hostSelections
	p.RetryPriority = &routev3.RetryPolicy_RetryPriority{
		Name:       "envoy.retry_priorities.previous_priorities",
		ConfigType: &routev3.RetryPolicy_RetryPriority_TypedConfig{TypedConfig: pack(&prioritiesv3.PreviousPrioritiesConfig{UpdateFrequency: triesPerPriority})},
	}
}

func retryPolicy(b *policy.Backend) *routev3.RetryPolicy {
	out := &routev3.RetryPolicy{
		NumRetries: number(b.Retry.Attempts), PerTryTimeout: positive(b.Timeout.PerTry),
		RetryBackOff: &routev3.RetryPolicy_RetryBackOff{BaseInterval: span(b.Retry.Backoff.Base), MaxInterval: span(b.Retry.Backoff.Max)},
	}
	RetryElsewhere(out)
	if base, most := b.Retry.Backoff.Base.Value(), b.Retry.Backoff.Max.Value(); most < base {
		out.RetryBackOff.MaxInterval = out.RetryBackOff.BaseInterval // they come from two policies
	}
	on := append([]string{}, b.Retry.Conditions...)
	on = append(on, b.Retry.GRPC...)
	retryCodes(out, on, b.Retry.Codes)
	return out
}

func retryCodes(out *routev3.RetryPolicy, on []string, codes []int32) {
	if len(codes) > 0 {
		on = append(on, "retriable-status-codes")
	}
	for _, c := range codes {
		out.RetriableStatusCodes = append(out.RetriableStatusCodes, uint32(c)) //nolint:gosec // validation bounds it
	}
	out.RetryOn = strings.Join(on, ",")
}

// routeRetry: the codes of a route come in place of those of policies; what was not sent is tried
// again as well.
func routeRetry(out *routev3.RetryPolicy, b *policy.Backend, r *policy.Route) {
	if a := r.Retry.Attempts; a != nil {
		out.NumRetries = wrapperspb.UInt32(uint32(*a)) //nolint:gosec // validation bounds it
	}
	if len(r.Retry.Codes) > 0 {
		var codes []int32
		for _, c := range r.Retry.Codes {
			codes = append(codes, int32(c)) //nolint:gosec // validation bounds it
		}
		out.RetriableStatusCodes = nil
		retryCodes(out, append([]string{}, b.Retry.Conditions...), codes)
	}
	if d := (*mesh.Duration)(r.Retry.Backoff); d != nil && d.Value() > 0 {
		out.RetryBackOff = &routev3.RetryPolicy_RetryBackOff{BaseInterval: span(d)}
	}
}

func hash(h mesh.BalancerHash) *routev3.RouteAction_HashPolicy {
	out := &routev3.RouteAction_HashPolicy{Terminal: true}
	switch h.Type {
	case mesh.HashHeader:
		out.PolicySpecifier = &routev3.RouteAction_HashPolicy_Header_{Header: &routev3.RouteAction_HashPolicy_Header{HeaderName: h.Name}}
	case mesh.HashCookie:
		out.PolicySpecifier = &routev3.RouteAction_HashPolicy_Cookie_{
			Cookie: &routev3.RouteAction_HashPolicy_Cookie{Name: h.Name, Ttl: span(h.TTL), Path: "/"},
		}
	case mesh.HashQuery:
		out.PolicySpecifier = &routev3.RouteAction_HashPolicy_QueryParameter_{
			QueryParameter: &routev3.RouteAction_HashPolicy_QueryParameter{Name: h.Name},
		}
	default:
		out.PolicySpecifier = &routev3.RouteAction_HashPolicy_ConnectionProperties_{
			ConnectionProperties: &routev3.RouteAction_HashPolicy_ConnectionProperties{SourceIp: true},
		}
	}
	return out
}

// TCPProxy sets what a policy says of connections, and where they go by TCPRoutes: to is empty
// without one, and the cluster stays. Connections to backends that cannot be used are closed.
func TCPProxy(p *tcpv3.TcpProxy, b *policy.Backend, to []policy.RouteBackend) {
	p.MaxConnectAttempts = number(b.Retry.TCPAttempts)
	p.IdleTimeout = span(b.Timeout.Idle)
	p.MaxDownstreamConnectionDuration = positive(b.Timeout.MaxConnection)
	for _, h := range b.Balancer.Hash {
		if h.Type == mesh.HashSourceIP {
			p.HashPolicy = []*hashv3.HashPolicy{{PolicySpecifier: &hashv3.HashPolicy_SourceIp_{SourceIp: &hashv3.HashPolicy_SourceIp{}}}}
		}
	}
	weighted := &tcpv3.TcpProxy_WeightedCluster{}
	for i := range to {
		if to[i].Weight <= 0 {
			continue
		}
		name := ClusterName(to[i].Ref, to[i].Port)
		if to[i].Invalid != "" {
			name = noCluster
		}
		weighted.Clusters = append(weighted.Clusters, &tcpv3.TcpProxy_WeightedCluster_ClusterWeight{
			Name: name, Weight: uint32(to[i].Weight), //nolint:gosec // validation bounds it
		})
	}
	switch {
	case len(weighted.Clusters) > 0:
		p.ClusterSpecifier = &tcpv3.TcpProxy_WeightedClusters{WeightedClusters: weighted}
	case len(to) > 0:
		p.ClusterSpecifier = &tcpv3.TcpProxy_Cluster{Cluster: noCluster}
	}
}

// httpOptions is the key of a cluster's settings of HTTP.
const httpOptions = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"

// Cluster sets what a policy says of the connections of a cluster to a backend, its endpoints and
// how one is chosen. http: its clients speak HTTP.
func Cluster(c *clusterv3.Cluster, b *policy.Backend, http bool) error {
	c.ConnectTimeout = span(b.Timeout.Connect)
	c.OutlierDetection = outlier(&b.Outlier)
	c.HealthChecks = healthChecks(&b.HealthCheck, hostOf(c.Name))
	// Without this Envoy keeps endpoints that were withdrawn as long as they answer its checks.
	c.IgnoreHealthOnHostRemoval = len(c.HealthChecks) > 0
	if c.CommonLbConfig == nil {
		c.CommonLbConfig = &clusterv3.Cluster_CommonLbConfig{}
	}
	if p := b.Outlier.Panic; p != nil {
		c.CommonLbConfig.HealthyPanicThreshold = &hashv3.Percent{Value: float64(*p)}
	}
	if b.Locality.Mode != mesh.LocalityOff {
		c.CommonLbConfig.LocalityConfigSpecifier = &clusterv3.Cluster_CommonLbConfig_LocalityWeightedLbConfig_{
			LocalityWeightedLbConfig: &clusterv3.Cluster_CommonLbConfig_LocalityWeightedLbConfig{},
		}
	} else {
		c.CommonLbConfig.LocalityConfigSpecifier = nil
	}
	c.LbPolicy = balancer(&b.Balancer, http)
	if http {
		if err := protocolOptions(c, &b.Timeout); err != nil {
			return err
		}
	}
	c.CircuitBreakers = breakers(c, &b.Limits, b.Retry.Budget)
	return nil
}

// protocolOptions adds timeouts to the settings of HTTP, which may be there already.
func protocolOptions(c *clusterv3.Cluster, t *mesh.PolicyTimeout) error {
	options := &httpv3.HttpProtocolOptions{}
	if was := c.TypedExtensionProtocolOptions[httpOptions]; was != nil {
		if err := was.UnmarshalTo(options); err != nil {
			return fmt.Errorf("cluster %s: HTTP options: %w", c.Name, err)
		}
	}
	if options.CommonHttpProtocolOptions == nil {
		options.CommonHttpProtocolOptions = &corev3.HttpProtocolOptions{}
	}
	options.CommonHttpProtocolOptions.IdleTimeout = span(t.Idle)
	options.CommonHttpProtocolOptions.MaxConnectionDuration = positive(t.MaxConnection)
	if options.UpstreamProtocolOptions == nil {
		options.UpstreamProtocolOptions = &httpv3.HttpProtocolOptions_UseDownstreamProtocolConfig{
			UseDownstreamProtocolConfig: &httpv3.HttpProtocolOptions_UseDownstreamHttpConfig{
				HttpProtocolOptions: &corev3.Http1ProtocolOptions{}, Http2ProtocolOptions: &corev3.Http2ProtocolOptions{},
			},
		}
	}
	if c.TypedExtensionProtocolOptions == nil {
		c.TypedExtensionProtocolOptions = map[string]*anypb.Any{}
	}
	c.TypedExtensionProtocolOptions[httpOptions] = pack(options)
	return nil
}

// breakers of a cluster, whose protocol is set: Envoy's own limits of 1024 are not ours. A limit of
// retries takes the place of their budget, as Envoy has one of the two.
func breakers(c *clusterv3.Cluster, l *mesh.PolicyLimits, budget *mesh.RetryBudget) *clusterv3.CircuitBreakers {
	pending := l.Pending
	if pending == nil && queues(c) {
		// Envoy lets requests wait for a connection without end. Fewer places than connections would
		// refuse what is below the limit: a request holds one while its connection is made.
		pending = l.Connections
	}
	t := &clusterv3.CircuitBreakers_Thresholds{
		MaxConnections: orMost(l.Connections), MaxPendingRequests: orMost(pending), MaxRequests: orMost(l.Requests),
		MaxRetries:     orMost(l.Retries),
		TrackRemaining: true,
	}
	if budget != nil && (l.Retries == nil || *l.Retries == 0) {
		t.RetryBudget = &clusterv3.CircuitBreakers_Thresholds_RetryBudget{}
		if p := budget.Percent; p != nil {
			t.RetryBudget.BudgetPercent = &hashv3.Percent{Value: float64(*p)}
		}
		if m := budget.MinRetryRate; m != nil && m.Count != nil && m.Interval != nil {
			perSecond := max(1, int64(float64(*m.Count)/m.Interval.Value().Seconds()))
			t.RetryBudget.MinRetryConcurrency = wrapperspb.UInt32(uint32(perSecond)) //nolint:gosec // at most 1000000
		}
	}
	return &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{t}}
}

// queues reports whether a request that finds every connection of the cluster busy waits for one: with
// HTTP/1, or where the clients decide. TCP is refused, and a connection of HTTP/2 has many requests.
func queues(c *clusterv3.Cluster) bool {
	options := &httpv3.HttpProtocolOptions{}
	packed := c.TypedExtensionProtocolOptions[httpOptions]
	return packed != nil && packed.UnmarshalTo(options) == nil && options.GetExplicitHttpConfig().GetHttp2ProtocolOptions() == nil
}

// outlier detection; nil if every detector is off. What the proxy observes itself (connections) is
// apart from what endpoints answer.
func outlier(o *mesh.BackendOutlier) *clusterv3.OutlierDetection {
	on := func(n *int32) bool { return n != nil && *n > 0 }
	if !on(o.Local) && !on(o.Gateway) && !on(o.Total) && o.SuccessRate == nil && o.FailurePercent == nil {
		return nil
	}
	enforce := func(b bool) *wrapperspb.UInt32Value {
		if b {
			return wrapperspb.UInt32(100)
		}
		return wrapperspb.UInt32(0)
	}
	out := &clusterv3.OutlierDetection{
		Interval: span(o.Interval), BaseEjectionTime: span(o.Ejection), MaxEjectionPercent: number(o.MaxPercent),
		SplitExternalLocalOriginErrors:         true,
		EnforcingConsecutiveLocalOriginFailure: enforce(on(o.Local)), EnforcingConsecutiveGatewayFailure: enforce(on(o.Gateway)),
		EnforcingConsecutive_5Xx: enforce(on(o.Total)), EnforcingSuccessRate: enforce(o.SuccessRate != nil),
		EnforcingLocalOriginSuccessRate: enforce(o.SuccessRate != nil), EnforcingFailurePercentage: enforce(o.FailurePercent != nil),
		EnforcingFailurePercentageLocalOrigin: enforce(o.FailurePercent != nil),
	}
	if e := o.Ejection; e != nil && e.Value() > 300e9 {
		out.MaxEjectionTime = span(e) // Envoy's own is 300 s, and must not be less
	}
	if on(o.Local) {
		out.ConsecutiveLocalOriginFailure = number(o.Local)
	}
	if on(o.Gateway) {
		out.ConsecutiveGatewayFailure = number(o.Gateway)
	}
	if on(o.Total) {
		out.Consecutive_5Xx = number(o.Total)
	}
	if s := o.SuccessRate; s != nil {
		out.SuccessRateStdevFactor, out.SuccessRateMinimumHosts, out.SuccessRateRequestVolume = number(s.Factor), number(s.MinHosts),
			number(s.MinRequests)
	}
	if f := o.FailurePercent; f != nil {
		out.FailurePercentageThreshold, out.FailurePercentageMinimumHosts = number(f.Threshold), number(f.MinHosts)
		out.FailurePercentageRequestVolume = number(f.MinRequests)
	}
	return out
}

// hostOf a cluster: NAME.NAMESPACE of the Service that it is named after. Its name itself is no host
// that a server has to accept (RFC 9110, section 7.2).
func hostOf(cluster string) string {
	if i := strings.LastIndexByte(cluster, '|'); i >= 0 {
		cluster = cluster[i+1:]
	}
	namespace, name, ok := strings.Cut(cluster, "/")
	if !ok {
		return cluster
	}
	name, _, _ = strings.Cut(name, ":")
	return name + "." + namespace
}

// healthChecks of a policy; host is what requests are for unless it says so.
func healthChecks(h *mesh.BackendHealthCheck, host string) []*corev3.HealthCheck {
	if h.Host != "" {
		host = h.Host
	}
	out := &corev3.HealthCheck{
		// Envoy asks endpoints of which it has no traffic yet once a minute, and has none until then.
		NoTrafficInterval: span(h.Interval),
		Interval:          span(h.Interval), Timeout: span(h.Timeout), HealthyThreshold: number(h.Healthy), UnhealthyThreshold: number(h.Unhealthy),
	}
	switch h.Type {
	case mesh.CheckHTTP:
		check := &corev3.HealthCheck_HttpHealthCheck{Path: h.Path, Host: host}
		if check.Path == "" {
			check.Path = "/"
		}
		for _, s := range h.Statuses {
			check.ExpectedStatuses = append(check.ExpectedStatuses, &hashv3.Int64Range{Start: int64(s), End: int64(s) + 1})
		}
		out.HealthChecker = &corev3.HealthCheck_HttpHealthCheck_{HttpHealthCheck: check}
	case mesh.CheckTCP:
		out.HealthChecker = &corev3.HealthCheck_TcpHealthCheck_{TcpHealthCheck: &corev3.HealthCheck_TcpHealthCheck{}}
	case mesh.CheckGRPC:
		out.HealthChecker = &corev3.HealthCheck_GrpcHealthCheck_{
			GrpcHealthCheck: &corev3.HealthCheck_GrpcHealthCheck{ServiceName: h.Service, Authority: host},
		}
	default:
		return nil
	}
	return []*corev3.HealthCheck{out}
}

func balancer(b *mesh.BackendBalancer, http bool) clusterv3.Cluster_LbPolicy {
	switch {
	case b.Type == mesh.BalanceRingHash, b.Type == "" && len(b.Hash) > 0:
		return clusterv3.Cluster_RING_HASH
	case b.Type == mesh.BalanceMaglev:
		return clusterv3.Cluster_MAGLEV
	case b.Type == mesh.BalanceRandom:
		return clusterv3.Cluster_RANDOM
	case b.Type == mesh.BalanceLeastRequest, b.Type == "" && http:
		return clusterv3.Cluster_LEAST_REQUEST
	}
	return clusterv3.Cluster_ROUND_ROBIN
}

// Overprovisioning is Envoy's factor, in percent, by which a level of localities may lose endpoints
// before traffic goes to the next one.
func Overprovisioning(b *policy.Backend) uint32 {
	threshold := uint32(71)
	if t := b.Locality.Threshold; t != nil && *t > 0 {
		threshold = uint32(*t)
	}
	return (10000 + threshold - 1) / threshold
}
