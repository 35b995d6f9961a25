// Package stream carries delta sessions over gRPC, in the messages of delta xDS
// (envoy.service.discovery.v3).
//
// It owns the protocol on the wire, for both sides: Server feeds streams from
// delta.Scopes, Client follows a server and comes back after every failure. What
// the resources mean is up to those who use it. Enter at NewServer and at
// Client.Run. It listens on no port and dials no server: servers and connections
// come from the caller, made with ServerOptions and DialOptions.
package stream

import (
	"context"
	"fmt"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/proxima-mesh/proxima/internal/delta"
)

const (
	// keepaliveTime after which a silent peer is asked for a sign of life, and
	// keepaliveTimeout how long it has for it: a dead one is noticed in 15 s.
	keepaliveTime    = 10 * time.Second
	keepaliveTimeout = 5 * time.Second
	// maxRequest fits a client's map of versions for about 200,000 resources;
	// maxResponse fits a frame and the largest resource an API server stores.
	maxRequest  = 16 << 20
	maxResponse = 16 << 20
	// readBuffer of a connection at the server, which has one for each agent: none, as TLS buffers
	// what it reads. gRPC's default is 32 kB.
	readBuffer = 0
	// headerTable bounds the table of header fields that HPACK keeps for each connection (RFC 7541,
	// section 2.3.2): none, as a connection carries few streams, and headers come once for each.
	headerTable = 0
	// reconnectDelay and reconnectMax bound the backoff of connections.
	reconnectDelay = 100 * time.Millisecond
	reconnectMax   = 5 * time.Second
)

// ServerOptions are what a grpc.Server needs that carries these streams; it may
// carry other services too.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(Codec()),
		grpc.MaxRecvMsgSize(maxRequest),
		grpc.ReadBufferSize(readBuffer),
		grpc.HeaderTableSize(headerTable),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepaliveTime / 2, PermitWithoutStream: true}),
	}
}

// Interrupt ends the call of a handler with an error, which the client gets. What the handler waits for
// to be received or sent fails then. ctx is the call's, at a gRPC server. gRPC has no other way to end a
// handler that waits for a message, and a goroutine that waits in its place takes a stack of 8 kB.
func Interrupt(ctx context.Context, err error) {
	// The method is that of gRPC's streams of its own transport; TestInterrupt fails without it.
	if s, ok := grpc.ServerTransportStreamFromContext(ctx).(interface{ WriteStatus(st *status.Status) error }); ok {
		_ = s.WriteStatus(status.Convert(err)) // it fails if the connection does
	}
}

// DialOptions are what a connection needs that a Client runs on.
func DialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxResponse)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: reconnectDelay, Multiplier: 2, Jitter: 0.5, MaxDelay: reconnectMax},
			MinConnectTimeout: keepaliveTimeout,
		}),
	}
}

// Marshalled is a message that is encoded already: the concatenation of its parts,
// which streams may share and nothing may change.
type Marshalled interface{ Parts() [][]byte }

// Encoded is a message that was received and not decoded.
type Encoded []byte

// Codec is the protobuf codec, with three additions: a frame, or what is Marshalled, is
// written as it is, the same bytes to every stream; what is received is counted; and it is
// not decoded into an Encoded.
func Codec() encoding.CodecV2 {
	return codec{protobuf: encoding.GetCodecV2(proto.Name)}
}

type codec struct{ protobuf encoding.CodecV2 }

// received is a message to be read together with its size.
type received[M any] struct {
	message M
	size    int
}

type (
	receivedRequest  = received[*discovery.DeltaDiscoveryRequest]
	receivedResponse = received[*discovery.DeltaDiscoveryResponse]
)

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if f, ok := v.(*delta.Frame); ok {
		// A SliceBuffer is neither pooled nor counted, so it may be shared.
		return mem.BufferSlice{mem.SliceBuffer(f.Data)}, nil
	}
	if m, ok := v.(Marshalled); ok {
		var out mem.BufferSlice
		for _, part := range m.Parts() {
			out = append(out, mem.SliceBuffer(part))
		}
		return out, nil
	}
	return c.protobuf.Marshal(v)
}

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	switch r := v.(type) {
	case *receivedRequest:
		r.size, v = data.Len(), r.message
	case *receivedResponse:
		r.size, v = data.Len(), r.message
	case *Encoded:
		*r = data.Materialize()
		return nil
	case *delta.Frame:
		return fmt.Errorf("unmarshal frame: frames are only sent")
	}
	return c.protobuf.Unmarshal(data, v)
}

// Name is that of the protobuf codec: on the wire there is no difference.
func (c codec) Name() string { return proto.Name }
