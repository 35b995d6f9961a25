package relay

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/sidecar/wire"
)

// Services and methods of Envoy's API.
const (
	discoveryService = "envoy.service.discovery.v3.AggregatedDiscoveryService"
	deltaMethod      = "DeltaAggregatedResources"
	sotwMethod       = "StreamAggregatedResources"
	loadService      = "envoy.service.load_stats.v3.LoadReportingService"
	loadMethod       = "StreamLoadStats"
)

// retry spaces attempts after all servers have failed.
var retry = backoff.Policy{First: 100 * time.Millisecond, Last: 5 * time.Second, Jitter: 0.5}

// connectTimeout of an attempt: there may be another server to try.
const connectTimeout = 3 * time.Second

// keepAlive finds out that a server's machine is gone, within 20 s. Pings of HTTP/2 would have
// to be allowed by the server.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 3 * time.Second, Count: 3}

// link is the connection to the control plane, for the streams that go along with discovery.
type link struct {
	mu      sync.Mutex
	conn    *grpc.ClientConn // nil: there is none
	changed chan struct{}    // closed when there is another
}

func (l *link) set(conn *grpc.ClientConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conn = conn
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *link) get() (*grpc.ClientConn, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conn, l.changed
}

// follow the control plane until ctx ends.
func (r *Relay) follow(ctx context.Context) {
	announced, follow := (<-chan struct{})(r.announced), r.stream
	if r.config.Programs {
		announced, follow = nil, r.hold
	}
	for _, ready := range []<-chan struct{}{announced, r.config.Start} {
		if ready == nil {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-ready:
		}
	}
	pause := backoff.Backoff{Policy: retry}
	said := "" // what was logged last: an outage fills no log
	for failures, next := 0, 0; ctx.Err() == nil; next++ {
		server := r.config.Servers[next%len(r.config.Servers)]
		worked, err := follow(ctx, server)
		if ctx.Err() != nil {
			return
		}
		r.mu.Lock()
		r.state = UpstreamState{Server: server, Since: time.Now(), Error: err.Error()}
		r.mu.Unlock()
		if errors.Is(err, errReopen) {
			next-- // the same one
			continue
		}
		failures++
		if worked {
			failures = 1
			pause.Reset()
		}
		delay := time.Duration(0)
		if worked || failures%len(r.config.Servers) == 0 {
			delay = pause.Next()
		}
		level := slog.LevelWarn
		if worked {
			said = ""
		}
		if text := server + err.Error(); text == said {
			level = slog.LevelDebug
		} else {
			said = text
		}
		r.config.Logger.Log(ctx, level, "no stream of the control plane", "server", server, "retryIn", delay, "error", err)
		backoff.Sleep(ctx, delay)
	}
}

// errReopen: the stream was ended to begin another.
var errReopen = errors.New("the stream is opened again")

// stream follows one server until the stream ends. worked: it has sent something.
func (r *Relay) stream(ctx context.Context, server string) (worked bool, err error) {
	host, _, err := net.SplitHostPort(server)
	if err != nil {
		return false, fmt.Errorf("server %q: want HOST:PORT", server)
	}
	config, err := r.config.TLS(host)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	conn, err := r.dial(server, config)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	stream, err := conn.NewStream(ctx, streamDesc(deltaMethod), "/"+discoveryService+"/"+deltaMethod)
	if err != nil {
		return false, err
	}
	r.open(server, conn, func() { cancel(errReopen) })
	var sender sync.WaitGroup
	sender.Go(func() {
		if err := r.ask(ctx, stream); err != nil {
			cancel(err)
		}
	})
	worked, err = r.listen(stream)
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	cancel(err)
	sender.Wait()
	r.link.set(nil)
	r.do(func(c *Core) { c.UpstreamClosed() })
	return worked, err
}

// hold a connection to one server for the streams of programs, until it ends. worked: it was there.
func (r *Relay) hold(ctx context.Context, server string) (worked bool, err error) {
	host, _, err := net.SplitHostPort(server)
	if err != nil {
		return false, fmt.Errorf("server %q: want HOST:PORT", server)
	}
	config, err := r.config.TLS(host)
	if err != nil {
		return false, err
	}
	conn, err := r.dial(server, config)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	conn.Connect()
	state := conn.GetState()
	for state != connectivity.Ready && state != connectivity.TransientFailure {
		if !conn.WaitForStateChange(ctx, state) {
			return false, ctx.Err()
		}
		state = conn.GetState()
	}
	if state == connectivity.TransientFailure { // a call says why
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		if _, err := conn.NewStream(ctx, streamDesc(sotwMethod), "/"+discoveryService+"/"+sotwMethod); err != nil {
			return false, err
		}
		return false, errors.New("the connection has failed")
	}
	r.open(server, conn, func() {})
	defer r.link.set(nil)
	for state == connectivity.Ready && conn.WaitForStateChange(ctx, state) {
		state = conn.GetState()
	}
	return true, errors.New("the connection has ended")
}

func streamDesc(name string) *grpc.StreamDesc {
	return &grpc.StreamDesc{StreamName: name, ServerStreams: true, ClientStreams: true}
}

// dial does not block: the first stream connects.
func (r *Relay) dial(server string, config *tls.Config) (*grpc.ClientConn, error) {
	dialer := &net.Dialer{Timeout: connectTimeout, KeepAliveConfig: keepAlive, Control: r.config.Control}
	return grpc.NewClient("passthrough:///"+server,
		grpc.WithUserAgent(wire.UserAgent+r.config.Version),
		grpc.WithTransportCredentials(credentials.NewTLS(config)),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", address)
		}),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(wire.Codec{}), grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithReadBufferSize(bufferSize), grpc.WithWriteBufferSize(bufferSize),
	)
}

func (r *Relay) open(server string, conn *grpc.ClientConn, reopen func()) {
	r.do(func(c *Core) {
		c.UpstreamOpened()
		r.reopen = reopen
		r.sentNode = nil
		r.state = UpstreamState{Connected: true, Server: server, Since: time.Now()}
		notify(r.upstream)
	})
	r.link.set(conn)
	r.config.Logger.Info("stream of the control plane", "server", server)
}

// ask sends requests. The first has the Node.
func (r *Relay) ask(ctx context.Context, stream grpc.ClientStream) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.upstream:
		}
		r.mu.Lock()
		out := r.core.Upstream()
		if len(out) > 0 && r.sentNode == nil {
			r.sentNode = r.node
			out[0].Node = r.node
		}
		r.mu.Unlock()
		for _, request := range out {
			frame := wire.Frame(request.Append(nil))
			if err := stream.SendMsg(&frame); err != nil {
				return nil // the receiver has the reason
			}
		}
	}
}

func (r *Relay) listen(stream grpc.ClientStream) (worked bool, err error) {
	for {
		var frame wire.Frame
		if err := stream.RecvMsg(&frame); err != nil {
			return worked, err
		}
		response, err := wire.ParseResponse(frame)
		if err != nil {
			return worked, err
		}
		r.do(func(c *Core) { err = c.Received(response) })
		if err != nil {
			return worked, err
		}
		worked = true
	}
}
