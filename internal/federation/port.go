package federation

import (
	"context"

	"google.golang.org/protobuf/proto"
)

// Outlet is what a control plane sends, as a transport sees it. Package local has one.
// Its methods are safe for concurrent use and do not block for long.
type Outlet interface {
	// Sender is the configuration of the sender of a stream: at global, to a zone; at
	// a zone, to global.
	Sender(zone string) SenderConfig
	// Changed returns a channel that is closed when there may be something new. Take
	// it before asking a sender, wait on it after.
	Changed() <-chan struct{}
}

// Inlet stores what a peer sends, as a transport sees it. Package local has one. Its
// methods are safe for concurrent use.
type Inlet interface {
	// Open begins a stream and ends those before it: their flows return errors. send
	// is given the first requests, and later the answers; it may block.
	Open(ctx context.Context, s StreamOptions, send func(proto.Message) error) (Flow, error)
}

// StreamOptions say what kind of stream begins.
type StreamOptions struct {
	// Protocol is 1 (DiscoveryRequest and DiscoveryResponse) or 2 (their delta forms).
	Protocol int
	// Versions: the peer refused the position.
	Versions bool
}

// Flow is one stream of an Inlet.
type Flow interface {
	// Receive stores a response and answers it. It blocks until the store has it. An
	// error ends the stream.
	Receive(ctx context.Context, m proto.Message) error
	// Close ends the flow. Idempotent.
	Close()
}
