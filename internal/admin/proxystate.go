package admin

import (
	"encoding/json"
	"time"
)

// ProxyState is what a control plane, and the supervisor, know of the proxy of a Dataplane.
type ProxyState struct {
	// Dataplane, NAMESPACE/NAME, or */NAME of a gateway, its mesh, and the zone of the control plane.
	Dataplane string `json:"dataplane"`
	Mesh      string `json:"mesh"`
	Zone      string `json:"zone"`
	// Instance of the control plane that has its stream, and the version of that.
	Instance     string `json:"instance"`
	ControlPlane string `json:"controlPlane"`
	// Kind is sidecar, direct (an Envoy without a supervisor), grpc, gateway (the Envoy of one), or ingress or
	// egress (one without Envoy).
	Kind string `json:"kind"`
	// Program and Version of the client, as it says, and the version of its supervisor.
	Program    string `json:"program,omitempty"`
	Version    string `json:"version,omitempty"`
	Supervisor string `json:"supervisor,omitempty"`
	// Peer is the address of its connection.
	Peer  string      `json:"peer"`
	Since time.Time   `json:"since"`
	Types []ProxyType `json:"types"`
	// Rejected are the resources that it does not have as they are now.
	Rejected []ProxyRejection `json:"rejected,omitempty"`
	// Own is the supervisor's state, as it says; null: it did not answer, for this Reason.
	Own    json.RawMessage `json:"own,omitempty"`
	Reason string          `json:"reason,omitempty"`
}

// ProxyType is the state of one type of resources.
type ProxyType struct {
	// Type: the last part of its type URL, as in Cluster.
	Type string `json:"type"`
	// Resources that it has been sent and not been told to remove.
	Resources int `json:"resources"`
	// Responses, and those that it has acknowledged, refused and not answered yet.
	Sent         uint64 `json:"sent"`
	Acknowledged uint64 `json:"acknowledged"`
	Rejected     uint64 `json:"rejected"`
	Unanswered   int    `json:"unanswered"`
}

// ProxyDifference is what a proxy was sent, beside what it holds.
type ProxyDifference struct {
	Dataplane string            `json:"dataplane"`
	Resources []ProxyComparison `json:"resources"`
}

// ProxyComparison of one resource.
type ProxyComparison struct {
	Type string `json:"type"`
	Name string `json:"name"`
	// Sent and Held are versions; empty: there is none.
	Sent string `json:"sent,omitempty"`
	Held string `json:"held,omitempty"`
	// State is one of the constants below.
	State string `json:"state"`
	// Reason of a rejection.
	Reason string `json:"reason,omitempty"`
}

// States of a ProxyComparison.
const (
	// ProxySame: it holds what it was sent.
	ProxySame = "same"
	// ProxyPending: it has not accepted yet what it was sent.
	ProxyPending = "pending"
	// ProxyRejected: it, or a proxy like it, has rejected what it should have; it keeps what it held.
	ProxyRejected = "rejected"
	// ProxyRemoved: it still holds what it was told to remove, or what nobody sent.
	ProxyRemoved = "removed"
)
