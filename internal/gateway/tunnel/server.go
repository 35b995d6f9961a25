package tunnel

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/proxima-mesh/proxima/internal/gateway/frame"
	"github.com/proxima-mesh/proxima/internal/gateway/stream"
)

// Router decides where a redirected connection goes. Implementations are the agent's.
type Router interface {
	// Route returns what to open for a client that connected to destination. It does
	// not block for long. An error is a reset of the client.
	Route(ctx context.Context, client, destination netip.AddrPort) (Route, error)
}

// Route of a redirected connection.
type Route struct {
	Request
	// ServerFirst: the server sends first in this protocol, so that nothing is to be
	// awaited from the client before the stream is opened.
	ServerFirst bool
	// Connect to a service outside every mesh, from this machine, without a tunnel. Nil: the
	// Request is opened. SNI names the service in any case.
	Connect func(context.Context) (Upstream, error)
}

// Upstream is the other side of a redirected connection.
type Upstream interface {
	stream.Stream
	// Finish ends the use. clean: both directions have ended.
	Finish(clean bool)
}

// ServerConfig is the agent's side that redirected connections arrive at.
type ServerConfig struct {
	Client *Client
	Router Router
	// Origin of a redirected connection: who the client is, and where it connected to.
	// Nil: KernelOrigin. It may block for as long as that takes to be known.
	Origin func(net.Conn) (client, destination netip.AddrPort, err error)
	// FirstBytesTimeout is how long the client's first bytes are awaited before the
	// stream is opened without them; default 10 ms. It is the price of a protocol in
	// which the server sends first, and that Route.ServerFirst does not mark.
	FirstBytesTimeout time.Duration
	// Logger; nil: discard.
	Logger *slog.Logger
}

// Server carries redirected connections. Zero or more listeners may be served.
type Server struct {
	cfg ServerConfig

	mu    sync.Mutex
	conns map[net.Conn]struct{}
	ended bool
	wg    sync.WaitGroup
}

// NewServer returns a server. Client and Router are required.
func NewServer(cfg ServerConfig) *Server {
	setDefault(&cfg.FirstBytesTimeout, 10*time.Millisecond)
	if cfg.Origin == nil {
		cfg.Origin = KernelOrigin
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Server{cfg: cfg, conns: map[net.Conn]struct{}{}}
}

// Serve accepts until the listener is closed, which ctx does. The listener
// bounds connections and survives errors that pass, as one of internal/listener does.
// Connections that are open go on: see Close.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	for {
		conn, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil && errors.Is(err, net.ErrClosed) {
				return nil
			}
			return err
		}
		if !s.add(conn) {
			stream.Reset(conn)
			continue
		}
		s.wg.Go(func() {
			defer s.remove(conn)
			s.serve(conn)
		})
	}
}

// Close waits for open connections until ctx ends, and resets those that are left.
func (s *Server) Close(ctx context.Context) {
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	done := make(chan struct{})
	go func() { s.wg.Wait(); close(done) }()
	select {
	case <-done:
		return
	case <-ctx.Done():
	}
	s.mu.Lock()
	for conn := range s.conns {
		stream.Reset(conn)
	}
	s.mu.Unlock()
	<-done
}

func (s *Server) add(conn net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended {
		s.conns[conn] = struct{}{}
	}
	return !s.ended
}

func (s *Server) remove(conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, conn)
}

// serve carries one connection. The client has connected successfully by now, so every
// failure is a reset, with its reason in the counter; Client.Failures has the rest. A
// line of log for each would be a flood when a service is down.
func (s *Server) serve(conn net.Conn) {
	m := s.cfg.Client.metrics
	m.streams.Inc()
	defer m.streams.Dec()
	client := stream.NewTCP(conn, s.cfg.Client.cfg.Buffers, frame.ClientReset)
	peer, err := s.open(conn, client)
	if err != nil {
		client.Reset(frame.Unspecified, "")
		reason := frame.Unspecified
		var failure *OpenError
		if errors.As(err, &failure) {
			reason = failure.Reason
		}
		m.reset(reason)
		s.cfg.Logger.Debug("connection reset: no tunnel", "client", conn.RemoteAddr().String(), "reason", reason.String(), "error", err)
		return
	}
	err = stream.Pipe(client, peer, s.cfg.Client.cfg.Buffers, m.sent, m.received)
	peer.Finish(err == nil)
	var failure *stream.Failure
	if errors.As(err, &failure) {
		m.reset(failure.Reason)
		s.cfg.Logger.Debug("connection reset", "client", conn.RemoteAddr().String(), "reason", failure.Reason.String(), "error", failure.Err)
		return
	}
	_ = client.Close() // both directions have ended
}

// open routes a connection and opens its stream, with the client's first bytes.
func (s *Server) open(conn net.Conn, client *stream.TCP) (Upstream, error) {
	// The server's own context would end streams that may still be opened at shutdown.
	ctx := context.Background()
	source, destination, err := s.cfg.Origin(conn)
	if err != nil {
		return nil, err
	}
	route, err := s.cfg.Router.Route(ctx, source, destination)
	if err != nil {
		s.cfg.Client.failures.unrouted(err)
		return nil, err
	}
	if route.Connect != nil {
		return s.connect(ctx, &route)
	}
	route.Stream.Client, route.Stream.Destination = source, destination
	var first stream.Chunk
	if !route.ServerFirst {
		if first, err = s.firstBytes(conn, client); err != nil {
			return nil, &OpenError{SNI: route.SNI, Reason: frame.ClientReset, Err: err}
		}
	}
	var data []byte
	if first.Buffer != nil {
		data = first.Data()
	}
	peer, err := s.cfg.Client.Open(ctx, route.Request, data)
	if first.Buffer != nil {
		s.cfg.Client.cfg.Buffers.Put(first.Buffer)
	}
	if err != nil {
		return nil, err
	}
	s.cfg.Client.metrics.sent.Add(float64(len(data)))
	return peer, nil
}

// connect without a tunnel.
func (s *Server) connect(ctx context.Context, route *Route) (Upstream, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Client.cfg.OpenTimeout)
	defer cancel()
	up, err := route.Connect(ctx)
	if err != nil {
		err = &OpenError{SNI: route.SNI, Reason: frame.Unreachable, Err: err}
		s.cfg.Client.metrics.failed(frame.Unreachable)
		s.cfg.Client.failures.note(route.SNI, frame.Unreachable, err)
		return nil, err
	}
	return up, nil
}

// firstBytes are what the client sends at once: at most one buffer of 16 kB, which is
// kept until a peer accepts the stream. The chunk is empty if there are none.
func (s *Server) firstBytes(conn net.Conn, client *stream.TCP) (stream.Chunk, error) {
	if err := conn.SetReadDeadline(time.Now().Add(s.cfg.FirstBytesTimeout)); err != nil {
		return stream.Chunk{}, err
	}
	chunk, err := client.Receive()
	if err != nil && !isTimeout(err) && !errors.Is(err, io.EOF) {
		return stream.Chunk{}, err
	}
	return chunk, conn.SetReadDeadline(time.Time{})
}

// KernelOrigin is the origin of a connection that the kernel redirected: the client is the
// other end, and the destination is that of SO_ORIGINAL_DST. It works on Linux alone.
func KernelOrigin(conn net.Conn) (client, destination netip.AddrPort, err error) {
	destination, err = originalDestination(conn)
	return addrPort(conn.RemoteAddr()), destination, err
}

func addrPort(a net.Addr) netip.AddrPort {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	ap := tcp.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

var _ stream.Stream = (*Conn)(nil)
