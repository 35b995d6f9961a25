package v1alpha1

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MaxZoneShift is how far in the future a ZoneShift may end.
const MaxZoneShift = 7 * 24 * time.Hour

// ZoneShiftActive is the condition of a ZoneShift that says whether its endpoints are out.
const ZoneShiftActive = "Active"

// Reasons of the condition Active.
const (
	// ZoneShiftInEffect: the endpoints get new connections only where no other one is ready.
	ZoneShiftInEffect = "InEffect"
	// ZoneShiftExpired: its time is over.
	ZoneShiftExpired = "Expired"
	// ZoneShiftLastEndpoints: a Service would have no endpoint left, and spec.force is not set.
	ZoneShiftLastEndpoints = "LastEndpoints"
)

// CauseLastEndpoints is the cause of the refusal of a ZoneShift that would leave a Service
// without endpoints.
const CauseLastEndpoints metav1.CauseType = "LastEndpoints"

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ZoneShift takes the endpoints of a topology zone, or of a node, out of their Services for
// a time. New connections go to other endpoints, open ones stay. It ends by itself.
type ZoneShift struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// What is taken out, for how long and why.
	Spec ZoneShiftSpec `json:"spec"`
	// Whether it is in effect.
	// +optional
	Status ZoneShiftStatus `json:"status,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ZoneShiftList is a list of ZoneShifts.
type ZoneShiftList struct {
	metav1.TypeMeta `json:",inline"`
	// Standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// The ZoneShifts.
	Items []ZoneShift `json:"items"`
}

// ZoneShiftSpec is what is taken out, for how long and why. Either zone or node is set, and
// neither is changed later.
type ZoneShiftSpec struct {
	// Zone is a topology zone (label topology.kubernetes.io/zone).
	// +optional
	Zone string `json:"zone,omitempty"`
	// Node is the name of a node.
	// +optional
	Node string `json:"node,omitempty"`
	// Until when. It can be changed. At most 7 days from the write.
	Until metav1.Time `json:"until"`
	// Reason, for people. At most 512 characters.
	Reason string `json:"reason"`
	// Force takes out the last endpoints of Services, too. They go on serving these Services,
	// as no other endpoint is ready.
	// +optional
	Force bool `json:"force,omitempty"`
}

// ZoneShiftStatus is how far it is in effect.
type ZoneShiftStatus struct {
	// Conditions; type Active says whether the endpoints are out, and why not.
	// +optional
	// +patchMergeKey=type
	// +patchStrategy=merge
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty" patchStrategy:"merge" patchMergeKey:"type"`
	// Services that had endpoints there when it came into effect.
	// +optional
	Services int32 `json:"services,omitempty"`
	// Endpoints that were ready there when it came into effect.
	// +optional
	Endpoints int32 `json:"endpoints,omitempty"`
}
