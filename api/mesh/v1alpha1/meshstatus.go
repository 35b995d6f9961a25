package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Condition types of a Mesh.
const (
	// MeshCertificatesReady: workloads of the mesh get certificates from the enabled
	// backend.
	MeshCertificatesReady = "CertificatesReady"
	// MeshMTLSEnforced: all traffic between workloads of the mesh is mutual TLS.
	MeshMTLSEnforced = "MTLSEnforced"
	// MeshIsolationEnforced: workloads of other meshes do not resolve the names of the mesh,
	// and their connections to its virtual IPs, and to its Services from other sites, are
	// refused.
	MeshIsolationEnforced = "IsolationEnforced"
	// MeshPassthroughEnforced: workloads of a mesh without passthrough reach what the mesh
	// knows, and nothing else. A Mesh with passthrough has no such condition.
	MeshPassthroughEnforced = "PassthroughEnforced"
)

// MeshStatus is what was last observed of a mesh.
type MeshStatus struct {
	// ObservedGeneration of the Mesh that the status is of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Conditions; type CertificatesReady says whether workloads get certificates,
	// MTLSEnforced whether all traffic of the mesh uses them, IsolationEnforced whether
	// workloads of other meshes are refused, PassthroughEnforced, of a Mesh without
	// passthrough, whether its workloads are kept from what it does not know.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// MTLS is the state of the mesh's certificate authorities.
	// +optional
	MTLS *MeshMTLSStatus `json:"mtls,omitempty"`
	// Zones, at a global control plane: what each of them observes of the mesh.
	// +optional
	// +listType=map
	// +listMapKey=zone
	Zones []PolicyZoneStatus `json:"zones,omitempty"`
}

// MeshMTLSStatus is the state of a mesh's certificate authorities.
type MeshMTLSStatus struct {
	// TrustDomain of the identities of the mesh.
	// +optional
	TrustDomain string `json:"trustDomain,omitempty"`
	// Phase of the change of authorities: Stable (none is under way), Trusting (the
	// next authority is made known), Issuing (certificates of the old one are
	// replaced) or Distrusting (the old one is taken out of use).
	// +optional
	Phase string `json:"phase,omitempty"`
	// Generation counts the steps of such changes.
	// +optional
	Generation int64 `json:"generation,omitempty"`
	// Authorities that are trusted, the oldest first.
	// +optional
	// +listType=atomic
	Authorities []MeshAuthorityStatus `json:"authorities,omitempty"`
	// WaitingFor names the first of those that have not acknowledged the phase.
	// +optional
	// +listType=atomic
	WaitingFor []string `json:"waitingFor,omitempty"`
}

// MeshAuthorityStatus is one certificate authority of a mesh.
type MeshAuthorityStatus struct {
	// Backend of the Mesh that it is of.
	Backend string `json:"backend"`
	// ID of the authority: 16 hexadecimal digits of the SHA-256 of its public key.
	ID string `json:"id"`
	// Issuing: it signs the certificates of workloads.
	// +optional
	Issuing bool `json:"issuing,omitempty"`
	// NotAfter is when the first of its root certificates runs out.
	NotAfter metav1.Time `json:"notAfter"`
}
