package kind_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// Reasons that many rules share. A want that ends in … is a prefix.
const (
	required  = "Required value: "
	badLabel  = "Invalid value: a lowercase RFC 1123 label must consist of…"
	badName   = "Invalid value: a lowercase RFC 1123 subdomain must consist of…"
	badPort   = "Invalid value: must be between 1 and 65535, inclusive"
	protocols = `Unsupported value: supported values: "SCTP", "TCP", "UDP"`
	badKey    = "Invalid value: a valid config key must consist of…"
	negative  = "Invalid value: must be greater than or equal to 0"
	immutable = "Invalid value: field is immutable"
	loops     = "Invalid value: may not be in the loopback range (127.0.0.0/8, ::1/128)"
	onlyLB    = "Forbidden: may only be used when `type` is 'LoadBalancer'"
)

// TestInvalidOnCreate breaks a valid object in one way and expects exactly one error.
func TestInvalidOnCreate(t *testing.T) {
	tests := []struct {
		kind string
		with string // YAML laid over the example before defaulting
		want string
	}{
		// Metadata, the same for all kinds.
		{"Namespace", `{metadata: {name: Shop}}`, "metadata.name: " + badLabel},
		{"Namespace", `{metadata: {name: a.b}}`, "metadata.name: Invalid value: must not contain dots"},
		{"Namespace", `{metadata: {name: ""}}`, "metadata.name: Required value: name or generateName is required"},
		{"Namespace", `{metadata: {namespace: x}}`, "metadata.namespace: Forbidden: not allowed on this type"},
		{"Namespace", `{metadata: {finalizers: [mine]}}`,
			"metadata.finalizers[0]: Invalid value: name is neither a standard finalizer name nor is it fully qualified"},
		{"Namespace", `{spec: {finalizers: [mine]}}`,
			"spec.finalizers[0]: Invalid value: name is neither a standard finalizer name nor is it fully qualified"},
		{"Service", `{metadata: {namespace: ""}}`, "metadata.namespace: " + required},
		{"Service", `{metadata: {labels: {"a b": c}}}`, "metadata.labels: Invalid value: name part must consist of…"},
		{"Service", `{metadata: {labels: {a: "b c"}}}`, "metadata.labels: Invalid value: a valid label must be…"},
		{"Service", `{metadata: {annotations: {"a b": c}}}`, "metadata.annotations: Invalid value: name part must consist of…"},

		// Zones and gateways
		{"Zone", `{metadata: {name: global}}`, "metadata.name: Invalid value: is reserved: choose another name"},
		{"Zone", `{metadata: {name: a.b}}`, "metadata.name: Invalid value: must not contain dots"},
		{"ZoneInsight", `{status: {types: [{type: a, direction: Up}]}}`,
			`status.types[0].direction: Unsupported value: supported values: "ToGlobal", "ToZone"`},
		{"ZoneInsight", `{status: {types: [{type: a, direction: ToZone}, {type: a, direction: ToZone}]}}`, "status.types[1]: Duplicate value: "},
		{"ZoneInsight", `{status: {subscriptions: [{connectTime: "2026-01-02T03:04:05.000000Z"}]}}`, "status.subscriptions[0].id: " + required},
		{"ZoneIngressInsight", `{status: {subscriptions: [{id: a, connectTime: null}, {id: b, connectTime: null}, {id: c, connectTime: null}]}}`,
			"status.subscriptions: Too many: must have at most 2 items"},
		{"ZoneIngress", `{spec: {address: ""}}`, "spec.address: " + required},
		{"ZoneIngress", `{spec: {address: east.example.com}}`, "spec.address: Invalid value: must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"},
		{"ZoneIngress", `{spec: {port: 0}}`, "spec.port: " + badPort},
		{"ZoneIngress", `{spec: {advertisedAddress: 192.0.2.300}}`,
			"spec.advertisedAddress: Invalid value: must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"},
		{"ZoneIngress", `{spec: {advertisedAddress: a_b}}`, "spec.advertisedAddress: " + badName},
		{"ZoneIngress", `{spec: {advertisedPort: 70000}}`, "spec.advertisedPort: " + badPort},
		{"ZoneEgress", `{spec: {address: 0.0.0.0}}`, "spec.address: Invalid value: may not be unspecified (0.0.0.0 or ::)"},
		{"ZoneEgress", `{spec: {zone: A}}`, "spec.zone: " + badLabel},

		// Exports and imports
		{"ServiceExport", `{metadata: {annotations: {mesh.proxima.dev/to-zones: " "}}}`,
			"metadata.annotations[mesh.proxima.dev/to-zones]: Invalid value: must name zones, separated by commas; " +
				"remove the annotation to allow all zones"},
		{"ServiceExport", `{metadata: {annotations: {mesh.proxima.dev/to-zones: "a,B"}}}`,
			"metadata.annotations[mesh.proxima.dev/to-zones]: " + badLabel},
		{"ServiceExport", `{spec: {exportedLabels: {a: "b c"}}}`, "spec.exportedLabels: Invalid value: a valid label must be…"},
		{"ServiceImport", `{spec: {type: Magic}}`, `spec.type: Unsupported value: supported values: "ClusterSetIP", "Headless"`},
		{"ServiceImport", `{spec: {ports: [{name: a, port: 80}, {name: b, port: 80}]}}`, "spec.ports[1]: Duplicate value: "},
		{"ServiceImport", `{spec: {ips: [10.96.0.300]}}`,
			"spec.ips[0]: Invalid value: must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"},
		{"VirtualIP", `{spec: {mesh: A}}`, "spec.mesh: " + badLabel},
		{"VirtualIP", `{spec: {hostname: web..shop}}`, "spec.hostname: Invalid value: must be DNS labels of lower case letters, digits, '-' and '_'"},
		{"VirtualIP", `{spec: {addresses: []}}`, "spec.addresses: Required value: at least one address"},
		{"VirtualIP", `{spec: {addresses: [240.0.0.1, 240.0.0.2]}}`, "spec.addresses: Invalid value: may hold one address of each family"},
		{"VirtualIP", `{spec: {addresses: [240.0.0.300]}}`,
			"spec.addresses[0]: Invalid value: must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"},
		{"VirtualIP", `{spec: {port: 65536}}`, "spec.port: Invalid value: must be between 1 and 65535, inclusive"},
		{"IPAddressPool", `{spec: {addresses: []}}`, "spec.addresses: Required value: at least one address"},
		{"IPAddressPool", `{spec: {addresses: [192.0.2.1/28]}}`,
			`spec.addresses[0]: Invalid value: "192.0.2.1/28" is not the address of a network; 192.0.2.0/28 is`},
		{"IPAddressPool", `{spec: {addresses: [192.0.2.0/28, 192.0.2.9]}}`, "spec.addresses[1]: Invalid value: overlaps 192.0.2.0/28"},
		{"IPAddressPool", `{spec: {addresses: [127.0.0.1]}}`,
			"spec.addresses[0]: Invalid value: must not be unspecified, loopback, link-local or multicast addresses"},
		{"IPAddressPool", `{spec: {namespaces: [a, a]}}`, "spec.namespaces[1]: Duplicate value: "},
		{"ZoneShift", `{spec: {zone: ""}}`, "spec.zone: Required value: name a zone, or a node in `node`"},
		{"ZoneShift", `{spec: {node: n1}}`, "spec.node: Forbidden: may not be set together with `zone`: make one ZoneShift for each"},
		{"ZoneShift", `{spec: {reason: ""}}`, "spec.reason: Required value: say why: others read it when they look for the cause"},
		{"ZoneShift", `{spec: {until: "2020-01-02T03:04:05Z"}}`, "spec.until: Invalid value: must be in the future"},
		{"ZoneShift", `{spec: {until: "2199-01-02T03:04:05Z"}}`, "spec.until: Invalid value: must be at most 7d away: extend it when it is needed for longer"},
		{"ZoneShift", `{spec: {until: null}}`, "spec.until: Required value: when it ends by itself"},
		{"VirtualIP", `{spec: {namespace: A}}`, "spec.namespace: " + badLabel},
		{"Mesh", `{spec: {routing: {topologyMode: Sometimes}}}`,
			"spec.routing.topologyMode: Invalid value: must be Auto, Disabled, proxima.dev/Adaptive, heuristic.proxima.dev/NAME or another DOMAIN/NAME"},
		{"Mesh", `{spec: {routing: {export: Some}}}`, `spec.routing.export: Unsupported value: supported values: "All", "Exported"`},
		{"Dataplane", `{spec: {serviceAccount: A}}`, "spec.serviceAccount: " + badName},

		// Service
		{"Service", `{metadata: {name: web.1}}`, "metadata.name: Invalid value: must not contain dots"},
		{"Service", `{metadata: {name: -web}}`, "metadata.name: " + badLabel},
		{"Service", `{metadata: {annotations: {service.kubernetes.io/topology-mode: Auto, service.kubernetes.io/topology-aware-hints: auto}}}`,
			"metadata.annotations[service.kubernetes.io/topology-mode]: Invalid value: must match annotations[service.kubernetes.io/topology-aware-hints] when both are specified"},
		{"Service", `{spec: {ports: []}}`, "spec.ports: " + required},
		{"Service", `{spec: {type: Magic, internalTrafficPolicy: Cluster}}`,
			`spec.type: Unsupported value: supported values: "ClusterIP", "ExternalName", "LoadBalancer", "NodePort"`},
		{"Service", `{spec: {ports: [{port: 80}, {port: 81, name: b}]}}`, "spec.ports[0].name: " + required},
		{"Service", `{spec: {ports: [{port: 80, name: b}, {port: 81, name: b}]}}`, "spec.ports[1].name: Duplicate value: "},
		{"Service", `{spec: {ports: [{port: 80, name: a_b}]}}`, "spec.ports[0].name: " + badLabel},
		{"Service", `{spec: {ports: [{port: 80, name: a}, {port: 80, name: b}]}}`, "spec.ports[1]: Duplicate value: "},
		{"Service", `{spec: {ports: [{port: 0, targetPort: 1}]}}`, "spec.ports[0].port: " + badPort},
		{"Service", `{spec: {ports: [{port: 65536, targetPort: 1}]}}`, "spec.ports[0].port: " + badPort},
		{"Service", `{spec: {ports: [{port: 80, protocol: ICMP}]}}`, "spec.ports[0].protocol: " + protocols},
		{"Service", `{spec: {ports: [{port: 80, targetPort: 70000}]}}`, "spec.ports[0].targetPort: " + badPort},
		{"Service", `{spec: {ports: [{port: 80, targetPort: "8080"}]}}`,
			"spec.ports[0].targetPort: Invalid value: must contain at least one letter (a-z)"},
		{"Service", `{spec: {ports: [{port: 80, appProtocol: "a b"}]}}`, "spec.ports[0].appProtocol: Invalid value: name part must consist of…"},
		{"Service", `{spec: {ports: [{port: 80, nodePort: 30000}]}}`,
			"spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'"},
		{"Service", `{spec: {type: NodePort, ports: [{port: 80, nodePort: 80}]}}`,
			"spec.ports[0].nodePort: Invalid value: provided port is not in the valid range. The range of valid ports is 30000-32767"},
		{"Service", `{spec: {type: NodePort, ports: [{port: 80, name: a, nodePort: 30001}, {port: 81, name: b, nodePort: 30001}]}}`,
			"spec.ports[1].nodePort: Duplicate value: "},
		{"Service", `{spec: {selector: {a: "b c"}}}`, "spec.selector: Invalid value: a valid label must be…"},
		{"Service", `{spec: {sessionAffinity: Cookie}}`, `spec.sessionAffinity: Unsupported value: supported values: "ClientIP", "None"`},
		{"Service", `{spec: {sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 0}}}}`,
			"spec.sessionAffinityConfig.clientIP.timeoutSeconds: Invalid value: must be greater than 0 and less than 86400"},
		{"Service", `{spec: {sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 86401}}}}`,
			"spec.sessionAffinityConfig.clientIP.timeoutSeconds: Invalid value: must be greater than 0 and less than 86400"},
		{"Service", `{spec: {clusterIP: 10.0.0.300}}`,
			"spec.clusterIPs[0]: Invalid value: must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"},
		{"Service", `{spec: {clusterIP: 10.0.0.01}}`, "spec.clusterIPs[0]: Invalid value: must not have leading 0s"},
		{"Service", `{spec: {clusterIPs: [10.0.0.1]}}`, "spec.clusterIPs: Invalid value: must be empty when `clusterIP` is not specified"},
		{"Service", `{spec: {clusterIP: 10.0.0.1, clusterIPs: [10.0.0.2]}}`,
			"spec.clusterIPs: Invalid value: first value must match `clusterIP`"},
		{"Service", `{spec: {clusterIP: 10.0.0.1, clusterIPs: [10.0.0.1, 10.0.0.2]}}`,
			"spec.clusterIPs: Invalid value: may specify no more than one IP for each IP family"},
		{"Service", `{spec: {clusterIP: None, clusterIPs: [None, 10.0.0.2]}}`,
			"spec.clusterIPs: Invalid value: 'None' must be the first and only value"},
		{"Service", `{spec: {clusterIP: 10.0.0.1, ipFamilies: [IPv6]}}`,
			"spec.clusterIPs[0]: Invalid value: expected an IPv6 value as indicated by `ipFamilies[0]`"},
		{"Service", `{spec: {ipFamilies: [IPX]}}`, `spec.ipFamilies[0]: Unsupported value: supported values: "IPv4", "IPv6"`},
		{"Service", `{spec: {ipFamilies: [IPv4, IPv4]}}`, "spec.ipFamilies[1]: Duplicate value: "},
		{"Service", `{spec: {ipFamilyPolicy: Any}}`,
			`spec.ipFamilyPolicy: Unsupported value: supported values: "PreferDualStack", "RequireDualStack", "SingleStack"`},
		{"Service", `{spec: {type: LoadBalancer, clusterIP: None}}`,
			"spec.clusterIPs[0]: Invalid value: may not be set to 'None' for LoadBalancer services"},
		{"Service", `{spec: {type: NodePort, clusterIP: None}}`,
			"spec.clusterIPs[0]: Invalid value: may not be set to 'None' for NodePort services"},
		{"Service", `{spec: {type: ExternalName}}`, "spec.externalName: " + required},
		{"Service", `{spec: {type: ExternalName, externalName: "a_b"}}`, "spec.externalName: " + badName},
		{"Service", `{spec: {type: ExternalName, externalName: example.com., clusterIP: 10.0.0.1}}`,
			"spec.clusterIPs: Forbidden: may not be set for ExternalName services"},
		{"Service", `{spec: {type: ExternalName, externalName: example.com, ipFamilies: [IPv4]}}`,
			"spec.ipFamilies: Forbidden: may not be set for ExternalName services"},
		{"Service", `{spec: {type: ExternalName, externalName: example.com, ipFamilyPolicy: SingleStack}}`,
			"spec.ipFamilyPolicy: Forbidden: may not be set for ExternalName services"},
		{"Service", `{spec: {externalIPs: [example.com]}}`,
			"spec.externalIPs[0]: Invalid value: must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"},
		{"Service", `{spec: {externalIPs: [127.0.0.1]}}`, "spec.externalIPs[0]: " + loops},
		{"Service", `{spec: {externalIPs: [0.0.0.0]}}`, "spec.externalIPs[0]: Invalid value: may not be unspecified (0.0.0.0 or ::)"},
		{"Service", `{spec: {externalTrafficPolicy: Local}}`,
			"spec.externalTrafficPolicy: Invalid value: may only be set for externally-accessible services"},
		{"Service", `{spec: {type: NodePort, externalTrafficPolicy: Near}}`,
			`spec.externalTrafficPolicy: Unsupported value: supported values: "Cluster", "Local"`},
		{"Service", `{spec: {internalTrafficPolicy: Near}}`,
			`spec.internalTrafficPolicy: Unsupported value: supported values: "Cluster", "Local"`},
		{"Service", `{spec: {healthCheckNodePort: 30001}}`,
			"spec.healthCheckNodePort: Invalid value: may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"},
		{"Service", `{spec: {type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: 70000}}`,
			"spec.healthCheckNodePort: " + badPort},
		{"Service", `{spec: {trafficDistribution: Near}}`,
			`spec.trafficDistribution: Unsupported value: supported values: "PreferClose", "PreferSameNode", "PreferSameZone"`},
		{"Service", `{spec: {loadBalancerSourceRanges: [10.0.0.0/8]}}`, "spec.LoadBalancerSourceRanges: " + onlyLB},
		{"Service", `{spec: {type: LoadBalancer, loadBalancerSourceRanges: [10.0.0.0]}}`,
			"spec.LoadBalancerSourceRanges[0]: Invalid value: must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"},
		{"Service", `{spec: {type: LoadBalancer, loadBalancerSourceRanges: [10.0.0.1/8]}}`,
			"spec.LoadBalancerSourceRanges[0]: Invalid value: must not have bits set beyond the prefix length"},
		{"Service", `{metadata: {annotations: {service.beta.kubernetes.io/load-balancer-source-ranges: "10.0.0.0/8, x"}}, spec: {type: LoadBalancer}}`,
			"metadata.annotations[service.beta.kubernetes.io/load-balancer-source-ranges]: Invalid value: must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"},
		{"Service", `{spec: {allocateLoadBalancerNodePorts: false}}`, "spec.allocateLoadBalancerNodePorts: " + onlyLB},
		{"Service", `{spec: {loadBalancerClass: a/b}}`, "spec.loadBalancerClass: " + onlyLB},
		{"Service", `{spec: {type: LoadBalancer, loadBalancerClass: "a b"}}`,
			"spec.loadBalancerClass: Invalid value: name part must consist of…"},

		// Endpoints
		{"Endpoints", `{subsets: [{ports: [{port: 1}]}]}`, "subsets[0]: Required value: must specify `addresses` or `notReadyAddresses`"},
		{"Endpoints", `{subsets: [{addresses: [{ip: x}]}]}`,
			"subsets[0].addresses[0].ip: Invalid value: must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"},
		{"Endpoints", `{subsets: [{notReadyAddresses: [{ip: 169.254.1.1}]}]}`,
			"subsets[0].notReadyAddresses[0].ip: Invalid value: may not be in the link-local range (169.254.0.0/16, fe80::/10)"},
		{"Endpoints", `{subsets: [{addresses: [{ip: 127.0.0.1}]}]}`, "subsets[0].addresses[0].ip: " + loops},
		{"Endpoints", `{subsets: [{addresses: [{ip: 10.1.0.1, hostname: A}]}]}`, "subsets[0].addresses[0].hostname: " + badLabel},
		{"Endpoints", `{subsets: [{addresses: [{ip: 10.1.0.1}], ports: [{port: 1}, {port: 2, name: b}]}]}`,
			"subsets[0].ports[0].name: " + required},
		{"Endpoints", `{subsets: [{addresses: [{ip: 10.1.0.1}], ports: [{port: 0}]}]}`, "subsets[0].ports[0].port: " + badPort},
		{"Endpoints", `{subsets: [{addresses: [{ip: 10.1.0.1}], ports: [{port: 1, protocol: X}]}]}`,
			"subsets[0].ports[0].protocol: " + protocols},

		// EndpointSlice
		{"EndpointSlice", `{addressType: ""}`, "addressType: " + required},
		{"EndpointSlice", `{addressType: MAC}`, `addressType: Unsupported value: supported values: "FQDN", "IPv4", "IPv6"`},
		{"EndpointSlice", `{endpoints: [{addresses: []}]}`, "endpoints[0].addresses: Required value: must contain at least 1 address"},
		{"EndpointSlice", `{endpoints: [{addresses: ["2001:db8::1"]}]}`, "endpoints[0].addresses[0]: Invalid value: must be an IPv4 address"},
		{"EndpointSlice", `{addressType: IPv6}`, "endpoints[0].addresses[0]: Invalid value: must be an IPv6 address"},
		{"EndpointSlice", `{endpoints: [{addresses: [10.1.0.256]}]}`,
			"endpoints[0].addresses[0]: Invalid value: must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"},
		{"EndpointSlice", `{endpoints: [{addresses: [127.0.0.1]}]}`, "endpoints[0].addresses[0]: " + loops},
		{"EndpointSlice", `{endpoints: [{addresses: [127.0.0.1], targetRef: {kind: Pod}}]}`, "endpoints[0].addresses[0]: " + loops},
		{"EndpointSlice", `{endpoints: [{addresses: [224.0.0.1]}]}`,
			"endpoints[0].addresses[0]: Invalid value: may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"},
		{"EndpointSlice", `{addressType: FQDN, endpoints: [{addresses: [host]}]}`,
			"endpoints[0].addresses[0]: Invalid value: should be a domain with at least two segments separated by dots"},
		{"EndpointSlice", `{endpoints: [{addresses: [10.1.0.1], hostname: A}]}`, "endpoints[0].hostname: " + badLabel},
		{"EndpointSlice", `{endpoints: [{addresses: [10.1.0.1], nodeName: A}]}`, "endpoints[0].nodeName: " + badName},
		{"EndpointSlice", `{endpoints: [{addresses: [10.1.0.1], hints: {forZones: [{name: a}, {name: a}]}}]}`,
			"endpoints[0].hints.forZones[1].name: Duplicate value: "},
		{"EndpointSlice", `{endpoints: [{addresses: [10.1.0.1], hints: {forZones: [{name: a b}]}}]}`,
			"endpoints[0].hints.forZones[0].name: Invalid value: a valid label must be…"},
		{"EndpointSlice", `{endpoints: [{addresses: [10.1.0.1], hints: {forZones: [` + names(9) + `]}}]}`,
			"endpoints[0].hints.forZones: Too many: must have at most 8 items"},
		{"EndpointSlice", `{endpoints: [{addresses: [10.1.0.1], hints: {forNodes: [` + names(9) + `]}}]}`,
			"endpoints[0].hints.forNodes: Too many: must have at most 8 items"},
		{"EndpointSlice", `{ports: [{port: 1}, {port: 2}]}`, "ports[1].name: Duplicate value: "},
		{"EndpointSlice", `{ports: [{port: 1, name: A}]}`, "ports[0].name: " + badLabel},
		{"EndpointSlice", `{ports: [{port: 1, protocol: X}]}`, "ports[0].protocol: " + protocols},
		{"EndpointSlice", `{ports: [{port: 1, appProtocol: "a b"}]}`, "ports[0].appProtocol: Invalid value: name part must consist of…"},

		// Node
		{"Node", `{metadata: {name: Node}}`, "metadata.name: " + badName},
		{"Node", `{spec: {podCIDR: x}}`, "spec.podCIDRs[0]: Invalid value: must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"},
		{"Node", `{spec: {podCIDR: 10.0.0.0/24, podCIDRs: [10.0.0.0/24, 10.0.1.0/24]}}`,
			"spec.podCIDRs: Invalid value: may specify no more than one CIDR for each IP family"},
		{"Node", `{spec: {taints: [{key: a}]}}`, "spec.taints[0].effect: " + required},
		{"Node", `{spec: {taints: [{key: a, effect: Maybe}]}}`,
			`spec.taints[0].effect: Unsupported value: supported values: "NoSchedule", "PreferNoSchedule", "NoExecute"`},
		{"Node", `{spec: {taints: [{key: "a b", effect: NoExecute}]}}`, "spec.taints[0].key: Invalid value: name part must consist of…"},
		{"Node", `{spec: {taints: [{key: a, effect: NoExecute}, {key: a, effect: NoExecute, value: b}]}}`,
			"spec.taints[1]: Duplicate value: taints must be unique by key and effect pair"},
		{"Node", `{status: {capacity: {cpu: "-1"}}}`, "status.capacity[cpu]: " + negative},
		{"Node", `{status: {addresses: [{type: InternalIP, address: a}, {type: InternalIP, address: a}]}}`,
			"status.addresses[1]: Duplicate value: "},

		// Pod
		{"Pod", `{spec: {containers: []}}`, "spec.containers: " + required},
		{"Pod", `{spec: {containers: [{name: a}]}}`, "spec.containers[0].image: " + required},
		{"Pod", `{spec: {containers: [{image: a}]}}`, "spec.containers[0].name: " + required},
		{"Pod", `{spec: {containers: [{name: a, image: " a"}]}}`,
			"spec.containers[0].image: Invalid value: must not have leading or trailing whitespace"},
		{"Pod", `{spec: {containers: [{name: A, image: a}]}}`, "spec.containers[0].name: " + badLabel},
		{"Pod", `{spec: {containers: [{name: a, image: a}, {name: a, image: a}]}}`, "spec.containers[1].name: Duplicate value: "},
		{"Pod", `{spec: {initContainers: [{name: web, image: a}]}}`, "spec.initContainers[0].name: Duplicate value: "},
		{"Pod", `{spec: {restartPolicy: Sometimes}}`, `spec.restartPolicy: Unsupported value: supported values: "Always", "OnFailure", "Never"`},
		{"Pod", `{spec: {dnsPolicy: Mine}}`,
			`spec.dnsPolicy: Unsupported value: supported values: "ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"`},
		{"Pod", `{spec: {hostname: A}}`, "spec.hostname: " + badLabel},
		{"Pod", `{spec: {terminationGracePeriodSeconds: -1}}`, "spec.terminationGracePeriodSeconds: " + negative},
		{"Pod", `{spec: {activeDeadlineSeconds: 0}}`, "spec.activeDeadlineSeconds: Invalid value: must be between 1 and 2147483647, inclusive"},
		{"Pod", `{spec: {volumes: [{name: a}, {name: a}]}}`, "spec.volumes[1].name: Duplicate value: "},
		{"Pod", `{spec: {containers: [{name: a, image: a, ports: [{containerPort: 0}]}]}}`,
			"spec.containers[0].ports[0].containerPort: " + required},
		{"Pod", `{spec: {containers: [{name: a, image: a, ports: [{containerPort: 70000}]}]}}`,
			"spec.containers[0].ports[0].containerPort: " + badPort},
		{"Pod", `{spec: {containers: [{name: a, image: a, ports: [{containerPort: 1, name: a_b}]}]}}`,
			"spec.containers[0].ports[0].name: Invalid value: must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)…"},
		{"Pod", `{spec: {containers: [{name: a, image: a, ports: [{containerPort: 1, protocol: X}]}]}}`,
			"spec.containers[0].ports[0].protocol: " + protocols},
		{"Pod", `{spec: {hostNetwork: true, containers: [{name: a, image: a, ports: [{containerPort: 1, hostPort: 2}]}]}}`,
			"spec.containers[0].ports[0].containerPort: Invalid value: must match `hostPort` when `hostNetwork` is true"},
		{"Pod", `{spec: {containers: [{name: a, image: a, readinessProbe: {}}]}}`,
			"spec.containers[0].readinessProbe: Required value: must specify a handler type"},
		{"Pod", `{spec: {containers: [{name: a, image: a, readinessProbe: {tcpSocket: {port: 1}, grpc: {port: 1}}}]}}`,
			"spec.containers[0].readinessProbe.grpc: Forbidden: may not specify more than 1 handler type"},
		{"Pod", `{spec: {containers: [{name: a, image: a, livenessProbe: {successThreshold: 2, tcpSocket: {port: 1}}}]}}`,
			"spec.containers[0].livenessProbe.successThreshold: Invalid value: must be 1"},
		{"Pod", `{spec: {containers: [{name: a, image: a, imagePullPolicy: Lazy}]}}`,
			`spec.containers[0].imagePullPolicy: Unsupported value: supported values: "Always", "IfNotPresent", "Never"`},

		// ConfigMap, Secret
		{"ConfigMap", `{data: {a b: c}}`, "data[a b]: " + badKey},
		{"ConfigMap", `{data: {..: c}}`, `data[..]: Invalid value: must not be '..'`},
		{"ConfigMap", `{binaryData: {a: Yg==}}`, "data[a]: Invalid value: duplicate of key present in binaryData"},
		{"ConfigMap", `{data: {a: ` + strings.Repeat("x", corev1.MaxSecretSize+1) + `}}`, "[]: Too long: may not be more than 1048576 bytes"},
		{"Secret", `{stringData: {a b: c}}`, "data[a b]: " + badKey},
		{"Secret", `{type: kubernetes.io/tls, stringData: {tls.crt: x}}`, "data[tls.key]: " + required},
		{"Secret", `{type: kubernetes.io/ssh-auth}`, "data[ssh-privatekey]: " + required},
		{"Secret", `{type: kubernetes.io/dockerconfigjson}`, "data[.dockerconfigjson]: " + required},
		{"Secret", `{type: kubernetes.io/dockercfg, stringData: {.dockercfg: "{"}}`,
			"data[.dockercfg]: Invalid value: unexpected end of JSON input"},
		{"Secret", `{type: kubernetes.io/service-account-token}`, "metadata.annotations[kubernetes.io/service-account.name]: " + required},

		// Events
		{"Event", `{involvedObject: {namespace: other}}`, "involvedObject.namespace: Invalid value: does not match event.namespace"},
		{"Event", `{eventTime: "2026-01-02T03:04:05.000000Z", reportingComponent: a.b/c, reportingInstance: x}`, "action: " + required},
		{"EventsV1Event", `{eventTime: null, series: null}`, "eventTime: " + required},
		{"EventsV1Event", `{reportingController: "a b"}`, "reportingController: Invalid value: name part must consist of…"},
		{"EventsV1Event", `{reportingInstance: ""}`, "reportingInstance: " + required},
		{"EventsV1Event", `{action: ` + strings.Repeat("a", 129) + `}`, "action: Invalid value: can have at most 128 characters"},
		{"EventsV1Event", `{note: ` + strings.Repeat("a", 1025) + `}`, "message: Invalid value: can have at most 1024 characters"},
		{"EventsV1Event", `{type: Odd}`, "type: Invalid value: has invalid value: Odd"},
		{"EventsV1Event", `{deprecatedCount: 3}`, "count: Invalid value: needs to be unset"},
		{"EventsV1Event", `{deprecatedSource: {component: x}}`, "source: Invalid value: needs to be unset"},
		{"EventsV1Event", `{series: {count: 1, lastObservedTime: "2026-01-02T03:04:05.000000Z"}}`,
			"series.count: Invalid value: should be at least 2"},

		// Lease, IPAddress, ServiceCIDR
		{"Lease", `{spec: {leaseDurationSeconds: 0}}`, "spec.leaseDurationSeconds: Invalid value: must be greater than 0"},
		{"Lease", `{spec: {leaseTransitions: -1}}`, "spec.leaseTransitions: " + negative},
		{"IPAddress", `{metadata: {name: web}}`, "metadata.name: Invalid value: must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"},
		{"IPAddress", `{metadata: {name: "2001:DB8::1"}}`, `metadata.name: Invalid value: must be in canonical form ("2001:db8::1")`},
		{"IPAddress", `{spec: {parentRef: null}}`, "spec.parentRef: " + required},
		{"IPAddress", `{spec: {parentRef: {resource: ""}}}`, "spec.parentRef.resource: " + required},
		{"IPAddress", `{spec: {parentRef: {name: ""}}}`, "spec.parentRef.name: " + required},
		{"IPAddress", `{spec: {parentRef: {namespace: a/b}}}`, `spec.parentRef.namespace: Invalid value: may not contain '/'`},
		{"IPAddress", `{spec: {parentRef: {group: A}}}`, "spec.parentRef.group: " + badName},
		{"ServiceCIDR", `{spec: {cidrs: []}}`, "spec.cidrs: Required value: at least one CIDR required"},
		{"ServiceCIDR", `{spec: {cidrs: [10.0.0.0/8, "fd00::/64", 11.0.0.0/8]}}`, "spec.cidrs: Invalid value: may only hold up to 2 values"},
		{"ServiceCIDR", `{spec: {cidrs: [10.0.0.0/8, 11.0.0.0/8]}}`,
			"spec.cidrs: Invalid value: may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64"},
		{"ServiceCIDR", `{spec: {cidrs: [10.0.0.1/8]}}`, "spec.cidrs[0]: Invalid value: must not have bits set beyond the prefix length"},
		{"ServiceCIDR", `{spec: {cidrs: ["FD00::/64"]}}`, `spec.cidrs[0]: Invalid value: must be in canonical form ("fd00::/64")`},

		// Dataplane
		{"Dataplane", `{spec: {addresses: []}}`, "spec.addresses: Required value: must contain at least 1 address"},
		{"Dataplane", `{spec: {addresses: [192.0.2.1, 192.0.2.2]}}`,
			"spec.addresses: Invalid value: may specify no more than one IP for each IP family"},
		{"Dataplane", `{spec: {addresses: [192.0.2.1, "2001:db8::1", 192.0.2.2]}}`, "spec.addresses: Too many: must have at most 2 items"},
		{"Dataplane", `{spec: {weight: 1001}}`,
			"spec.weight: Invalid value: must be between 0 (no new connections) and 1000; 100 is the weight of a workload that names none"},
		{"Dataplane", `{spec: {weight: -1}}`,
			"spec.weight: Invalid value: must be between 0 (no new connections) and 1000; 100 is the weight of a workload that names none"},
		{"Dataplane", `{spec: {hostname: a.b}}`, "spec.hostname: Invalid value: must not contain dots"},
		{"Dataplane", `{spec: {subdomain: A}}`, "spec.subdomain: " + badLabel},
		{"Dataplane", `{spec: {addresses: [0.0.0.0]}}`, "spec.addresses[0]: Invalid value: may not be unspecified (0.0.0.0 or ::)"},
		{"Dataplane", `{spec: {addresses: [239.1.1.1]}}`,
			"spec.addresses[0]: Invalid value: may not be in the multicast range (224.0.0.0/4, ff00::/8)"},
		{"Dataplane", `{spec: {addresses: ["fe80::1"]}}`,
			"spec.addresses[0]: Invalid value: may not be in the link-local range (169.254.0.0/16, fe80::/10)"},
		{"Dataplane", `{spec: {addresses: [255.255.255.255]}}`,
			"spec.addresses[0]: Invalid value: may not be the broadcast address (255.255.255.255)"},
		{"Dataplane", `{spec: {addresses: [web.example.com]}}`,
			"spec.addresses[0]: Invalid value: must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"},
		{"Dataplane", `{spec: {addresses: ["2001:DB8::1"]}}`, `spec.addresses[0]: Invalid value: must be in canonical form ("2001:db8::1")`},
		{"Dataplane", `{spec: {mesh: A}}`, "spec.mesh: " + badLabel},
		{"Dataplane", `{spec: {nodeName: A}}`, "spec.nodeName: " + badName},
		{"Dataplane", `{spec: {drainSeconds: -1}}`, "spec.drainSeconds: " + negative},
		{"Dataplane", `{spec: {ports: [{name: http, port: 0}]}}`, "spec.ports[0].port: " + badPort},
		{"Dataplane", `{spec: {ports: [{name: http, port: 1, protocol: X}]}}`, "spec.ports[0].protocol: " + protocols},
		{"Dataplane", `{spec: {ports: [{name: http, port: 1}, {name: http, port: 2}]}}`, "spec.ports[1].name: Duplicate value: "},
		{"Dataplane", `{spec: {ports: [{name: http, port: 1}, {name: b, port: 1}]}}`, "spec.ports[1]: Duplicate value: "},
		{"Dataplane", `{spec: {ports: [{name: http, port: 1}, {name: "1", port: 2}]}}`,
			"spec.ports[1].name: Invalid value: must contain at least one letter (a-z)"},
		{"Dataplane", `{spec: {readiness: {httpGet: null}}}`, "spec.readiness: Required value: must specify a handler type"},
		{"Dataplane", `{spec: {readiness: {tcpSocket: {port: 1}}}}`, "spec.readiness: Forbidden: may not specify more than 1 handler type"},
		{"Dataplane", `{spec: {readiness: {httpGet: {port: other}}}}`, "spec.readiness.httpGet.port: Not found: "},
		{"Dataplane", `{spec: {readiness: {httpGet: {scheme: FTP}}}}`,
			`spec.readiness.httpGet.scheme: Unsupported value: supported values: "HTTP", "HTTPS"`},
		{"Dataplane", `{spec: {readiness: {httpGet: null, grpc: {port: 0}}}}`, "spec.readiness.grpc.port: " + badPort},
		{"Dataplane", `{spec: {readiness: {httpGet: null, exec: {command: []}}}}`, "spec.readiness.exec.command: " + required},
		{"Dataplane", `{spec: {readiness: {periodSeconds: -1}}}`, "spec.readiness.periodSeconds: " + negative},

		// TrafficPlan
		{"TrafficPlan", `{spec: {service: ""}}`, "spec.service: Required value: must name the Service"},
		{"TrafficPlan", `{spec: {version: 0}}`, "spec.version: Invalid value: must be at least 1"},
		{"TrafficPlan", `{spec: {groups: [{addressType: IPv4, ports: [], outcome: Planned, published: null}]}}`,
			"spec.groups[0].ports: Required value: must name at least one port"},
		{"TrafficPlan", `{spec: {groups: [{ports: [a], zones: [{name: a, demand: 2}]}]}}`,
			"spec.groups[0].zones[0].demand: Invalid value: must be from 0 to 1"},
		{"TrafficPlan", `{spec: {groups: [{ports: [a], zones: [{name: a, to: [{zone: a, share: 0}]}]}]}}`,
			"spec.groups[0].zones[0].to[0].share: Invalid value: must be above 0 and at most 1"},
		{"TrafficPlan", `{spec: {groups: [{ports: [a], zones: [{name: b}, {name: a}]}]}}`,
			"spec.groups[0].zones[1].name: Invalid value: must come after the name before it"},
		{"TrafficPlan", `{spec: {groups: [{ports: [a], zones: [{name: a}], endpoints: [{address: 10.0.0.1, weights: []}]}]}}`,
			"spec.groups[0].endpoints[0].weights: Invalid value: must be one for each zone"},
		// ZoneCosts
		{"ZoneCosts", `{spec: {region: -1}}`, "spec.region: Invalid value: must be from 0 to 1000000000"},
		{"ZoneCosts", `{spec: {region: 20}}`, "spec.region: Invalid value: must not be above the cost of `world`"},
		{"ZoneCosts", `{spec: {site: -1}}`, "spec.site: Invalid value: must be from 0 to 1000000000"},
		{"ZoneCosts", `{spec: {world: 20, site: 10}}`, "spec.world: Invalid value: must not be above the cost of `site`"},
		{"ZoneCosts", `{spec: {world: 2e9}}`, "spec.world: Invalid value: must be from 0 to 1000000000"},
		{"ZoneCosts", `{spec: {price: {region: 1}}}`, "spec.price.currency: Invalid value: must be an ISO 4217 code such as EUR"},
		{"ZoneCosts", `{spec: {price: {currency: usd}}}`, "spec.price.currency: Invalid value: must be an ISO 4217 code such as EUR"},
		{"ZoneCosts", `{spec: {price: {currency: USD, world: -1}}}`, "spec.price.world: Invalid value: must be from 0 to 1000000"},
		{"ZoneCosts", `{spec: {price: {currency: USD, site: 2e6}}}`, "spec.price.site: Invalid value: must be from 0 to 1000000"},
		{"ZoneCosts", `{spec: {pairs: [{from: a, to: b, cost: 1, price: 1}]}}`, "spec.pairs[0].price: Forbidden: needs a currency in `spec.price`"},
		{"ZoneCosts", `{spec: {pairs: [{from: a, to: b, cost: -1}]}}`, "spec.pairs[0].cost: Invalid value: must be from 0 to 1000000000"},
		{"ZoneCosts", `{spec: {pairs: [{to: b, cost: 1}]}}`, "spec.pairs[0].from: Required value: must name a zone"},
		{"ZoneCosts", `{spec: {pairs: [{from: a, to: b, cost: 1}, {from: b, to: a, cost: 1}]}}`, "spec.pairs[1]: Duplicate value: "},

		// TopologyHeuristic
		{"TopologyHeuristic", `{metadata: {name: A}}`, "metadata.name: " + badName},
		{"TopologyHeuristic", `{spec: {zones: "", weight: ""}}`, "spec.zones: Invalid value: is needed"},
		{"TopologyHeuristic", `{spec: {zones: endpoint.zone}}`, "spec.zones: Invalid value: is of type string, not list(string)"},
		{"TopologyHeuristic", `{spec: {variables: [{name: busy, expression: zone}]}}`,
			"spec.variables[0].expression: Invalid value: line 1, column 1: undeclared reference to 'zone' (in container '')"},
		{"TopologyHeuristic", `{spec: {weight: zone.name}}`, "spec.weight: Invalid value: is of type string, not double or int or uint"},
		{"TopologyHeuristic", `{spec: {weight: "endpoints.exists(e, endpoints.exists(f, f.node == e.node)) ? 1 : 2"}}`,
			"spec.weight: Invalid value: could cost …"},
		{"TopologyHeuristic", `{spec: {variables: [{name: in, expression: "1"}]}}`,
			`spec.variables[0].name: Invalid value: "in" has a meaning already`},
		{"TopologyHeuristic", `{spec: {fallback: Some}}`, `spec.fallback: Invalid value: "Some": use All, Fail or None`},

		// Mesh
		{"Mesh", `{metadata: {name: Blue}}`, "metadata.name: " + badLabel},
		{"Mesh", `{metadata: {name: a.b}}`, "metadata.name: Invalid value: must not contain dots"},
		{"Mesh", `{metadata: {namespace: x}}`, "metadata.namespace: Forbidden: not allowed on this type"},
		{"Mesh", `{spec: {mtls: {enabledBackend: other}}}`, "spec.mtls.enabledBackend: Not found: "},
		{"Mesh", `{spec: {mtls: {backends: [{name: own}, {name: own}]}}}`, "spec.mtls.backends[1].name: Duplicate value: "},
		{"Mesh", `{spec: {mtls: {backends: [{name: own}, {}]}}}`, "spec.mtls.backends[1].name: " + required},
		{"Mesh", `{spec: {mtls: {backends: [{name: own}, {name: A}]}}}`, "spec.mtls.backends[1].name: " + badLabel},
		{"Mesh", `{spec: {mtls: {backends: [{name: own, type: Vault}]}}}`,
			`spec.mtls.backends[0].type: Unsupported value: supported values: "Builtin", "External", "Provided"`},
		{"Mesh", `{spec: {mtls: {trustDomain: Blue}}}`,
			"spec.mtls.trustDomain: " + strings.Replace(badName, "Invalid value: ", `Invalid value: trust domain "Blue": `, 1)},
		{"Mesh", `{spec: {mtls: {trustDomain: 10.0.0.1}}}`,
			`spec.mtls.trustDomain: Invalid value: trust domain "10.0.0.1" is an IP address: use a DNS name`},
		{"Mesh", `{spec: {mtls: {backends: [{name: own, type: External}]}}}`,
			"spec.mtls.backends[0].external: Required value: must be set when `type` is 'External'"},
		{"Mesh", `{spec: {mtls: {backends: [{name: own, external: {signerName: a.b/c, roots: {inline: YQ==}}}]}}}`,
			"spec.mtls.backends[0].external: Forbidden: may only be set when `type` is 'External'"},
		{"Mesh", `{spec: {mtls: {backends: [{name: own, type: External, external: {signerName: mesh, roots: {inline: YQ==}}}]}}}`,
			"spec.mtls.backends[0].external.signerName: Invalid value: must be DOMAIN/NAME, as in 'example.com/mesh'"},
		{"Mesh", `{spec: {mtls: {backends: [{name: own, type: External, external: {signerName: kubernetes.io/kubelet-serving, roots: {inline: YQ==}}}]}}}`,
			"spec.mtls.backends[0].external.signerName: Invalid value: the signers of kubernetes.io sign for Kubernetes itself"},
		{"Mesh", `{spec: {mtls: {backends: [{name: own, type: External, external: {signerName: a.b/c, roots: {}}}]}}}`,
			"spec.mtls.backends[0].external.roots: Required value: must specify one of `inline` and `secretRef`"},
		{"Mesh", `{spec: {mtls: {backends: [{name: own, type: Provided, provided: {files: {certificate: /a, key: b}}}]}}}`,
			"spec.mtls.backends[0].provided.files.key: Invalid value: must be an absolute path"},
		{"Mesh", `{spec: {mtls: {backends: [{name: own, type: Provided, provided: {files: {certificate: /a}}}]}}}`,
			"spec.mtls.backends[0].provided.files.key: " + required},
		{"Mesh", `{spec: {mtls: {backends: [{name: own, type: Provided, provided: {key: {secretRef: {name: a}}, files: {certificate: /a, key: /b}}}]}}}`,
			"spec.mtls.backends[0].provided.files: Forbidden: may not be set together with `certificate`, `key` or `roots`"},
		{"Mesh", `{spec: {mtls: {backends: [{name: own, mode: Lax}]}}}`,
			`spec.mtls.backends[0].mode: Unsupported value: supported values: "Permissive", "Strict"`},
		{"Mesh", `{spec: {mtls: {backends: [{name: own, type: Provided}]}}}`,
			"spec.mtls.backends[0].provided: Required value: must be set when `type` is 'Provided'"},
		{"Mesh", `{spec: {mtls: {backends: [{name: own, provided: {certificate: {inline: YQ==}, key: {secretRef: {name: a}}}}]}}}`,
			"spec.mtls.backends[0].provided: Forbidden: may only be set when `type` is 'Provided'"},
		{"Mesh", `{spec: {mtls: {backends: [{name: own, type: Provided, provided: {certificate: {}, key: {secretRef: {name: a}}}}]}}}`,
			"spec.mtls.backends[0].provided.certificate: Required value: must specify one of `inline` and `secretRef`"},
		{"Mesh", `{spec: {mtls: {backends: [{name: own, type: Provided, provided: {certificate: {inline: YQ==, secretRef: {name: a}}, key: {secretRef: {name: a}}}}]}}}`,
			"spec.mtls.backends[0].provided.certificate: Forbidden: may not specify more than one of `inline` and `secretRef`"},
		{"Mesh", `{spec: {mtls: {backends: [{name: own, type: Provided, provided: {certificate: {inline: YQ==}, key: {inline: YQ==}}}]}}}`,
			"spec.mtls.backends[0].provided.key.inline: Forbidden: a key is not for everybody to read: put it into a secret and name it in `secretRef`"},
		{"Mesh", `{spec: {mtls: {backends: [{name: own, type: Provided, provided: {certificate: {inline: YQ==}, key: {}}}]}}}`,
			"spec.mtls.backends[0].provided.key.secretRef: " + required},
		{"Mesh", `{spec: {mtls: {backends: [{name: own, type: Provided, provided: {certificate: {inline: YQ==}, key: {secretRef: {}}}}]}}}`,
			"spec.mtls.backends[0].provided.key.secretRef.name: " + required},
		{"Mesh", `{spec: {mtls: {backends: [{name: own, type: Provided, provided: {certificate: {inline: YQ==}, key: {secretRef: {name: A}}}}]}}}`,
			"spec.mtls.backends[0].provided.key.secretRef.name: " + badName},
		{"Mesh", `{spec: {mtls: {backends: [{name: own, type: Provided, provided: {certificate: {inline: YQ==}, key: {secretRef: {name: a, key: a b}}}}]}}}`,
			"spec.mtls.backends[0].provided.key.secretRef.key: " + badKey},
		{"Mesh", `{spec: {mtls: {backends: [{name: own, type: Provided, provided: {certificate: {inline: YQ==}, key: {secretRef: {name: a, kind: ConfigMap}}}}]}}}`,
			`spec.mtls.backends[0].provided.key.secretRef.kind: Unsupported value: supported values: "GlobalSecret", "Secret"`},
		{"Mesh", `{spec: {mtls: {backends: [{name: own, type: Provided, provided: {certificate: {inline: YQ==}, key: {secretRef: {name: a, kind: Secret}}}}]}}}`,
			"spec.mtls.backends[0].provided.key.secretRef.kind: Invalid value: must be 'GlobalSecret': this object is in no namespace"},
		{"Mesh", `{spec: {mtls: {backends: [{name: own, workloadCertificate: {validitySeconds: 59}}]}}}`,
			"spec.mtls.backends[0].workloadCertificate.validitySeconds: Invalid value: must be between 60 and 31536000, inclusive"},
		{"Mesh", `{spec: {mtls: {backends: [{name: own, workloadCertificate: {validitySeconds: 31536001}}]}}}`,
			"spec.mtls.backends[0].workloadCertificate.validitySeconds: Invalid value: must be between 60 and 31536000, inclusive"},

		// ExternalService
		{"ExternalService", `{metadata: {namespace: ""}}`, "metadata.namespace: " + required},
		{"ExternalService", `{metadata: {name: 1a}}`, "metadata.name: Invalid value: a DNS-1035 label must consist of…"},
		{"ExternalService", `{spec: {mesh: A}}`, "spec.mesh: " + badLabel},
		{"ExternalService", `{spec: {hosts: [], addresses: []}}`, "spec.hosts: Required value: must specify `hosts`, `addresses` or both"},
		{"ExternalService", `{spec: {hosts: ["*.example.com"]}}`, "spec.hosts[0]: " + badName},
		{"ExternalService", `{spec: {hosts: [a.example.com, a.example.com]}}`, "spec.hosts[1]: Duplicate value: "},
		{"ExternalService", `{spec: {ports: []}}`, "spec.ports: Required value: must contain at least 1 port"},
		{"ExternalService", `{spec: {ports: [{port: 0}]}}`, "spec.ports[0].port: " + badPort},
		{"ExternalService", `{spec: {ports: [{port: 1, targetPort: 65536}]}}`, "spec.ports[0].targetPort: " + badPort},
		{"ExternalService", `{spec: {ports: [{port: 1, protocol: SCTP}]}}`,
			`spec.ports[0].protocol: Unsupported value: supported values: "TCP", "UDP"`},
		{"ExternalService", `{spec: {ports: [{port: 1, name: a}, {port: 2}]}}`, "spec.ports[1].name: " + required},
		{"ExternalService", `{spec: {ports: [{port: 1, name: a}, {port: 2, name: a}]}}`, "spec.ports[1].name: Duplicate value: "},
		{"ExternalService", `{spec: {ports: [{port: 1, name: A}]}}`, "spec.ports[0].name: " + badLabel},
		{"ExternalService", `{spec: {ports: [{port: 1, name: a}, {port: 1, name: b, protocol: TCP}]}}`, "spec.ports[1]: Duplicate value: "},
		{"ExternalService", `{spec: {ports: [{port: 1, appProtocol: a b}]}}`,
			"spec.ports[0].appProtocol: Invalid value: name part must consist of…"},
		{"ExternalService", `{spec: {addresses: [{}]}}`, "spec.addresses[0].address: " + required},
		{"ExternalService", `{spec: {addresses: [{address: a_b}]}}`, "spec.addresses[0].address: " + badName},
		{"ExternalService", `{spec: {addresses: [{address: 10.1.0.256}]}}`,
			"spec.addresses[0].address: Invalid value: must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"},
		{"ExternalService", `{spec: {addresses: [{address: "2001:DB8::1"}]}}`,
			`spec.addresses[0].address: Invalid value: must be in canonical form ("2001:db8::1")`},
		{"ExternalService", `{spec: {addresses: [{address: 127.0.0.1}]}}`, "spec.addresses[0].address: " + loops},
		{"ExternalService", `{spec: {addresses: [{address: 239.1.1.1}]}}`,
			"spec.addresses[0].address: Invalid value: may not be in the multicast range (224.0.0.0/4, ff00::/8)"},
		{"ExternalService", `{spec: {addresses: [{address: 192.0.2.1, port: 0}]}}`, "spec.addresses[0].port: " + badPort},
		{"ExternalService", `{spec: {ports: [{port: 1, name: a}, {port: 2, name: b}], addresses: [{address: 192.0.2.1, port: 1}]}}`,
			"spec.addresses[0].port: Forbidden: may only be set where the service has one port"},
		{"ExternalService", `{spec: {addresses: [{address: 192.0.2.1, zone: A}]}}`, "spec.addresses[0].zone: " + badLabel},
		{"ExternalService", `{spec: {addresses: [{address: 192.0.2.1, weight: 0}]}}`, "spec.addresses[0].weight: " + badPort},
		{"ExternalService", `{spec: {zones: [a b]}}`, "spec.zones[0]: " + badLabel},
		{"ExternalService", `{spec: {zones: [a, a]}}`, "spec.zones[1]: Duplicate value: "},
		{"ExternalService", `{spec: {tls: {verification: None}}}`,
			`spec.tls.verification: Unsupported value: supported values: "Secured", "SkipAll", "SkipCA", "SkipSAN"`},
		{"ExternalService", `{spec: {tls: {serverName: a_b}}}`, "spec.tls.serverName: " + badName},
		{"ExternalService", `{spec: {hosts: [], tls: {serverName: null}}}`,
			"spec.tls.serverName: Required value: there are no hosts to take it from"},
		{"ExternalService", `{spec: {tls: {subjectAltNames: [{type: Regex, value: a}]}}}`,
			`spec.tls.subjectAltNames[0].type: Unsupported value: supported values: "Exact", "Prefix"`},
		{"ExternalService", `{spec: {tls: {subjectAltNames: [{type: Exact}]}}}`, "spec.tls.subjectAltNames[0].value: " + required},
		{"ExternalService", `{spec: {tls: {minVersion: "1.1"}}}`, `spec.tls.minVersion: Unsupported value: supported values: "1.2", "1.3"`},
		{"ExternalService", `{spec: {tls: {maxVersion: TLSv1.2}}}`, `spec.tls.maxVersion: Unsupported value: supported values: "1.2", "1.3"`},
		{"ExternalService", `{spec: {tls: {minVersion: "1.3", maxVersion: "1.2"}}}`,
			"spec.tls.maxVersion: Invalid value: must not be less than `minVersion`"},
		{"ExternalService", `{spec: {tls: {minVersion: "1.3", allowRenegotiation: true}}}`,
			"spec.tls.allowRenegotiation: Forbidden: there is no renegotiation in TLS 1.3"},
		{"ExternalService", `{spec: {tls: {caCertificates: {}}}}`,
			"spec.tls.caCertificates: Required value: must specify one of `inline` and `secretRef`"},
		{"ExternalService", `{spec: {tls: {clientKey: null}}}`,
			"spec.tls.clientKey: Required value: must be set together with `clientCertificate`"},
		{"ExternalService", `{spec: {tls: {clientCertificate: null}}}`,
			"spec.tls.clientCertificate: Required value: must be set together with `clientKey`"},
		{"ExternalService", `{spec: {tls: {clientKey: {inline: YQ==, secretRef: null}}}}`,
			"spec.tls.clientKey.inline: Forbidden: a key is not for everybody to read: put it into a secret and name it in `secretRef`"},

		// GlobalSecret
		{"GlobalSecret", `{metadata: {name: A}}`, "metadata.name: " + badName},
		{"GlobalSecret", `{metadata: {namespace: x}}`, "metadata.namespace: Forbidden: not allowed on this type"},
		{"GlobalSecret", `{stringData: {a b: c}}`, "data[a b]: " + badKey},
		{"GlobalSecret", `{stringData: {a: ` + strings.Repeat("x", corev1.MaxSecretSize+1) + `}}`,
			"data: Too long: may not be more than 1048576 bytes"},
	}
	all := descriptors()
	for _, tt := range tests {
		name := tt.want
		if len(name) > 80 {
			name = name[:80]
		}
		t.Run(tt.kind+"/"+name, func(t *testing.T) {
			d := all[tt.kind]
			wantOnly(t, d, create(t, d, overlay(t, base[tt.kind], tt.with)), nil, tt.want)
		})
	}
}

// names are n entries of a list of hints.
func names(n int) string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf("{name: n%d}", i)
	}
	return strings.Join(list, ", ")
}

func wantOnly(t *testing.T, d *resource.Descriptor, obj, old resource.Object, want string) {
	t.Helper()
	validate := d.Validate
	if strings.HasPrefix(want, "status.") && old != nil {
		validate = d.ValidateStatus
	}
	var got []string
	for _, err := range validate(obj, old) {
		line := fmt.Sprintf("%s: %s: %s", err.Field, err.Type, err.Detail)
		if prefix, ok := strings.CutSuffix(want, "…"); ok && strings.HasPrefix(line, prefix) {
			line = want
		}
		got = append(got, line)
	}
	if diff := cmp.Diff([]string{want}, got); diff != "" {
		t.Errorf("mistakes (-want +got):\n%s", diff)
	}
}

// TestInvalidOnUpdate changes a stored object in a way that is not allowed.
func TestInvalidOnUpdate(t *testing.T) {
	tests := []struct {
		kind   string
		change func(resource.Object)
		want   string
	}{
		{"Namespace", func(o resource.Object) { o.SetResourceVersion("") },
			"metadata.resourceVersion: Invalid value: must be specified for an update"},
		{"Namespace", func(o resource.Object) { o.SetName("other") }, "metadata.name: " + immutable},
		{"Namespace", func(o resource.Object) { o.SetUID("other") }, "metadata.uid: " + immutable},
		{"Namespace", func(o resource.Object) { o.(*corev1.Namespace).Status.Phase = corev1.NamespaceTerminating },
			"status.Phase: Invalid value: may only be 'Active' if `deletionTimestamp` is empty"},
		{"EndpointSlice", func(o resource.Object) {
			s := o.(*discoveryv1.EndpointSlice)
			s.AddressType, s.Endpoints = discoveryv1.AddressTypeIPv6, nil
		}, "addressType: " + immutable},
		{"Node", func(o resource.Object) { o.(*corev1.Node).Spec.ProviderID = "other" },
			`spec.providerID: Forbidden: node updates may not change providerID except from "" to valid`},
		{"Node", func(o resource.Object) { o.(*corev1.Node).Spec.PodCIDRs = []string{"10.9.0.0/24"} },
			`spec.podCIDRs: Forbidden: node updates may not change podCIDR except from "" to valid`},
		{"Mesh", func(o resource.Object) { o.(*mesh.Mesh).Spec.MTLS.TrustDomain = "other.example" },
			"spec.mtls.trustDomain: Invalid value: trust domain of mesh blue is immutable: it is blue.mesh; make another mesh for other.example"},
		{"Pod", func(o resource.Object) { o.(*corev1.Pod).Spec.NodeName = "other" },
			"spec: Forbidden: pod updates may not change fields other than…"},
		{"Pod", func(o resource.Object) { o.(*corev1.Pod).Spec.Containers[0].Ports[0].ContainerPort++ },
			"spec: Forbidden: pod updates may not change fields other than…"},
		{"Pod", func(o resource.Object) {
			p := o.(*corev1.Pod)
			c := p.Spec.Containers[0]
			c.Name = "more"
			p.Spec.Containers = append(p.Spec.Containers, c)
		}, "spec.containers: Forbidden: pod updates may not add or remove containers"},
		{"Pod", func(o resource.Object) { o.(*corev1.Pod).Spec.Tolerations = nil },
			"spec.tolerations: Forbidden: existing toleration can not be modified except its tolerationSeconds"},
		{"Pod", func(o resource.Object) { o.(*corev1.Pod).Spec.ActiveDeadlineSeconds = new(int64(601)) },
			"spec.activeDeadlineSeconds: Invalid value: must be less than or equal to previous value"},
		{"Pod", func(o resource.Object) { o.(*corev1.Pod).Spec.ActiveDeadlineSeconds = nil },
			"spec.activeDeadlineSeconds: Invalid value: must not update from a positive integer to nil value"},
		{"Pod", func(o resource.Object) { o.(*corev1.Pod).Status.PodIPs = []corev1.PodIP{{IP: "x"}} },
			"status.podIPs[0]: Invalid value: must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"},
		{"Pod", func(o resource.Object) {
			o.(*corev1.Pod).Status.PodIPs = []corev1.PodIP{{IP: "10.0.0.1"}, {IP: "10.0.0.2"}}
		}, "status.podIPs: Invalid value: may specify no more than one IP for each IP family"},
		{"ConfigMap", func(o resource.Object) { o.(*corev1.ConfigMap).Data["a"] = "2" },
			"data: Forbidden: field is immutable when `immutable` is set"},
		{"ConfigMap", func(o resource.Object) { o.(*corev1.ConfigMap).Immutable = nil },
			"immutable: Forbidden: field is immutable when `immutable` is set"},
		{"Secret", func(o resource.Object) { o.(*corev1.Secret).Data["a"] = nil }, "data: Forbidden: field is immutable when `immutable` is set"},
		{"Secret", func(o resource.Object) { o.(*corev1.Secret).Type = "other" }, "type: " + immutable},
		{"EventsV1Event", func(o resource.Object) { o.(*eventsv1.Event).Note = "other" }, "message: " + immutable},
		{"EventsV1Event", func(o resource.Object) { o.(*eventsv1.Event).Regarding.Name = "other" }, "involvedObject: " + immutable},
		{"Dataplane", func(o resource.Object) {
			o.(*mesh.Dataplane).Status.Lease = &mesh.DataplaneLease{}
		}, "status.lease.durationSeconds: Invalid value: must be greater than 0"},
		{"Dataplane", func(o resource.Object) {
			o.(*mesh.Dataplane).Spec.Readiness.HTTPGet.Port = intstr.FromInt32(0)
		}, "spec.readiness.httpGet.port: " + badPort},
		{"Mesh", func(o resource.Object) { o.SetName("other") }, "metadata.name: " + immutable},
		{"Mesh", func(o resource.Object) { o.(*mesh.Mesh).Spec.MTLS.EnabledBackend = "gone" }, "spec.mtls.enabledBackend: Not found: "},
		{"ExternalService", func(o resource.Object) { o.(*mesh.ExternalService).Spec.Ports = nil },
			"spec.ports: Required value: must contain at least 1 port"},
		{"GlobalSecret", func(o resource.Object) { o.(*mesh.GlobalSecret).Data["tls.key"] = nil },
			"data: Forbidden: field is immutable when `immutable` is set"},
		{"GlobalSecret", func(o resource.Object) { o.(*mesh.GlobalSecret).Immutable = nil },
			"immutable: Forbidden: field is immutable when `immutable` is set"},
		{"GlobalSecret", func(o resource.Object) { o.(*mesh.GlobalSecret).Type = "other" }, "type: " + immutable},
	}
	all := descriptors()
	for _, tt := range tests {
		name, _, _ := strings.Cut(tt.want, ":")
		t.Run(tt.kind+"/"+name, func(t *testing.T) {
			d := all[tt.kind]
			old := create(t, d, base[tt.kind])
			old.SetResourceVersion("1")
			switch o := old.(type) {
			case *corev1.ConfigMap:
				o.Immutable = new(true)
			case *corev1.Secret:
				o.Immutable = new(true)
			case *mesh.GlobalSecret:
				o.Immutable = new(true)
			case *corev1.Node:
				o.Spec.ProviderID = "one"
				o.Spec.PodCIDR, o.Spec.PodCIDRs = "10.1.0.0/24", []string{"10.1.0.0/24"}
			case *corev1.Pod:
				o.Spec.ActiveDeadlineSeconds = new(int64(600))
				o.Spec.Tolerations = []corev1.Toleration{{Key: "a", Operator: corev1.TolerationOpExists}}
			}
			obj := clone(old)
			tt.change(obj)
			wantOnly(t, d, obj, old, tt.want)
		})
	}
}

// TestAtTheLimit covers the limits that are too long to write down.
func TestAtTheLimit(t *testing.T) {
	d := descriptors()["EndpointSlice"]
	slice := func() *discoveryv1.EndpointSlice {
		return create(t, d, base["EndpointSlice"]).(*discoveryv1.EndpointSlice)
	}
	addresses := func(n int) []string {
		out := make([]string, n)
		for i := range out {
			out[i] = fmt.Sprintf("10.1.%d.%d", i/250, 1+i%250)
		}
		return out
	}
	tests := []struct {
		name  string
		fill  func(s *discoveryv1.EndpointSlice, n int)
		limit int
		want  string
	}{
		{"endpoints", func(s *discoveryv1.EndpointSlice, n int) {
			s.Endpoints = nil
			for _, a := range addresses(n) {
				s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
			}
		}, 1000, "endpoints: Too many: must have at most 1000 items"},
		{"addresses", func(s *discoveryv1.EndpointSlice, n int) { s.Endpoints[0].Addresses = addresses(n) },
			100, "endpoints[0].addresses: Too many: must have at most 100 items"},
		{"ports", func(s *discoveryv1.EndpointSlice, n int) {
			s.Ports = nil
			for i := range n {
				s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: new(fmt.Sprintf("p%d", i)), Protocol: new(corev1.ProtocolTCP)})
			}
		}, 100, "ports: Too many: must have at most 100 items"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := slice()
			tt.fill(s, tt.limit)
			if errs := d.Validate(s, nil); len(errs) > 0 {
				t.Errorf("at the limit: %v", errs.ToAggregate())
			}
			tt.fill(s, tt.limit+1)
			wantOnly(t, d, s, nil, tt.want)
		})
	}
}
