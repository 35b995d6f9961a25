// Package frame is the codec of the frames that a tunnel carries in TLS: the types,
// their byte layout and their bounds.
//
// A connection carries one stream at a time: OPEN, answered by OK or REFUSED, then
// DATA in both directions, each of which ends with FIN; RST ends both at once. After
// both FINs, or after REFUSED, the next OPEN may follow. DESIGN.md of the folder
// above has the layout. Enter at Append… and Decoder. The package does no I/O and
// never checks whether a frame is allowed in the state of a stream.
package frame

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Protocols of ALPN (RFC 7301). The name is the version: another layout of frames
// gets another name.
const (
	// ProtocolFrames is TLS with frames in it.
	ProtocolFrames = "proxima-frames"
	// ProtocolTunnel is TLS with the bytes of one stream in it, for peers without
	// frames, as Envoy.
	ProtocolTunnel = "proxima-tunnel"
	// ProtocolProxy is mutual TLS between proxies of workloads, which ends at neither gateway.
	ProtocolProxy = "proxima"
)

// ClusterHeader names the cluster to which the Envoy of an egress is to connect (package front).
const ClusterHeader = "x-proxima-cluster"

// Type of a frame.
type Type uint8

// The types.
const (
	// Open begins a stream; the body is an encoded Open.
	Open Type = 1 + iota
	// OK accepts a stream. What follows it comes from the endpoint.
	OK
	// Refused declines a stream, of which nothing was passed on; the body is a Reason
	// and a text.
	Refused
	// Data is a part of the stream.
	Data
	// Fin ends one direction.
	Fin
	// Reset ends both directions at once; the body is a Reason and a text.
	Reset
	// GoAway says that no further stream is accepted on this connection. One that is
	// open goes on. The body is a Reason and a text.
	GoAway
)

var typeNames = [...]string{Open: "OPEN", OK: "OK", Refused: "REFUSED", Data: "DATA", Fin: "FIN", Reset: "RST", GoAway: "GOAWAY"}

// String is the name as in DESIGN.md.
func (t Type) String() string {
	if t >= Open && t <= GoAway {
		return typeNames[t]
	}
	return fmt.Sprintf("type %d", uint8(t))
}

const (
	// HeaderSize is the number of bytes before the body: the type and the length of
	// the body, of three bytes, the most significant one first.
	HeaderSize = 4
	// MaxData is the largest body of a Data frame.
	MaxData = 256 << 10
	// MaxOpen is the largest body of an Open frame. A SPIFFE ID may have 2048 bytes.
	MaxOpen = 4 << 10
	// MaxText is the longest text that goes with a Reason.
	MaxText = 255
)

// ErrMalformed is wrapped by every error about bytes that are no frame.
var ErrMalformed = errors.New("malformed frame")

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrMalformed}, args...)...)
}

// bounds returns the least and greatest length of a type's body.
func (t Type) bounds() (least, most int, ok bool) {
	switch t {
	case Open:
		return 1, MaxOpen, true
	case OK, Fin:
		return 0, 0, true
	case Refused, Reset, GoAway:
		return 1, 1 + MaxText, true
	case Data:
		return 1, MaxData, true
	}
	return 0, 0, false
}

// PutHeader writes a header to the first HeaderSize bytes of b. The length must be
// within the bounds of the type.
func PutHeader(b []byte, t Type, length int) {
	_ = b[HeaderSize-1]
	binary.BigEndian.PutUint32(b, uint32(t)<<24|uint32(length))
}

// AppendEmpty appends a frame without a body: OK or Fin.
func AppendEmpty(b []byte, t Type) []byte {
	return append(b, byte(t), 0, 0, 0)
}

// AppendData appends Data frames with the bytes of p; none for none.
func AppendData(b, p []byte) []byte {
	for len(p) > 0 {
		n := min(len(p), MaxData)
		b = appendHeader(b, Data, n)
		b = append(b, p[:n]...)
		p = p[n:]
	}
	return b
}

// AppendReason appends a Refused, Reset or GoAway frame. A text that is too long is
// cut.
func AppendReason(b []byte, t Type, r Reason, text string) []byte {
	text = text[:min(len(text), MaxText)]
	b = appendHeader(b, t, 1+len(text))
	b = append(b, byte(r))
	return append(b, text...)
}

func appendHeader(b []byte, t Type, length int) []byte {
	return append(b, byte(t), byte(length>>16), byte(length>>8), byte(length))
}
