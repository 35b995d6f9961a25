package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// BackendPolicy says how clients treat a backend: timeouts, retries, limits, health and load
// balancing. In the namespace of the backend it is for all clients (producer), in another one
// for the clients of that namespace (consumer).
type BackendPolicy struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// How clients treat the backend.
	// +optional
	Spec BackendPolicySpec `json:"spec,omitempty"`
	// Whether the policy is in effect.
	// +optional
	Status TrafficPolicyStatus `json:"status,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// BackendPolicyList is a list of BackendPolicies.
type BackendPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	// Standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// The BackendPolicies.
	Items []BackendPolicy `json:"items"`
}

// BackendPolicySpec says how clients treat a backend.
type BackendPolicySpec struct {
	// Backends: Service, ServiceImport, ExternalService, HTTPRoute or Mesh. The selector selects
	// Services. A section is a port of the backend, by name or number.
	PolicyTarget `json:",inline"`
	// Timeout of connections and requests.
	// +optional
	Timeout *PolicyTimeout `json:"timeout,omitempty"`
	// Retry of what failed.
	// +optional
	Retry *BackendRetry `json:"retry,omitempty"`
	// Limits of what one proxy has open to the backend.
	// +optional
	Limits *PolicyLimits `json:"limits,omitempty"`
	// Outlier leaves out endpoints that fail, for a time.
	// +optional
	Outlier *BackendOutlier `json:"outlier,omitempty"`
	// HealthCheck asks each endpoint. Defaults to off.
	// +optional
	HealthCheck *BackendHealthCheck `json:"healthCheck,omitempty"`
	// Balancer chooses an endpoint.
	// +optional
	Balancer *BackendBalancer `json:"balancer,omitempty"`
	// Locality says which zones are preferred.
	// +optional
	Locality *BackendLocality `json:"locality,omitempty"`
	// RateLimit of requests and connections that one proxy sends.
	// +optional
	// +listType=atomic
	RateLimit []RateLimit `json:"rateLimit,omitempty"`
	// Faults that are injected into requests.
	// +optional
	// +listType=atomic
	Faults []Fault `json:"faults,omitempty"`
}

// BackendRetry says what is tried again, and how often. A route's own retry wins.
type BackendRetry struct {
	// Attempts after the first one, 0 to 100. Defaults to 2.
	// +optional
	Attempts *int32 `json:"attempts,omitempty"`
	// Conditions name what is tried again: 5xx, gateway-error, reset, reset-before-request,
	// connect-failure, retriable-4xx, refused-stream, http3-post-connect-failure. Defaults to
	// connect-failure and refused-stream, which are requests that were not sent.
	// +optional
	// +listType=set
	Conditions []string `json:"conditions,omitempty"`
	// Codes of responses that are tried again, 400 to 599.
	// +optional
	// +listType=set
	Codes []int32 `json:"codes,omitempty"`
	// GRPC statuses that are tried again: cancelled, deadline-exceeded, internal,
	// resource-exhausted, unavailable.
	// +optional
	// +listType=set
	GRPC []string `json:"grpc,omitempty"`
	// Backoff between attempts.
	// +optional
	Backoff *RetryBackoff `json:"backoff,omitempty"`
	// Budget of retries.
	// +optional
	Budget *RetryBudget `json:"budget,omitempty"`
	// TCPAttempts to connect, on other endpoints, 1 to 100. Defaults to 3.
	// +optional
	TCPAttempts *int32 `json:"tcpAttempts,omitempty"`
}

// RetryBackoff is the time between attempts; it grows from base to max, by chance.
type RetryBackoff struct {
	// Base is at least 1ms. Defaults to 25ms.
	// +optional
	Base *Duration `json:"base,omitempty"`
	// Max is at least base. Defaults to 250ms.
	// +optional
	Max *Duration `json:"max,omitempty"`
}

// RetryBudget bounds retries by the requests that are open.
type RetryBudget struct {
	// Percent of the open requests that may be retries, 0 to 100. Defaults to 20.
	// +optional
	Percent *int32 `json:"percent,omitempty"`
	// MinRetryRate is allowed whatever the percentage is.
	// +optional
	MinRetryRate *RequestRate `json:"minRetryRate,omitempty"`
}

// RequestRate is a number of requests in a time. A proxy counts requests that are open, and
// takes a rate for as many as begin in one second.
type RequestRate struct {
	// Count of requests, 1 to 1000000. Defaults to 10.
	// +optional
	Count *int32 `json:"count,omitempty"`
	// Interval, 1s to 1h. Defaults to 1s.
	// +optional
	Interval *Duration `json:"interval,omitempty"`
}

// BackendOutlier says when an endpoint is left out. 0 turns a detector off.
type BackendOutlier struct {
	// Local failures in a row: connections that are refused, reset or time out. Defaults to 3.
	// +optional
	Local *int32 `json:"local,omitempty"`
	// Gateway errors in a row: 502, 503 and 504. Defaults to 0.
	// +optional
	Gateway *int32 `json:"gateway,omitempty"`
	// Total of 5xx in a row. Defaults to 0.
	// +optional
	Total *int32 `json:"total,omitempty"`
	// SuccessRate compares endpoints with each other. Defaults to off.
	// +optional
	SuccessRate *OutlierSuccessRate `json:"successRate,omitempty"`
	// FailurePercent looks at the share of failures. Defaults to off.
	// +optional
	FailurePercent *OutlierFailurePercent `json:"failurePercent,omitempty"`
	// Interval between the evaluations, at least 1ms. Defaults to 5s.
	// +optional
	Interval *Duration `json:"interval,omitempty"`
	// Ejection is how long an endpoint is left out the first time; it grows with each time.
	// Defaults to 10s.
	// +optional
	Ejection *Duration `json:"ejection,omitempty"`
	// MaxPercent of the endpoints that may be left out. Defaults to 100.
	// +optional
	MaxPercent *int32 `json:"maxPercent,omitempty"`
	// Panic is the percentage of healthy endpoints below which all are used. Defaults to 1.
	// +optional
	Panic *int32 `json:"panic,omitempty"`
}

// OutlierSuccessRate leaves out endpoints whose success rate is below the mean by a factor of
// the standard deviation.
type OutlierSuccessRate struct {
	// Factor in thousandths of the standard deviation, 1 or more. Defaults to 1900.
	// +optional
	Factor *int32 `json:"factor,omitempty"`
	// MinHosts with enough requests, 1 or more. Defaults to 5.
	// +optional
	MinHosts *int32 `json:"minHosts,omitempty"`
	// MinRequests of an endpoint in an interval, 1 or more. Defaults to 100.
	// +optional
	MinRequests *int32 `json:"minRequests,omitempty"`
}

// OutlierFailurePercent leaves out endpoints that fail too often.
type OutlierFailurePercent struct {
	// Threshold in percent, 1 to 100. Defaults to 85.
	// +optional
	Threshold *int32 `json:"threshold,omitempty"`
	// MinHosts with enough requests, 1 or more. Defaults to 5.
	// +optional
	MinHosts *int32 `json:"minHosts,omitempty"`
	// MinRequests of an endpoint in an interval, 1 or more. Defaults to 50.
	// +optional
	MinRequests *int32 `json:"minRequests,omitempty"`
}

// BackendHealthCheck says how endpoints are asked.
type BackendHealthCheck struct {
	// Type: Off, HTTP, TCP or GRPC. Empty: Off.
	// +optional
	Type string `json:"type,omitempty"`
	// Path that is asked for, of HTTP. Defaults to /.
	// +optional
	Path string `json:"path,omitempty"`
	// Host that is asked for, of HTTP, and the authority of gRPC.
	// +optional
	Host string `json:"host,omitempty"`
	// Statuses of a healthy endpoint, of HTTP. Empty: 200.
	// +optional
	// +listType=set
	Statuses []int32 `json:"statuses,omitempty"`
	// Service that is asked for, of gRPC.
	// +optional
	Service string `json:"service,omitempty"`
	// Interval between checks, at least 1ms. Defaults to 10s.
	// +optional
	Interval *Duration `json:"interval,omitempty"`
	// Timeout of a check, at least 1ms. Defaults to 1s.
	// +optional
	Timeout *Duration `json:"timeout,omitempty"`
	// Healthy is after how many successes in a row an endpoint is used. Defaults to 1.
	// +optional
	Healthy *int32 `json:"healthy,omitempty"`
	// Unhealthy is after how many failures in a row it is left out. Defaults to 3.
	// +optional
	Unhealthy *int32 `json:"unhealthy,omitempty"`
}

// BackendBalancer says how an endpoint is chosen.
type BackendBalancer struct {
	// Type: LeastRequest, RoundRobin, Random, RingHash or Maglev. Empty: LeastRequest for HTTP,
	// RoundRobin for TCP; RingHash if there is a hash.
	// +optional
	Type string `json:"type,omitempty"`
	// Hash is what RingHash and Maglev choose by; the first that a request has counts.
	// +optional
	// +listType=atomic
	Hash []BalancerHash `json:"hash,omitempty"`
}

// BalancerHash is a part of a request that is hashed.
type BalancerHash struct {
	// Type: Header, Cookie, Query or SourceIP.
	Type string `json:"type"`
	// Name of the header, cookie or query parameter.
	// +optional
	Name string `json:"name,omitempty"`
	// TTL of a cookie that the proxy sets where there is none; "0s" is one of the session.
	// Empty: the proxy sets none.
	// +optional
	TTL *Duration `json:"ttl,omitempty"`
}

// BackendLocality says which zones are preferred.
type BackendLocality struct {
	// Mode: Plan (zones get the shares of the Service's plan; without one, hints of endpoints
	// count), Strict (the client's zone alone) or Off (zones are not looked at). Empty: Plan.
	// +optional
	Mode string `json:"mode,omitempty"`
	// Affinity prefers, within a zone, endpoints that have the client's value of a label: that of
	// the Dataplane or Pod, else of its Node. The first label that is right counts.
	// +optional
	// +listType=atomic
	Affinity []LocalityAffinity `json:"affinity,omitempty"`
	// Failover says where traffic goes that a zone cannot take; the first rule for the client's
	// zone counts. Without a plan, rules make a client use its own zone first. Empty: to any zone.
	// +optional
	// +listType=atomic
	Failover []LocalityFailover `json:"failover,omitempty"`
	// Threshold is the percentage of healthy endpoints of a level below which traffic goes to
	// the next one, 1 to 100. Defaults to 71.
	// +optional
	Threshold *int32 `json:"threshold,omitempty"`
}

// LocalityAffinity prefers endpoints by a label.
type LocalityAffinity struct {
	// Label of clients and endpoints.
	Label string `json:"label"`
	// Weight relative to endpoints with another value, 1 to 1000000. Defaults to 9.
	// +optional
	Weight *int32 `json:"weight,omitempty"`
}

// LocalityFailover says where traffic goes that a zone cannot take.
type LocalityFailover struct {
	// From are zones, or sites, of clients. Empty: all.
	// +optional
	// +listType=set
	From []string `json:"from,omitempty"`
	// To: Any (other zones), None, Only (the zones named) or AnyExcept (all but those).
	To string `json:"to"`
	// Zones, or sites, of Only and AnyExcept.
	// +optional
	// +listType=set
	Zones []string `json:"zones,omitempty"`
}
