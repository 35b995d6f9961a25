package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/delta"
)

// Follower takes what a Client receives, and knows what it has already. Its
// methods are called by the goroutine of Run, one at a time.
type Follower interface {
	// Have returns what to send to the server before the first response of a type:
	// with cursor, the position alone under the key "", if one is known; else the
	// version of every resource by name.
	Have(typ string, cursor bool) map[string]string
	// Connected reports that the server admitted a new stream. Responses of the one
	// before can no longer be answered.
	Connected(header metadata.MD)
	// Receive takes a response. While it blocks, nothing else is read, and the
	// server coalesces. The response is answered by Accept or Reject, in Receive or
	// in a later call of it.
	Receive(r *Response)
}

// Response is one response of the server.
type Response struct {
	Type string
	// Position, opaque: who took this response and those before is complete up to
	// it. Empty: more follows at once.
	Position  string
	Resources []*discovery.Resource
	Removed   []string
	// Traced are changes among them that are followed; nil: none is.
	Traced []delta.Traced

	nonce  string
	answer func(*discovery.DeltaDiscoveryRequest)
}

// Accept acknowledges the response.
func (r *Response) Accept() {
	r.answer(&discovery.DeltaDiscoveryRequest{TypeUrl: r.Type, ResponseNonce: r.nonce})
}

// Reject says that the response, or the part that reason names, was refused.
func (r *Response) Reject(reason string) {
	r.answer(&discovery.DeltaDiscoveryRequest{
		TypeUrl: r.Type, ResponseNonce: r.nonce,
		ErrorDetail: &spb.Status{Code: int32(codes.InvalidArgument), Message: reason},
	})
}

// ClientConfig configures a Client.
type ClientConfig struct {
	// Conn should be made with DialOptions. It stays the caller's.
	Conn grpc.ClientConnInterface
	// Method in full ("/proxima.node.v1.Views/Stream").
	Method string
	// Node is who the client says it is.
	Node *core.Node
	// Types to follow, in the order in which they are wanted.
	Types    []string
	Follower Follower
	Log      *slog.Logger // nil: silence
}

// Client follows a server. Make it with NewClient.
type Client struct {
	config ClientConfig

	mu     sync.Mutex
	status ClientStatus
}

// ClientStatus describes a client.
type ClientStatus struct {
	// Connected: a stream is open and was admitted.
	Connected bool
	// Streams counts those that were admitted.
	Streams uint64
	// Payload bytes of the present stream, or of the last one.
	BytesSent, BytesReceived uint64
	// LastError is why the last stream ended or could not start.
	LastError error
}

// NewClient makes a client.
func NewClient(c ClientConfig) *Client {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Client{config: c}
}

// Status returns the state of the connection. Safe at any time.
func (c *Client) Status() ClientStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.status
}

func (c *Client) update(f func(*ClientStatus)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(&c.status)
}

// Run follows the server until ctx ends, and returns nil then. After a failure
// it connects again: at once the first time, then after growing random delays. A
// position that the server cannot serve is replaced by the versions, at once.
func (c *Client) Run(ctx context.Context) error {
	cursor, failures := true, 0
	for {
		received, err := c.follow(ctx, cursor, failures > 0)
		if ctx.Err() != nil {
			return nil
		}
		if received {
			failures = 0
		}
		c.config.Log.Info("stream ended, connecting again", "method", c.config.Method, "failures", failures, "error", err)
		expired := cursor && status.Code(err) == codes.FailedPrecondition
		if cursor = !expired; expired {
			continue
		}
		if !backoff.Sleep(ctx, retryPolicy.After(failures)) {
			return nil
		}
		failures++
	}
}

// retryPolicy: the first retry is at once. The random part keeps clients of a server
// that went away from coming back together.
var retryPolicy = backoff.Policy{First: 100 * time.Millisecond, Last: 5 * time.Second, Jitter: 0.5}

// follow runs one stream. It reports whether anything was received. The first
// attempt fails at once where no connection can be made, which puts the reason
// into the log; later ones wait until there is one.
func (c *Client) follow(ctx context.Context, cursor, waitForReady bool) (received bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer func() {
		c.update(func(s *ClientStatus) { s.Connected, s.LastError = false, err })
	}()
	stream, err := c.config.Conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true},
		c.config.Method, grpc.ForceCodecV2(Codec()), grpc.WaitForReady(waitForReady))
	if err != nil {
		return false, fmt.Errorf("open stream %s: %w", c.config.Method, err)
	}
	c.update(func(s *ClientStatus) { s.BytesSent, s.BytesReceived = 0, 0 })
	for i, typ := range c.config.Types {
		r := &discovery.DeltaDiscoveryRequest{TypeUrl: typ, InitialResourceVersions: c.config.Follower.Have(typ, cursor)}
		if i == 0 {
			r.Node = c.config.Node
		}
		if err := c.send(stream, r); err != nil {
			break // RecvMsg returns why
		}
	}
	for {
		r := receivedResponse{message: &discovery.DeltaDiscoveryResponse{}}
		if err := stream.RecvMsg(&r); err != nil {
			if errors.Is(err, io.EOF) {
				err = errors.New("closed by the server")
			}
			return received, fmt.Errorf("receive on %s: %w", c.config.Method, err)
		}
		if !received {
			received = true
			header, _ := stream.Header() // there, as a message is
			c.update(func(s *ClientStatus) { s.Connected, s.LastError = true, nil; s.Streams++ })
			c.config.Follower.Connected(header)
		}
		c.update(func(s *ClientStatus) { s.BytesReceived += uint64(r.size) })
		c.config.Follower.Receive(&Response{
			Type: r.message.GetTypeUrl(), Position: r.message.GetSystemVersionInfo(),
			Resources: r.message.GetResources(), Removed: r.message.GetRemovedResources(),
			Traced: delta.TracedOf(r.message.ProtoReflect().GetUnknown()),
			nonce:  r.message.GetNonce(),
			answer: func(a *discovery.DeltaDiscoveryRequest) {
				_ = c.send(stream, a) // a broken stream is noticed by RecvMsg
			},
		})
	}
}

func (c *Client) send(stream grpc.ClientStream, r *discovery.DeltaDiscoveryRequest) error {
	if err := stream.SendMsg(r); err != nil {
		return err
	}
	size := uint64(proto.Size(r))
	c.update(func(s *ClientStatus) { s.BytesSent += size })
	return nil
}
