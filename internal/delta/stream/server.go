package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/proxima-mesh/proxima/internal/delta"
)

// Admission is what a stream may see.
type Admission struct {
	Scope *delta.Scope
	// Header is sent to the client before the first response.
	Header metadata.MD
	// End, if not nil, ends the stream when it is closed: the client is to be
	// admitted again.
	End <-chan struct{}
	// Observer is told what happens on the stream; nil: nobody is.
	Observer Observer
}

// Observer is told what happens on one stream, from when it was admitted. Its methods are called
// concurrently, and must not block.
type Observer interface {
	// Sent: a response with resources of this type was sent.
	Sent(typ string)
	// Answered: the client took a response, or refused it for a reason.
	Answered(typ, refused string)
	// Ended: the stream is over. An answer that arrives meanwhile may be told after it.
	Ended()
}

// silent is the Observer of a stream that has none.
type silent struct{}

func (silent) Sent(string)             {}
func (silent) Answered(string, string) {}
func (silent) Ended()                  {}

// ServerConfig configures a Server. All but Admit may be left out.
type ServerConfig struct {
	// Admit decides what a client sees, from its credentials (in ctx) and from
	// what it says of itself in its first request. Its errors should be gRPC
	// statuses. It is called once per stream, concurrently.
	Admit func(ctx context.Context, node *core.Node) (Admission, error)
	Log   *slog.Logger
	// Now is the clock for Status; nil: time.Now.
	Now func() time.Time
}

// Server feeds streams. A slow client costs the others nothing: its own stream
// falls behind, and then gets each name once, newest.
type Server struct {
	config ServerConfig

	mu      sync.Mutex
	streams map[*serverStream]struct{}
	lastID  uint64
}

// NewServer makes a server without any stream.
func NewServer(c ServerConfig) *Server {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Server{config: c, streams: map[*serverStream]struct{}{}}
}

// Register adds the method to a gRPC server. The service is named in full
// ("proxima.node.v1.Views"). The gRPC server must be made with ServerOptions.
func (s *Server) Register(r grpc.ServiceRegistrar, service, method string) {
	r.RegisterService(&grpc.ServiceDesc{
		ServiceName: service,
		HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{
			StreamName: method, ServerStreams: true, ClientStreams: true,
			Handler: func(_ any, stream grpc.ServerStream) error { return s.serve(stream) },
		}},
	}, s)
}

// StreamStatus describes one stream.
type StreamStatus struct {
	ID         uint64
	Node, Peer string
	// Version that the client announced; empty: none.
	Version string
	Since   time.Time
	// Payload bytes, without the framing of gRPC.
	BytesSent, BytesReceived, Responses uint64
	Types                               []delta.SubscriptionStatus
	// RejectedAt is when the client refused something last; zero: never.
	RejectedAt time.Time
}

// Status describes all streams, oldest first.
func (s *Server) Status() []StreamStatus {
	s.mu.Lock()
	streams := make([]*serverStream, 0, len(s.streams))
	for st := range s.streams {
		streams = append(streams, st)
	}
	s.mu.Unlock()
	out := make([]StreamStatus, 0, len(streams))
	for _, st := range streams {
		out = append(out, st.status())
	}
	slices.SortFunc(out, func(a, b StreamStatus) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// serverStream is one stream: the goroutine of the handler sends, another one
// reads.
type serverStream struct {
	server *Server
	grpc   grpc.ServerStream
	id     uint64
	node   string
	client string // version
	peer   string
	since  time.Time
	scope  *delta.Scope
	// observer of the stream.
	observer Observer
	// asked holds a token after a request that may have an answer.
	asked chan struct{}

	sent, received, responses atomic.Uint64

	mu         sync.Mutex
	session    *delta.Session
	rejectedAt time.Time
}

func (s *Server) serve(stream grpc.ServerStream) error {
	first, size, err := receive(stream)
	if err != nil {
		return err
	}
	ctx := stream.Context()
	admission, err := s.config.Admit(ctx, first.GetNode())
	if err != nil {
		return err
	}
	if admission.Observer == nil {
		admission.Observer = silent{}
	}
	defer admission.Observer.Ended()
	if err := stream.SendHeader(admission.Header); err != nil {
		return err
	}
	st := &serverStream{
		server: s, grpc: stream, node: first.GetNode().GetId(), client: first.GetNode().GetUserAgentVersion(), since: s.config.Now(),
		scope: admission.Scope, observer: admission.Observer, session: delta.NewSession(admission.Scope), asked: make(chan struct{}, 1),
	}
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
		st.peer = p.Addr.String()
	}
	s.add(st)
	defer s.remove(st)
	err = st.run(first, size, admission.End)
	s.config.Log.Info("stream ended", "node", st.node, "peer", st.peer, "bytes_sent", st.sent.Load(), "reason", reason(err))
	return err
}

func reason(err error) string {
	if err == nil {
		return "closed by the client"
	}
	return status.Convert(err).Message()
}

func (s *Server) add(st *serverStream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastID++
	st.id = s.lastID
	s.streams[st] = struct{}{}
	s.config.Log.Info("stream started", "node", st.node, "peer", st.peer)
}

func (s *Server) remove(st *serverStream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.streams, st)
}

// run sends in the goroutine of the handler, whose return ends the stream, and
// lets another one read. That one fails when the client or its connection goes.
func (st *serverStream) run(first *discovery.DeltaDiscoveryRequest, size int, end <-chan struct{}) error {
	if err := st.take(first, size); err != nil {
		return err
	}
	failed := make(chan error, 1)
	go func() { failed <- st.read() }()
	for {
		changed := st.scope.Changed()
		f, err := st.next()
		if err != nil {
			return status.Error(codes.FailedPrecondition, err.Error())
		}
		if f != nil {
			if err := st.grpc.SendMsg(f); err != nil {
				return err
			}
			st.sent.Add(uint64(len(f.Data)))
			st.responses.Add(1)
			st.observer.Sent(f.Type)
			select {
			case err := <-failed:
				return err
			default:
				continue
			}
		}
		select {
		case <-changed:
		case <-st.asked:
		case err := <-failed:
			return err
		case <-end:
			return status.Error(codes.Aborted, "what this stream may see has changed; connect again")
		}
	}
}

// read takes requests until the stream is at its end. It returns when the
// handler has: gRPC ends RecvMsg then.
func (st *serverStream) read() error {
	for {
		r, size, err := receive(st.grpc)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := st.take(r, size); err != nil {
			return err
		}
	}
}

func receive(stream grpc.ServerStream) (*discovery.DeltaDiscoveryRequest, int, error) {
	r := receivedRequest{message: &discovery.DeltaDiscoveryRequest{}}
	if err := stream.RecvMsg(&r); err != nil {
		return nil, 0, err
	}
	return r.message, r.size, nil
}

func (st *serverStream) next() (*delta.Frame, error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.session.Next()
}

// take hands a request to the session. A plain acknowledgement has no answer and
// does not wake the sender.
func (st *serverStream) take(r *discovery.DeltaDiscoveryRequest, size int) error {
	st.received.Add(uint64(size))
	request := delta.Request{
		Type: r.GetTypeUrl(), Nonce: r.GetResponseNonce(),
		Subscribe: r.GetResourceNamesSubscribe(), Unsubscribe: r.GetResourceNamesUnsubscribe(),
		Versions: r.GetInitialResourceVersions(),
	}
	if r.GetErrorDetail() != nil {
		request.Rejected = fmt.Sprintf("%s: %s", codes.Code(r.GetErrorDetail().GetCode()), r.GetErrorDetail().GetMessage())
		st.server.config.Log.Warn("response refused by client", "node", st.node, "peer", st.peer,
			"type", request.Type, "reason", request.Rejected)
	}
	st.mu.Lock()
	err := st.session.Step(request)
	if request.Rejected != "" {
		st.rejectedAt = st.server.config.Now()
	}
	st.mu.Unlock()
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	if request.Nonce != "" {
		st.observer.Answered(request.Type, request.Rejected)
	}
	if request.Nonce == "" || len(request.Subscribe)+len(request.Unsubscribe) > 0 {
		select {
		case st.asked <- struct{}{}:
		default:
		}
	}
	return nil
}

func (st *serverStream) status() StreamStatus {
	st.mu.Lock()
	defer st.mu.Unlock()
	return StreamStatus{
		ID: st.id, Node: st.node, Version: st.client, Peer: st.peer, Since: st.since,
		BytesSent: st.sent.Load(), BytesReceived: st.received.Load(), Responses: st.responses.Load(),
		Types: st.session.Status(), RejectedAt: st.rejectedAt,
	}
}
