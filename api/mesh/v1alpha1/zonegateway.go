package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ZoneIngress is one gateway by which other zones reach the services that this zone
// exports. The gateway writes it, under the name of its node.
type ZoneIngress struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// Where the gateway is.
	// +optional
	Spec ZoneGatewaySpec `json:"spec,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ZoneIngressList is a list of ZoneIngresses.
type ZoneIngressList struct {
	metav1.TypeMeta `json:",inline"`
	// Standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// The ZoneIngresses.
	Items []ZoneIngress `json:"items"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ZoneEgress is one gateway by which traffic leaves this zone for other zones and for
// ExternalServices, in meshes with spec.routing.zoneEgress. The gateway writes it,
// under the name of its node.
type ZoneEgress struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// Where the gateway is.
	// +optional
	Spec ZoneGatewaySpec `json:"spec,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ZoneEgressList is a list of ZoneEgresses.
type ZoneEgressList struct {
	metav1.TypeMeta `json:",inline"`
	// Standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// The ZoneEgresses.
	Items []ZoneEgress `json:"items"`
}

// ZoneGatewaySpec is where a gateway is.
type ZoneGatewaySpec struct {
	// Zone of the gateway. Its control plane sets it.
	// +optional
	Zone string `json:"zone,omitempty"`
	// Address that the gateway listens on, an IP address.
	Address string `json:"address"`
	// Port that the gateway listens on, 1 to 65535.
	Port int32 `json:"port"`
	// AdvertisedAddress by which it is reached from elsewhere: an IP address or a DNS
	// name. Empty: the address.
	// +optional
	AdvertisedAddress string `json:"advertisedAddress,omitempty"`
	// AdvertisedPort by which it is reached from elsewhere. Empty: the port.
	// +optional
	AdvertisedPort int32 `json:"advertisedPort,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ZoneIngressInsight is what a control plane observed of the ZoneIngress of the same
// name. Control planes write it.
type ZoneIngressInsight struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// What was last observed.
	// +optional
	Status ClientInsightStatus `json:"status,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ZoneIngressInsightList is a list of ZoneIngressInsights.
type ZoneIngressInsightList struct {
	metav1.TypeMeta `json:",inline"`
	// Standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// The ZoneIngressInsights.
	Items []ZoneIngressInsight `json:"items"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ZoneEgressInsight is what a control plane observed of the ZoneEgress of the same
// name. Control planes write it.
type ZoneEgressInsight struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// What was last observed.
	// +optional
	Status ClientInsightStatus `json:"status,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ZoneEgressInsightList is a list of ZoneEgressInsights.
type ZoneEgressInsightList struct {
	metav1.TypeMeta `json:",inline"`
	// Standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// The ZoneEgressInsights.
	Items []ZoneEgressInsight `json:"items"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// DataplaneInsight is what a control plane observed of the Dataplane of the same name
// and namespace. Of a Dataplane without a sidecar it is the stream and the
// certificate that the agent of its node has for it. Control planes write it.
type DataplaneInsight struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// What was last observed.
	// +optional
	Status ClientInsightStatus `json:"status,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// DataplaneInsightList is a list of DataplaneInsights.
type DataplaneInsightList struct {
	metav1.TypeMeta `json:",inline"`
	// Standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// The DataplaneInsights.
	Items []DataplaneInsight `json:"items"`
}

// ClientInsightStatus is what was last observed of a client of a control plane.
type ClientInsightStatus struct {
	// Online: the client has an open connection.
	// +optional
	Online bool `json:"online,omitempty"`
	// Subscriptions are its newest connections, the newest last. At most 2; of a gateway at most 10.
	// +optional
	// +listType=atomic
	Subscriptions []Subscription `json:"subscriptions,omitempty"`
	// Certificate of the client. Empty: it has none. Of a gateway the one that ends first.
	// +optional
	Certificate *CertificateInsight `json:"certificate,omitempty"`
	// Certificates of a gateway, which has one in each mesh. At most 64.
	// +optional
	// +listType=atomic
	Certificates []CertificateInsight `json:"certificates,omitempty"`
	// Versions of the programs of a proxy, as it states them.
	// +optional
	Versions *ProxyVersions `json:"versions,omitempty"`
	// Rejected resources, which a proxy has in an older version or not at all. The first 16.
	// +optional
	// +listType=atomic
	Rejected []RejectedResource `json:"rejected,omitempty"`
	// Learned are service ports that a proxy used, which the next one of its service account
	// is given when it starts. At most 256.
	// +optional
	// +listType=map
	// +listMapKey=port
	Learned []LearnedPort `json:"learned,omitempty"`
	// Conditions of a gateway: ProxyConnected, ConfigAccepted, ProxyReady and CertificateValid. Those of
	// a workload are on its Dataplane.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ProxyVersions are the programs of a proxy.
type ProxyVersions struct {
	// Proxy: envoy, the user agent of a gRPC client, or proxima, which is a gateway without Envoy.
	// +optional
	Proxy string `json:"proxy,omitempty"`
	// Version of it.
	// +optional
	Version string `json:"version,omitempty"`
	// Supervisor that runs the proxy: its version. Empty: none does.
	// +optional
	Supervisor string `json:"supervisor,omitempty"`
}

// RejectedResource is one that a proxy did not accept.
type RejectedResource struct {
	// Type: the last part of its type URL, as in Cluster.
	Type string `json:"type"`
	// Name of the resource.
	Name string `json:"name"`
	// Policy that it is made from, KIND NAMESPACE/NAME. Empty: none, or not known.
	// +optional
	Policy string `json:"policy,omitempty"`
	// Error of the proxy.
	Error string `json:"error"`
}

// LearnedPort is a service port that a proxy used.
type LearnedPort struct {
	// Port: NAMESPACE/SERVICE:PORT.
	Port string `json:"port"`
	// LastUsed is when, give or take an hour.
	LastUsed metav1.Time `json:"lastUsed"`
}

// CertificateInsight is the state of a certificate that was issued to a workload.
type CertificateInsight struct {
	// Mesh that it is of. Of gateways alone.
	// +optional
	Mesh string `json:"mesh,omitempty"`
	// Identity that it is for, a SPIFFE ID.
	// +optional
	Identity string `json:"identity,omitempty"`
	// Backend of the mesh that signed it.
	// +optional
	Backend string `json:"backend,omitempty"`
	// LastIssue is when the newest one was issued.
	LastIssue metav1.Time `json:"lastIssue"`
	// Expiry of the newest one.
	Expiry metav1.Time `json:"expiry"`
	// Generations counts the certificates that were issued.
	Generations int64 `json:"generations"`
}
