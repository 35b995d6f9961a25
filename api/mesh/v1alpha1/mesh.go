package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// Mesh is an isolation domain: names, identities, policies and calls between
// zones of one mesh are invisible in another. A namespace belongs to the mesh
// that its label mesh.proxima.dev/mesh names, else to the mesh "default", which
// always exists.
type Mesh struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// What holds for everything in the mesh.
	// +optional
	Spec MeshSpec `json:"spec,omitempty"`
	// What was last observed of the mesh.
	// +optional
	Status MeshStatus `json:"status,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// MeshList is a list of Meshes.
type MeshList struct {
	metav1.TypeMeta `json:",inline"`
	// Standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// The Meshes.
	Items []Mesh `json:"items"`
}

// MeshSpec says what holds for everything in a mesh.
type MeshSpec struct {
	// MTLS says who signs the certificates of workloads, and whether workloads
	// without one may call. Without it the mesh has no mutual TLS.
	// +optional
	MTLS *MeshMTLS `json:"mtls,omitempty"`
	// Networking is about traffic to what is outside the mesh.
	// +optional
	Networking *MeshNetworking `json:"networking,omitempty"`
	// Routing is about traffic between zones.
	// +optional
	Routing *MeshRouting `json:"routing,omitempty"`
	// DefaultAccess to ports for which no TrafficPermission allows anything: Allow or Deny.
	// Empty: Allow.
	// +optional
	DefaultAccess string `json:"defaultAccess,omitempty"`
}

// MeshMTLS is mutual TLS between the workloads of a mesh.
type MeshMTLS struct {
	// TrustDomain of the identities of the mesh's workloads, a DNS name. It cannot
	// change, as every certificate has it. Empty: the mesh's name with .mesh behind
	// it.
	// +optional
	TrustDomain string `json:"trustDomain,omitempty"`
	// EnabledBackend names the backend that signs certificates. Empty: none
	// does, and there is no mutual TLS.
	// +optional
	EnabledBackend string `json:"enabledBackend,omitempty"`
	// Backends that can be enabled. Several can be there, so that a mesh can move
	// from one to another.
	// +optional
	// +listType=map
	// +listMapKey=name
	Backends []MeshCertificateBackend `json:"backends,omitempty"`
	// Outbound says when proxies begin TLS: Auto (to endpoints that have a proxy) or Always.
	// Empty: Auto.
	// +optional
	Outbound string `json:"outbound,omitempty"`
}

// MeshCertificateBackend is an authority that signs certificates of workloads.
type MeshCertificateBackend struct {
	// Name of the backend, unique in the mesh.
	Name string `json:"name"`
	// Type: Builtin (the control plane makes an authority of its own), Provided
	// (certificate and key are given) or External (a signer of
	// CertificateSigningRequests does it). Empty: Builtin.
	// +optional
	Type string `json:"type,omitempty"`
	// Mode: Strict (plain clients are refused) or Permissive (they get in, while a
	// mesh migrates). Empty: Strict.
	// +optional
	Mode string `json:"mode,omitempty"`
	// WorkloadCertificate is about the certificates that the backend signs.
	// +optional
	WorkloadCertificate *MeshWorkloadCertificate `json:"workloadCertificate,omitempty"`
	// Provided is the authority of a backend of type Provided.
	// +optional
	Provided *MeshProvidedAuthority `json:"provided,omitempty"`
	// External is the signer of a backend of type External.
	// +optional
	External *MeshExternalAuthority `json:"external,omitempty"`
}

// MeshWorkloadCertificate is what certificates of workloads are like.
type MeshWorkloadCertificate struct {
	// ValiditySeconds of a certificate, 60 to 31536000 (a year); it is renewed
	// long before. Empty: 86400, a day.
	// +optional
	ValiditySeconds *int32 `json:"validitySeconds,omitempty"`
}

// MeshProvidedAuthority is a certificate authority that the user brings: in
// certificate and key, or in files. Changes are taken over without a restart.
type MeshProvidedAuthority struct {
	// Certificate of the authority, in PEM, followed by those between it and the
	// root.
	// +optional
	Certificate DataSource `json:"certificate,omitzero"`
	// Key of the authority, in PEM. It comes from a secret.
	// +optional
	Key DataSource `json:"key,omitzero"`
	// Roots that verify the certificate, in PEM. Empty: its last certificate is the
	// root.
	// +optional
	Roots *DataSource `json:"roots,omitempty"`
	// Files have them instead, on the machines of the control plane.
	// +optional
	Files *MeshAuthorityFiles `json:"files,omitempty"`
}

// MeshAuthorityFiles are files on each machine that an instance of the control
// plane runs on.
type MeshAuthorityFiles struct {
	// Certificate names the file with the authority's certificate, in PEM, followed
	// by those between it and the root. An absolute path.
	Certificate string `json:"certificate"`
	// Key names the file with its key, which others must not be able to read.
	Key string `json:"key"`
	// Roots names the file with the roots. Empty: the last certificate is the root.
	// +optional
	Roots string `json:"roots,omitempty"`
}

// MeshExternalAuthority is a signer of certificates.k8s.io/v1
// CertificateSigningRequests.
type MeshExternalAuthority struct {
	// SignerName, as in example.com/mesh.
	SignerName string `json:"signerName"`
	// Roots of the signer, in PEM: a CertificateSigningRequest does not bring them.
	Roots DataSource `json:"roots"`
	// Approve the requests. Without it an approver of the signer's does.
	// +optional
	Approve bool `json:"approve,omitempty"`
}

// DataSource is where bytes come from: exactly one of its fields is set.
type DataSource struct {
	// Inline are the bytes themselves. Not for what is secret.
	// +optional
	Inline []byte `json:"inline,omitempty"`
	// SecretRef is a key of a Secret or GlobalSecret.
	// +optional
	SecretRef *SecretKeyReference `json:"secretRef,omitempty"`
}

// SecretKeyReference names one value of a Secret or GlobalSecret.
type SecretKeyReference struct {
	// Kind: Secret (in the namespace of the object that refers to it) or
	// GlobalSecret. Empty: Secret where the object has a namespace, else
	// GlobalSecret.
	// +optional
	Kind string `json:"kind,omitempty"`
	// Name of the secret.
	Name string `json:"name"`
	// Key of the value in the secret's data. Empty: value.
	// +optional
	Key string `json:"key,omitempty"`
}

// MeshNetworking is about traffic to what is outside the mesh.
type MeshNetworking struct {
	// Outbound traffic of the mesh's workloads.
	// +optional
	Outbound *MeshOutbound `json:"outbound,omitempty"`
}

// MeshOutbound is about what workloads may call.
type MeshOutbound struct {
	// Passthrough lets workloads call addresses that the mesh does not know.
	// Defaults to true.
	// +optional
	Passthrough *bool `json:"passthrough,omitempty"`
	// Scope says which Services a proxy knows: OnDemand (those it uses), All (at most 1000
	// service ports) or Declared (those that policies and annotations name). Empty: OnDemand.
	// +optional
	Scope string `json:"scope,omitempty"`
}

// MeshRouting is about traffic between zones.
type MeshRouting struct {
	// LocalityAware keeps traffic in its zone while the zone has endpoints. false
	// (locality off): all zones share it by their number of instances. Defaults
	// to true.
	// +optional
	LocalityAware *bool `json:"localityAware,omitempty"`
	// ZoneEgress sends traffic to other zones and to ExternalServices through the
	// zone's egress. Defaults to false.
	// +optional
	ZoneEgress *bool `json:"zoneEgress,omitempty"`
	// Export says which Services other zones may use: Exported (those with a
	// ServiceExport) or All. Empty: Exported.
	// +optional
	Export string `json:"export,omitempty"`
	// TopologyMode of Services that say nothing, and whose namespace says nothing: Auto,
	// Disabled, proxima.dev/Adaptive, heuristic.proxima.dev/NAME or another DOMAIN/NAME, as
	// in the annotation service.kubernetes.io/topology-mode. Empty: the default of the
	// control plane.
	// +optional
	TopologyMode string `json:"topologyMode,omitempty"`
}
