package server

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"

	"github.com/proxima-mesh/proxima/internal/gateway/stream"
)

// Server serves tunnels. Safe for concurrent use.
type Server struct {
	cfg        Config
	metrics    *metrics
	gate       *gate
	first, own *tls.Config

	life   context.Context // until all connections are ended
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu        sync.Mutex
	sessions  map[*session]struct{}
	listeners map[net.Listener]struct{}
	draining  bool
	drained   chan struct{} // closed when draining and no session is left
}

// New returns a server. Shutdown must be called in the end.
func New(cfg Config) (*Server, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	s := &Server{
		cfg:       cfg,
		metrics:   newMetrics(cfg.Registerer, cfg.Role),
		sessions:  map[*session]struct{}{},
		listeners: map[net.Listener]struct{}{},
		drained:   make(chan struct{}),
	}
	s.life, s.cancel = context.WithCancel(context.Background())
	s.gate = newGate(cfg.Handshakes, cfg.HandshakeQueue, s.life.Done())
	s.first, s.own = s.tlsConfig()
	s.wg.Go(func() { cfg.Buffers.Reclaim(s.life) })
	if cfg.TicketKeys != nil {
		keys, _ := cfg.TicketKeys.Keys(cfg.Advertised) // before the first handshake
		if len(keys) > 0 {
			s.own.SetSessionTicketKeys(keys[:min(len(keys), keptTicketKeys)])
		}
		s.wg.Go(func() { s.followTicketKeys(s.life) })
	}
	return s, nil
}

// Serve accepts until the listener is closed, which Shutdown does; the result is nil
// then. The listener bounds connections and survives errors that pass, as
// one of internal/listener does.
func (s *Server) Serve(l net.Listener) error {
	s.mu.Lock()
	if s.draining {
		s.mu.Unlock()
		_ = l.Close()
		return nil
	}
	s.listeners[l] = struct{}{}
	s.mu.Unlock()
	for {
		conn, err := l.Accept()
		if err != nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.listeners, l)
			if s.draining && errors.Is(err, net.ErrClosed) {
				return nil
			}
			return err
		}
		c := &session{server: s, conn: conn, address: addrPort(conn.RemoteAddr())}
		if !s.add(c) {
			stream.Reset(conn)
			continue
		}
		s.wg.Go(func() {
			defer s.remove(c)
			c.serve()
		})
	}
}

// Shutdown stops accepting and says so on every connection, waits until ctx ends for
// streams that are open, and resets the rest. It returns when no goroutine is left.
func (s *Server) Shutdown(ctx context.Context) {
	s.mu.Lock()
	if !s.draining {
		s.draining = true
		s.noteDrained()
	}
	for l := range s.listeners {
		_ = l.Close()
	}
	for c := range s.sessions {
		s.wg.Go(c.goAway)
	}
	s.mu.Unlock()
	select {
	case <-s.drained:
	case <-ctx.Done():
	}
	s.cancel()
	s.mu.Lock()
	for c := range s.sessions {
		stream.Reset(c.conn)
	}
	s.mu.Unlock()
	s.wg.Wait()
}

// noteDrained closes drained after the last connection. The caller holds mu.
func (s *Server) noteDrained() {
	if !s.draining || len(s.sessions) > 0 {
		return
	}
	select {
	case <-s.drained:
	default:
		close(s.drained)
	}
}

func (s *Server) isDraining() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.draining
}

func (s *Server) add(c *session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining {
		return false
	}
	s.sessions[c] = struct{}{}
	s.metrics.connections.Inc()
	return true
}

func (s *Server) remove(c *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, c)
	s.noteDrained()
	s.metrics.connections.Dec()
}
