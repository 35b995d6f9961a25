package zookeeper

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/registry/znode"
)

const (
	// Timeouts of sessions, as of a ZooKeeper with its usual tick of 2 s: 2 to 20 ticks.
	minTimeout = 4 * time.Second
	maxTimeout = 40 * time.Second
	// passwordSize as of ZooKeeper.
	passwordSize = 16
	// maxEnded sessions are remembered, the newest.
	maxEnded = 65_536
)

// session of a client. It outlives its connection, and an instance of the control plane: all that is to be
// known of it is in the ephemeral instances that it keeps alive. One without them is whatever its client
// says.
type session struct {
	server   *Server
	id       int64
	password []byte
	timeout  time.Duration

	mu    sync.Mutex
	conn  *conn
	timer *time.Timer
	over  bool
	// held is the session of the core, once the client has registered something.
	held *registry.Session
	// lasting: it has, or may have, ephemeral nodes that are not mapped.
	lasting bool
}

// proof of a session's password, that is stored with its instances.
func (s *session) proof() string {
	sum := sha256.Sum256(append(binary.BigEndian.AppendUint64(nil, uint64(s.id)), s.password...))
	return hex.EncodeToString(sum[:16])
}

// open a new session, or that of a client who comes back; nil: it has ended, or is another client's.
func (s *Server) open(t *tree, id int64, password []byte, timeout time.Duration) *session {
	if id == 0 {
		var b [8 + passwordSize]byte
		_, _ = rand.Read(b[:]) // it never fails
		id, password = int64(binary.BigEndian.Uint64(b[:8])>>1|1<<32), b[8:]
	} else if len(password) != passwordSize || id <= foreignOwner {
		return nil
	}
	out := &session{server: s, id: id, password: password, timeout: timeout}
	elsewhere, genuine := out.proven(t)
	if !genuine {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	have := s.sessions[id]
	switch {
	case have != nil && subtle.ConstantTimeCompare(have.password, password) == 1:
		return have
	case have != nil, !elsewhere && s.ended.has(id):
		return nil
	}
	out.timer = time.AfterFunc(timeout, out.expire)
	s.sessions[id] = out
	return out
}

// attach the session to a connection, in place of the one that it had. It returns false if it has ended.
func (s *session) attach(c *conn, timeout time.Duration) bool {
	s.mu.Lock()
	before := s.conn
	ok := !s.over
	if ok {
		s.conn, s.timeout = c, timeout
		s.timer.Reset(timeout)
	}
	s.mu.Unlock()
	if before != nil && before != c {
		before.kill()
	}
	return ok
}

// detach a connection that has ended. A session without instances needs not be known.
func (s *session) detach(c *conn) {
	s.mu.Lock()
	if s.conn == c {
		s.conn = nil
	}
	forget := s.conn == nil && s.held == nil && !s.lasting && !s.over
	s.mu.Unlock()
	if forget {
		s.forget()
	}
}

func (s *session) forget() {
	s.server.mu.Lock()
	defer s.server.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil || s.held != nil || s.lasting {
		return
	}
	s.over = true
	s.timer.Stop()
	delete(s.server.sessions, s.id)
}

// touch the session: its client lives.
func (s *session) touch() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over {
		s.timer.Reset(s.timeout)
	}
}

// hold is the session of the core.
func (s *session) hold() (*registry.Session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return nil, registry.ErrEnded
	}
	if s.held == nil {
		s.held = s.server.core.Registrar.Open(registry.ZooKeeper, 0)
	}
	return s.held, nil
}

// expire ends a session whose client has not been heard of.
func (s *session) expire() {
	s.server.log.Debug("a session of a client of ZooKeeper has expired", "session", s.id)
	s.end(true)
}

// close ends the session with its instances, as its client wants it.
func (s *session) close() { s.end(false) }

// end the session with its instances.
func (s *session) end(expired bool) {
	s.mu.Lock()
	if s.over {
		s.mu.Unlock()
		return
	}
	s.over = true
	s.timer.Stop()
	c, held, lasting := s.conn, s.held, s.lasting
	s.conn = nil
	s.mu.Unlock()
	server := s.server
	server.mu.Lock()
	delete(server.sessions, s.id)
	if held != nil {
		server.ended.add(s.id)
		if !expired {
			server.closed.add(s.id)
		}
	}
	if lasting && server.ctx.Err() == nil {
		server.running.Go(func() { server.endExtra(server.ctx, s.id, expired) })
	}
	server.mu.Unlock()
	if c != nil {
		c.end()
	}
	if held != nil {
		held.Close(0)
	}
}

// stop the session without an end: it is another server's.
func (s *session) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	s.timer.Stop()
}

// proven reports whether another instance of the control plane keeps instances of the session alive, and whether those that there are
// are its: others see its id.
func (s *session) proven(t *tree) (elsewhere, genuine bool) {
	proof := []byte(s.proof())
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, n := range t.sessions[s.id] {
		if n.source == (extra{}) {
			continue // their session has a record
		}
		if subtle.ConstantTimeCompare([]byte(n.proof), proof) != 1 {
			return false, false
		}
		owner := s.server.core.Registrar.OwnerOf(n.key)
		elsewhere = elsewhere || owner != "" && owner != s.server.core.Registrar.Owner()
	}
	return elsewhere, true
}

// hasEnded reports whether the session has expired at any instance of the control plane.
func (s *session) hasEnded(ctx context.Context) (bool, error) {
	if s.server.store == nil {
		return false, nil
	}
	return znode.HasEnded(ctx, s.server.store, s.id)
}

// beforeEnd marks the session of an instance as ended in the store, before the instance is deleted: a client that comes to another instance
// of the control plane finds either its instances, or the mark. One that its client has closed has no mark.
func (s *Server) beforeEnd(ctx context.Context, in *registry.Instance) (wrote bool, err error) {
	d, ok := detailOf(in)
	if !ok || d.Session == 0 || s.store == nil {
		return false, nil
	}
	s.mu.Lock()
	closed, marked := s.closed.has(d.Session), s.marked.has(d.Session)
	s.mu.Unlock()
	if closed || marked {
		return marked, nil
	}
	if err := znode.MarkEnded(ctx, s.store, s.core.Registrar.Owner(), d.Session, d.Proof); err != nil {
		return false, fmt.Errorf("remember that session %x has ended: %w", uint64(d.Session), err)
	}
	s.mu.Lock()
	s.marked.add(d.Session)
	s.mu.Unlock()
	return true, nil
}

// adopt the instances of the session that nothing here keeps alive: those that it registered at another
// instance of the control plane, or before a restart.
func (s *session) adopt(ctx context.Context, t *tree) {
	var nodes []*node
	t.mu.Lock()
	for _, n := range t.sessions[s.id] {
		if n.source != (extra{}) && !s.server.core.Registrar.Claimed(n.key) {
			nodes = append(nodes, n)
		}
	}
	t.mu.Unlock()
	if len(nodes) == 0 {
		return
	}
	// What its user may do is not of concern: the instances stay as they are.
	h, err := s.hold()
	if err != nil {
		return
	}
	for _, n := range nodes {
		if err := h.Adopt(ctx, n.key); err != nil && !errors.Is(err, registry.ErrNotFound) {
			s.server.log.Warn("an instance of a client of ZooKeeper that came back is not kept alive yet; it is tried again with the next ping",
				"path", n.path, "error", err)
		}
	}
}

// endedSessions are the newest that ended with instances: their clients are told so, once they come back.
type endedSessions struct {
	ids   map[int64]struct{}
	order []int64
}

func (e *endedSessions) has(id int64) bool {
	_, ok := e.ids[id]
	return ok
}

func (e *endedSessions) add(id int64) {
	if e.has(id) {
		return
	}
	if e.ids == nil {
		e.ids = map[int64]struct{}{}
	}
	if len(e.order) == maxEnded {
		delete(e.ids, e.order[0])
		e.order = e.order[1:]
	}
	e.ids[id] = struct{}{}
	e.order = append(e.order, id)
}
