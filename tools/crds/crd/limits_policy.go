package crd

// What policies of traffic may hold at most (package kind).
const (
	maxPolicyTargets    = 16
	maxPolicyItems      = 64
	maxPolicyPorts      = 64
	maxPolicyText       = 1024
	maxPatchValue       = 64 << 10
	maxWorkloadBackends = 1000
)

// lasting is a duration in the format of the Gateway API (GEP-2257), of at least some time; none
// allows 0 as well.
func lasting(least string, none bool) Schema {
	rule := Rule{"duration(self) >= duration('" + least + "')", "must be at least " + least}
	if none {
		rule = Rule{rule.Rule + " || duration(self) == duration('0s')", rule.Message + ", or 0s for none"}
	}
	return Schema{Pattern: "^([0-9]{1,5}(h|m|s|ms)){1,4}$", MaxLength: ptr[int64](28), Rules: []Rule{rule}}
}

// all fields of a type are limited alike.
func all(out map[string]Schema, of Schema, typ string, fields ...string) {
	for _, f := range fields {
		out[typ+"."+f] = of
	}
}

// targetLimits are those of what a policy is for.
func targetLimits(out map[string]Schema, spec string) {
	out[spec+".targetRefs"] = atMost(maxPolicyTargets)
	out[spec] = rules(Rule{
		"!has(self.selector) || !has(self.targetRefs) || self.targetRefs.size() == 0", "`selector` may not be set together with `targetRefs`",
	})
}

func kindRule(words string) Rule {
	return Rule{"!has(self.targetRefs) || self.targetRefs.all(r, " + words + ")", "`targetRefs` must be of a kind that the policy can be for, with its group"}
}

const (
	ofWorkloads = "(r.kind in ['Dataplane', 'Mesh'] && r.?group.orValue('') == 'mesh.proxima.dev') || (r.kind == 'Pod' && r.?group.orValue('') == '')"
	ofBackends  = "(r.kind == 'Service' && r.?group.orValue('') == '') || (r.kind in ['ExternalService', 'Mesh'] && r.?group.orValue('') == 'mesh.proxima.dev') || " +
		"(r.kind == 'ServiceImport' && r.?group.orValue('') == 'multicluster.x-k8s.io') || (r.kind == 'HTTPRoute' && r.?group.orValue('') == 'gateway.networking.k8s.io')"
)

func policyLimits() map[string]Schema {
	out := map[string]Schema{
		"PolicyTargetReference.kind":        {MaxLength: ptr[int64](maxLabel)},
		"PolicyTargetReference.group":       optional(dnsSubdomain, maxSubdomain),
		"PolicyTargetReference.name":        with(text(dnsSubdomain, maxSubdomain), notEmpty()),
		"PolicyTargetReference.namespace":   optional(dnsLabel, maxLabel),
		"PolicyTargetReference.sectionName": {MaxLength: ptr[int64](maxSubdomain)},
		"PolicyTargetReference": rules(Rule{
			"self.kind != 'Mesh' || (self.?namespace.orValue('') == '' && self.?sectionName.orValue('') == '')", "a Mesh has no `namespace` and no `sectionName`",
		}),
		"TrafficPolicyStatus.targets": atLeast(0),

		"ValueMatch.type":  choice("", "Exact", "Prefix", "RegularExpression"),
		"ValueMatch.value": with(notEmpty(), Schema{MaxLength: ptr[int64](maxPolicyText)}),
		"PolicySource": rules(Rule{
			"has(self.namespaces) || has(self.serviceAccounts) || has(self.labels) || has(self.spiffe) || has(self.addresses) || self.?mesh.orValue('') != ''",
			"must describe a caller; leave out `from` for everybody",
		}),
		"PolicySource.namespaces":      items(atMost(maxPolicyItems), text(dnsLabel, maxLabel)),
		"PolicySource.serviceAccounts": items(atMost(maxPolicyItems), text(dnsLabel+"/"+dnsSubdomain, maxLabel+1+maxSubdomain)),
		"PolicySource.spiffe": with(atMost(maxPolicyItems), rules(Rule{
			"self.all(m, m.?type.orValue('') != 'RegularExpression' && m.value.startsWith('spiffe://'))",
			"must be compared by Exact or Prefix, and begin with spiffe://",
		})),
		"PolicySource.addresses": items(atMost(maxPolicyItems), text("[0-9a-f:.]+(/[0-9]{1,3})?", maxIP+4)),
		"PolicySource.mesh":      optional(dnsLabel, maxLabel),

		"RateLimit": rules(
			Rule{"has(self.http) || has(self.tcp)", "must specify `http`, `tcp` or both"},
			Rule{"!has(self.tcp) || !has(self.from) || self.from.size() == 0", "connections are limited for all callers together: leave out `from`, or `tcp`"},
		),
		"RateLimit.from":            atMost(maxPolicyItems),
		"HTTPRateLimit.requests":    atLeast(1),
		"HTTPRateLimit.status":      between(400, 599),
		"TCPRateLimit.connections":  atLeast(1),
		"Fault":                     rules(Rule{"has(self.abort) || has(self.delay) || has(self.bandwidth)", "must specify `abort`, `delay` or `bandwidth`"}),
		"Fault.from":                atMost(maxPolicyItems),
		"Fault.percent":             between(0, 100),
		"Fault.delay":               lasting("1ms", false),
		"Fault.bandwidth":           atLeast(1),
		"FaultAbort":                rules(Rule{"has(self.httpStatus) != has(self.grpcStatus)", "must specify one of `httpStatus` and `grpcStatus`"}),
		"FaultAbort.httpStatus":     between(200, 599),
		"FaultAbort.grpcStatus":     between(1, 16),
		"PolicyTimeout.connect":     lasting("1ms", false),
		"PermissionRule.from":       atMost(maxPolicyItems),
		"PermissionRule.to":         atMost(maxPolicyItems),
		"PermissionRequest":         rules(Rule{"has(self.methods) || has(self.paths) || has(self.hosts)", "must specify `methods`, `paths` or `hosts`"}),
		"PermissionRequest.methods": items(Schema{}, text("[^a-z \t/]+", maxLabel)),
		"PermissionRequest.paths": with(atMost(maxPolicyItems), rules(Rule{
			"self.all(m, m.?type.orValue('') == 'RegularExpression' || m.value.startsWith('/'))", "must begin with /",
		})),
		"PermissionRequest.hosts":     items(Schema{}, text(dnsSubdomain, maxSubdomain)),
		"TrafficPermissionSpec.deny":  atMost(maxPolicyItems),
		"TrafficPermissionSpec.allow": atMost(maxPolicyItems),
	}
	all(out, lasting("50ms", false), "HTTPRateLimit", "per")
	all(out, lasting("50ms", false), "TCPRateLimit", "per")
	all(out, lasting("1ms", true), "PolicyTimeout", "idle", "request", "perTry", "streamIdle", "maxStream", "maxConnection")
	all(out, atLeast(0), "PolicyLimits", "connections", "pending", "requests", "retries")
	targetLimits(out, "TrafficPermissionSpec")
	out["TrafficPermissionSpec"] = rules(append(out["TrafficPermissionSpec"].Rules, kindRule(ofWorkloads),
		Rule{"has(self.deny) && self.deny.size() > 0 || has(self.allow) && self.allow.size() > 0", "must specify `deny`, `allow` or both"})...)
	for _, spec := range []string{"TrafficPermissionSpec", "WorkloadPolicySpec"} {
		out[spec+".ports"] = items(atMost(maxPolicyPorts), text("([0-9]+|"+portName+")", maxPortName))
	}
	return out
}

func backendPolicyLimits() map[string]Schema {
	out := map[string]Schema{
		"BackendPolicySpec.rateLimit": with(atMost(maxPolicyItems), rules(noFrom())),
		"BackendPolicySpec.faults":    with(atMost(maxPolicyItems), rules(noFrom())),
		"BackendRetry.attempts":       between(0, 100),
		"BackendRetry.conditions": items(Schema{}, choice("5xx", "gateway-error", "reset", "reset-before-request", "connect-failure", "retriable-4xx",
			"refused-stream", "http3-post-connect-failure")),
		"BackendRetry.grpc":        items(Schema{}, choice("cancelled", "deadline-exceeded", "internal", "resource-exhausted", "unavailable")),
		"BackendRetry.codes":       items(atMost(maxPolicyItems), between(400, 599)),
		"BackendRetry.tcpAttempts": between(1, 100),
		"RetryBackoff":             rules(Rule{"!has(self.base) || !has(self.max) || duration(self.max) >= duration(self.base)", "`max` must not be less than `base`"}),
		"RetryBudget.percent":      between(0, 100),
		"RequestRate.count":        between(1, 1000000),
		"RequestRate.interval": {Pattern: lasting("1s", false).Pattern, MaxLength: ptr[int64](28), Rules: []Rule{{
			"duration(self) >= duration('1s') && duration(self) <= duration('1h')", "must be from 1s to 1h",
		}}},
		"BackendOutlier.interval":         lasting("1ms", false),
		"BackendOutlier.ejection":         lasting("1ms", false),
		"OutlierFailurePercent.threshold": between(1, 100),
		"BackendHealthCheck": rules(
			Rule{"self.?type.orValue('') == 'HTTP' || (self.?path.orValue('') == '' && !has(self.statuses))", "`path` and `statuses` are for `type` 'HTTP'"},
			Rule{"self.?type.orValue('') in ['HTTP', 'GRPC'] || self.?host.orValue('') == ''", "`host` is for `type` 'HTTP' and 'GRPC'"},
			Rule{"self.?type.orValue('') == 'GRPC' || self.?service.orValue('') == ''", "`service` is for `type` 'GRPC'"},
		),
		"BackendHealthCheck.type":     choice("", "Off", "HTTP", "TCP", "GRPC"),
		"BackendHealthCheck.path":     {Pattern: "^(/.*)?$"},
		"BackendHealthCheck.statuses": items(atMost(maxPolicyItems), between(100, 599)),
		"BackendBalancer": rules(
			Rule{"!(self.?type.orValue('') in ['RingHash', 'Maglev']) || (has(self.hash) && self.hash.size() > 0)", "`hash` must say what it chooses by"},
			Rule{"self.?type.orValue('') in ['', 'RingHash', 'Maglev'] || !has(self.hash) || self.hash.size() == 0", "`hash` is for `type` 'RingHash' and 'Maglev'"},
		),
		"BackendBalancer.type": choice("", "LeastRequest", "RoundRobin", "Random", "RingHash", "Maglev"),
		"BackendBalancer.hash": atMost(maxPolicyItems),
		"BalancerHash": rules(
			Rule{"(self.type == 'SourceIP') == (self.?name.orValue('') == '')", "all but 'SourceIP' need a `name`"},
			Rule{"!has(self.ttl) || self.type == 'Cookie'", "`ttl` is for `type` 'Cookie'"},
		),
		"BalancerHash.type":         choice("Header", "Cookie", "Query", "SourceIP"),
		"BalancerHash.ttl":          lasting("1s", true),
		"BackendLocality.mode":      choice("", "Plan", "Strict", "Off"),
		"BackendLocality.threshold": between(1, 100),
		"BackendLocality.affinity":  atMost(maxPolicyItems),
		"BackendLocality.failover":  atMost(maxPolicyItems),
		"BackendLocality": rules(Rule{
			"self.?mode.orValue('') in ['', 'Plan'] || !has(self.failover) || self.failover.size() == 0", "`failover` is for `mode` 'Plan'",
		}, Rule{"self.?mode.orValue('') != 'Off' || !has(self.affinity) || self.affinity.size() == 0", "mode Off has no affinity"}),
		"LocalityAffinity.label":  with(qualifiedName(), notEmpty()),
		"LocalityAffinity.weight": between(1, 1000000),
		"LocalityFailover.to":     choice("Any", "None", "Only", "AnyExcept"),
		"LocalityFailover": rules(Rule{
			"(self.to in ['Only', 'AnyExcept']) == (has(self.zones) && self.zones.size() > 0)", "`zones` must be set exactly when `to` is 'Only' or 'AnyExcept'",
		}),
		"LocalityFailover.from":  items(Schema{}, text(labelValue, maxLabel)),
		"LocalityFailover.zones": items(Schema{}, text(labelValue, maxLabel)),
	}
	all(out, lasting("1ms", false), "RetryBackoff", "base", "max")
	all(out, atLeast(0), "BackendOutlier", "local", "gateway", "total")
	all(out, between(0, 100), "BackendOutlier", "maxPercent", "panic")
	all(out, atLeast(1), "OutlierSuccessRate", "factor", "minHosts", "minRequests")
	all(out, atLeast(1), "OutlierFailurePercent", "minHosts", "minRequests")
	all(out, lasting("1ms", false), "BackendHealthCheck", "interval", "timeout")
	all(out, between(1, 1000), "BackendHealthCheck", "healthy", "unhealthy")
	targetLimits(out, "BackendPolicySpec")
	out["BackendPolicySpec"] = rules(append(out["BackendPolicySpec"].Rules, kindRule(ofBackends))...)
	return out
}

func noFrom() Rule {
	return Rule{"self.all(r, !has(r.from) || r.from.size() == 0)", "the callers are those that the policy is for: leave out `from`"}
}

func workloadPolicyLimits() map[string]Schema {
	oneOf := func(words ...string) Rule {
		list, text := "", ""
		for i, w := range words {
			if i > 0 {
				list, text = list+", ", text+", "
			}
			list, text = list+"has(self."+w+")", text+"`"+w+"`"
		}
		return Rule{"[" + list + "].exists_one(set, set)", "must specify one of " + text}
	}
	hostPort := with(text(`(\[[0-9a-f:.]+\]|[a-z0-9]([-a-z0-9.]*[a-z0-9])?):[0-9]+`, maxSubdomain+8), notEmpty())
	path := Schema{Pattern: "^(/.*)?$"}
	out := map[string]Schema{
		"WorkloadPolicySpec.rateLimit": atMost(maxPolicyItems),
		"WorkloadPolicySpec.faults":    atMost(maxPolicyItems),
		"WorkloadPolicySpec.accessLog": atMost(maxPolicyItems),
		"WorkloadPolicySpec.backends":  atMost(maxWorkloadBackends),
		"WorkloadPolicySpec.timeout":   rules(Rule{"!has(self.perTry)", "requests to a workload are not retried by its own proxy: use a BackendPolicy"}),
		"WorkloadTLS": rules(
			Rule{"self.?max.orValue('') != '1.2' || self.?min.orValue('') == '1.2'", "`max` must not be less than `min`, which is 1.3 unless it is set"},
			Rule{"!has(self.ciphers) || self.ciphers.size() == 0 || self.?min.orValue('') == '1.2'", "TLS 1.3 has no choice of ciphers: set `min` to 1.2"},
		),
		"WorkloadTLS.mode": choice("", "Strict", "Permissive"),
		"WorkloadTLS.min":  choice("", "1.2", "1.3"),
		"WorkloadTLS.max":  choice("", "1.2", "1.3"),
		"WorkloadTLS.ciphers": items(Schema{}, choice("ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384",
			"ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-ECDSA-CHACHA20-POLY1305", "ECDHE-RSA-CHACHA20-POLY1305", "ECDHE-ECDSA-AES128-SHA",
			"ECDHE-RSA-AES128-SHA", "ECDHE-ECDSA-AES256-SHA", "ECDHE-RSA-AES256-SHA")),
		"WorkloadBackend.kind":      choice("", "Service", "ServiceImport", "ExternalService"),
		"WorkloadBackend.namespace": optional(dnsLabel, maxLabel),
		"WorkloadBackend.name":      with(text(dnsSubdomain, maxSubdomain), notEmpty()),
		"WorkloadPassthrough": rules(Rule{
			"(self.?mode.orValue('') == 'Matched') == (has(self.match) && self.match.size() > 0)", "`match` must be set exactly when `mode` is 'Matched'",
		}),
		"WorkloadPassthrough.mode":  choice("", "All", "None", "Matched"),
		"WorkloadPassthrough.match": atMost(maxPolicyItems),
		"PassthroughMatch.type":     choice("Domain", "IP", "CIDR"),
		"PassthroughMatch.value":    {MaxLength: ptr[int64](maxSubdomain + 2)},
		"PassthroughMatch.port":     between(0, 65535),
		"PassthroughMatch.protocol": choice("", "TCP", "TLS", "HTTP"),
		"PassthroughMatch": rules(
			Rule{"self.type != 'IP' || (isIP(self.value) && ip.isCanonical(self.value))", "`value` must be an IP address"},
			Rule{"self.type != 'CIDR' || (isCIDR(self.value) && cidr(self.value) == cidr(self.value).masked())", "`value` must be a range such as 10.1.0.0/16"},
			Rule{"self.type != 'Domain' || self.value.matches('^([*][.])?[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')", "`value` must be a DNS name"},
			Rule{"self.type != 'Domain' || self.?protocol.orValue('') != 'TCP'", "a Domain is matched by TLS or HTTP"},
			Rule{"self.?protocol.orValue('') != 'HTTP' || self.?port.orValue(0) != 0", "HTTP needs a `port`"},
		),
		"AccessLog":               rules(oneOf("stdout", "file", "tcp", "otlp")),
		"AccessLog.of":            choice("", "All", "Errors"),
		"AccessLog.format":        {MaxLength: ptr[int64](maxPolicyText)},
		"FileLog.path":            {Pattern: "^/"},
		"TCPLog.address":          hostPort,
		"OTLPEndpoint.address":    hostPort,
		"ZipkinEndpoint.address":  hostPort,
		"ZipkinEndpoint.path":     path,
		"DatadogEndpoint.address": hostPort,
		"WorkloadTracing":         rules(oneOf("otlp", "zipkin", "datadog")),
		"WorkloadTracing.sample":  between(0, 100),
		"WorkloadTracing.tags":    atMost(maxPolicyItems),
		"TracingTag":              rules(Rule{"self.?value.orValue('') != '' || self.?header.orValue('') != ''", "must specify `value`, `header` or both"}),
		"TracingTag.name":         notEmpty(),
		"WorkloadMetrics.port":    port(),
		"WorkloadMetrics.path":    path,
		"WorkloadMetrics.include": {MaxLength: ptr[int64](maxPolicyText)},
		"WorkloadMetrics.exclude": {MaxLength: ptr[int64](maxPolicyText)},
		"WorkloadMetrics.apps":    atMost(maxPolicyItems),
		"MetricsApp.port":         port(),
		"MetricsApp.path":         path,

		"ProxyPatchSpec.patches": {MinItems: ptr[int64](1), MaxItems: ptr[int64](maxPolicyItems)},
		"ProxyPatchItem.type":    choice("Cluster", "Listener", "Route", "VirtualHost", "NetworkFilter", "HTTPFilter"),
		"ProxyPatchItem.op":      choice("Add", "Merge", "JSONPatch", "Remove", "First", "Last", "Before", "After"),
		"ProxyPatchItem.value":   {MaxLength: ptr[int64](maxPatchValue)},
		"ProxyPatchItem": rules(
			Rule{"!(self.op in ['First', 'Last', 'Before', 'After']) || self.type in ['Route', 'NetworkFilter', 'HTTPFilter']", "only routes and filters have an order"},
			Rule{"!(self.op in ['Before', 'After']) || self.?match.?name.orValue('') != ''", "`match.name` must name what the value is placed beside"},
			Rule{"(self.op == 'Remove') == (self.?value.orValue('') == '')", "all but 'Remove' need a `value`"},
			Rule{"!(self.type in ['Cluster', 'Listener']) || self.?match.?listener.orValue('') == ''", "`match.listener` is for routes, virtual hosts and filters"},
		),
		"ProxyPatchMatch.name":      {MaxLength: ptr[int64](maxPolicyText)},
		"ProxyPatchMatch.listener":  {MaxLength: ptr[int64](maxPolicyText)},
		"ProxyPatchMatch.origin":    choice("", "Inbound", "Outbound", "Passthrough", "Proxy"),
		"ProxyPatchMatch.direction": choice("", "Inbound", "Outbound"),
		"ProxyPatchMatch.port":      between(0, 65535),

		"DataplaneProxy.outbound":       atMost(maxWorkloadBackends),
		"DataplaneProxy.probes":         atMost(maxPolicyItems),
		"DataplaneOutbound.port":        port(),
		"DataplaneOutbound.servicePort": port(),
		"DataplaneOutbound.namespace":   optional(dnsLabel, maxLabel),
		"DataplaneOutbound.service":     with(text(dnsLabel, maxLabel), notEmpty()),
		"DataplaneOutbound.address": {MaxLength: ptr[int64](maxIP), Rules: []Rule{{
			"self == '' || (isIP(self) && ip(self).isLoopback())", "must be a loopback address, as the workload alone may use it",
		}}},
		"DataplaneProbe": rules(
			Rule{"self.?targetPath.orValue('') == '' || self.?type.orValue('') in ['', 'HTTP']", "`targetPath` is for `type` 'HTTP'"},
			Rule{"self.?service.orValue('') == '' || self.?type.orValue('') == 'GRPC'", "`service` is for `type` 'GRPC'"},
		),
		"DataplaneProbe.path":       {Pattern: "^/"},
		"DataplaneProbe.type":       choice("", "HTTP", "TCP", "GRPC"),
		"DataplaneProbe.port":       port(),
		"DataplaneProbe.targetPath": path,
	}
	targetLimits(out, "WorkloadPolicySpec")
	targetLimits(out, "ProxyPatchSpec")
	out["WorkloadPolicySpec"] = rules(append(out["WorkloadPolicySpec"].Rules, kindRule(ofWorkloads))...)
	out["ProxyPatchSpec"] = rules(append(out["ProxyPatchSpec"].Rules, kindRule(ofWorkloads))...)
	return out
}
