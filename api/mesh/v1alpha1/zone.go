package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// Zone is a site that has a control plane of its own, connected to the global
// control plane. Zones exist at global only. A Zone is not a topology zone, which
// is a label of Nodes.
type Zone struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// What the zone may do.
	// +optional
	Spec ZoneSpec `json:"spec,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ZoneList is a list of Zones.
type ZoneList struct {
	metav1.TypeMeta `json:",inline"`
	// Standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// The Zones.
	Items []Zone `json:"items"`
}

// ZoneSpec is what a zone may do.
type ZoneSpec struct {
	// Enabled: the zone may connect, and other zones may send it traffic. Defaults to
	// true.
	// +optional
	Enabled *bool `json:"enabled,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ZoneInsight is what the global control plane observed of the Zone of the same
// name. Control planes write it.
type ZoneInsight struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// What was last observed.
	// +optional
	Status ZoneInsightStatus `json:"status,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ZoneInsightList is a list of ZoneInsights.
type ZoneInsightList struct {
	metav1.TypeMeta `json:",inline"`
	// Standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// The ZoneInsights.
	Items []ZoneInsight `json:"items"`
}

// ZoneInsightStatus is what was last observed of a zone.
type ZoneInsightStatus struct {
	// Online: the zone has a connection to an instance of the global control plane, and
	// gave a sign of life within the timeout.
	// +optional
	Online bool `json:"online,omitempty"`
	// Subscriptions are the zone's newest connections, the newest last. At most 10.
	// +optional
	// +listType=atomic
	Subscriptions []Subscription `json:"subscriptions,omitempty"`
	// Types describes the synchronisation of each type of objects.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +listMapKey=direction
	Types []TypeSync `json:"types,omitempty"`
}

// Subscription is one connection to a control plane.
type Subscription struct {
	// ID of the connection.
	ID string `json:"id"`
	// Instance of the control plane that it is to.
	// +optional
	Instance string `json:"instance,omitempty"`
	// Client is the instance that it is from, where a client has several.
	// +optional
	Client string `json:"client,omitempty"`
	// Version of the client's program.
	// +optional
	Version string `json:"version,omitempty"`
	// Protocol version of the connection.
	// +optional
	Protocol int32 `json:"protocol,omitempty"`
	// ConnectTime is when it began.
	ConnectTime metav1.MicroTime `json:"connectTime"`
	// DisconnectTime is when it ended. Empty: it is open.
	// +optional
	DisconnectTime *metav1.MicroTime `json:"disconnectTime,omitempty"`
	// Generation counts the connections of the client, to any instance: 1 is the first that is
	// known. Of proxies alone.
	// +optional
	Generation int64 `json:"generation,omitempty"`
	// Resources that were sent over it, by type, as of the last time that the insight was
	// written. Of proxies alone.
	// +optional
	// +listType=map
	// +listMapKey=type
	Resources []ResourceSync `json:"resources,omitempty"`
}

// ResourceSync counts the responses to a proxy with resources of one type.
type ResourceSync struct {
	// Type: the last part of its type URL, as in Cluster or ClusterLoadAssignment.
	Type string `json:"type"`
	// Sent responses, without those of the last 10 s that wait for an answer: more than acknowledged
	// and rejected together, and the proxy is behind.
	// +optional
	Sent int64 `json:"sent,omitempty"`
	// Acknowledged responses.
	// +optional
	Acknowledged int64 `json:"acknowledged,omitempty"`
	// Rejected responses: the proxy keeps what it had.
	// +optional
	Rejected int64 `json:"rejected,omitempty"`
}

// TypeSync is the state of one type's synchronisation with a zone.
type TypeSync struct {
	// Type: group and kind, as in mesh.proxima.dev/Mesh.
	Type string `json:"type"`
	// Direction: ToZone or ToGlobal.
	Direction string `json:"direction"`
	// Objects that the receiver has.
	// +optional
	Objects int32 `json:"objects,omitempty"`
	// Held deletions that wait for "proxima zone confirm".
	// +optional
	Held int32 `json:"held,omitempty"`
	// HeldNames are the first ten of them.
	// +optional
	// +listType=atomic
	HeldNames []string `json:"heldNames,omitempty"`
	// HeldToken names the set of held deletions.
	// +optional
	HeldToken string `json:"heldToken,omitempty"`
	// Refused objects, which the receiver does not have or has in an older version.
	// +optional
	// +listType=atomic
	Refused []SyncRefusal `json:"refused,omitempty"`
}

// SyncRefusal is an object that a receiver refused.
type SyncRefusal struct {
	// Name of the object, NAMESPACE/NAME.
	Name string `json:"name"`
	// Reason of the refusal.
	Reason string `json:"reason"`
	// Waiting: it is applied when what it needs, as a namespace, is there.
	// +optional
	Waiting bool `json:"waiting,omitempty"`
}
