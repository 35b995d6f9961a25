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
	"github.com/proxima-mesh/proxima/internal/store"
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
	// store remembers sessions that have expired; nil: each instance of the control plane remembers its own.
	store store.Store
	// extra has the nodes outside of what is mapped; nil: there are none.
	extra *znode.Tree

	mu       sync.Mutex
	ctx      context.Context
	running  sync.WaitGroup
	conns    map[*conn]struct{}
	sessions map[int64]*session
	// Sessions that have ended with instances, those of them that their clients have closed, and those that are marked in the store.
	ended, closed, marked endedSessions
	trees                 map[locality.Zone]*tree
}

// New makes a server; Serve starts it.
func New(core *registry.Core) *Server {
	s := &Server{
		core: core, log: core.Logger.With("protocol", string(registry.ZooKeeper)), started: time.Now(), minTimeout: minTimeout,
		conns: map[*conn]struct{}{}, sessions: map[int64]*session{}, trees: map[locality.Zone]*tree{},
	}
	core.Registrar.BeforeEnd(registry.ZooKeeper, s.beforeEnd)
	return s
}

// WithStore remembers in a store which sessions have expired, so that their clients hear of it at each instance of the control plane.
// It is called before Serve, and returns s.
func (s *Server) WithStore(st store.Store) *Server {
	s.store = st
	return s
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
