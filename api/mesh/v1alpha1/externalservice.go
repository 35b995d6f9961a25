package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ExternalService is a service outside every mesh that workloads of a mesh
// reach by its name, as if it were inside: resolved, balanced, and with TLS
// begun on its behalf where it is asked for.
type ExternalService struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// What the service is and where it is.
	// +optional
	Spec ExternalServiceSpec `json:"spec,omitempty"`
	// What was last observed of the service, in this zone.
	// +optional
	Status ExternalServiceStatus `json:"status,omitempty"`
}

// Condition types of an ExternalService.
const (
	// ExternalServiceAddressed: workloads of this zone have a name and a virtual IP for it.
	ExternalServiceAddressed = "Addressed"
	// ExternalServiceHostsEnforced: what workloads send to the hosts goes this way, too.
	ExternalServiceHostsEnforced = "HostsEnforced"
	// ExternalServiceTLSEnforced: TLS is begun as spec.tls says.
	ExternalServiceTLSEnforced = "TLSEnforced"
	// ExternalServiceZoneEgressEnforced: connections leave through the zone's egress alone,
	// as the mesh says.
	ExternalServiceZoneEgressEnforced = "ZoneEgressEnforced"
)

// ExternalServiceStatus is what was last observed of an ExternalService.
type ExternalServiceStatus struct {
	// ObservedGeneration of the ExternalService that the status is of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// VirtualIPs by which workloads of this zone call the service.
	// +optional
	// +listType=atomic
	VirtualIPs []string `json:"virtualIPs,omitempty"`
	// Conditions; type Addressed says whether the service has a name and virtual IPs;
	// HostsEnforced, TLSEnforced and ZoneEgressEnforced whether what the specification and
	// the mesh ask for holds, or who does not enforce it and why.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Zones, at a global control plane: what each of them observes of the service.
	// +optional
	// +listType=map
	// +listMapKey=zone
	Zones []PolicyZoneStatus `json:"zones,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ExternalServiceList is a list of ExternalServices.
type ExternalServiceList struct {
	metav1.TypeMeta `json:",inline"`
	// Standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// The ExternalServices.
	Items []ExternalService `json:"items"`
}

// ExternalServiceSpec says what a service is and where it is.
type ExternalServiceSpec struct {
	// Mesh that the service is reached from. Empty: the mesh of the namespace.
	// +optional
	Mesh string `json:"mesh,omitempty"`
	// Hosts are the DNS names by which workloads call the service.
	// +optional
	// +listType=set
	Hosts []string `json:"hosts,omitempty"`
	// Ports by which workloads call the service.
	// +listType=map
	// +listMapKey=port
	// +listMapKey=protocol
	Ports []ExternalServicePort `json:"ports"`
	// Addresses where the service is. Empty: the hosts are resolved, and that is
	// where it is.
	// +optional
	// +listType=atomic
	Addresses []ExternalServiceAddress `json:"addresses,omitempty"`
	// Zones that the service is reached from; other zones send their traffic to
	// it through one of these. Empty: every zone reaches it by itself.
	// +optional
	// +listType=set
	Zones []string `json:"zones,omitempty"`
	// TLS begun on behalf of the workloads, which then call in plain text. Without
	// it bytes pass as they are.
	// +optional
	TLS *ExternalServiceTLS `json:"tls,omitempty"`
}

// ExternalServicePort is a port by which workloads call a service.
type ExternalServicePort struct {
	// Name of the port; needed and unique where there are several.
	// +optional
	Name string `json:"name,omitempty"`
	// Port number, 1 to 65535.
	Port int32 `json:"port"`
	// TargetPort is the port of the addresses. Empty: the same as port.
	// +optional
	TargetPort *int32 `json:"targetPort,omitempty"`
	// Protocol: TCP or UDP. Empty: TCP.
	// +optional
	// +default="TCP"
	Protocol string `json:"protocol,omitempty"`
	// AppProtocol hints at the application protocol, as in a Service's port.
	// +optional
	AppProtocol *string `json:"appProtocol,omitempty"`
}

// ExternalServiceAddress is one place where a service is.
type ExternalServiceAddress struct {
	// Address: an IP address, or a DNS name that is resolved.
	Address string `json:"address"`
	// Port there, instead of the target port. Only where the service has one port.
	// +optional
	Port *int32 `json:"port,omitempty"`
	// Zone that is nearest to the address: it is preferred there.
	// +optional
	Zone string `json:"zone,omitempty"`
	// Weight among the addresses, 1 to 65535. Empty: 1.
	// +optional
	Weight *int32 `json:"weight,omitempty"`
}

// ExternalServiceTLS is how TLS to a service is begun.
type ExternalServiceTLS struct {
	// Verification: Secured (its certificate must be good, and of the right
	// name), SkipSAN (the name does not matter), SkipCA (the authority does not
	// matter) or SkipAll. Empty: Secured.
	// +optional
	Verification string `json:"verification,omitempty"`
	// ServerName that is asked for (SNI) and that the certificate must have.
	// Empty: the first host.
	// +optional
	ServerName string `json:"serverName,omitempty"`
	// SubjectAltNames, one of which the certificate must have instead of the
	// server name.
	// +optional
	// +listType=atomic
	SubjectAltNames []SubjectAltNameMatch `json:"subjectAltNames,omitempty"`
	// MinVersion of TLS: 1.2 or 1.3. Empty: 1.2.
	// +optional
	MinVersion string `json:"minVersion,omitempty"`
	// MaxVersion of TLS: 1.2 or 1.3. Empty: the newest.
	// +optional
	MaxVersion string `json:"maxVersion,omitempty"`
	// AllowRenegotiation lets the server renegotiate (TLS 1.2). Unsafe; for old
	// servers that need it.
	// +optional
	AllowRenegotiation bool `json:"allowRenegotiation,omitempty"`
	// CACertificates that the service's certificate is checked against, in PEM.
	// Empty: those of the system.
	// +optional
	CACertificates *DataSource `json:"caCertificates,omitempty"`
	// ClientCertificate that is shown, in PEM; together with ClientKey.
	// +optional
	ClientCertificate *DataSource `json:"clientCertificate,omitempty"`
	// ClientKey of the client certificate, in PEM. It comes from a secret.
	// +optional
	ClientKey *DataSource `json:"clientKey,omitempty"`
}

// SubjectAltNameMatch is a name that a certificate may have.
type SubjectAltNameMatch struct {
	// Type: Exact or Prefix. Empty: Exact.
	// +optional
	Type string `json:"type,omitempty"`
	// Value of the name, or its beginning.
	Value string `json:"value"`
}
