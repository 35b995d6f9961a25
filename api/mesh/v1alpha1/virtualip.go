package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// VirtualIP is a name below "mesh" and its virtual addresses in one zone. The zone's
// control plane writes it.
type VirtualIP struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// The name, its addresses and its service.
	// +optional
	Spec VirtualIPSpec `json:"spec,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// VirtualIPList is a list of VirtualIPs.
type VirtualIPList struct {
	metav1.TypeMeta `json:",inline"`
	// Standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// The VirtualIPs.
	Items []VirtualIP `json:"items"`
}

// VirtualIPSpec is a name, its addresses and its service.
type VirtualIPSpec struct {
	// Mesh whose workloads resolve the name.
	Mesh string `json:"mesh"`
	// Hostname is the name, without "mesh" at its end.
	Hostname string `json:"hostname"`
	// Addresses are the virtual IPs, at most one per IP family.
	// +listType=atomic
	Addresses []string `json:"addresses"`
	// Namespace of the Service.
	Namespace string `json:"namespace"`
	// Service whose endpoints answer. Of an exported one it is the Service that has the
	// virtual IP of the import.
	Service string `json:"service"`
	// Port of the Service, 1 to 65535. The addresses answer on it, and on 80 for TCP. Of the
	// service of a tag it is 0: the addresses answer on all its ports, of which 80 is one.
	Port int32 `json:"port"`
	// UnusedSince is when the last endpoint, or the Service, went. The addresses are kept for
	// an hour. Empty: the name is in use.
	// +optional
	UnusedSince *metav1.Time `json:"unusedSince,omitempty"`
}
