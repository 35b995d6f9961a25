package v1beta1

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ServiceExport offers the Service of the same name and namespace to other zones.
type ServiceExport struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// What is exported beside the Service.
	// +optional
	Spec ServiceExportSpec `json:"spec,omitempty"`
	// What was last observed of the export.
	// +optional
	Status ServiceExportStatus `json:"status,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ServiceExportList is a list of ServiceExports.
type ServiceExportList struct {
	metav1.TypeMeta `json:",inline"`
	// Standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// The ServiceExports.
	Items []ServiceExport `json:"items"`
}

// ServiceExportSpec is what is exported beside the Service.
type ServiceExportSpec struct {
	// ExportedLabels are labels of the ServiceImport.
	// +optional
	ExportedLabels map[string]string `json:"exportedLabels,omitempty"`
	// ExportedAnnotations are annotations of the ServiceImport.
	// +optional
	ExportedAnnotations map[string]string `json:"exportedAnnotations,omitempty"`
}

// Condition types of a ServiceExport.
const (
	// ServiceExportValid: the Service exists and can be exported.
	ServiceExportValid = "Valid"
	// ServiceExportReady: the export is known in this zone, and sent to the others.
	ServiceExportReady = "Ready"
	// ServiceExportConflict: exports of the same name in several zones disagree. The
	// oldest export decides.
	ServiceExportConflict = "Conflict"
)

// ServiceExportStatus is what was last observed of an export.
type ServiceExportStatus struct {
	// Conditions; type Valid says whether the Service can be exported, Ready whether it
	// is, Conflict whether exports of several zones disagree.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Available is what the zone offers under this name. Empty: nothing. The zone's
	// control plane writes it; it is an extension of the Multi-Cluster Services API.
	// +optional
	Available *AvailableService `json:"available,omitempty"`
}

// AvailableService is what a zone offers under the name of an export.
type AvailableService struct {
	// Mesh that the service belongs to.
	Mesh string `json:"mesh"`
	// Zone that offers it. Its control plane sets it.
	// +optional
	Zone string `json:"zone,omitempty"`
	// ServiceTag whose workloads the Service has, and whose name below "mesh" it is. Empty:
	// it is no Service of a tag.
	// +optional
	ServiceTag string `json:"serviceTag,omitempty"`
	// ExportTime is when the export was created: the oldest one decides conflicts.
	ExportTime metav1.Time `json:"exportTime"`
	// Type: ClusterSetIP or Headless.
	Type ServiceImportType `json:"type"`
	// Ports of the Service.
	// +optional
	// +listType=atomic
	Ports []ServicePort `json:"ports,omitempty"`
	// SessionAffinity of the Service: None or ClientIP.
	// +optional
	SessionAffinity corev1.ServiceAffinity `json:"sessionAffinity,omitempty"`
	// SessionAffinityConfig of the Service.
	// +optional
	SessionAffinityConfig *corev1.SessionAffinityConfig `json:"sessionAffinityConfig,omitempty"`
	// Instances that are ready: the zone's weight.
	// +optional
	Instances int32 `json:"instances,omitempty"`
	// Demand that starts in the zone, by port: for plans of other zones. Missing: it is not
	// known, or not wanted, as the Service is not in mode proxima.dev/Adaptive. It is rounded,
	// and written only where it has changed by a fifth or more.
	// +optional
	// +listType=atomic
	Demand []PortDemand `json:"demand,omitempty"`
	// IPFamilies of the Service.
	// +optional
	// +listType=atomic
	IPFamilies []corev1.IPFamily `json:"ipFamilies,omitempty"`
	// InternalTrafficPolicy of the Service.
	// +optional
	InternalTrafficPolicy *corev1.ServiceInternalTrafficPolicy `json:"internalTrafficPolicy,omitempty"`
	// TrafficDistribution of the Service.
	// +optional
	TrafficDistribution *string `json:"trafficDistribution,omitempty"`
	// Proxied: each instance has a proxy of the mesh in front of it, so that mutual TLS may go
	// through gateways as it is, up to the instance. It is not set for Services whose endpoints
	// get a header of the PROXY protocol.
	// +optional
	Proxied bool `json:"proxied,omitempty"`
	// ServiceAccounts of the instances, in the namespace of the Service: whom clients of a
	// proxied Service accept. Empty where it is not proxied.
	// +optional
	// +listType=set
	ServiceAccounts []string `json:"serviceAccounts,omitempty"`
	// ToZones limits the zones that may use it. Empty: all may.
	// +optional
	// +listType=set
	ToZones []string `json:"toZones,omitempty"`
	// Endpoints of a headless Service that are ready, by family and ports: other zones
	// have no virtual IP for them. Empty for other Services.
	// +optional
	// +listType=atomic
	Endpoints []AvailableEndpoints `json:"endpoints,omitempty"`
	// Registry is what clients of registries (Nacos, Eureka, ZooKeeper, Dubbo) in other zones are
	// told of the instances beside their address. Missing: nothing.
	// +optional
	Registry *AvailableRegistry `json:"registry,omitempty"`
}

// AvailableRegistry describes the instances of a service to clients of registries in other zones.
type AvailableRegistry struct {
	// Service is the name that clients of registries know it by: [GROUP@@]NAME. Empty: that of the
	// Service.
	// +optional
	Service string `json:"service,omitempty"`
	// Metadata that all ready instances have in common which clients of registries registered.
	// +optional
	Metadata map[string]string `json:"metadata,omitempty"`
	// Dubbo is the metadata of the application of Dubbo that it is. Missing: it is none, or its
	// metadata are not known to the control plane.
	// +optional
	Dubbo *AvailableDubbo `json:"dubbo,omitempty"`
}

// AvailableDubbo is the metadata of an application of Dubbo, of a revision that is ready.
type AvailableDubbo struct {
	// Revision of the metadata.
	Revision string `json:"revision"`
	// Protocol of the port of the Service: tri or dubbo.
	Protocol string `json:"protocol"`
	// Content of the revision, as clients of Dubbo store it in a metadata centre: JSON, compressed
	// by gzip (RFC 1952), at most MaxAvailableContent bytes.
	Content []byte `json:"content"`
}

// MaxAvailableContent bounds AvailableDubbo.Content, in bytes. Metadata that are larger do not
// leave their zone.
const MaxAvailableContent = 128 << 10

// PortDemand is how many connections to a port start in a zone.
type PortDemand struct {
	// Port of the Service.
	Port int32 `json:"port"`
	// ConnectionsPerSecond that are begun, from 0.
	ConnectionsPerSecond float64 `json:"connectionsPerSecond"`
}

// MaxAvailableHosts bounds the hosts of all AvailableEndpoints of an export, as an
// EndpointSlice is bounded.
const MaxAvailableHosts = 1000

// AvailableEndpoints are endpoints of one family with the same ports.
type AvailableEndpoints struct {
	// AddressType: IPv4 or IPv6.
	AddressType discoveryv1.AddressType `json:"addressType"`
	// Ports of the endpoints, which may be others than those of the Service.
	// +optional
	// +listType=atomic
	Ports []ServicePort `json:"ports,omitempty"`
	// Hosts that serve these ports.
	// +listType=atomic
	Hosts []AvailableHost `json:"hosts"`
}

// AvailableHost is one endpoint.
type AvailableHost struct {
	// Address of the endpoint.
	Address string `json:"address"`
	// Hostname, if the workload has one: a DNS label below the name of the Service.
	// +optional
	Hostname string `json:"hostname,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ServiceImport is the merged view of the exports of all zones that have its name and
// namespace. Control planes write it.
type ServiceImport struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// The merged service.
	// +optional
	Spec ServiceImportSpec `json:"spec,omitempty"`
	// The zones that export it.
	// +optional
	Status ServiceImportStatus `json:"status,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ServiceImportList is a list of ServiceImports.
type ServiceImportList struct {
	metav1.TypeMeta `json:",inline"`
	// Standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// The ServiceImports.
	Items []ServiceImport `json:"items"`
}

// ServiceImportType says how an imported service is reached.
type ServiceImportType string

// The types of imports.
const (
	// ClusterSetIP: by a virtual IP.
	ClusterSetIP ServiceImportType = "ClusterSetIP"
	// Headless: by the addresses of its endpoints, which DNS returns.
	Headless ServiceImportType = "Headless"
)

// ServiceImportSpec is a merged service.
type ServiceImportSpec struct {
	// Ports of the service.
	// +listType=atomic
	Ports []ServicePort `json:"ports"`
	// IPs are the virtual IPs of the service, at most one per family.
	// +optional
	// +listType=atomic
	IPs []string `json:"ips,omitempty"`
	// Type: ClusterSetIP or Headless.
	Type ServiceImportType `json:"type"`
	// SessionAffinity: None or ClientIP.
	// +optional
	SessionAffinity corev1.ServiceAffinity `json:"sessionAffinity,omitempty"`
	// SessionAffinityConfig has the timeout of ClientIP.
	// +optional
	SessionAffinityConfig *corev1.SessionAffinityConfig `json:"sessionAffinityConfig,omitempty"`
	// IPFamilies of the service: those of its virtual IPs in this zone, in their order; of a
	// headless service those of the oldest export.
	// +optional
	// +listType=atomic
	IPFamilies []corev1.IPFamily `json:"ipFamilies,omitempty"`
	// InternalTrafficPolicy of the service: Cluster or Local.
	// +optional
	InternalTrafficPolicy *corev1.ServiceInternalTrafficPolicy `json:"internalTrafficPolicy,omitempty"`
	// TrafficDistribution of the service.
	// +optional
	TrafficDistribution *string `json:"trafficDistribution,omitempty"`
}

// ServicePort is a port of an exported or imported service.
type ServicePort struct {
	// Name of the port; needed where there are several.
	// +optional
	Name string `json:"name,omitempty"`
	// Protocol: TCP, UDP or SCTP. Empty: TCP.
	// +optional
	Protocol corev1.Protocol `json:"protocol,omitempty"`
	// AppProtocol hints at the application protocol, as in a Service's port.
	// +optional
	AppProtocol *string `json:"appProtocol,omitempty"`
	// Port number, 1 to 65535.
	Port int32 `json:"port"`
}

// ServiceImportStatus is which zones export a service.
type ServiceImportStatus struct {
	// Clusters are the zones that export it.
	// +optional
	// +listType=map
	// +listMapKey=cluster
	Clusters []ClusterStatus `json:"clusters,omitempty"`
	// Conditions of the import.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ClusterStatus is one zone that exports a service.
type ClusterStatus struct {
	// Cluster is the zone's name.
	Cluster string `json:"cluster"`
}
