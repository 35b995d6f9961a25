package tracing

import "time"

// Status of sending spans.
type Status struct {
	Endpoint string `json:"endpoint"`
	// Ratio of the changes that are sampled; 0 at an agent, which follows what its control plane samples.
	Ratio float64 `json:"ratio,omitempty"`
	// Sent and Dropped spans since the process began.
	Sent    uint64 `json:"sent"`
	Dropped uint64 `json:"dropped"`
	// Error of the last request, if it failed, and the time of the first of consecutive failures.
	Error string    `json:"error,omitempty"`
	Since time.Time `json:"since,omitzero"`
}

// Hint is what to do about an Error.
const Hint = "check that a collector of OTLP listens at --otlp-endpoint, and that nothing between refuses it; the spans of this time are lost, nothing else is"
