package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// WorkloadPolicy says what the proxies of workloads do: TLS, limits, faults, passthrough, access
// logs, traces and metrics.
type WorkloadPolicy struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// What the proxies do.
	// +optional
	Spec WorkloadPolicySpec `json:"spec,omitempty"`
	// Whether the policy is in effect.
	// +optional
	Status TrafficPolicyStatus `json:"status,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// WorkloadPolicyList is a list of WorkloadPolicies.
type WorkloadPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	// Standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// The WorkloadPolicies.
	Items []WorkloadPolicy `json:"items"`
}

// WorkloadPolicySpec says what the proxies of workloads do.
type WorkloadPolicySpec struct {
	// Workloads: Dataplane, Pod or Mesh. The selector also matches the tags of a port, for what
	// is said of that port.
	PolicyTarget `json:",inline"`
	// Ports of the workloads, by name or number, for what is said of calls to them. Empty: all.
	// +optional
	// +listType=set
	Ports []string `json:"ports,omitempty"`
	// TLS of calls to the workload.
	// +optional
	TLS *WorkloadTLS `json:"tls,omitempty"`
	// Timeout of calls to the workload.
	// +optional
	Timeout *PolicyTimeout `json:"timeout,omitempty"`
	// Limits of what is open to the workload.
	// +optional
	Limits *PolicyLimits `json:"limits,omitempty"`
	// Backends that the workload calls: its proxy has them from the beginning.
	// +optional
	// +listType=atomic
	Backends []WorkloadBackend `json:"backends,omitempty"`
	// RateLimit of calls to the workload, by each of its proxies.
	// +optional
	// +listType=atomic
	RateLimit []RateLimit `json:"rateLimit,omitempty"`
	// Faults that are injected into calls to the workload.
	// +optional
	// +listType=atomic
	Faults []Fault `json:"faults,omitempty"`
	// Passthrough of calls to what the mesh does not know.
	// +optional
	Passthrough *WorkloadPassthrough `json:"passthrough,omitempty"`
	// AccessLog of connections and requests.
	// +optional
	// +listType=atomic
	AccessLog []AccessLog `json:"accessLog,omitempty"`
	// Tracing of requests.
	// +optional
	Tracing *WorkloadTracing `json:"tracing,omitempty"`
	// Metrics of the proxy and its workload.
	// +optional
	Metrics *WorkloadMetrics `json:"metrics,omitempty"`
}

// WorkloadTLS is about TLS of calls to a workload.
type WorkloadTLS struct {
	// Mode: Strict (plain clients are refused) or Permissive. Empty: that of the Mesh's backend.
	// +optional
	Mode string `json:"mode,omitempty"`
	// Min version of TLS: 1.2 or 1.3. Empty: 1.3.
	// +optional
	Min string `json:"min,omitempty"`
	// Max version of TLS: 1.2 or 1.3. Empty: the newest.
	// +optional
	Max string `json:"max,omitempty"`
	// Ciphers of TLS 1.2, by their OpenSSL names. Empty: the proxy's own.
	// +optional
	// +listType=set
	Ciphers []string `json:"ciphers,omitempty"`
}

// WorkloadBackend is a Service that a workload calls.
type WorkloadBackend struct {
	// Kind: Service, ServiceImport or ExternalService. Empty: Service.
	// +optional
	Kind string `json:"kind,omitempty"`
	// Namespace of the Service. Empty: that of the policy.
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// Name of the Service.
	Name string `json:"name"`
}

// WorkloadPassthrough says which calls to unknown destinations are let through.
type WorkloadPassthrough struct {
	// Mode: All, None or Matched. Empty: what the Mesh says.
	// +optional
	Mode string `json:"mode,omitempty"`
	// Match describes destinations, of mode Matched.
	// +optional
	// +listType=atomic
	Match []PassthroughMatch `json:"match,omitempty"`
}

// PassthroughMatch describes destinations.
type PassthroughMatch struct {
	// Type of the value: Domain (by the server name of TLS, or the host of HTTP; *.example.com
	// matches all names below), IP or CIDR.
	Type string `json:"type"`
	// Value of the destination.
	Value string `json:"value"`
	// Port of the destination; 0: all.
	// +optional
	Port int32 `json:"port,omitempty"`
	// Protocol: TCP, TLS or HTTP. Empty: TLS for a Domain, else TCP.
	// +optional
	Protocol string `json:"protocol,omitempty"`
}

// AccessLog is one log of connections and requests. Exactly one of its destinations is set.
type AccessLog struct {
	// Stdout writes to the standard output of the proxy.
	// +optional
	Stdout *StdoutLog `json:"stdout,omitempty"`
	// File writes to a file.
	// +optional
	File *FileLog `json:"file,omitempty"`
	// TCP writes lines to a server.
	// +optional
	TCP *TCPLog `json:"tcp,omitempty"`
	// OTLP sends to an OpenTelemetry collector, by gRPC.
	// +optional
	OTLP *OTLPEndpoint `json:"otlp,omitempty"`
	// Format of a line, with Envoy's command operators. Empty: Envoy's own.
	// +optional
	Format string `json:"format,omitempty"`
	// Of: All, or Errors (responses of 500 and more, and what has response flags). Empty: All.
	// +optional
	Of string `json:"of,omitempty"`
}

// StdoutLog has no settings.
type StdoutLog struct{}

// FileLog is a file that lines are appended to.
type FileLog struct {
	// Path of the file, absolute.
	Path string `json:"path"`
}

// TCPLog is a server that takes lines.
type TCPLog struct {
	// Address of the server, as HOST:PORT.
	Address string `json:"address"`
}

// OTLPEndpoint is an OpenTelemetry collector.
type OTLPEndpoint struct {
	// Address of its gRPC port, as HOST:PORT.
	Address string `json:"address"`
}

// WorkloadTracing says where spans go. Exactly one of the destinations is set.
type WorkloadTracing struct {
	// OTLP sends to an OpenTelemetry collector, by gRPC.
	// +optional
	OTLP *OTLPEndpoint `json:"otlp,omitempty"`
	// Zipkin sends to a Zipkin server.
	// +optional
	Zipkin *ZipkinEndpoint `json:"zipkin,omitempty"`
	// Datadog sends to a Datadog agent.
	// +optional
	Datadog *DatadogEndpoint `json:"datadog,omitempty"`
	// Sample is the percentage of the requests without a decision of the caller that are traced,
	// 0 to 100. Defaults to 100.
	// +optional
	Sample *float64 `json:"sample,omitempty"`
	// Tags of each span.
	// +optional
	// +listType=map
	// +listMapKey=name
	Tags []TracingTag `json:"tags,omitempty"`
}

// ZipkinEndpoint is a Zipkin server.
type ZipkinEndpoint struct {
	// Address of the server, as HOST:PORT.
	Address string `json:"address"`
	// Path of its API. Defaults to /api/v2/spans.
	// +optional
	Path string `json:"path,omitempty"`
}

// DatadogEndpoint is a Datadog agent.
type DatadogEndpoint struct {
	// Address of the agent, as HOST:PORT.
	Address string `json:"address"`
}

// TracingTag is a tag of a span: a value, or that of a header of the request.
type TracingTag struct {
	// Name of the tag.
	Name string `json:"name"`
	// Value of the tag.
	// +optional
	Value string `json:"value,omitempty"`
	// Header of the request whose value is the tag's; Value is used where it is missing.
	// +optional
	Header string `json:"header,omitempty"`
}

// WorkloadMetrics says where a proxy shows metrics, and which.
type WorkloadMetrics struct {
	// Port on which the supervisor of the proxy shows them. Empty: that of the supervisor's own
	// configuration, 15020.
	// +optional
	Port *int32 `json:"port,omitempty"`
	// Path of the metrics. Defaults to /metrics.
	// +optional
	Path string `json:"path,omitempty"`
	// MTLS shows them only to clients with a certificate of the mesh.
	// +optional
	MTLS bool `json:"mtls,omitempty"`
	// Include is a regular expression (RE2) of the names of the metrics of the proxy and its
	// supervisor that are shown. Empty: all.
	// +optional
	Include string `json:"include,omitempty"`
	// Exclude is one of those that are not.
	// +optional
	Exclude string `json:"exclude,omitempty"`
	// Apps are the workload's own metrics, which are shown as well.
	// +optional
	// +listType=atomic
	Apps []MetricsApp `json:"apps,omitempty"`
}

// MetricsApp is a page of metrics of a workload.
type MetricsApp struct {
	// Name of the application. Empty: none.
	// +optional
	Name string `json:"name,omitempty"`
	// Port of the workload, on its loopback address.
	Port int32 `json:"port"`
	// Path of the metrics. Defaults to /metrics.
	// +optional
	Path string `json:"path,omitempty"`
}
