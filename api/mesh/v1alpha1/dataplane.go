package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// Dataplane is one workload instance outside Kubernetes: the equal of a Pod.
// Its labels are what Service selectors match.
type Dataplane struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// What the workload is and where it listens.
	// +optional
	Spec DataplaneSpec `json:"spec,omitempty"`
	// What was last observed of the workload.
	// +optional
	Status DataplaneStatus `json:"status,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// DataplaneList is a list of Dataplanes.
type DataplaneList struct {
	metav1.TypeMeta `json:",inline"`
	// Standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// The Dataplanes.
	Items []Dataplane `json:"items"`
}

// DataplaneSpec says what a workload is and where it listens.
type DataplaneSpec struct {
	// Mesh the workload belongs to. Defaults to the mesh of its namespace.
	// +optional
	Mesh string `json:"mesh,omitempty"`
	// NodeName is the Node that the workload runs on. Its zone is the Node's, or
	// that of the Dataplane's own label topology.kubernetes.io/zone.
	// +optional
	NodeName string `json:"nodeName,omitempty"`
	// ServiceAccount whose identity the workload has, in its namespace. The credential
	// of a workload sets its own; nodes may not choose. Empty: "default".
	// +optional
	ServiceAccount string `json:"serviceAccount,omitempty"`
	// Addresses at which the workload is reached, at most one per IP family.
	// +listType=atomic
	Addresses []string `json:"addresses"`
	// Ports that the workload listens on. Named target ports resolve by name.
	// +optional
	// +listType=map
	// +listMapKey=port
	// +listMapKey=protocol
	Ports []DataplanePort `json:"ports,omitempty"`
	// Readiness probe. Without one, whoever registers the workload says when it
	// is ready, by the status.
	// +optional
	Readiness *Probe `json:"readiness,omitempty"`
	// DrainSeconds is how long the workload goes on serving connections after
	// its deletion was asked for. Defaults to 30.
	// +optional
	DrainSeconds *int32 `json:"drainSeconds,omitempty"`
	// Enabled false takes the workload out for maintenance: it counts as terminating but
	// serving, so it keeps its open connections and gets new ones only if no endpoint of the
	// Service is ready. Defaults to true.
	// +optional
	Enabled *bool `json:"enabled,omitempty"`
	// Weight is the workload's share of the new connections of its Services, relative to
	// that of their other endpoints: 0 to 1000. With 0 it gets none, not even as the last
	// endpoint; open connections stay. Defaults to 100.
	// +optional
	Weight *int32 `json:"weight,omitempty"`
	// Hostname of the workload, as that of a pod: with Subdomain, the endpoint has it in the
	// Service of that name. A label of DNS, at most 63 characters.
	// +optional
	Hostname string `json:"hostname,omitempty"`
	// Subdomain is the name of the headless Service, in the workload's namespace, below which
	// the workload is resolved: <hostname>.<subdomain>.<namespace>.svc.<cluster domain>.
	// +optional
	Subdomain string `json:"subdomain,omitempty"`
	// Proxy has settings of the workload's own proxy, if it has one.
	// +optional
	Proxy *DataplaneProxy `json:"proxy,omitempty"`
}

// DataplaneProxy has settings of the proxy of one workload.
type DataplaneProxy struct {
	// Outbound ports of the proxy, by which a workload without redirection calls Services.
	// +optional
	// +listType=atomic
	Outbound []DataplaneOutbound `json:"outbound,omitempty"`
	// Metrics of the proxy, in place of those of policies.
	// +optional
	Metrics *WorkloadMetrics `json:"metrics,omitempty"`
	// Probes of the workload that the proxy answers, on port 15021, without TLS.
	// +optional
	// +listType=atomic
	Probes []DataplaneProbe `json:"probes,omitempty"`
}

// DataplaneOutbound is a port of a proxy that leads to a Service.
type DataplaneOutbound struct {
	// Address on which the proxy listens, a loopback address. Empty: 127.0.0.1.
	// +optional
	Address string `json:"address,omitempty"`
	// Port on which it listens.
	Port int32 `json:"port"`
	// Namespace of the Service. Empty: that of the workload.
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// Service that it leads to.
	Service string `json:"service"`
	// ServicePort of the Service.
	ServicePort int32 `json:"servicePort"`
}

// DataplaneProbe is a probe that a proxy passes on to its workload.
type DataplaneProbe struct {
	// Path by which the proxy is asked.
	Path string `json:"path"`
	// Type: HTTP, TCP or GRPC. Empty: HTTP.
	// +optional
	Type string `json:"type,omitempty"`
	// Port of the workload.
	Port int32 `json:"port"`
	// TargetPath of the workload, of HTTP. Empty: the same as path.
	// +optional
	TargetPath string `json:"targetPath,omitempty"`
	// Service that is asked for, of GRPC.
	// +optional
	Service string `json:"service,omitempty"`
}

// DataplanePort is a port that a workload listens on.
type DataplanePort struct {
	// Name of the port, unique in the Dataplane.
	// +optional
	Name string `json:"name,omitempty"`
	// Port number, 1 to 65535.
	Port int32 `json:"port"`
	// Protocol: TCP, UDP or SCTP. Empty: TCP.
	// +optional
	// +default="TCP"
	Protocol string `json:"protocol,omitempty"`
	// AppProtocol hints at the application protocol, as in a Service's port.
	// +optional
	AppProtocol *string `json:"appProtocol,omitempty"`
	// TargetPort is the application's own port, where the workload's proxy listens on Port.
	// Empty: the same.
	// +optional
	TargetPort *int32 `json:"targetPort,omitempty"`
	// Tags describe the port, for policies.
	// +optional
	Tags map[string]string `json:"tags,omitempty"`
}

// Probe asks a workload whether it is ready. Exactly one action is set. The
// timing fields mean what they mean in Kubernetes.
type Probe struct {
	// HTTPGet asks by HTTP; 200 to 399 is a success.
	// +optional
	HTTPGet *HTTPGetAction `json:"httpGet,omitempty"`
	// TCPSocket opens a connection.
	// +optional
	TCPSocket *TCPSocketAction `json:"tcpSocket,omitempty"`
	// GRPC calls grpc.health.v1.Health/Check.
	// +optional
	GRPC *GRPCAction `json:"grpc,omitempty"`
	// Exec runs a command beside the workload; honoured by "proxima run" only.
	// +optional
	Exec *ExecAction `json:"exec,omitempty"`
	// Seconds before the first probe. Defaults to 0.
	// +optional
	InitialDelaySeconds int32 `json:"initialDelaySeconds,omitempty"`
	// Seconds between probes. Defaults to 10.
	// +optional
	PeriodSeconds int32 `json:"periodSeconds,omitempty"`
	// Seconds after which a probe has failed. Defaults to 1.
	// +optional
	TimeoutSeconds int32 `json:"timeoutSeconds,omitempty"`
	// Successes in a row after which the workload is ready. Defaults to 1.
	// +optional
	SuccessThreshold int32 `json:"successThreshold,omitempty"`
	// Failures in a row after which the workload is not ready. Defaults to 3.
	// +optional
	FailureThreshold int32 `json:"failureThreshold,omitempty"`
}

// HTTPGetAction is a probe by HTTP, sent to the workload's own address.
type HTTPGetAction struct {
	// Path to get. Defaults to /.
	// +optional
	Path string `json:"path,omitempty"`
	// Port number, or the name of a port of the Dataplane.
	Port intstr.IntOrString `json:"port"`
	// Scheme: HTTP or HTTPS (certificates are not verified). Defaults to HTTP.
	// +optional
	Scheme string `json:"scheme,omitempty"`
}

// TCPSocketAction is a probe that opens a connection to the workload's own address.
type TCPSocketAction struct {
	// Port number, or the name of a port of the Dataplane.
	Port intstr.IntOrString `json:"port"`
}

// GRPCAction is a probe by the gRPC health protocol, sent to the workload's own address.
type GRPCAction struct {
	// Port number.
	Port int32 `json:"port"`
	// Service to ask for; empty: the server as a whole.
	// +optional
	Service string `json:"service,omitempty"`
}

// ExecAction is a probe by a command; exit code 0 is a success.
type ExecAction struct {
	// Command and its arguments, without a shell.
	// +listType=atomic
	Command []string `json:"command"`
}

// Condition types of a Dataplane.
const (
	// DataplaneReady: the workload takes new connections.
	DataplaneReady = "Ready"
	// DataplaneProxyConnected: the proxy of the workload has a stream to a control plane. While
	// it has none, it goes on with what it was sent.
	DataplaneProxyConnected = "ProxyConnected"
	// ReasonProgram of ProxyConnected: a gRPC program follows for its own calls; the workload's
	// ports have no proxy.
	ReasonProgram = "Program"
	// DataplaneConfigAccepted: the proxy rejects nothing of what it was sent.
	DataplaneConfigAccepted = "ConfigAccepted"
	// DataplaneCertificateValid: the certificate of the workload has not expired.
	DataplaneCertificateValid = "CertificateValid"
	// DataplaneProxyReady: the proxy has accepted its first clusters and listeners.
	DataplaneProxyReady = "ProxyReady"
)

// DataplaneStatus is what was last observed of a workload.
type DataplaneStatus struct {
	// Conditions; type Ready decides whether the workload gets new connections.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Lease is kept by whoever runs the workload; a workload whose lease ran
	// out is not ready. Without a lease it lives until it is deleted.
	// +optional
	Lease *DataplaneLease `json:"lease,omitempty"`
}

// DataplaneLease is a promise to say so, from time to time, that a workload lives.
type DataplaneLease struct {
	// Holder renews the lease.
	// +optional
	Holder string `json:"holder,omitempty"`
	// RenewTime of the last renewal.
	RenewTime metav1.MicroTime `json:"renewTime"`
	// DurationSeconds after which the lease has run out.
	DurationSeconds int32 `json:"durationSeconds"`
}
