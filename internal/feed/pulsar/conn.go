package pulsar

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/proxima-mesh/proxima/internal/feed/pulsar/wire"
	"github.com/proxima-mesh/proxima/internal/registry"
)

const (
	// pingEvery is how often a client is asked whether it lives; one that sent nothing for silentFor is dropped.
	pingEvery = 30 * time.Second
	silentFor = 90 * time.Second
	// connectWithin bounds the time until a client has said who it is.
	connectWithin = 10 * time.Second
	// writeWithin is how long a client may take nothing that is sent.
	writeWithin = 30 * time.Second
	// outFrames are frames that wait to be sent; messages leave the last outReserve to answers.
	outFrames  = 1_024
	outReserve = 256
)

// conn is a client. Its commands are handled one after the other.
type conn struct {
	s   *Server
	n   net.Conn
	log *slog.Logger
	out chan []byte

	done chan struct{} // closed by kill
	once sync.Once

	mu        sync.Mutex
	shown     Credentials
	rights    Rights
	consumers map[uint64]*consumer
}

func newConn(s *Server, n net.Conn) *conn {
	return &conn{
		s: s, n: n, log: s.log.With("client", n.RemoteAddr().String()), out: make(chan []byte, outFrames), done: make(chan struct{}),
		consumers: map[uint64]*consumer{},
	}
}

// kill ends the connection. It does not wait.
func (c *conn) kill() {
	c.once.Do(func() {
		close(c.done)
		_ = c.n.SetDeadline(time.Unix(1, 0)) // crypto/tls may wait for its alert
		go func() { _ = c.n.Close() }()
	})
}

func (c *conn) serve(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var writer sync.WaitGroup
	written := make(chan struct{})
	writer.Go(func() {
		defer close(written)
		c.write()
	})
	writer.Go(func() { c.check(ctx) })
	err := c.read(ctx)
	c.flush()
	<-written // a refusal must arrive before the end of the connection
	c.kill()
	cancel()
	writer.Wait()
	c.mu.Lock()
	left := c.consumers
	c.consumers = map[uint64]*consumer{}
	c.mu.Unlock()
	for _, m := range left {
		c.s.leave(m)
	}
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) && ctx.Err() == nil {
		c.log.Debug("a client of Pulsar is disconnected", "error", err)
	}
}

// read commands until the connection ends.
func (c *conn) read(ctx context.Context) error {
	r := bufio.NewReader(c.n)
	_ = c.n.SetReadDeadline(time.Now().Add(connectWithin))
	cmd, err := readCommand(r)
	if err != nil {
		return err
	}
	if err := c.connect(ctx, cmd); err != nil {
		c.fail(^uint64(0), err)
		return err
	}
	for {
		_ = c.n.SetReadDeadline(time.Now().Add(silentFor))
		select {
		case <-c.done:
			return net.ErrClosed
		default:
		}
		cmd, err := readCommand(r)
		if err != nil {
			return err
		}
		c.handle(ctx, cmd)
	}
}

// write frames until the connection ends.
func (c *conn) write() {
	defer c.kill()
	w := bufio.NewWriterSize(c.n, 64<<10)
	ping := time.NewTicker(pingEvery)
	defer ping.Stop()
	for {
		var frame []byte
		select {
		case frame = <-c.out:
		case <-ping.C:
			frame, _ = appendCommand(nil, &wire.Command{Type: ptr(int32(typePing)), Ping: &wire.Empty{}})
		case <-c.done:
			return
		}
		_ = c.n.SetWriteDeadline(time.Now().Add(writeWithin))
		if frame == nil { // flush
			_ = w.Flush()
			return
		}
		if _, err := w.Write(frame); err != nil {
			return
		}
		if len(c.out) > 0 {
			continue
		}
		if w.Flush() != nil {
			return
		}
		c.wake()
	}
}

// flush sends what waits, and ends the writer.
func (c *conn) flush() {
	select {
	case c.out <- nil:
	case <-c.done:
	}
}

// wake the subscriptions that may have waited for space.
func (c *conn) wake() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.consumers {
		m.sub.signal()
	}
}

// room reports whether a message can be sent without waiting.
func (c *conn) room() bool { return len(c.out) < outFrames-outReserve }

// push a frame without waiting. A client that takes nothing is dropped.
func (c *conn) push(frame []byte) {
	select {
	case c.out <- frame:
	case <-c.done:
	default:
		c.kill()
	}
}

// tell sends a command without waiting.
func (c *conn) tell(cmd *wire.Command) {
	frame, err := appendCommand(nil, cmd)
	if err != nil {
		c.log.Error("a command cannot be encoded", "error", err)
		c.kill()
		return
	}
	c.push(frame)
}

// fail answers a request with an error.
func (c *conn) fail(request uint64, err error) {
	c.s.meters.refused.Inc()
	code := wire.ServerError_UNKNOWN_ERROR
	var p *problem
	if errors.As(err, &p) {
		code = p.code
	}
	c.tell(&wire.Command{Type: ptr(int32(typeError)), Error: &wire.Error{Request: &request, Error: &code, Message: ptr(err.Error())}})
}

// connect finds out who the client is, and answers it.
func (c *conn) connect(ctx context.Context, cmd *wire.Command) error {
	hello := cmd.GetConnect()
	if hello == nil {
		return refuse(wire.ServerError_METADATA_ERROR, "the first command of a client must be CONNECT")
	}
	if err := c.authenticate(ctx, hello.GetAuthMethodName(), hello.GetAuthData()); err != nil {
		return err
	}
	version := min(max(hello.GetProtocolVersion(), 0), protocolVersion)
	c.tell(&wire.Command{Type: ptr(int32(typeConnected)), Connected: &wire.Connected{
		ServerVersion: ptr("proxima " + c.s.cfg.Version), ProtocolVersion: &version, MaxMessageSize: ptr(int32(maxMessage)),
	}})
	return nil
}

func (c *conn) authenticate(ctx context.Context, method string, data []byte) error {
	shown := Credentials{TLS: registry.TLSState(c.n), From: c.n.RemoteAddr()}
	switch method {
	case "token":
		shown.Token = string(data)
	case "", "none", "tls":
	default:
		return refuse(wire.ServerError_AUTHENTICATION_ERROR, "the method %q of authentication is none of token, tls", method)
	}
	rights, err := c.s.cfg.Access.Authenticate(ctx, shown)
	if err != nil {
		return refuse(wire.ServerError_AUTHENTICATION_ERROR, "%v", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.shown, c.rights = shown, rights
	return nil
}

// check the credentials from time to time, and disconnect a client whose are not valid any more, or whose rights are less.
func (c *conn) check(ctx context.Context) {
	tick := time.NewTicker(c.s.cfg.CheckEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-c.done:
			return
		}
		c.mu.Lock()
		shown, known := c.shown, c.rights != nil
		var topics []topic
		for _, m := range c.consumers {
			topics = append(topics, m.sub.topic)
		}
		c.mu.Unlock()
		if !known {
			continue
		}
		rights, err := c.s.cfg.Access.Authenticate(ctx, shown)
		for i := 0; err == nil && i < len(topics); i++ {
			err = rights.MayRead(ctx, topics[i].kind, topics[i].namespace)
		}
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			c.log.Info("a client of Pulsar is disconnected: its credentials are not valid any more", "error", err)
			c.kill()
			return
		}
	}
}

func (c *conn) may() Rights {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rights
}

func (c *conn) consumer(id uint64) *consumer {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.consumers[id]
}

// forget a consumer; false: it is gone.
func (c *conn) forget(m *consumer) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.consumers[m.id] != m {
		return false
	}
	delete(c.consumers, m.id)
	return true
}
