package frame

import "fmt"

// Reason is why a stream was refused or reset, or why a connection takes no more
// streams. Values are part of the protocol; a receiver accepts unknown ones.
type Reason uint8

// The reasons.
const (
	// Unspecified has no further meaning.
	Unspecified Reason = iota
	// NoRoute is a service that the peer does not serve.
	NoRoute
	// Unauthorized is a caller that may not use the service.
	Unauthorized
	// Unreachable means that no endpoint accepted a connection.
	Unreachable
	// Draining is a peer that shuts down.
	Draining
	// Overloaded is a peer that has no capacity for the stream.
	Overloaded
	// Protocol is a violation of this protocol.
	Protocol
	// EndpointReset is a connection that the endpoint reset.
	EndpointReset
	// ClientReset is a connection that the client reset.
	ClientReset
	// Broken is a connection between two proxies that ended in the middle of a stream.
	Broken
	// Unsupported is a request for something that this version does not do.
	Unsupported

	reasons
)

var reasonNames = [reasons]string{
	"unspecified", "no-route", "unauthorized", "unreachable", "draining", "overloaded",
	"protocol", "endpoint-reset", "client-reset", "broken", "unsupported",
}

// Reasons returns all reasons of this version.
func Reasons() []Reason {
	all := make([]Reason, reasons)
	for i := range all {
		all[i] = Reason(i)
	}
	return all
}

// String is the value of a metric's label, and is in log lines.
func (r Reason) String() string {
	if r < reasons {
		return reasonNames[r]
	}
	return fmt.Sprintf("reason %d", uint8(r))
}

// Error is a Refused, Reset or GoAway frame as an error.
type Error struct {
	Type   Type
	Reason Reason
	// Text is from the peer: for people, bounded, not to be parsed.
	Text string
}

// Error implements error.
func (e *Error) Error() string {
	s := fmt.Sprintf("peer sent %s (%s)", e.Type, e.Reason)
	if e.Text != "" {
		s += fmt.Sprintf(": %q", e.Text)
	}
	return s
}

// ParseReason decodes the body of a Refused, Reset or GoAway frame. The result holds
// no reference to body.
func ParseReason(t Type, body []byte) (*Error, error) {
	if len(body) == 0 || len(body) > 1+MaxText {
		return nil, malformed("%s with a body of %d bytes", t, len(body))
	}
	return &Error{Type: t, Reason: Reason(body[0]), Text: string(body[1:])}, nil
}
