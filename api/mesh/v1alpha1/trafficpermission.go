package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// TrafficPermission says who may call workloads. A call that a rule of deny describes is
// refused; one that a rule of allow describes is let through. A port for which there is no rule
// of allow follows the Mesh's defaultAccess; where there is one, other calls are refused.
type TrafficPermission struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// Who may call whom.
	// +optional
	Spec TrafficPermissionSpec `json:"spec,omitempty"`
	// Whether the permission is in effect.
	// +optional
	Status TrafficPolicyStatus `json:"status,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// TrafficPermissionList is a list of TrafficPermissions.
type TrafficPermissionList struct {
	metav1.TypeMeta `json:",inline"`
	// Standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// The TrafficPermissions.
	Items []TrafficPermission `json:"items"`
}

// TrafficPermissionSpec says who may call whom.
type TrafficPermissionSpec struct {
	// Workloads that are called: Dataplane, Pod or Mesh.
	PolicyTarget `json:",inline"`
	// Ports of the workloads, by name or number. Empty: all.
	// +optional
	// +listType=set
	Ports []string `json:"ports,omitempty"`
	// Shadow does not enforce the permission: proxies count what it would refuse.
	// +optional
	Shadow bool `json:"shadow,omitempty"`
	// Deny describes calls that are refused, whatever is allowed.
	// +optional
	// +listType=atomic
	Deny []PermissionRule `json:"deny,omitempty"`
	// Allow describes calls that are let through.
	// +optional
	// +listType=atomic
	Allow []PermissionRule `json:"allow,omitempty"`
}

// PermissionRule describes calls: by whom, and of what.
type PermissionRule struct {
	// From describes callers; one of the items must hold. Empty: everybody.
	// +optional
	// +listType=atomic
	From []PolicySource `json:"from,omitempty"`
	// To describes HTTP requests; one of the items must hold. Empty: every connection and
	// request. A rule with it describes nothing on ports that are not HTTP.
	// +optional
	// +listType=atomic
	To []PermissionRequest `json:"to,omitempty"`
}

// PermissionRequest describes HTTP requests. All fields that are set must hold; a list holds if
// one of its items does.
type PermissionRequest struct {
	// Methods, such as GET.
	// +optional
	// +listType=set
	Methods []string `json:"methods,omitempty"`
	// Paths without the query, compared by Exact, Prefix or RegularExpression.
	// +optional
	// +listType=atomic
	Paths []ValueMatch `json:"paths,omitempty"`
	// Hosts of the request, without the port.
	// +optional
	// +listType=set
	Hosts []string `json:"hosts,omitempty"`
}
