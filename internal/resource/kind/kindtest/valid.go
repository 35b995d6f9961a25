// Package kindtest has examples of objects of each kind, valid and invalid: for the tests of
// package kind, and of what else checks objects.
package kindtest

import (
	"fmt"
	"time"

	"sigs.k8s.io/yaml"
)

// Valid is an object of each kind, as its user might write it, by the name of the kind. The
// Event of events.k8s.io is EventsV1Event. The map is the caller's.
func Valid() map[string]string {
	return map[string]string{
		"Namespace": `{metadata: {name: shop}}`,
		"Service": `
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: http}]}`,
		"Endpoints": `
metadata: {name: web, namespace: shop}
subsets: [{addresses: [{ip: 10.1.0.1}], ports: [{port: 8080}]}]`,
		"Node": `
metadata: {name: node-1}
status: {capacity: {cpu: "4"}}`,
		"Pod": `
metadata: {name: web-1, namespace: shop}
spec: {containers: [{name: web, image: "web:1", ports: [{name: http, containerPort: 8080}]}]}`,
		"ConfigMap": `
metadata: {name: settings, namespace: shop}
data: {a: "1"}`,
		"Secret": `
metadata: {name: keys, namespace: shop}
stringData: {a: "1"}`,
		"Event": `
metadata: {name: web.1, namespace: shop}
involvedObject: {kind: Pod, namespace: shop, name: web-1}
reason: Started
type: Normal`,
		"EventsV1Event": `
metadata: {name: web.2, namespace: shop}
eventTime: "2026-01-02T03:04:05.000000Z"
regarding: {kind: Pod, namespace: shop, name: web-1}
reportingController: proxima.dev/health
reportingInstance: one
action: Probe
reason: Started
type: Normal`,
		"EndpointSlice": `
metadata: {name: web-abc, namespace: shop}
addressType: IPv4
endpoints: [{addresses: [10.1.0.1]}]
ports: [{port: 8080}]`,
		"Lease": `
metadata: {name: node-1, namespace: kube-node-lease}
spec: {holderIdentity: node-1, leaseDurationSeconds: 40}`,
		"IPAddress": `
metadata: {name: 10.96.0.10}
spec: {parentRef: {resource: services, namespace: shop, name: web}}`,
		"ServiceCIDR": `
metadata: {name: kubernetes}
spec: {cidrs: [10.96.0.0/16]}`,
		"Dataplane": `
metadata: {name: web-1, namespace: shop, labels: {app: web}}
spec:
  addresses: [192.0.2.7]
  ports: [{name: http, port: 8080, targetPort: 18080}]
  readiness: {httpGet: {port: http}}
  proxy:
    outbound: [{port: 9001, service: pay, servicePort: 80}]
    probes: [{path: /live, port: 8080}]
    metrics: {apps: [{port: 9100}]}`,
		"Mesh": `
metadata: {name: blue}
spec:
  mtls:
    enabledBackend: own
    backends:
    - {name: own}
    - {name: corp, type: Provided, provided: {certificate: {inline: YQ==}, key: {secretRef: {name: corp-ca, key: tls.key}}}}
  networking: {outbound: {passthrough: false}}
  routing: {zoneEgress: true}`,
		"ExternalService": `
metadata: {name: payments, namespace: shop}
spec:
  hosts: [pay.example.com]
  ports: [{port: 443, targetPort: 8443}]
  addresses: [{address: 192.0.2.9, zone: east}, {address: eu.pay.example.com}]
  zones: [east, west]
  tls:
    serverName: pay.example.com
    clientCertificate: {secretRef: {name: client, key: tls.crt}}
    clientKey: {secretRef: {name: client, key: tls.key}}`,
		"TrafficPermission": `
metadata: {name: pay, namespace: shop}
spec:
  selector: {matchLabels: {app: pay}}
  ports: [http, "9090"]
  deny: [{from: [{namespaces: [test]}]}]
  allow:
  - from: [{serviceAccounts: [shop/web]}, {labels: {matchLabels: {app: cron}}, addresses: [10.1.0.0/16]}]
    to: [{methods: [GET], paths: [{type: Prefix, value: /api}], hosts: [pay.example.com]}]
  - from: [{spiffe: [{type: Prefix, value: "spiffe://blue.mesh/ns/ops/"}], mesh: blue}]`,
		"BackendPolicy": `
metadata: {name: pay, namespace: shop}
spec:
  targetRefs: [{kind: Service, name: pay, sectionName: http}, {group: mesh.proxima.dev, kind: ExternalService, name: bank, namespace: partners}]
  timeout: {connect: 2s, request: 10s, perTry: 3s, idle: 0s}
  retry:
    attempts: 3
    conditions: [connect-failure, 5xx]
    codes: [503]
    grpc: [unavailable]
    backoff: {base: 10ms, max: 1s}
    budget: {percent: 25, minRetryRate: {count: 5, interval: 1s}}
    tcpAttempts: 2
  limits: {connections: 100, pending: 10, requests: 200, retries: 5}
  outlier: {local: 5, total: 10, interval: 1s, maxPercent: 50, panic: 10, failurePercent: {threshold: 50, minHosts: 3, minRequests: 20}}
  healthCheck: {type: HTTP, path: /healthz, statuses: [200, 204], interval: 5s, timeout: 1s, healthy: 2, unhealthy: 3}
  balancer: {type: RingHash, hash: [{type: Header, name: x-user}, {type: Cookie, name: s, ttl: 1h}, {type: SourceIP}]}
  locality: {mode: Plan, affinity: [{label: rack, weight: 5}], failover: [{from: [a], to: Only, zones: [b]}, {to: Any}], threshold: 60}
  rateLimit: [{http: {requests: 100, per: 1s}}]
  faults: [{percent: 1.5, delay: 100ms}]`,
		"WorkloadPolicy": `
metadata: {name: pay, namespace: shop}
spec:
  selector: {matchLabels: {app: pay}}
  ports: [http]
  tls: {mode: Strict, min: "1.2", ciphers: [ECDHE-RSA-AES128-GCM-SHA256]}
  timeout: {request: 30s}
  limits: {connections: 1000}
  backends: [{name: bank}, {kind: ExternalService, namespace: partners, name: card}]
  rateLimit: [{from: [{namespaces: [web]}], http: {requests: 10, per: 1s, status: 503}}, {tcp: {connections: 100, per: 1s}}]
  faults: [{from: [{serviceAccounts: [test/chaos]}], percent: 10, abort: {httpStatus: 500}}]
  passthrough: {mode: Matched, match: [{type: Domain, value: "*.example.com"}, {type: CIDR, value: 203.0.113.0/24, port: 25}]}
  accessLog: [{stdout: {}, of: Errors}, {otlp: {address: "collector.example.com:4317"}}]
  tracing: {zipkin: {address: "zipkin.example.com:9411"}, sample: 1.5, tags: [{name: team, value: pay}, {name: user, header: x-user}]}
  metrics: {port: 15020, exclude: "^envoy_debug", apps: [{name: pay, port: 9100}]}`,
		"ProxyPatch": `
metadata: {name: pay, namespace: shop}
spec:
  selector: {matchLabels: {app: pay}}
  patches:
  - {type: Cluster, match: {origin: Outbound}, op: Merge, value: "perConnectionBufferLimitBytes: 32768"}
  - {type: HTTPFilter, match: {name: envoy.filters.http.router}, op: Before, value: "name: envoy.filters.http.on_demand"}
  - {type: Listener, match: {name: out-virtual}, op: JSONPatch, value: "[{op: add, path: /perConnectionBufferLimitBytes, value: 65536}]"}
  - {type: NetworkFilter, match: {name: x, direction: Inbound, port: 80}, op: Remove}`,
		"HTTPRoute": `
metadata: {name: pay, namespace: shop}
spec:
  parentRefs: [{group: "", kind: Service, name: pay, port: 80}]
  rules:
  - name: canary
    matches: [{path: {type: PathPrefix, value: /api}, headers: [{name: x-canary, value: "1"}], method: GET}]
    filters:
    - {type: URLRewrite, urlRewrite: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /v2}}}
    - {type: RequestMirror, requestMirror: {backendRef: {name: shadow, port: 80}, percent: 10}}
    backendRefs: [{name: pay-v2, port: 80, weight: 10}, {name: pay, port: 80, weight: 90}]
    timeouts: {request: 10s, backendRequest: 2s}
    retry: {codes: [503], attempts: 2, backoff: 100ms}
  - matches: [{path: {type: Exact, value: /old}}]
    filters: [{type: RequestRedirect, requestRedirect: {hostname: new.example.com, statusCode: 301}}]`,
		"GRPCRoute": `
metadata: {name: pay, namespace: shop}
spec:
  parentRefs: [{group: "", kind: Service, name: pay}]
  rules:
  - matches: [{method: {service: pay.v1.Pay, method: Charge}}]
    filters: [{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: x-team, value: pay}]}}]
    backendRefs: [{name: pay, port: 80}]`,
		"TCPRoute": `
metadata: {name: db, namespace: shop}
spec:
  parentRefs: [{group: "", kind: Service, name: db}]
  rules: [{backendRefs: [{name: db-1, port: 5432, weight: 1}, {name: db-2, port: 5432, weight: 3}]}]`,
		"ReferenceGrant": `
metadata: {name: web, namespace: shop}
spec: {from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: web}], to: [{group: "", kind: Service, name: pay}]}`,
		"RegistryConfig": `
metadata: {name: orders-yaml, namespace: shop}
spec: {group: shop, dataId: orders.yaml, type: yaml, content: "a: 1", application: orders, description: of orders, tags: [a, b]}`,
		"ZoneCosts": `
metadata: {name: default}
spec:
  region: 1.5
  world: 12
  pairs: [{from: a, to: b, cost: 0.5}, {from: a, to: c, cost: 3, oneWay: true}]`,
		"TopologyHeuristic": `
metadata: {name: near}
spec:
  variables: [{name: busy, expression: "zones.filter(z, z.demand > z.capacity).map(z, z.name)"}]
  zones: "[endpoint.zone] + busy"
  weight: "zone.name == endpoint.zone ? 3.0 : 1.0"
  fallback: Fail`,
		"TrafficPlan": `
metadata: {name: web, namespace: shop}
spec:
  service: web
  version: 3
  mode: proxima.dev/Adaptive
  parameters: {overload: 0.2, margin: 0.03, hints: soft, fallback: none}
  groups:
  - addressType: IPv4
    ports: [http]
    outcome: Planned
    published: "2026-01-02T03:04:05Z"
    reason: LargeGap
    demandSource: Measured
    expected: {inZone: 0.9, cost: 0.1, busiest: 1.17, limit: 1.17}
    zones:
    - {name: a, endpoints: 1, demand: 0.6, reason: Region, to: [{zone: a, share: 0.9}, {zone: b, share: 0.1}]}
    - {name: b, endpoints: 1, demand: 0.4, reason: Home, to: [{zone: b, share: 1}]}`,
		"Zone": `{metadata: {name: east}}`,
		"ZoneInsight": `
metadata: {name: east}
status:
  online: true
  subscriptions: [{id: a, instance: global-0, version: 1.2.3, connectTime: "2026-01-02T03:04:05.000000Z"}]
  types: [{type: mesh.proxima.dev/Mesh, direction: ToZone, objects: 2}, {type: mesh.proxima.dev/Mesh, direction: ToGlobal}]`,
		"ZoneIngress": `
metadata: {name: gateway-1}
spec: {zone: east, address: 192.0.2.1, port: 10001, advertisedAddress: east.example.com, advertisedPort: 443}`,
		"ZoneIngressInsight": `
metadata: {name: gateway-1}
status:
  online: true
  subscriptions:
  - {id: a, generation: 1, connectTime: "2026-01-02T03:04:05.000000Z", disconnectTime: "2026-01-02T03:04:05.500000Z"}
  - {id: b, generation: 2, connectTime: "2026-01-02T03:04:06.000000Z", disconnectTime: "2026-01-02T03:04:06.500000Z"}
  - {id: c, generation: 3, connectTime: "2026-01-02T03:04:07.000000Z", resources: [{type: Service, sent: 1, acknowledged: 1}]}
  versions: {proxy: proxima, version: 1.2.3}
  certificate: {mesh: pay, identity: "spiffe://pay.mesh/zone/east/ingress", generations: 1, lastIssue: "2026-01-02T03:04:05Z", expiry: "2026-01-03T03:04:05Z"}
  certificates:
  - {mesh: pay, identity: "spiffe://pay.mesh/zone/east/ingress", generations: 1, lastIssue: "2026-01-02T03:04:05Z", expiry: "2026-01-03T03:04:05Z"}
  conditions: [{type: ProxyConnected, status: "True", reason: Connected, message: "", lastTransitionTime: "2026-01-02T03:04:05Z"}]`,
		"ZoneEgress": `
metadata: {name: gateway-2}
spec: {address: 192.0.2.1, port: 10002}`,
		"ZoneEgressInsight": `
metadata: {name: gateway-2}
status: {online: false}`,
		"DataplaneInsight": `
metadata: {name: web-1, namespace: shop}
status:
  online: true
  subscriptions: [{id: a, instance: cp-0, generation: 7, connectTime: "2026-01-02T03:04:05.000000Z",
    resources: [{type: Cluster, sent: 3, acknowledged: 2, rejected: 1}, {type: Listener, sent: 1, acknowledged: 1}]}]
  versions: {proxy: envoy, version: 1.40.0, supervisor: 1.2.3}
  rejected: [{type: Cluster, name: "shop/api:80", policy: ProxyPatch shop/broken, error: "Expected positive duration"}]
  learned: [{port: "shop/db:5432", lastUsed: "2026-01-02T03:04:05Z"}]
  certificate: {identity: "spiffe://default.mesh/ns/shop/sa/web", backend: own, generations: 3,
    lastIssue: "2026-01-02T03:04:05Z", expiry: "2026-01-03T03:04:05Z"}`,
		"ServiceExport": `
metadata: {name: web, namespace: shop, annotations: {mesh.proxima.dev/to-zones: "west, north"}}
spec: {exportedLabels: {team: shop}, exportedAnnotations: {docs: "https://example.com"}}`,
		"ServiceImport": `
metadata: {name: web, namespace: shop}
spec: {type: ClusterSetIP, ports: [{name: http, port: 80, protocol: TCP}], ips: [10.96.0.7]}`,
		"VirtualIP": `
metadata: {name: web-shop-svc-80-a}
spec: {mesh: default, hostname: web_shop_svc_80, addresses: [240.0.0.7], namespace: shop, service: web, port: 80}`,
		"IPAddressPool": `
metadata: {name: main}
spec: {addresses: [192.0.2.0/28, 198.51.100.5-198.51.100.9, "2001:db8::1"], namespaces: [shop], autoAssign: false}`,
		"ZoneShift": `
metadata: {name: zone-a}
spec: {zone: zone-a, until: "` + time.Now().Add(time.Hour).UTC().Format(time.RFC3339) + `", reason: power work}`,
		"GlobalSecret": `
metadata: {name: corp-ca}
stringData: {tls.key: "1"}`,
	}
}

// Overlay lays YAML over YAML: maps merge, null deletes, all else replaces.
func Overlay(under, over string) (string, error) {
	var u, o map[string]any
	if err := yaml.Unmarshal([]byte(under), &u); err != nil {
		return "", fmt.Errorf("under: %w", err)
	}
	if err := yaml.Unmarshal([]byte(over), &o); err != nil {
		return "", fmt.Errorf("over: %w", err)
	}
	merge(u, o)
	out, err := yaml.Marshal(u)
	return string(out), err
}

func merge(under, over map[string]any) {
	for k, v := range over {
		o, both := v.(map[string]any)
		u, ok := under[k].(map[string]any)
		switch {
		case v == nil:
			delete(under, k)
		case both && ok:
			merge(u, o)
		default:
			under[k] = v
		}
	}
}
