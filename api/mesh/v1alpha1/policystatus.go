package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

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
