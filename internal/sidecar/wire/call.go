package wire

import "google.golang.org/protobuf/encoding/protowire"

// UserAgent of a supervisor, before its version: gRPC adds its own after a space.
const UserAgent = "proxima-sidecar/"

// Questions of a control plane.
const (
	// AskConfig answers Envoy's configuration dump in JSON, without secrets.
	AskConfig = "config"
	// AskClusters answers clusters and endpoints with their state, as Envoy's JSON.
	AskClusters = "clusters"
	// AskStats answers the metrics of the proxy, in the text format of Prometheus.
	AskStats = "stats"
	// AskStatus answers the state of the supervisor in JSON.
	AskStatus = "status"
	// AskHeld answers which resources Envoy has accepted: in JSON, versions by name by type URL.
	AskHeld = "held"
	// AskLogging answers the log levels, as Envoy's text, after the change of its argument.
	AskLogging = "logging"
)

// Call is proxima.sidecar.v1.Call, a question of a control plane.
type Call struct {
	ID                 uint64
	Question, Argument string
	Cancelled          bool
}

// ParseCall reads a call.
func ParseCall(data []byte) (Call, error) {
	var c Call
	err := fields(data, func(num protowire.Number, value []byte, number uint64, _ []byte) error {
		switch num {
		case 1:
			c.ID = number
		case 2:
			c.Question = string(value)
		case 3:
			c.Argument = string(value)
		case 4:
			c.Cancelled = number != 0
		}
		return nil
	})
	return c, err
}

// Answer is proxima.sidecar.v1.Answer: a part of one or, first, Hello.
type Answer struct {
	// Node and Version say hello; empty: they do not.
	Node, Version string

	ID   uint64
	Part []byte
	Last bool
	// Code of gRPC and its text; 0: it succeeded.
	Code    uint32
	Message string
}

// Append the answer to b.
func (a Answer) Append(b []byte) []byte {
	if a.Node != "" {
		b = appendBytes(b, 1, appendString(appendString(nil, 1, a.Node), 2, a.Version))
	}
	b = appendNumber(b, 2, a.ID)
	if len(a.Part) > 0 {
		b = appendBytes(b, 3, a.Part)
	}
	if a.Last {
		b = appendNumber(b, 4, 1)
	}
	b = appendNumber(b, 5, uint64(a.Code))
	return appendString(b, 6, a.Message)
}

func appendNumber(b []byte, num protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, num, protowire.VarintType), v)
}
