// Package tunnel is the client side of the path between sites: it opens streams to
// zone ingresses and egresses over mTLS, with the certificate of the workload that
// asks, and carries redirected connections of a node.
//
// Connections are pooled per identity, certificate, peer and service, and carry one
// stream at a time. An attempt that fails before the peer has accepted the stream is
// made again with the next peer, and no byte is lost; one that ends without an answer
// is a failure, as the peer may have acted on it. Enter at NewClient and Client.Open,
// and at NewServer for the agent's port. The package never decides which peers serve
// a service, nor issues certificates.
package tunnel

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/proxima-mesh/proxima/internal/gateway/frame"
	"github.com/proxima-mesh/proxima/internal/gateway/record"
	"github.com/proxima-mesh/proxima/internal/gateway/stream"
)

// Config of a Client. Nothing is required.
type Config struct {
	// Site of this process: its own ingresses are refused as peers. Empty: not known, and
	// the caller leaves them out.
	Site string
	// Buffers; nil: a pool of the default size.
	Buffers *record.Pool
	// ConnectTimeout bounds connecting to a peer, HandshakeTimeout the handshake with
	// it; OpenTimeout is for all attempts of a stream. Defaults: 2 s, 5 s, 15 s.
	ConnectTimeout, HandshakeTimeout, OpenTimeout time.Duration
	// IdleTimeout of pooled connections; default and maximum: 30 s, as servers close
	// them after twice that.
	IdleTimeout time.Duration
	// MaxIdle pooled connections of one key; default 8.
	MaxIdle int
	// Dial connects to a peer; nil: TCP with keep-alive. The result is a *net.TCPConn
	// or wraps one.
	Dial func(ctx context.Context, peer netip.AddrPort) (net.Conn, error)
	// Registerer of metrics; nil: none.
	Registerer prometheus.Registerer
	// Logger; nil: discard.
	Logger *slog.Logger
}

func (c *Config) setDefaults() {
	if c.Buffers == nil {
		c.Buffers = record.NewPool(0)
	}
	setDefault(&c.ConnectTimeout, 2*time.Second)
	setDefault(&c.HandshakeTimeout, 5*time.Second)
	setDefault(&c.OpenTimeout, 15*time.Second)
	setDefault(&c.IdleTimeout, maxIdleTime)
	c.IdleTimeout = min(c.IdleTimeout, maxIdleTime)
	if c.MaxIdle <= 0 {
		c.MaxIdle = 8
	}
	if c.Dial == nil {
		c.Dial = dialTCP
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
}

func setDefault(d *time.Duration, value time.Duration) {
	if *d <= 0 {
		*d = value
	}
}

const maxIdleTime = 30 * time.Second

// A path that drops everything must cost few streams, and not for long. So an idle
// connection is probed after idleProbe, and one of them, or one whose peer has not
// acknowledged OPEN for openUnanswered, is given up. Two retransmissions fit in it where a
// round trip is short. A stream is given up after streamUnanswered.
const (
	openUnanswered   = 800 * time.Millisecond
	idleProbe        = time.Second
	streamUnanswered = 10 * time.Second
)

// keepAlive finds out within half a minute that the other machine is gone.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}

func dialTCP(ctx context.Context, peer netip.AddrPort) (net.Conn, error) {
	d := net.Dialer{KeepAliveConfig: keepAlive}
	return d.DialContext(ctx, "tcp", peer.String())
}

// Client opens streams. Safe for concurrent use.
type Client struct {
	cfg     Config
	metrics *metrics
	pool    *pool

	failures failures

	mu       sync.Mutex
	suspects map[netip.AddrPort]time.Time // when they failed
}

// NewClient returns a client. Close ends its pooled connections.
func NewClient(cfg Config) *Client {
	cfg.setDefaults()
	c := &Client{cfg: cfg, metrics: newMetrics(cfg.Registerer), suspects: map[netip.AddrPort]time.Time{}}
	c.pool = newPool(cfg.MaxIdle, cfg.IdleTimeout, c.metrics)
	return c
}

// OpenError is a stream that no peer has accepted.
type OpenError struct {
	SNI string
	// Reason of the last attempt.
	Reason frame.Reason
	// Err has every attempt.
	Err error
}

// Error implements error.
func (e *OpenError) Error() string {
	return fmt.Sprintf("open a tunnel to %s: %s: %v", e.SNI, e.Reason, e.Err)
}

// Unwrap returns the attempts.
func (e *OpenError) Unwrap() error { return e.Err }

// Open opens a stream and sends the first bytes with it, which it does not keep. It
// blocks until a peer has accepted the stream, and returns an *OpenError if none has. A
// deadline of ctx counts if it is earlier than OpenTimeout; cancellation counts between
// attempts. The caller calls Finish on the result.
func (c *Client) Open(ctx context.Context, r Request, first []byte) (*Conn, error) {
	begin := time.Now()
	conn, err := c.open(ctx, r, first)
	if err != nil {
		var failure *OpenError
		if !errors.As(err, &failure) {
			err = &OpenError{SNI: r.SNI, Reason: frame.Unspecified, Err: err}
			errors.As(err, &failure)
		}
		c.metrics.failed(failure.Reason)
		c.failures.note(r.SNI, failure.Reason, err)
		return nil, err
	}
	c.metrics.openSeconds.Observe(time.Since(begin).Seconds())
	return conn, nil
}

func (c *Client) open(ctx context.Context, r Request, first []byte) (*Conn, error) {
	if err := r.check(c.cfg.Site); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.OpenTimeout)
	defer cancel()
	failure := &OpenError{SNI: r.SNI}
	peers := order(r.Peers, c.suspect)
	if peers, failure.Err = c.answering(ctx, peers); failure.Err != nil {
		failure.Reason = frame.Unreachable
		return nil, failure
	}
	for i, peer := range peers {
		if i > 0 {
			c.metrics.retries.Inc()
		}
		conn, again, err := c.try(ctx, &r, peer, first, c.connectTimeout(peer, i+1 == len(peers)))
		if err == nil {
			return conn, nil
		}
		failure.Err = errors.Join(failure.Err, fmt.Errorf("peer %s (%s): %w", peer.Name, peer.Address, err))
		failure.Reason = reasonOf(err)
		if !again || ctx.Err() != nil {
			break
		}
	}
	return nil, failure
}

// answering returns the peers to try. Where none answered lately, all are asked at the same time: one after the other they would
// keep a client waiting for as many seconds as there are of them. The first that accepts a connection is tried first then, and an error
// means that none did within a second.
func (c *Client) answering(ctx context.Context, peers []Peer) ([]Peer, error) {
	if len(peers) < 2 || !c.suspect(peers[0].Address) { // they come last
		return peers, nil
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	errs := make([]error, len(peers))
	var first atomic.Int64
	first.Store(-1)
	var asking sync.WaitGroup
	for i := range peers {
		asking.Go(func() {
			socket, err := c.cfg.Dial(ctx, peers[i].Address)
			if err != nil {
				errs[i] = fmt.Errorf("peer %s (%s): connect: %w", peers[i].Name, peers[i].Address, err)
				return
			}
			first.CompareAndSwap(-1, int64(i))
			stream.Reset(socket)
			cancel() // the others need not answer
		})
	}
	asking.Wait()
	if i := int(first.Load()); i >= 0 {
		return slices.Concat(peers[i:i+1], peers[:i], peers[i+1:]), nil
	}
	for _, p := range peers {
		c.suspectNow(p.Address)
	}
	return nil, errors.Join(errs...)
}

// reasonOf an attempt that failed.
func reasonOf(err error) frame.Reason {
	var refused *frame.Error
	switch {
	case errors.As(err, &refused):
		return refused.Reason
	case isAlert(err):
		return frame.Unauthorized
	case errors.Is(err, stream.ErrBroken):
		return frame.Broken
	}
	return frame.Unreachable
}

// isAlert reports whether the peer ended TLS with an alert: it has refused the
// handshake, so it has passed nothing on.
func isAlert(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "remote error" // crypto/tls, Conn.Read
}

// try makes one attempt with a peer. again reports whether the next peer may be tried:
// whether this one has certainly passed nothing on.
func (c *Client) try(ctx context.Context, r *Request, peer Peer, first []byte, timeout time.Duration) (conn *Conn, again bool, err error) {
	key := keyOf(r, peer)
	for {
		conn = c.pool.take(key)
		pooled := conn != nil
		if !pooled {
			if conn, err = c.connect(ctx, key, r.Credentials, peer, timeout); err != nil {
				c.suspectNow(peer.Address)
				return nil, true, err
			}
		}
		sent, err := conn.open(ctx, r.Stream, first)
		if err == nil {
			c.unsuspect(peer.Address)
			return conn, false, nil
		}
		var refused *frame.Error
		switch {
		case errors.As(err, &refused):
			conn.release() // of use for the next stream
			if refused.Reason == frame.Draining && pooled {
				continue // a new connection may lead to another instance
			}
			return nil, true, err
		case isAlert(err) && !pooled:
			// TLS 1.3: the peer verifies this side's certificate after this side is done.
			conn.abort()
			return nil, true, err
		case sent:
			conn.abort()
			if isUnanswered(err) {
				// The other idle connections lead nowhere, too.
				c.suspectNow(peer.Address)
				c.pool.dropPeer(peer.Address)
			}
			return nil, false, err
		}
		conn.abort()
		if !pooled {
			return nil, true, err
		}
	}
}

// connect makes a connection: TCP and TLS.
func (c *Client) connect(ctx context.Context, key key, creds *Credentials, peer Peer, timeout time.Duration) (*Conn, error) {
	dialContext, cancel := context.WithTimeout(ctx, timeout)
	socket, err := c.cfg.Dial(dialContext, peer.Address)
	cancel()
	if err != nil {
		c.metrics.connects.WithLabelValues("failed").Inc()
		return nil, fmt.Errorf("connect: %w", err)
	}
	limitUnanswered(socket, openUnanswered, idleProbe)
	rec := record.NewConn(stream.Unwrap(socket), c.cfg.Buffers, nil)
	bucket := c.pool.of(key)
	conn := tls.Client(rec, &tls.Config{
		ServerName:         key.sni,
		Certificates:       []tls.Certificate{*creds.Certificate},
		ClientSessionCache: bucket.sessions,
		MinVersion:         tls.VersionTLS13,
		NextProtos:         []string{frame.ProtocolFrames, frame.ProtocolTunnel},
		// The peer has a SPIFFE ID, not a host name: VerifyConnection verifies the
		// chain, and does so in resumed sessions, too.
		InsecureSkipVerify:          true,
		VerifyConnection:            func(s tls.ConnectionState) error { return creds.VerifyPeer(peer, s) },
		DynamicRecordSizingDisabled: true, // package stream chooses the size
	})
	handshakeContext, cancel := context.WithTimeout(ctx, c.cfg.HandshakeTimeout)
	err = conn.HandshakeContext(handshakeContext)
	cancel()
	if err == nil {
		rec.EndHandshake()
		state := conn.ConnectionState()
		switch state.NegotiatedProtocol {
		case frame.ProtocolFrames:
			c.metrics.connected(state.DidResume)
			return &Conn{socket: socket, link: stream.NewLink(conn, rec, c.cfg.Buffers), key: key, pool: c.pool, bucket: bucket}, nil
		case frame.ProtocolTunnel:
			c.metrics.connected(state.DidResume)
			plain := stream.NewTLS(conn, rec, c.cfg.Buffers, frame.Broken, true)
			return &Conn{socket: socket, plain: plain, key: key, pool: c.pool, bucket: bucket}, nil
		}
		err = fmt.Errorf("the peer speaks neither %s nor %s", frame.ProtocolFrames, frame.ProtocolTunnel)
	}
	stream.Reset(socket)
	rec.Free()
	c.metrics.connects.WithLabelValues("failed").Inc()
	return nil, fmt.Errorf("handshake: %w", err)
}

// Retire drops the pooled connections and sessions of a certificate: when it was
// renewed or revoked, or its workload has ended. Streams that are open go on, and
// their connections are closed afterwards.
func (c *Client) Retire(identity, serial string) { c.pool.retire(identity, serial) }

// Close ends pooled connections and waits for their goroutines. Streams that are open
// go on.
func (c *Client) Close() { c.pool.close() }

// connectTimeout of an attempt. It is shorter while there are other peers, or where this one
// did not answer lately: the packet that begins a connection is repeated after 1 s (RFC 6298).
func (c *Client) connectTimeout(peer Peer, last bool) time.Duration {
	if last && !c.suspect(peer.Address) {
		return c.cfg.ConnectTimeout
	}
	return min(c.cfg.ConnectTimeout, time.Second)
}

func (c *Client) suspect(peer netip.AddrPort) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, ok := c.suspects[peer]
	if ok && time.Since(at) > suspicion {
		delete(c.suspects, peer)
		return false
	}
	return ok
}

func (c *Client) suspectNow(peer netip.AddrPort) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.suspects[peer] = time.Now()
}

func (c *Client) unsuspect(peer netip.AddrPort) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.suspects, peer)
}
