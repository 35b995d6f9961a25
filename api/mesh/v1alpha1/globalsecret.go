package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// GlobalSecret is a secret of no namespace: keys and certificates of meshes and
// of the control planes. It is encrypted in the store, as a Secret is, and only
// admins may read it.
type GlobalSecret struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// Type says what the secret is for. Defaults to Opaque; it cannot change.
	// +optional
	Type string `json:"type,omitempty"`
	// Immutable: neither the data nor this field can be changed any more.
	// +optional
	Immutable *bool `json:"immutable,omitempty"`
	// Data, in base64. Keys are letters, digits, -, _ and dots.
	// +optional
	Data map[string][]byte `json:"data,omitempty"`
	// StringData is merged into data when it is written, and never read back.
	// +optional
	StringData map[string]string `json:"stringData,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// GlobalSecretList is a list of GlobalSecrets.
type GlobalSecretList struct {
	metav1.TypeMeta `json:",inline"`
	// Standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// The GlobalSecrets.
	Items []GlobalSecret `json:"items"`
}
