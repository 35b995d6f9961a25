package kuma

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
)

// duration reads one in Go's form, as Kuma's are, and writes it in that of the Gateway API.
func (n *node) duration(key string) *mesh.Duration {
	text := n.text(key)
	if text == "" {
		return nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 || d%time.Millisecond != 0 {
		n.o.refuse(n.at(key), "is no duration of whole milliseconds")
		return nil
	}
	var b strings.Builder
	for _, u := range []struct {
		unit time.Duration
		name string
	}{{time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}, {time.Millisecond, "ms"}} {
		if c := d / u.unit; c > 0 {
			b.WriteString(strconv.FormatInt(int64(c), 10) + u.name)
			d -= c * u.unit
		}
	}
	out := mesh.Duration(cmp.Or(b.String(), "0s"))
	return &out
}

// set makes what a pointer points to, if there is none.
func set[T any](p **T) *T {
	if *p == nil {
		*p = new(T)
	}
	return *p
}

// timeouts of MeshTimeout; http may be nil.
func timeouts(conf *node) *mesh.PolicyTimeout {
	http := conf.child("http")
	return &mesh.PolicyTimeout{
		Connect: conf.duration("connectionTimeout"), Idle: conf.duration("idleTimeout"), Request: http.duration("requestTimeout"),
		StreamIdle: http.duration("streamIdleTimeout"), MaxStream: http.duration("maxStreamDuration"), MaxConnection: http.duration("maxConnectionDuration"),
	}
}

func (o *object) meshTimeout() {
	inbound := o.inboundOf()
	if o.spec.has("to") {
		o.eachTo(func(spec *mesh.BackendPolicySpec, conf *node) { spec.Timeout = timeouts(conf) })
	}
	o.eachFrom(func(from []mesh.PolicySource, conf *node) {
		o.everybody(from, "timeouts")
		inbound().Timeout = timeouts(conf)
	})
}

// inboundOf is inbound for objects that may have to alone.
func (o *object) inboundOf() func() *mesh.WorkloadPolicySpec {
	if !o.spec.has("from") && !o.spec.has("rules") {
		return func() *mesh.WorkloadPolicySpec { return &mesh.WorkloadPolicySpec{} }
	}
	return o.inbound()
}

// everybody: what is the same for all callers.
func (o *object) everybody(from []mesh.PolicySource, what string) {
	if len(from) > 0 {
		o.refuse("spec.from", what+" of a workload are the same for all callers")
	}
}

var retryOn = map[string]string{
	"5xx": "5xx", "GatewayError": "gateway-error", "Reset": "reset", "Retriable4xx": "retriable-4xx", "ConnectFailure": "connect-failure",
	"RefusedStream": "refused-stream", "Http3PostConnectFailure": "http3-post-connect-failure",
	"all_5xx": "5xx", "gateway_error": "gateway-error", "reset": "reset", "retriable_4xx": "retriable-4xx", "connect_failure": "connect-failure",
	"refused_stream": "refused-stream",
}

var retryGRPC = map[string]string{
	"Canceled": "cancelled", "DeadlineExceeded": "deadline-exceeded", "Internal": "internal", "ResourceExhausted": "resource-exhausted",
	"Unavailable": "unavailable",
	"cancelled":   "cancelled", "deadline_exceeded": "deadline-exceeded", "internal": "internal", "resource_exhausted": "resource-exhausted",
	"unavailable": "unavailable",
}

// retries of one protocol; several have their attempts together.
func (o *object) retries(spec *mesh.BackendPolicySpec, conf *node) {
	if conf == nil {
		return
	}
	retry := set(&spec.Retry)
	if n := conf.number("numRetries"); n != nil {
		if retry.Attempts != nil && *retry.Attempts != *n {
			conf.refuse("numRetries", "attempts are the same for HTTP and gRPC")
		} else {
			retry.Attempts = n
		}
	}
	if d := conf.duration("perTryTimeout"); d != nil {
		set(&spec.Timeout).PerTry = d
	}
	if b := conf.child("backOff"); b != nil {
		retry.Backoff = &mesh.RetryBackoff{Base: b.duration("baseInterval"), Max: b.duration("maxInterval")}
	}
	retry.Codes = append(retry.Codes, conf.numbers("retriableStatusCodes")...)
}

func (n *node) numbers(key string) (out []int32) {
	for _, text := range n.texts(key) {
		v, err := strconv.ParseInt(text, 10, 32)
		if err != nil {
			n.o.refuse(n.at(key), text+" is no integer")
			continue
		}
		out = append(out, int32(v))
	}
	return out
}

// conditions of HTTP: names, or codes of responses.
func (o *object) conditions(retry *mesh.BackendRetry, conf *node) {
	for _, on := range conf.texts("retryOn") {
		code, err := strconv.ParseInt(on, 10, 32)
		switch {
		case retryOn[on] != "":
			retry.Conditions = append(retry.Conditions, retryOn[on])
		case err == nil:
			retry.Codes = append(retry.Codes, int32(code))
		default:
			o.refuse(conf.at("retryOn"), on+" is no condition of a BackendPolicy")
		}
	}
}

func (o *object) statuses(retry *mesh.BackendRetry, conf *node) {
	for _, on := range conf.texts("retryOn") {
		if retryGRPC[on] == "" {
			o.refuse(conf.at("retryOn"), on+" is no status of gRPC that is tried again")
			continue
		}
		retry.GRPC = append(retry.GRPC, retryGRPC[on])
	}
}

func (o *object) retryConf(spec *mesh.BackendPolicySpec, conf *node) {
	if http := conf.child("http"); http != nil {
		o.retries(spec, http)
		o.conditions(spec.Retry, http)
	}
	if grpc := conf.child("grpc"); grpc != nil {
		o.retries(spec, grpc)
		o.statuses(spec.Retry, grpc)
	}
	if tcp := conf.child("tcp"); tcp != nil {
		n := tcp.number("maxConnectAttempt")
		if n == nil {
			n = tcp.number("maxConnectAttempts")
		}
		set(&spec.Retry).TCPAttempts = n
	}
}

func (o *object) meshRetry() { o.eachTo(o.retryConf) }

func limits(conf *node, connections string) *mesh.PolicyLimits {
	if conf == nil {
		return nil
	}
	out := &mesh.PolicyLimits{
		Connections: conf.number(connections), Pending: conf.number("maxPendingRequests"), Requests: conf.number("maxRequests"), Retries: conf.number("maxRetries"),
	}
	if out.Connections != nil && out.Pending == nil {
		out.Pending = new(int32(1024)) // Kuma leaves it to Envoy, whose default this is
	}
	return out
}

func (o *object) outlier(conf *node) *mesh.BackendOutlier {
	if conf == nil {
		return nil
	}
	if conf.has("splitExternalAndLocalErrors") && !conf.flag("splitExternalAndLocalErrors") {
		o.refuse(conf.at("splitExternalAndLocalErrors"), "local failures are always counted apart")
	}
	out := &mesh.BackendOutlier{
		Interval: conf.duration("interval"), Ejection: conf.duration("baseEjectionTime"), MaxPercent: conf.number("maxEjectionPercent"),
		Panic: conf.number("healthyPanicThreshold"),
	}
	off := func() *int32 { return new(int32) }
	if conf.flag("disabled") {
		out.Local = off()
		conf.raw("detectors")
		return out
	}
	d := conf.child("detectors")
	consecutive := func(keys ...string) *int32 {
		for _, key := range keys {
			if c := d.child(key); c != nil {
				if n := c.number("consecutive"); n != nil {
					return n
				}
				five := int32(5) // Envoy's default
				return &five
			}
		}
		return off()
	}
	out.Total = consecutive("totalFailures", "totalErrors")
	out.Gateway = consecutive("gatewayFailures", "gatewayErrors")
	out.Local = consecutive("localOriginFailures", "localErrors")
	for _, key := range []string{"successRate", "standardDeviation"} {
		if c := d.child(key); c != nil {
			out.SuccessRate = &mesh.OutlierSuccessRate{MinHosts: c.number("minimumHosts"), MinRequests: c.number("requestVolume")}
			factor := c.fraction("standardDeviationFactor")
			if factor == nil {
				factor = c.fraction("factor")
			}
			if factor != nil {
				thousandths := int32(*factor*1000 + 0.5)
				out.SuccessRate.Factor = &thousandths
			}
		}
	}
	for _, key := range []string{"failurePercentage", "failure"} {
		if c := d.child(key); c != nil {
			out.FailurePercent = &mesh.OutlierFailurePercent{
				MinHosts: c.number("minimumHosts"), MinRequests: c.number("requestVolume"), Threshold: c.number("threshold"),
			}
		}
	}
	return out
}

func (o *object) meshCircuitBreaker() {
	inbound := o.inboundOf()
	if o.spec.has("to") {
		o.eachTo(func(spec *mesh.BackendPolicySpec, conf *node) {
			spec.Limits = limits(conf.child("connectionLimits"), "maxConnections")
			spec.Outlier = o.outlier(conf.child("outlierDetection"))
		})
	}
	o.eachFrom(func(from []mesh.PolicySource, conf *node) {
		o.everybody(from, "limits")
		inbound().Limits = limits(conf.child("connectionLimits"), "maxConnections")
		conf.refuse("outlierDetection", "a workload has one endpoint for its own proxy: nothing can be left out")
	})
}

func (o *object) checkConf(spec *mesh.BackendPolicySpec, conf *node) {
	h := &mesh.BackendHealthCheck{
		Interval: conf.duration("interval"), Timeout: conf.duration("timeout"), Healthy: conf.number("healthyThreshold"), Unhealthy: conf.number("unhealthyThreshold"),
	}
	spec.HealthCheck = h
	if p := conf.number("healthyPanicThreshold"); p != nil {
		set(&spec.Outlier).Panic = p
	}
	is := func(key string) *node {
		c := conf.child(key)
		if c == nil || c.flag("disabled") {
			return nil
		}
		if h.Type != "" {
			o.refuse(conf.at(key), "endpoints are checked in one way: "+h.Type)
			conf.skip(key)
			return nil
		}
		return c
	}
	if c := is("http"); c != nil {
		h.Type, h.Path, h.Statuses = mesh.CheckHTTP, c.text("path"), c.numbers("expectedStatuses")
	}
	if c := is("grpc"); c != nil {
		h.Type, h.Service, h.Host = mesh.CheckGRPC, c.text("serviceName"), c.text("authority")
	}
	if c := is("tcp"); c != nil {
		h.Type = mesh.CheckTCP
	}
	if h.Type == "" {
		h.Type = mesh.CheckTCP
		if conf.has("http") || conf.has("grpc") || conf.has("tcp") {
			*h = mesh.BackendHealthCheck{Type: mesh.CheckOff}
		}
	}
}

func (o *object) meshHealthCheck() { o.eachTo(o.checkConf) }

func (o *object) meshLoadBalancing() {
	o.eachTo(func(spec *mesh.BackendPolicySpec, conf *node) {
		if l := conf.child("localityAwareness"); l != nil {
			spec.Locality = o.locality(l)
		}
		hash := o.hashes(conf)
		b := conf.child("loadBalancer")
		if b == nil && hash == nil {
			return
		}
		spec.Balancer = &mesh.BackendBalancer{Type: b.text("type"), Hash: hash}
		for _, key := range []string{"ringHash", "maglev"} {
			if more := o.hashes(b.child(key)); more != nil {
				spec.Balancer.Hash = append(spec.Balancer.Hash, more...)
			}
		}
	})
}

func (o *object) locality(conf *node) *mesh.BackendLocality {
	l := &mesh.BackendLocality{}
	if conf.flag("disabled") {
		l.Mode = mesh.LocalityOff
	}
	for _, tag := range conf.child("localZone").list("affinityTags") {
		l.Affinity = append(l.Affinity, mesh.LocalityAffinity{Label: tag.text("key"), Weight: tag.number("weight")})
	}
	cross := conf.child("crossZone")
	for _, f := range cross.list("failover") {
		to := f.child("to")
		if to.text("type") != mesh.FailoverNone && follows(l.Failover, f.child("from").texts("zones")) {
			o.refuse(f.path, "an earlier rule is for these zones, too: the first one counts, and the others are not tried after it")
		}
		l.Failover = append(l.Failover, mesh.LocalityFailover{From: f.child("from").texts("zones"), To: to.text("type"), Zones: to.texts("zones")})
	}
	if p := cross.child("failoverThreshold").fraction("percentage"); p != nil {
		whole := int32(*p + 0.5)
		l.Threshold = &whole
	}
	return l
}

// follows reports whether an earlier rule is for some of the zones as well; none are all.
func follows(earlier []mesh.LocalityFailover, zones []string) bool {
	return slices.ContainsFunc(earlier, func(f mesh.LocalityFailover) bool {
		return len(f.From) == 0 || len(zones) == 0 || slices.ContainsFunc(zones, func(z string) bool { return slices.Contains(f.From, z) })
	})
}

func (o *object) hashes(conf *node) (out []mesh.BalancerHash) {
	for _, h := range conf.list("hashPolicies") {
		one := mesh.BalancerHash{}
		switch kind := h.text("type"); kind {
		case "Header":
			one.Type, one.Name = mesh.HashHeader, h.child("header").text("name")
		case "Cookie":
			c := h.child("cookie")
			one.Type, one.Name, one.TTL = mesh.HashCookie, c.text("name"), c.duration("ttl")
		case "QueryParameter":
			one.Type, one.Name = mesh.HashQuery, h.child("queryParameter").text("name")
		case "SourceIP":
			one.Type = mesh.HashSourceIP
		case "Connection":
			one.Type = mesh.HashSourceIP
			h.child("connection").flag("sourceIP")
		default:
			o.refuse(h.at("type"), kind+" is nothing that a BackendPolicy hashes")
			continue
		}
		h.flag("terminal") // the first that a request has counts alone
		out = append(out, one)
	}
	return out
}
