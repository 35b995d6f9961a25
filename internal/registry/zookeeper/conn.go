package zookeeper

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/registry/znode"
)

const (
	// helloWithin is how long a client may take to say who it is, and readyWithin how long it waits for a
	// server that is starting, or has not seen yet what the client has.
	helloWithin = 10 * time.Second
	readyWithin = 5 * time.Second
	// tablesWithin is how long the tables are waited for where they need not come as far as what the client has seen.
	tablesWithin = 200 * time.Millisecond
	// busyQueue is from how many bytes on a client must read before it is answered again, maxQueue how many
	// wait for it before it is disconnected: events come unasked.
	busyQueue = 1 << 20
	maxQueue  = 16 << 20
	// maxWatches of a connection.
	maxWatches = 50_000
	// userFor is how long the user of a token is not looked up again.
	userFor = 30 * time.Second
)

// conn is a connection of a client. Its requests are answered one after the other.
type conn struct {
	server *Server
	net    net.Conn
	from   netip.Addr
	tree   *tree
	floor  int64 // the newest transaction that the client has seen elsewhere
	// session is nil until the client has said which it has.
	session *session
	timeout time.Duration // of the session

	// Of the goroutine that reads.
	user    registry.User
	token   string
	checked time.Time
	refused error // why the client is nobody
	warned  bool  // of a path that is not mapped
	full    bool  // it was logged that the quota is used up

	// Of tree.mu. Only the goroutine that reads changes the identities, which the client has shown for ACLs.
	watched    map[string]struct{}
	identities []znode.Identity

	mu     sync.Mutex
	room   sync.Cond
	queue  [][]byte
	bytes  int
	ending bool // what is queued is sent, then it is closed
	dead   bool
	wake   chan struct{}
}

func newConn(s *Server, n net.Conn) *conn {
	c := &conn{server: s, net: n, watched: map[string]struct{}{}, wake: make(chan struct{}, 1)}
	c.room.L = &c.mu
	if at, ok := n.RemoteAddr().(*net.TCPAddr); ok {
		c.from = at.AddrPort().Addr().Unmap()
	}
	return c
}

// serve the client until it goes, or ctx ends.
func (c *conn) serve(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer c.kill()
	_ = c.net.SetDeadline(time.Now().Add(helloWithin))
	var head [4]byte
	if _, err := io.ReadFull(c.net, head[:]); err != nil {
		return
	}
	if answer, ok := c.server.word(string(head[:])); ok {
		_, _ = io.WriteString(c.net, answer)
		return
	}
	hello, err := readBody(c.net, head)
	if err != nil {
		return
	}
	answer, ok := c.hello(ctx, hello)
	if answer != nil {
		_ = c.net.SetWriteDeadline(time.Now().Add(helloWithin))
		if _, err := c.net.Write(answer); err != nil {
			ok = false
		}
	}
	if !ok {
		return
	}
	defer c.session.detach(c)
	defer c.tree.forget(c)
	var writer sync.WaitGroup
	writer.Go(c.write)
	defer writer.Wait()
	defer c.end()
	for {
		_ = c.net.SetReadDeadline(time.Now().Add(c.timeout))
		if _, err := io.ReadFull(c.net, head[:]); err != nil {
			return
		}
		body, err := readBody(c.net, head)
		if err != nil || !c.wait() {
			return
		}
		c.session.touch()
		if !c.handle(ctx, body) {
			return
		}
	}
}

// readBody of a message, whose memory grows as it comes.
func readBody(r io.Reader, head [4]byte) ([]byte, error) {
	n := int32(binary.BigEndian.Uint32(head[:]))
	if n < 0 || n > maxFrame {
		return nil, fmt.Errorf("a message of %d bytes; at most %d are allowed", n, maxFrame)
	}
	var b bytes.Buffer
	if n <= 4<<10 {
		b.Grow(int(n))
	}
	if _, err := io.CopyN(&b, r, int64(n)); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// hello begins a session, or resumes one. The answer is nil where the client is to try another server.
func (c *conn) hello(ctx context.Context, in []byte) (answer []byte, ok bool) {
	d := decoder{b: in}
	d.int() // version of the protocol
	seen := d.long()
	timeout := min(max(time.Duration(d.int())*time.Millisecond, c.server.minTimeout), maxTimeout)
	id, password := d.long(), d.buffer()
	withMode := len(d.b) > 0 // clients since 3.4 say whether they put up with a server that only reads
	if d.err != nil {
		return nil, false
	}
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	if !c.server.caughtUp(ctx, seen) {
		return nil, false
	}
	_, zone := c.server.core.Locate(c.from)
	c.tree, c.floor = c.server.tree(zone), seen
	select {
	case <-c.tree.ready:
	case <-ctx.Done():
		return nil, false
	}
	c.admit(ctx)
	session := c.server.open(c.tree, id, password, timeout)
	if known, err := c.server.adoptExtra(ctx, session, id); err != nil {
		if !errors.Is(err, znode.ErrEnded) {
			c.server.log.Warn("a session of a client of ZooKeeper is not resumed, as it is not known whether it has ended; the client tries again", "error", err)
			return nil, false
		}
		session.close()
		session = nil
	} else if known && !session.last() {
		session = nil
	}
	if session != nil && !session.attach(c, timeout) {
		// It was forgotten meanwhile, with the connection that it had, or has ended.
		if session = c.server.open(c.tree, id, password, timeout); session != nil && !session.attach(c, timeout) {
			session = nil
		}
	}
	if session != nil {
		session.adopt(ctx, c.tree)
		// Only now: what ends the session marks it before it looks at who has its instances for the last time.
		if id != 0 {
			over, err := session.hasEnded(ctx)
			if err != nil {
				c.server.log.Warn("a session of a client of ZooKeeper is not resumed, as it is not known whether it has ended; the client tries again", "error", err)
				session.detach(c)
				return nil, false
			}
			if over {
				session.detach(c)
				session.end(true)
				session = nil
			}
		}
	}
	if ok = session != nil; ok {
		c.session, c.timeout = session, timeout
	} else {
		session, timeout = &session0, 0
	}
	e := encoder{b: make([]byte, 4)}
	e.int(0)
	e.int(int32(timeout / time.Millisecond))
	e.long(session.id)
	e.buffer(session.password)
	if withMode {
		e.bool(false)
	}
	return framed(e.b), ok
}

// session0 is what a client is told whose session has ended.
var session0 = session{password: make([]byte, passwordSize)}

// caughtUp waits until the tables have what the client has seen, at another instance of the control plane
// or before a restart.
func (s *Server) caughtUp(ctx context.Context, seen int64) bool {
	for _, ready := range []<-chan struct{}{s.core.Index.Ready(), s.core.Configs.Ready()} {
		select {
		case <-ready:
		case <-ctx.Done():
			return false
		}
	}
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	var known <-chan time.Time // nil: the tables have all
	if s.extra != nil {
		select {
		case <-s.extra.Ready():
		case <-ctx.Done():
			return false
		}
		// What the client has seen may be a node that is not mapped, which leaves the tables as they are.
		if s.extra.Sync(ctx) != nil {
			return false
		}
		if seen>>positionBits <= int64(s.extra.Revision())+1 {
			timer := time.NewTimer(tablesWithin)
			defer timer.Stop()
			known = timer.C
		}
	}
	for seen>>positionBits > int64(s.core.Revision())+1 {
		select {
		case <-known:
			return true
		case <-ticker.C:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// admit the client, with the token that it has shown, if any.
func (c *conn) admit(ctx context.Context) {
	c.user, c.refused = c.server.core.Gate.Admit(ctx, c.from, c.token)
	c.checked = time.Now()
}

// framed completes a message that begins with 4 bytes for its length.
func framed(b []byte) []byte {
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

// send a message that is framed. It does not block.
func (c *conn) send(b []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ending || c.dead {
		return
	}
	if c.bytes += len(b); c.bytes > maxQueue {
		c.killLocked()
		return
	}
	c.queue = append(c.queue, b)
	c.signal()
}

func (c *conn) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// wait until the client has read most of what it asked for. It returns false if the connection has ended.
func (c *conn) wait() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.bytes > busyQueue && !c.dead && !c.ending {
		c.room.Wait()
	}
	return !c.dead && !c.ending
}

// write what is queued until the connection ends.
func (c *conn) write() {
	for range c.wake {
		c.mu.Lock()
		queue, ending, dead := net.Buffers(c.queue), c.ending, c.dead
		c.queue = nil
		c.mu.Unlock()
		if dead {
			return
		}
		n := 0
		for _, b := range queue {
			n += len(b)
		}
		if n > 0 {
			_ = c.net.SetWriteDeadline(time.Now().Add(c.timeout))
			if _, err := queue.WriteTo(c.net); err != nil {
				c.kill()
				return
			}
			c.mu.Lock()
			c.bytes -= n
			c.room.Broadcast()
			c.mu.Unlock()
		}
		if ending {
			c.kill()
			return
		}
	}
}

// end the connection once the client was sent what is queued.
func (c *conn) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ending = true
	c.room.Broadcast()
	c.signal()
}

// kill the connection.
func (c *conn) kill() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.killLocked()
}

func (c *conn) killLocked() {
	if c.dead {
		return
	}
	c.dead = true
	c.queue = nil
	c.room.Broadcast()
	c.signal()
	_ = c.net.SetDeadline(time.Now()) // a Close may wait for the alert of TLS
	go func() { _ = c.net.Close() }()
}

// sendEvent of a watch.
func (c *conn) sendEvent(path string, e event) {
	out := encoder{b: make([]byte, 4, 64+len(path))}
	out.int(xidEvent)
	out.long(-1)
	out.int(int32(codeOK))
	out.int(int32(e))
	out.int(stateConnected)
	out.string(path)
	c.send(framed(out.b))
}

// word answers the words of four letters that monitors send.
func (s *Server) word(word string) (string, bool) {
	switch word {
	case "ruok":
		if s.core.Started() != nil {
			return "", true
		}
		return "imok", true
	case "isro":
		return "rw", true
	case "srvr", "mntr":
	default:
		return "", false
	}
	s.mu.Lock()
	conns, sessions, requests := len(s.conns), len(s.sessions), s.requests.Load()
	var zxid int64
	nodes, watches, ephemerals := 0, 0, 0
	for _, t := range s.trees {
		t.mu.Lock()
		zxid, nodes = max(zxid, t.zxid), max(nodes, len(t.nodes))
		for _, by := range t.watches {
			watches += len(by)
		}
		count := 0
		for _, of := range t.sessions {
			count += len(of)
		}
		ephemerals = max(ephemerals, count)
		t.mu.Unlock()
	}
	s.mu.Unlock()
	var b strings.Builder
	if word == "srvr" {
		fmt.Fprintf(&b, "Zookeeper version: 3.8.0-proxima, served by Proxima\nReceived: %d\nSent: %d\nConnections: %d\nOutstanding: 0\nZxid: 0x%x\nMode: standalone\nNode count: %d\n",
			requests, requests, conns, zxid, nodes)
		return b.String(), true
	}
	for _, row := range []struct {
		name  string
		value any
	}{
		{"version", "3.8.0-proxima, served by Proxima"}, {"server_state", "standalone"}, {"uptime", time.Since(s.started).Milliseconds()},
		{"num_alive_connections", conns}, {"global_sessions", sessions}, {"packets_received", requests}, {"outstanding_requests", 0},
		{"znode_count", nodes}, {"watch_count", watches}, {"ephemerals_count", ephemerals}, {"last_zxid", zxid}, {"goroutines", runtime.NumGoroutine()},
	} {
		fmt.Fprintf(&b, "zk_%s\t%v\n", row.name, row.value)
	}
	return b.String(), true
}
