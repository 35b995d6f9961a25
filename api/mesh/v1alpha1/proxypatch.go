package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ProxyPatch changes the configuration of Envoy itself, after everything else. Names and
// contents of Envoy's resources change between versions, so it is the last resort.
type ProxyPatch struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// The changes.
	// +optional
	Spec ProxyPatchSpec `json:"spec,omitempty"`
	// Whether the patches are in effect.
	// +optional
	Status TrafficPolicyStatus `json:"status,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ProxyPatchList is a list of ProxyPatches.
type ProxyPatchList struct {
	metav1.TypeMeta `json:",inline"`
	// Standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// The ProxyPatches.
	Items []ProxyPatch `json:"items"`
}

// ProxyPatchSpec has the changes.
type ProxyPatchSpec struct {
	// Workloads whose proxies are changed: Dataplane, Pod or Mesh.
	PolicyTarget `json:",inline"`
	// Patches, applied in this order.
	// +listType=atomic
	Patches []ProxyPatchItem `json:"patches"`
}

// ProxyPatchItem is one change.
type ProxyPatchItem struct {
	// Type of what is changed: Cluster, Listener, Route (a route of a virtual host), VirtualHost,
	// NetworkFilter or HTTPFilter.
	Type string `json:"type"`
	// Match chooses what is changed. Empty: all of the type.
	// +optional
	Match *ProxyPatchMatch `json:"match,omitempty"`
	// Op: Add (a resource, route or filter at the end), Merge (into what matches), JSONPatch
	// (RFC 6902), Remove, First, Last, Before or After (a filter, a route or a virtual host,
	// relative to what matches).
	Op string `json:"op"`
	// Value in YAML or JSON: Envoy's message of the type, a part of it for Merge, or the list of
	// operations of JSONPatch.
	// +optional
	Value string `json:"value,omitempty"`
}

// ProxyPatchMatch chooses what is changed. All fields that are set must hold.
type ProxyPatchMatch struct {
	// Name of the cluster, listener, route, virtual host or filter.
	// +optional
	Name string `json:"name,omitempty"`
	// Origin: Inbound, Outbound, Passthrough or Proxy (what belongs to the proxy itself).
	// +optional
	Origin string `json:"origin,omitempty"`
	// Direction of the traffic: Inbound or Outbound.
	// +optional
	Direction string `json:"direction,omitempty"`
	// Port of the listener, or of the Service of a cluster.
	// +optional
	Port int32 `json:"port,omitempty"`
	// Listener by name, that has the filter; for routes and virtual hosts the route
	// configuration of that name.
	// +optional
	Listener string `json:"listener,omitempty"`
}
