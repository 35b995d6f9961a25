package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Classes of load balancers (spec.loadBalancerClass of Services) that the control plane
// provides.
const (
	// LoadBalancerClassNode gives a Service addresses of ready nodes.
	LoadBalancerClassNode = "proxima.dev/node"
	// LoadBalancerClassPool gives a Service addresses of IPAddressPools.
	LoadBalancerClassPool = "proxima.dev/pool"
)

// AnnotationAddressPool of a Service of class LoadBalancerClassPool names the IPAddressPool
// that its addresses come from.
const AnnotationAddressPool = "mesh.proxima.dev/address-pool"

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// IPAddressPool holds addresses for Services of type LoadBalancer whose
// spec.loadBalancerClass is proxima.dev/pool. Routes to them are made by others: the
// addresses are not announced.
type IPAddressPool struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// The addresses, and who gets them.
	Spec IPAddressPoolSpec `json:"spec"`
	// How many of them are in use.
	// +optional
	Status IPAddressPoolStatus `json:"status,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// IPAddressPoolList is a list of IPAddressPools.
type IPAddressPoolList struct {
	metav1.TypeMeta `json:",inline"`
	// Standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// The IPAddressPools.
	Items []IPAddressPool `json:"items"`
}

// IPAddressPoolSpec is addresses, and who gets them.
type IPAddressPoolSpec struct {
	// Addresses are networks (192.0.2.0/28: all of its addresses), ranges
	// (192.0.2.10-192.0.2.20) and single addresses, of both families, 1 to 100 of them.
	// +listType=atomic
	Addresses []string `json:"addresses"`
	// Namespaces whose Services get addresses of the pool. Empty: all.
	// +optional
	// +listType=set
	Namespaces []string `json:"namespaces,omitempty"`
	// AutoAssign gives addresses to Services that name no pool. Defaults to true; false:
	// only to those that name this one by the annotation mesh.proxima.dev/address-pool.
	// +optional
	AutoAssign *bool `json:"autoAssign,omitempty"`
}

// IPAddressPoolStatus is how many addresses are in use.
type IPAddressPoolStatus struct {
	// Assigned is the number of addresses that Services have.
	// +optional
	Assigned int64 `json:"assigned,omitempty"`
}
