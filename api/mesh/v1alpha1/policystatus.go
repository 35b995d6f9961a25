package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Conditions of a PolicyStatus.
const (
	// PolicyAccepted: the control plane can use the policy; else the message says why not,
	// and what holds instead.
	PolicyAccepted = "Accepted"
	// PolicyResolved: all that the policy names is there, and nothing failed by it.
	PolicyResolved = "Resolved"
)

// PolicyStatus is what a control plane observes of a policy.
type PolicyStatus struct {
	// ObservedGeneration is the generation that the status is of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Services that use the policy at this control plane.
	// +optional
	Services int32 `json:"services,omitempty"`
	// Conditions at this control plane: Accepted and Resolved.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Zones is what each zone observes, at global.
	// +optional
	// +listType=map
	// +listMapKey=zone
	Zones []PolicyZoneStatus `json:"zones,omitempty"`
}

// PolicyZoneStatus is what one zone observes of a policy of global.
type PolicyZoneStatus struct {
	// Zone that observes it.
	Zone string `json:"zone"`
	// Conditions of the policy there.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
