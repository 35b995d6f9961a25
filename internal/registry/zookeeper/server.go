package zookeeper

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/registry/znode"
)

// Server serves clients of ZooKeeper. Make it with New.
type Server struct {
	core    *registry.Core
	log     *slog.Logger
	started time.Time
	// minTimeout of sessions.
	minTimeout time.Duration
	// paths has the locks of writes, by path.
	paths    pathLocks
	requests atomic.Uint64
	// extra has the nodes outside of what is mapped; nil: there are none.
	extra *znode.Tree

	mu       sync.Mutex
	ctx      context.Context
	running  sync.WaitGroup
	conns    map[*conn]struct{}
	sessions map[int64]*session
	ended    endedSessions
	trees    map[locality.Zone]*tree
}

// New makes a server; Serve starts it.
func New(core *registry.Core) *Server {
	return &Server{
		core: core, log: core.Logger.With("protocol", string(registry.ZooKeeper)), started: time.Now(), minTimeout: minTimeout,
		conns: map[*conn]struct{}{}, sessions: map[int64]*session{}, trees: map[locality.Zone]*tree{},
	}
}

// Serve answers at l until ctx ends, and returns nil then. It closes l. It must be called once. Sessions
// that run then are those of the next server, here or at another instance of the control plane: their
// instances stay.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	s.mu.Lock()
	s.ctx = ctx
	s.mu.Unlock()
	end := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer s.stop()
	defer cancel()
	if s.extra != nil {
		s.running.Go(func() { s.extra.Run(ctx) })
	}
	defer end()
	retry := backoff.Backoff{Policy: backoff.Policy{First: 5 * time.Millisecond, Last: time.Second}}
	for {
		n, err := l.Accept()
		switch {
		case err == nil:
			retry.Reset()
			s.accept(ctx, n)
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		default: // as when there are no descriptors
			backoff.Sleep(ctx, retry.Next())
		}
	}
}

func (s *Server) accept(ctx context.Context, n net.Conn) {
	c := newConn(s, n)
	s.mu.Lock()
	s.conns[c] = struct{}{}
	s.mu.Unlock()
	s.core.Meters.Client(registry.ZooKeeper, 1)
	s.running.Go(func() {
		c.serve(ctx)
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
		s.core.Meters.Client(registry.ZooKeeper, -1)
	})
}

// stop what runs.
func (s *Server) stop() {
	s.mu.Lock()
	for c := range s.conns {
		c.kill()
	}
	for _, session := range s.sessions {
		session.stop()
	}
	s.mu.Unlock()
	s.running.Wait()
}

// tree for clients of a zone, which is made by the first of them.
func (s *Server) tree(zone locality.Zone) *tree {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.trees[zone]
	if t == nil {
		t = newTree(s, zone)
		s.trees[zone] = t
		ctx := s.ctx
		s.running.Go(func() { t.run(ctx) })
	}
	return t
}
