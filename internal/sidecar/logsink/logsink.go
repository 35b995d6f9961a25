// Package logsink sends the lines of access logs to servers by TCP, which Envoy cannot. Envoy passes
// lines to its supervisor in the protocol of OpenTelemetry.
//
// Enter at New; Write takes lines and never blocks. Lines that a server does not take in time are dropped
// and counted. It keeps nothing on disk.
package logsink

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/proxima-mesh/proxima/internal/backoff"
)

const (
	// maxServers that lines are for at the same time; a policy has few.
	maxServers = 32
	// maxQueue of one server, in bytes: a second of 4,000 requests.
	maxQueue = 1 << 20
	// idle is how long a connection stays without lines.
	idle = 10 * time.Minute
	// connectTimeout and writeTimeout of one attempt.
	connectTimeout = 5 * time.Second
	writeTimeout   = 10 * time.Second
	// lastWords is how long lines have to be taken at the end.
	lastWords = time.Second
)

// retry spaces attempts to connect.
var retry = backoff.Policy{First: 100 * time.Millisecond, Last: 5 * time.Second, Jitter: 0.2}

// Config of Sinks.
type Config struct {
	// Control is for the sockets, as of net.Dialer; nil: nothing is set.
	Control func(network, address string, conn syscall.RawConn) error
	Logger  *slog.Logger // nil: silence
}

// Sinks are servers that take lines. Safe for concurrent use.
type Sinks struct {
	config        Config
	sent, dropped atomic.Uint64

	mu      sync.Mutex
	servers map[string]*server
	ended   chan struct{}
	tasks   sync.WaitGroup
	over    bool
}

// New makes Sinks without a server. End them.
func New(c Config) *Sinks {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &Sinks{config: c, servers: map[string]*server{}, ended: make(chan struct{})}
}

// Counters of lines that servers have taken, and of those that were dropped.
func (s *Sinks) Counters() (sent, dropped uint64) { return s.sent.Load(), s.dropped.Load() }

// End sends what waits, for a second at most, and returns when no connection is left.
func (s *Sinks) End() {
	s.mu.Lock()
	if !s.over {
		s.over = true
		close(s.ended)
	}
	s.mu.Unlock()
	s.tasks.Wait()
}

// Write a line to a server, HOST:PORT. It does not block.
func (s *Sinks) Write(address, line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	to := s.servers[address]
	if to == nil {
		if s.over || len(s.servers) == maxServers {
			s.dropped.Add(1)
			return
		}
		to = &server{sinks: s, address: address, more: make(chan struct{}, 1)}
		s.servers[address] = to
		s.tasks.Go(to.run)
	}
	if s.over || len(to.queue)+len(line)+1 > maxQueue {
		s.dropped.Add(1)
		return
	}
	to.queue = append(append(to.queue, line...), '\n')
	select {
	case to.more <- struct{}{}:
	default:
	}
}

// server is one that takes lines.
type server struct {
	sinks   *Sinks
	address string
	more    chan struct{} // there are lines
	// Below the lock of sinks: whole lines that wait, and whether there is a connection.
	queue     []byte
	connected bool
}

// note whether there is a connection.
func (to *server) note(conn *connection) {
	to.sinks.mu.Lock()
	defer to.sinks.mu.Unlock()
	to.connected = conn != nil
}

// take all lines that wait; false: there are none, and the server was forgotten if it is to be.
func (to *server) take(forget bool) ([]byte, bool) {
	to.sinks.mu.Lock()
	defer to.sinks.mu.Unlock()
	out := to.queue
	to.queue = nil
	if len(out) == 0 && forget {
		delete(to.sinks.servers, to.address)
	}
	return out, len(out) > 0
}

// run until there were no lines for a time, or the end.
func (to *server) run() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { // what is in work at the end has a moment
		select {
		case <-to.sinks.ended:
			time.AfterFunc(lastWords, cancel)
		case <-ctx.Done():
		}
	}()
	var conn *connection
	defer func() { conn.close() }()
	timer := time.NewTimer(idle)
	defer timer.Stop()
	for {
		to.note(conn)
		forget := false
		select {
		case <-to.more:
		case <-conn.ended(): // what is written now would be lost
			conn.close()
			conn = nil
			continue
		case <-to.sinks.ended:
			forget = true
		case <-timer.C:
			forget = true
		}
		timer.Reset(idle)
		lines, some := to.take(forget)
		if some {
			conn = to.send(ctx, conn, lines)
		} else if forget {
			return
		}
	}
}

// send lines, by a connection that is there (nil: none) or another one, until they are taken. It returns the
// connection.
func (to *server) send(ctx context.Context, conn *connection, lines []byte) *connection {
	pause := backoff.Backoff{Policy: retry}
	said := false
	for {
		var err error
		if conn == nil {
			conn, err = to.connect(ctx)
		}
		if err == nil {
			var n int
			n, err = conn.write(lines)
			// Of a line that was written in part nobody knows what the server has: it is sent again.
			done := lines[:bytes.LastIndexByte(lines[:n], '\n')+1]
			to.sinks.sent.Add(uint64(bytes.Count(done, []byte{'\n'})))
			lines = lines[len(done):]
		}
		if err == nil {
			return conn
		}
		conn.close()
		conn = nil
		if !said {
			said = true
			to.sinks.config.Logger.Warn("access logs wait for their server", "server", to.address, "error", err)
		}
		if ctx.Err() != nil {
			to.sinks.dropped.Add(uint64(bytes.Count(lines, []byte{'\n'})))
			return nil
		}
		backoff.Sleep(ctx, pause.Next())
	}
}

// connection to a server.
type connection struct {
	conn   net.Conn
	closed chan struct{} // closed when the server has closed it
}

func (to *server) connect(ctx context.Context) (*connection, error) {
	d := &net.Dialer{Timeout: connectTimeout, Control: to.sinks.config.Control}
	conn, err := d.DialContext(ctx, "tcp", to.address)
	if err != nil {
		return nil, err
	}
	c := &connection{conn, make(chan struct{})}
	go func() { // servers of logs say nothing, but their end is to be known
		defer close(c.closed)
		_, _ = io.Copy(io.Discard, conn)
	}()
	return c, nil
}

// ended is closed when the server has closed the connection; nil: there is none.
func (c *connection) ended() <-chan struct{} {
	if c == nil {
		return nil
	}
	return c.closed
}

func (c *connection) write(lines []byte) (int, error) {
	if err := c.conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return 0, err
	}
	return c.conn.Write(lines)
}

func (c *connection) close() {
	if c != nil {
		_ = c.conn.Close() // it may have been
		<-c.closed
	}
}
