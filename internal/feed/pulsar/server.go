package pulsar

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"hash/maphash"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/feed"
	"github.com/proxima-mesh/proxima/internal/feed/cursor"
	"github.com/proxima-mesh/proxima/internal/feed/pulsar/claim"
	"github.com/proxima-mesh/proxima/internal/feed/seglog"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/store"
)

// Bounds.
const (
	// DefaultMaxConsumers is how many consumers are connected at most. Each reads the feed on its own, or with those of its
	// subscription.
	DefaultMaxConsumers = 1_000
	// DefaultCheckEvery is how often the credentials of a connected client are checked.
	DefaultCheckEvery = time.Minute
	// maxUnacked is how many messages of a subscription are delivered and not acknowledged; readAhead how many wait for a consumer.
	maxUnacked = 10_000
	readAhead  = 500
	// soughtFor is how long the position of a seek waits for the reader to come back.
	soughtFor = time.Minute
	// reachWithin is how long the newest message is waited for, as it may not be in the feed yet.
	reachWithin = 2 * time.Second
	// advanceBy is how many positions without a message of the topic are acknowledged at once: each time is a write of the store.
	advanceBy = 1_000
)

// Credentials that a client has shown.
type Credentials struct {
	// Token of the method "token"; empty: there is none.
	Token string
	// TLS of the connection; nil: it has none.
	TLS  *tls.ConnectionState
	From net.Addr
}

// Rights of a client.
type Rights interface {
	// User is its name, for logs.
	User() string
	// MayRead returns nil if it may get, list and watch the objects of a kind in a namespace, else why not, with the fix.
	MayRead(ctx context.Context, kind *resource.Descriptor, namespace string) error
}

// Access finds the rights of clients.
type Access interface {
	// Authenticate returns the rights of a client, or why it is refused. It may block for a read of the store. It is asked again while a client
	// is connected, as credentials end.
	Authenticate(ctx context.Context, c Credentials) (Rights, error)
}

// Objects reads keys and values of the store; *apiserver.Stored is one.
type Objects interface {
	ObjectOf(key string) (kind *resource.Descriptor, name resource.Key, ok bool)
	Prefix(kind *resource.Descriptor, name resource.Key) string
	Decode(ctx context.Context, key string, value []byte, at store.Revision) (resource.Object, error)
}

// Config of a Server. Feed, Cursors, Store, Objects, Kinds, Access and Mesh are required.
type Config struct {
	Feed    *feed.Feed
	Cursors *cursor.Cursors
	Store   store.Store
	Objects Objects
	// Kinds that have topics.
	Kinds  []*resource.Descriptor
	Access Access
	// Mesh of a namespace; false: there is no such namespace.
	Mesh func(namespace string) (string, bool)
	// Claims of topics, where several instances of a control plane may serve them. A server runs them. Nil: this instance serves all.
	Claims *claim.Claims
	// Alone reports whether there is no other instance: then clients stay at the address by which they have come. Nil: no.
	Alone func() bool
	// MaxConsumers that are connected; 0: DefaultMaxConsumers.
	MaxConsumers int
	// CheckEvery is how often the credentials and the rights of a connected client are checked; 0: DefaultCheckEvery.
	CheckEvery time.Duration
	Metrics    prometheus.Registerer // nil: none
	Logger     *slog.Logger          // nil: discard
	Version    string
}

// Server serves readers by the protocol of Pulsar. Make it with New.
type Server struct {
	cfg    Config
	log    *slog.Logger
	kinds  map[string]*resource.Descriptor
	ledger uint64
	meters *meters
	seed   maphash.Seed
	// turns serialise, for each subscription, who joins, leaves and seeks.
	turns [64]sync.Mutex

	mu        sync.Mutex
	ctx       context.Context
	running   sync.WaitGroup
	conns     map[*conn]struct{}
	subs      map[string]*subscription
	consumers int
}

// New makes a server; Serve starts it.
func New(cfg Config) (*Server, error) {
	cfg.MaxConsumers, cfg.CheckEvery = cmp.Or(cfg.MaxConsumers, DefaultMaxConsumers), cmp.Or(cfg.CheckEvery, DefaultCheckEvery)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Server{
		cfg: cfg, log: cfg.Logger, kinds: map[string]*resource.Descriptor{}, ledger: ledgerOf(cfg.Store.Epoch()), seed: maphash.MakeSeed(),
		conns: map[*conn]struct{}{}, subs: map[string]*subscription{},
	}
	for _, k := range cfg.Kinds {
		s.kinds[k.GroupResource().String()] = k
	}
	s.meters = newMeters(s)
	if cfg.Metrics != nil {
		for _, c := range []prometheus.Collector{s.meters.delivered, s.meters.acknowledged, s.meters.refused, s.meters.now} {
			if err := cfg.Metrics.Register(c); err != nil {
				return nil, err
			}
		}
	}
	return s, nil
}

// Serve answers at l until ctx ends, and returns nil then. It closes l, and writes what was acknowledged before it returns. It must be called once.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	defer s.runClaims(ctx)()
	ctx, cancel := context.WithCancel(ctx)
	defer s.stop()
	defer cancel()
	s.mu.Lock()
	s.ctx = ctx
	s.mu.Unlock()
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	retry := backoff.Backoff{Policy: backoff.Policy{First: 5 * time.Millisecond, Last: time.Second}}
	for {
		n, err := l.Accept()
		switch {
		case err == nil:
			retry.Reset()
			c := newConn(s, n)
			s.mu.Lock()
			s.conns[c] = struct{}{}
			s.mu.Unlock()
			s.running.Go(func() {
				c.serve(ctx)
				s.mu.Lock()
				delete(s.conns, c)
				s.mu.Unlock()
			})
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		default: // as when there are no descriptors
			backoff.Sleep(ctx, retry.Next())
		}
	}
}

// runClaims runs the claims until end is called: after that other instances serve the topics.
func (s *Server) runClaims(ctx context.Context) (end func()) {
	if s.cfg.Claims == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	running.Go(func() { _ = s.cfg.Claims.Run(ctx) })
	return func() {
		cancel()
		running.Wait()
	}
}

func (s *Server) stop() {
	s.mu.Lock()
	for c := range s.conns {
		c.kill()
	}
	s.mu.Unlock()
	s.running.Wait()
	s.mu.Lock()
	subs := s.subs
	s.subs = map[string]*subscription{}
	s.mu.Unlock()
	for _, u := range subs { // those that wait for a reader after its seek
		u.close()
	}
}

// Status of a server.
type Status struct {
	Address       string `json:"address,omitempty"`
	Connections   int    `json:"connections"`
	Consumers     int    `json:"consumers"`
	Subscriptions int    `json:"subscriptions"`
	// MaxConsumers that may be connected.
	MaxConsumers int `json:"maxConsumers"`
	// Topics that this instance serves, of several; 0 also where it is the only one that may.
	Topics int `json:"topics"`
}

// Status now.
func (s *Server) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := Status{Connections: len(s.conns), Consumers: s.consumers, Subscriptions: len(s.subs), MaxConsumers: s.cfg.MaxConsumers}
	if s.cfg.Claims != nil {
		now.Topics = s.cfg.Claims.Count()
	}
	return now
}

func (s *Server) turn(key string) *sync.Mutex {
	return &s.turns[maphash.String(s.seed, key)%uint64(len(s.turns))]
}

// caughtUp waits a moment until the feed has what is committed now.
func (s *Server) caughtUp(ctx context.Context) (seglog.Position, error) {
	now, err := s.cfg.Store.Revision(ctx)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, reachWithin)
	defer cancel()
	_ = s.cfg.Feed.Reach(ctx, seglog.Position(now)) // what is late comes as a message
	return seglog.Position(now), nil
}
