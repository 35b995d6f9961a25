package witness

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	witnessv1 "github.com/proxima-mesh/proxima/api/witness/v1"
	"github.com/proxima-mesh/proxima/internal/controller/health"
)

// Events takes what streams bring. A *health.Monitor is one. Its methods must not block.
type Events interface {
	Attend(node string, addr netip.AddrPort)
	Heard(node string)
	Detach(node string, goodbye bool)
	// Result is of a probe that this witness may have been sent, or not.
	Result(witness string, id uint64, o health.Outcome)
}

// ServerConfig configures a Server.
type ServerConfig struct {
	// Admit decides from the credentials in ctx whether the caller is a node; its errors
	// should be gRPC statuses.
	Admit func(ctx context.Context, node string) error
	Log   *slog.Logger // nil: silence
}

// Server takes the streams of agents.
type Server struct {
	witnessv1.UnimplementedWitnessServer
	config ServerConfig

	mu      sync.Mutex
	to      Events
	streams map[string]*attendance // by node, the newest
	calls   map[uint64]*call       // that are not answered yet
}

// attendance is one stream.
type attendance struct {
	node    string
	answers bool // calls
	orders  chan *witnessv1.PlaneMessage
	end     chan struct{} // closed when a newer stream takes its place
	gone    chan struct{} // closed when it has ended
}

// NewServer makes a server. What streams bring goes to events.
func NewServer(c ServerConfig, to Events) *Server {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Server{config: c, to: to, streams: map[string]*attendance{}, calls: map[uint64]*call{}}
}

// Register adds the service to a gRPC server.
func (s *Server) Register(r grpc.ServiceRegistrar) { witnessv1.RegisterWitnessServer(r, s) }

// Send hands a probe to its witness. False: that has no stream, or does not keep up. It
// never blocks.
func (s *Server) Send(p health.Probe) bool {
	s.mu.Lock()
	a := s.streams[p.Witness]
	s.mu.Unlock()
	if a == nil {
		return false
	}
	order := &witnessv1.Probe{Id: p.ID, Node: p.Node, Address: p.Addr.Addr().AsSlice(), Port: uint32(p.Addr.Port())}
	return a.order(&witnessv1.PlaneMessage{Message: &witnessv1.PlaneMessage_Probe{Probe: order}})
}

// order puts a message in the queue of the stream. False: it is full.
func (a *attendance) order(m *witnessv1.PlaneMessage) bool {
	select {
	case a.orders <- m:
		return true
	default:
		return false
	}
}

// Attend implements the service.
func (s *Server) Attend(stream grpc.BidiStreamingServer[witnessv1.AgentMessage, witnessv1.PlaneMessage]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	hello := first.GetHello()
	if hello.GetNode() == "" || hello.GetProbePort() > 65535 {
		return status.Error(codes.InvalidArgument, "the first message must name the node and its probe port")
	}
	if err := s.config.Admit(stream.Context(), hello.GetNode()); err != nil {
		return err
	}
	a := s.add(hello, probed(stream.Context(), hello.GetProbePort()))
	received := make(chan error, 1)
	go func() { received <- s.receive(a, stream) }()
	err = s.send(a, stream, received)
	goodbye := err == nil
	s.remove(a, goodbye)
	s.config.Log.Info("heartbeat stream ended", "node", a.node, "goodbye", goodbye)
	return err
}

// probed is the address at which others reach the agent: the one that its stream comes
// from, which it cannot choose freely, and the port that it names.
func probed(ctx context.Context, port uint32) netip.AddrPort {
	p, ok := peer.FromContext(ctx)
	if !ok || p.Addr == nil {
		return netip.AddrPort{}
	}
	return probedFrom(p.Addr.String(), port)
}

func probedFrom(from string, port uint32) netip.AddrPort {
	host, _, err := net.SplitHostPort(from)
	if err != nil || port == 0 {
		return netip.AddrPort{}
	}
	addr, err := netip.ParseAddr(host)
	if err != nil || addr.IsUnspecified() {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(addr.Unmap().WithZone(""), uint16(port))
}

// add a stream, in place of an older one of the same node.
func (s *Server) add(hello *witnessv1.Hello, addr netip.AddrPort) *attendance {
	node := hello.GetNode()
	a := &attendance{
		node: node, answers: hello.GetAnswers(), orders: make(chan *witnessv1.PlaneMessage, 2*health.MaxProbes),
		end: make(chan struct{}), gone: make(chan struct{}),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.streams[node]; old != nil {
		close(old.end)
	}
	s.streams[node] = a
	s.to.Attend(node, addr) // under the lock, so that events of a node are in order
	s.config.Log.Info("heartbeat stream started", "node", node, "probed_at", addr)
	return a
}

func (s *Server) remove(a *attendance, goodbye bool) {
	close(a.gone)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.streams[a.node] == a {
		delete(s.streams, a.node)
		s.to.Detach(a.node, goodbye)
	}
}

// heard passes on a sign of life, but of an older stream.
func (s *Server) heard(a *attendance) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.streams[a.node] == a {
		s.to.Heard(a.node)
	}
}

// receive returns nil when the agent says goodbye.
func (s *Server) receive(a *attendance, stream grpc.BidiStreamingServer[witnessv1.AgentMessage, witnessv1.PlaneMessage]) error {
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		s.heard(a)
		if r := m.GetResult(); r != nil {
			s.to.Result(a.node, r.GetId(), outcomeIn(r.GetOutcome()))
		}
	}
}

// send orders until the stream ends. Its return ends the stream.
func (s *Server) send(
	a *attendance, stream grpc.BidiStreamingServer[witnessv1.AgentMessage, witnessv1.PlaneMessage], received <-chan error,
) error {
	for {
		select {
		case err := <-received:
			return err
		case <-a.end:
			return status.Error(codes.Aborted, "a newer stream of this node took the place of this one")
		case m := <-a.orders:
			if err := stream.Send(m); err != nil {
				return err
			}
		}
	}
}
