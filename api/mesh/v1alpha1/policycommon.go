package v1alpha1

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Duration is a length of time in the format of the Gateway API (GEP-2257): up to four
// numbers of at most five digits, each with a unit of h, m, s or ms. "0s" is none.
type Duration string

// Value of the duration; 0 if it is empty or malformed, which validation refuses.
func (d Duration) Value() time.Duration {
	v, err := time.ParseDuration(string(d))
	if err != nil {
		return 0
	}
	return v
}

// PolicyTargetReference names what a policy is for.
type PolicyTargetReference struct {
	// Group of the target's kind; empty: the core group.
	// +optional
	Group string `json:"group,omitempty"`
	// Kind of the target.
	Kind string `json:"kind"`
	// Name of the target.
	Name string `json:"name"`
	// Namespace of the target. Empty: that of the policy.
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// SectionName is a part of the target: the name or number of a port of a backend, or the
	// name of a rule of a route. Empty: all of it.
	// +optional
	SectionName string `json:"sectionName,omitempty"`
}

// PolicyTarget says what a policy is for: what it names, or what it selects. Without either
// it is for everything in its namespace.
type PolicyTarget struct {
	// TargetRefs name the targets, at most 16. A Mesh can only be named by a policy in
	// namespace proxima-system.
	// +optional
	// +listType=atomic
	TargetRefs []PolicyTargetReference `json:"targetRefs,omitempty"`
	// Selector selects targets in the namespace of the policy by their labels.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
}

// Conditions of the status of a policy of traffic, beside Accepted.
const (
	// PolicyResolvedRefs: all that the policy names is there, and may be named by it.
	PolicyResolvedRefs = "ResolvedRefs"
	// PolicyProgrammed: the proxies that the policy concerns have acknowledged it.
	PolicyProgrammed = "Programmed"
	// PolicyOverridden: other policies, which the message names, set some of its fields.
	PolicyOverridden = "Overridden"
	// PolicyPartiallyEnforced: some workloads do not enforce some fields; the message says
	// which, and why.
	PolicyPartiallyEnforced = "PartiallyEnforced"
)

// TrafficPolicyStatus is what a control plane observes of a policy of traffic.
type TrafficPolicyStatus struct {
	// ObservedGeneration is the generation that the status is of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Targets that the policy concerns at this control plane: workloads, or backends and routes.
	// +optional
	Targets int32 `json:"targets,omitempty"`
	// Conditions at this control plane: Accepted, ResolvedRefs, Programmed, Overridden and
	// PartiallyEnforced.
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

// ValueMatch compares a text.
type ValueMatch struct {
	// Type: Exact, Prefix or RegularExpression (RE2, the whole text), where the field allows it.
	// Empty: Exact.
	// +optional
	Type string `json:"type,omitempty"`
	// Value that is compared with.
	Value string `json:"value"`
}

// PolicySource describes who calls. All fields that are set must hold; a list holds if one of
// its items does.
type PolicySource struct {
	// Namespaces of the caller.
	// +optional
	// +listType=set
	Namespaces []string `json:"namespaces,omitempty"`
	// ServiceAccounts of the caller, as NAMESPACE/NAME.
	// +optional
	// +listType=set
	ServiceAccounts []string `json:"serviceAccounts,omitempty"`
	// Labels of the caller. They become the service accounts of the workloads that have them;
	// where others share such an account, the addresses must be right as well.
	// +optional
	Labels *metav1.LabelSelector `json:"labels,omitempty"`
	// SPIFFE IDs of the caller, compared by Exact or Prefix.
	// +optional
	// +listType=atomic
	SPIFFE []ValueMatch `json:"spiffe,omitempty"`
	// Addresses from which the caller connects: addresses, or ranges in CIDR notation.
	// +optional
	// +listType=set
	Addresses []string `json:"addresses,omitempty"`
	// Mesh of the caller.
	// +optional
	Mesh string `json:"mesh,omitempty"`
}

// RateLimit limits what each instance of a workload takes.
type RateLimit struct {
	// From limits callers; empty: all together.
	// +optional
	// +listType=atomic
	From []PolicySource `json:"from,omitempty"`
	// HTTP requests.
	// +optional
	HTTP *HTTPRateLimit `json:"http,omitempty"`
	// TCP connections.
	// +optional
	TCP *TCPRateLimit `json:"tcp,omitempty"`
}

// HTTPRateLimit limits requests.
type HTTPRateLimit struct {
	// Requests that are allowed in each period, 1 or more.
	Requests int32 `json:"requests"`
	// Per is the period, 50ms or more.
	Per Duration `json:"per"`
	// Status of the answer to a request above the limit, 400 to 599. Defaults to 429.
	// +optional
	Status *int32 `json:"status,omitempty"`
}

// TCPRateLimit limits connections.
type TCPRateLimit struct {
	// Connections that are allowed in each period, 1 or more.
	Connections int32 `json:"connections"`
	// Per is the period, 50ms or more.
	Per Duration `json:"per"`
}

// Fault is injected into a share of the HTTP requests.
type Fault struct {
	// From limits the fault to callers; empty: all.
	// +optional
	// +listType=atomic
	From []PolicySource `json:"from,omitempty"`
	// Percent of the requests that get the fault, 0 to 100. Defaults to 100.
	// +optional
	Percent *float64 `json:"percent,omitempty"`
	// Abort answers the request in place of the workload.
	// +optional
	Abort *FaultAbort `json:"abort,omitempty"`
	// Delay before the request is passed on.
	// +optional
	Delay *Duration `json:"delay,omitempty"`
	// Bandwidth of the response, in kbit/s, 1 or more.
	// +optional
	Bandwidth *int32 `json:"bandwidth,omitempty"`
}

// FaultAbort is the answer to a request that is aborted; exactly one field is set.
type FaultAbort struct {
	// HTTPStatus, 200 to 599.
	// +optional
	HTTPStatus *int32 `json:"httpStatus,omitempty"`
	// GRPCStatus, 1 to 16.
	// +optional
	GRPCStatus *int32 `json:"grpcStatus,omitempty"`
}

// PolicyTimeout has the timeouts of connections and requests. "0s" is none.
type PolicyTimeout struct {
	// Connect is the time to open a connection, at least 1ms. Defaults to 5s.
	// +optional
	Connect *Duration `json:"connect,omitempty"`
	// Idle is how long a connection without requests, or without bytes, is kept. Defaults to 1h.
	// +optional
	Idle *Duration `json:"idle,omitempty"`
	// Request is the time for a whole request, with its retries. Defaults to none.
	// +optional
	Request *Duration `json:"request,omitempty"`
	// PerTry is the time for each attempt of a request. Defaults to none.
	// +optional
	PerTry *Duration `json:"perTry,omitempty"`
	// StreamIdle is how long a stream (a request and its response) may be without bytes.
	// Defaults to 30m.
	// +optional
	StreamIdle *Duration `json:"streamIdle,omitempty"`
	// MaxStream is how long a stream may last. Defaults to none.
	// +optional
	MaxStream *Duration `json:"maxStream,omitempty"`
	// MaxConnection is how long a connection is used for new requests. Defaults to none.
	// +optional
	MaxConnection *Duration `json:"maxConnection,omitempty"`
}

// PolicyLimits bound what is open at the same time, from or to one proxy. 0 is none.
type PolicyLimits struct {
	// Connections that are open. Defaults to none. A connection of TCP beyond the limit is refused at
	// once, and a request of HTTP/1 beyond it and Pending is answered with 503. Each endpoint may have one.
	// +optional
	Connections *int32 `json:"connections,omitempty"`
	// Pending requests, which wait for a connection. Defaults to Connections with HTTP/1, which has one
	// request on each, else to none; 0 is none.
	// +optional
	Pending *int32 `json:"pending,omitempty"`
	// Requests that are open. Defaults to none.
	// +optional
	Requests *int32 `json:"requests,omitempty"`
	// Retries that are open; the budget holds as well. Defaults to none.
	// +optional
	Retries *int32 `json:"retries,omitempty"`
}
