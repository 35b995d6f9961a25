package server

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/proxima-mesh/proxima/internal/gateway/frame"
	"github.com/proxima-mesh/proxima/internal/gateway/proxyproto"
	"github.com/proxima-mesh/proxima/internal/gateway/record"
	"github.com/proxima-mesh/proxima/internal/gateway/stream"
)

// session is one connection.
type session struct {
	server  *Server
	conn    net.Conn
	address netip.AddrPort

	mu   sync.Mutex
	link *stream.Link // after the handshake
}

func addrPort(a net.Addr) netip.AddrPort {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	ap := tcp.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

// goAway says that the server drains.
func (c *session) goAway() {
	c.mu.Lock()
	link := c.link
	c.mu.Unlock()
	if link == nil {
		return // in the handshake, or without frames
	}
	if err := link.GoAway(frame.Draining, "shutting down"); err != nil {
		link.Reset(frame.Draining, "")
	}
}

func (c *session) logger() *slog.Logger {
	return c.server.cfg.Logger.With("peer", c.address.String())
}

// keepAlive finds out within half a minute that the other machine is gone.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}

// serve owns the connection.
func (c *session) serve() {
	s := c.server
	defer func() { _ = c.conn.Close() }() // releases the listener's slot, if it was reset, too
	if tcp, ok := stream.Unwrap(c.conn).(*net.TCPConn); ok {
		_ = tcp.SetKeepAliveConfig(keepAlive) // a connection without it is of use, too
	}
	_ = c.conn.SetDeadline(time.Now().Add(s.cfg.HandshakeTimeout)) // fails only if it is closed
	if s.cfg.Fronted {
		header, err := proxyproto.Read(c.conn)
		if err != nil {
			c.logger().Debug("connection without its client's address", "error", err)
			stream.Reset(c.conn)
			return
		}
		c.address = header.Source
	}
	turn := &turn{gate: s.gate}
	rec := record.NewConn(stream.Unwrap(c.conn), s.cfg.Buffers, turn)
	defer rec.Free()
	conn := tls.Server(rec, s.first)
	err := turn.Enter()
	if err == nil {
		rec.Tap()
		err = conn.HandshakeContext(context.Background())
		turn.Leave()
	}
	var pass *passthroughError
	switch {
	case errors.As(err, &pass):
		c.passThrough(pass, rec)
		return
	case err != nil:
		c.handshakeFailed(rec, err)
		return
	}
	rec.EndHandshake()
	if !rec.Ready() && rec.Flush() != nil {
		stream.Reset(c.conn)
		return
	}
	_ = c.conn.SetDeadline(time.Time{})
	state := conn.ConnectionState()
	s.metrics.handshake(state.DidResume)
	identity, err := Identity(state.PeerCertificates[0])
	if err != nil { // verify has checked it
		stream.Reset(c.conn)
		return
	}
	peer := Peer{Identity: identity, Certificate: state.PeerCertificates[0], Address: c.address, SNI: state.ServerName}
	if state.NegotiatedProtocol == frame.ProtocolFrames {
		c.serveFrames(peer, stream.NewLink(conn, rec, s.cfg.Buffers))
		return
	}
	c.servePlain(peer, stream.NewTLS(conn, rec, s.cfg.Buffers, frame.Broken, true))
}

// handshakeFailed lets the peer read the alert that says why.
func (c *session) handshakeFailed(rec *record.Conn, err error) {
	s := c.server
	if errors.Is(err, errOverloaded) {
		s.metrics.handshakes.WithLabelValues("overloaded").Inc()
		stream.Reset(c.conn)
		return
	}
	s.metrics.handshakes.WithLabelValues("failed").Inc()
	if !errors.Is(err, io.EOF) { // a health check of a load balancer just closes
		c.logger().Debug("handshake failed", "error", err) // anyone could fill the log
	}
	tcp, ok := stream.Unwrap(c.conn).(*net.TCPConn)
	if rec.Flush() != nil || !ok || tcp.CloseWrite() != nil {
		stream.Reset(c.conn)
		return
	}
	// What the peer has sent after its part of the handshake would make the kernel reset
	// the connection, and the peer might lose the alert.
	_ = c.conn.SetReadDeadline(time.Now().Add(alertTimeout))
	_, _ = io.CopyN(io.Discard, tcp, maxAfterAlert) // whatever it is
}

const (
	// alertTimeout and maxAfterAlert bound what is read after a handshake that failed.
	alertTimeout  = 500 * time.Millisecond
	maxAfterAlert = 64 << 10
)

// serveFrames serves one stream after the other.
func (c *session) serveFrames(peer Peer, link *stream.Link) {
	s := c.server
	c.mu.Lock()
	c.link = link
	c.mu.Unlock()
	if s.isDraining() { // Shutdown may have missed this connection
		c.goAway()
	}
	for {
		err := link.Record().SetReadDeadline(time.Now().Add(s.cfg.IdleTimeout))
		var opened frame.Stream
		if err == nil {
			opened, err = link.Accept()
		}
		if err == nil {
			err = link.Record().SetReadDeadline(time.Time{})
		}
		if err == nil {
			err = c.stream(peer, link, opened)
		}
		if err != nil {
			c.ended(link, err)
			return
		}
	}
}

// ended closes a connection that carries no stream.
func (c *session) ended(link *stream.Link, err error) {
	if errors.Is(err, frame.ErrMalformed) {
		c.server.metrics.resets.WithLabelValues(frame.Protocol.String()).Inc()
		c.logger().Warn("connection reset: the peer broke the protocol", "error", err)
		link.Reset(frame.Protocol, err.Error())
		return
	}
	link.Close()
}

// errEnded is a connection that was reset, or may not be used again, after a stream.
var errEnded = errors.New("the connection is of no further use")

// stream serves one stream. An error is the end of the connection.
func (c *session) stream(peer Peer, link *stream.Link, opened frame.Stream) error {
	upstream, err := c.connect(peer, opened)
	if err != nil {
		return c.refuse(peer, link, err)
	}
	if err := link.Accepted(); err != nil {
		upstream.Finish(false)
		return err
	}
	if !c.carry(peer, link, upstream) {
		return errEnded
	}
	if !link.Reusable() {
		return errEnded
	}
	return nil
}

// connect authorizes a stream and connects its other side.
func (c *session) connect(peer Peer, opened frame.Stream) (Upstream, error) {
	s := c.server
	if s.isDraining() {
		return nil, &Refusal{Reason: frame.Draining, Err: errors.New("shutting down")}
	}
	if opened.Identity == "" {
		opened.Identity = peer.Identity
	}
	if opened.Identity != peer.Identity && !s.cfg.Authority.MayAssert(peer, opened.Identity) {
		return nil, &Refusal{Reason: frame.Unauthorized, Err: errors.New("the stream is for another identity than the peer's")}
	}
	if now := time.Now(); now.After(peer.Certificate.NotAfter) {
		return nil, &Refusal{Reason: frame.Unauthorized, Err: errors.New("the certificate of the connection has expired")}
	}
	if err := s.cfg.Authority.AuthorizeStream(peer, opened); err != nil {
		return nil, &Refusal{Reason: frame.Unauthorized, Err: err}
	}
	ctx, cancel := context.WithTimeout(s.life, s.cfg.ConnectTimeout)
	defer cancel()
	begin := time.Now()
	upstream, err := s.cfg.Handler.Connect(ctx, Call{Peer: peer, Stream: opened})
	if err == nil {
		s.metrics.connectSeconds.Observe(time.Since(begin).Seconds())
	}
	return upstream, err
}

// refuse answers a stream that could not be connected. The connection stays.
func (c *session) refuse(peer Peer, link *stream.Link, err error) error {
	reason := c.refused(peer, err)
	text := ""
	var refusal *Refusal
	if errors.As(err, &refusal) && reason != frame.Unreachable { // addresses of endpoints are no peer's business
		text = refusal.Err.Error()
	}
	return link.Refuse(reason, text)
}

// refused counts and logs a refusal.
func (c *session) refused(peer Peer, err error) frame.Reason {
	reason := frame.Unspecified
	var refusal *Refusal
	if errors.As(err, &refusal) {
		reason = refusal.Reason
	}
	c.server.metrics.refused.WithLabelValues(reason.String()).Inc()
	level := slog.LevelDebug
	if reason == frame.Unauthorized { // of an authenticated peer
		level = slog.LevelInfo
	}
	c.logger().Log(context.Background(), level, "stream refused",
		"identity", peer.Identity, "sni", peer.SNI, "reason", reason.String(), "error", err)
	return reason
}

// carry passes bytes until the stream ends, and reports whether it did so in both
// directions.
func (c *session) carry(peer Peer, down stream.Stream, up Upstream) bool {
	m := c.server.metrics
	m.streams.Inc()
	defer m.streams.Dec()
	err := up.Begin()
	if err != nil {
		reason := up.Fault(err)
		up.Reset(reason, "")
		down.Reset(reason, "")
		err = &stream.Failure{Reason: reason, Err: err}
	} else {
		err = stream.Pipe(down, up, c.server.cfg.Buffers, m.received, m.sent)
	}
	up.Finish(err == nil)
	var failure *stream.Failure
	if errors.As(err, &failure) {
		m.resets.WithLabelValues(label(failure.Reason)).Inc()
		c.logger().Debug("stream reset", "identity", peer.Identity, "sni", peer.SNI, "reason", failure.Reason.String(), "error", failure.Err)
		return false
	}
	return true
}

// servePlain serves a connection of a peer without frames: it is one stream.
func (c *session) servePlain(peer Peer, down *stream.TLS) {
	// The peer's address is all that is known of the client.
	upstream, err := c.connect(peer, frame.Stream{Client: peer.Address})
	if err != nil {
		c.refused(peer, err)
		down.Reset(frame.Unspecified, "")
		return
	}
	if err := down.Flush(); err != nil {
		upstream.Finish(false)
		down.Reset(frame.Unspecified, "")
		return
	}
	if c.carry(peer, down, upstream) {
		down.Close()
	}
}

// passThrough carries a TLS connection that ends elsewhere.
func (c *session) passThrough(hello *passthroughError, rec *record.Conn) {
	s := c.server
	received := rec.Detach()
	_ = c.conn.SetDeadline(time.Time{})
	peer := Peer{Address: c.address, SNI: hello.sni}
	down := stream.NewTCP(c.conn, s.cfg.Buffers, frame.ClientReset)
	ctx, cancel := context.WithTimeout(s.life, s.cfg.ConnectTimeout)
	defer cancel()
	upstream, err := s.cfg.Handler.Passthrough(ctx, Hello{SNI: hello.sni, Protocols: hello.protocols, Client: c.address})
	if err != nil {
		s.metrics.handshakes.WithLabelValues("passthrough-refused").Inc()
		c.refused(peer, err)
		down.Reset(frame.Unspecified, "")
		return
	}
	s.metrics.handshakes.WithLabelValues("passthrough").Inc()
	down.Prepend(received)
	if c.carry(peer, down, upstream) {
		_ = down.Close()
	}
}
