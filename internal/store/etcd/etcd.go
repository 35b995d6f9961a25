// Package etcd keeps state in an etcd cluster: the store of control planes that
// run on several machines without a database of their own.
//
// It owns the keys below one prefix. Enter at Open. A commit that returned is on
// the disks of a majority of etcd's members. Any number of processes may have
// the same state open; each sees the others' commits. The package never compacts
// by itself, never opens a layout that is newer than itself, never guesses the
// outcome of a commit, and never serves a history that is behind one that it has
// seen.
//
// DESIGN.md one folder up says how etcd's one revision for each transaction
// becomes one for each change.
package etcd

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"k8s.io/utils/clock"

	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/expiry"
	"github.com/proxima-mesh/proxima/internal/store/group"
	"github.com/proxima-mesh/proxima/internal/store/outage"
	"github.com/proxima-mesh/proxima/internal/store/watch"
)

// Options of Open. The zero value is usable.
type Options struct {
	// Logger; nil: none.
	Logger *slog.Logger
	// Clock for expiry; nil: the real one. A key expires by the clock of the
	// instance that deletes it, so instances should agree on the time.
	Clock clock.Clock
	// Recent bounds the events kept in memory for watchers; zero: 16,384 events
	// and 64 MiB. A watcher further behind reads etcd's history.
	Recent watch.Limits
	// SeenFile keeps the newest revision that this instance has seen; empty: only
	// memory does. With it an etcd that was set back is noticed after a restart
	// too. It belongs to one instance and must not be restored with etcd.
	SeenFile string
	// Exclusive refuses a second instance. Open waits for as long as the lease of
	// an instance that died may last and then fails with *InUseError. If another
	// instance takes the state over while this one is cut off, this store ends
	// with that error: each commit compares the claim, so nothing is written
	// without it.
	Exclusive bool
	// Shared refuses to open a state that an instance has exclusively: Open waits for it as
	// with Exclusive, and then fails with *InUseError.
	Shared bool

	// DialOptions are added to those of the client, for tests that put faults or
	// delays between store and server.
	DialOptions []grpc.DialOption
	// Timeout is how long an outage of etcd is waited out; 0: 10 s. For tests.
	Timeout time.Duration
}

func (o Options) withDefaults() Options {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Recent == (watch.Limits{}) {
		o.Recent = watch.Limits{Events: 16384, Bytes: 64 << 20}
	}
	if o.Timeout == 0 {
		o.Timeout = outage.Timeout
	}
	return o
}

// view is what a read needs: it changes as a whole, when a backup is restored.
type view struct {
	layout
	numbering
}

// Store implements store.Store.
type Store struct {
	target target
	opts   Options
	logger *slog.Logger
	client *clientv3.Client
	epoch  string
	writer uint64 // of commit IDs

	view      atomic.Pointer[view]
	hub       *watch.Hub
	expiry    *expiry.Queue
	index     *index
	root      *root
	claim     *claim
	histories chan struct{} // bounds concurrent reads of history

	seen      atomic.Int64 // etcd's newest revision in an answer
	compacted atomic.Int64 // of ours
	epochMod  atomic.Int64 // what commits compare
	fault     outage.Fault
	ended     atomic.Pointer[error]
	reads     outage.Outage
	writes    outage.Outage
	commits   uint64 // counts commit IDs; the writer's goroutine only

	queue   *group.Queue
	running context.Context // ends with the store
	stop    context.CancelFunc
	others  sync.WaitGroup // goroutines, apart from the writer's
	close   sync.Once
}

var (
	_ store.Store    = (*Store)(nil)
	_ store.Restorer = (*Store)(nil)
	_ watch.Source   = (*Store)(nil)
)

const (
	// dialTimeout bounds one attempt to connect to a member.
	dialTimeout = 5 * time.Second
	// keepAlive is how often a silent connection is tested, and keepAliveTimeout
	// how long the answer may take. etcd's server refuses less than 5 s.
	keepAlive        = 10 * time.Second
	keepAliveTimeout = 5 * time.Second
	// callTimeout bounds one request; etcd's own bound on a proposal is 7 s.
	callTimeout = 10 * time.Second
)

// reconnect spaces attempts to connect; gRPC's own last delay is 2 minutes, long
// after a member is back.
var reconnect = grpcbackoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second}

// Open opens the state that a URL names, and makes it if need be:
//
//	etcd://HOST:PORT,HOST:PORT?cacert=FILE&cert=FILE&key=FILE&prefix=NAME
//
// Without cacert, cert and key the connection is not encrypted. The prefix, by
// default /proxima/, must be for Proxima alone; other keys of the cluster do no
// harm, but each of their changes takes a revision. Opening reads all records
// once, for their deadlines and revisions.
//
// Errors: *URLError, *FormatError, *DamagedError, *ReplacedError, *InUseError,
// and those of the client.
func Open(ctx context.Context, url string, opts Options) (*Store, error) {
	t, err := parse(url)
	if err != nil {
		return nil, fmt.Errorf("open state: %w", err)
	}
	opts = opts.withDefaults()
	var id [8]byte
	_, _ = rand.Read(id[:]) // crypto/rand.Read never fails
	running, stop := context.WithCancel(context.Background())
	s := &Store{
		target: t, opts: opts, logger: opts.Logger, writer: binary.BigEndian.Uint64(id[:]),
		expiry: expiry.New(opts.Clock, opts.Logger), index: newIndex(), queue: group.New(),
		histories: make(chan struct{}, concurrentHistories),
		running:   running, stop: stop,
		reads: outage.Outage{Timeout: opts.Timeout}, writes: outage.Outage{Timeout: opts.Timeout},
	}
	s.root = newRoot(s)
	if err := s.open(ctx); err != nil {
		stop()
		s.others.Wait()
		s.release()
		return nil, fmt.Errorf("open state %s: %w", t.label, explain(err))
	}
	go s.queue.Run(group.Writer{Settle: func(r []*group.Request) { s.settle(running, r) }})
	s.others.Go(func() { s.root.run(running) })
	s.others.Go(func() { s.expiry.Run(running, s.expire) })
	s.others.Go(func() { s.keepSighting(running) })
	return s, nil
}

func (s *Store) open(ctx context.Context) (err error) {
	if s.target.tls == nil && !s.target.local() {
		s.logger.Warn("the connection to etcd is not encrypted: everything on the way can read and change the state; "+
			"add cacert=FILE, cert=FILE and key=FILE to the URL", "store", s.target.label)
	}
	s.client, err = clientv3.New(clientv3.Config{
		Endpoints: s.target.endpoints, TLS: s.target.tls, DialTimeout: dialTimeout,
		DialKeepAliveTime: keepAlive, DialKeepAliveTimeout: keepAliveTimeout, PermitWithoutStream: true,
		MaxUnaryRetries: 1, // this package retries by itself
		DialOptions: append([]grpc.DialOption{
			grpc.WithStatsHandler(sentHandler{}),
			grpc.WithChainUnaryInterceptor(failFast),
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: dialTimeout}),
		}, s.opts.DialOptions...),
		Logger: zap.NewNop(), // its errors are returned, too
	})
	if err != nil {
		return err
	}
	m, at, err := s.prepare(ctx)
	if err != nil {
		return err
	}
	if s.opts.SeenFile != "" {
		last, err := readSighting(s.opts.SeenFile)
		if err == nil {
			err = last.check(s.target.prefix, m.epoch, at)
		}
		if err != nil {
			return err
		}
	}
	s.epoch = m.epoch
	s.epochMod.Store(m.epochMod)
	s.claim = newClaim(s)
	if s.opts.Exclusive {
		if err := s.claim.takeFirst(ctx); err != nil {
			return err
		}
	} else if s.opts.Shared {
		if err := s.awaitOwner(ctx); err != nil {
			return err
		}
	}
	at, err = s.load(ctx)
	if err != nil {
		return err
	}
	s.hub = watch.NewHub(s, s.view.Load().end(at), s.opts.Recent)
	s.root.next = at + 1
	return s.writeSighting()
}

// closeTimeout is how long Close waits for a commit that is under way before it
// cuts the connection.
const closeTimeout = 5 * time.Second

// Close implements store.Store. It waits for the commit that is under way; those
// that wait for their turn fail with store.ErrClosed.
func (s *Store) Close() error {
	s.close.Do(func() {
		s.queue.Close()
		cut := time.AfterFunc(closeTimeout, s.stop)
		<-s.queue.Finished()
		cut.Stop()
		s.stop()
		s.others.Wait()
		s.hub.Close()
		s.release()
	})
	return nil
}

// release gives back what open acquired, as far as it came.
func (s *Store) release() {
	if s.claim != nil {
		s.claim.release()
	}
	if s.client != nil {
		_ = s.client.Close() // nothing is under way
	}
}

// end ends the store for a reason that no later call can mend.
func (s *Store) end(err error) {
	if s.ended.CompareAndSwap(nil, &err) {
		s.logger.Error("the store ends", "store", s.target.label, "error", err)
		s.stop()
	}
}

// usable is the error that a call begins with.
func (s *Store) usable(ctx context.Context) error {
	if s.queue.Closing() {
		return store.ErrClosed
	}
	if err := s.ended.Load(); err != nil {
		return fmt.Errorf("state %s: %w", s.target.label, *err)
	}
	return ctx.Err()
}

// failed gives an error of the medium its operation and, where the store was
// closed or the context ended meanwhile, its true cause.
func (s *Store) failed(ctx context.Context, op string, err error) error {
	var unknown *UnknownError
	if !errors.As(err, &unknown) { // that must not be mistaken for "nothing was changed"
		if err := s.usable(ctx); err != nil {
			return err
		}
	}
	return &store.MediumError{Op: op, At: s.target.label, Err: explain(err), Private: true}
}

// Properties implements store.Store.
func (s *Store) Properties() store.Properties {
	return store.Properties{Sparse: true, Merges: true, MaxKeys: maxKeys}
}

// Epoch implements store.Store.
func (s *Store) Epoch() string { return s.epoch }

// Compacted implements store.Store. A compaction by another instance is known a
// moment later, one by other programs or by etcd itself as soon as it is met, or
// after a minute.
func (s *Store) Compacted() store.Revision { return store.Revision(s.compacted.Load()) }

// Watch implements store.Store.
func (s *Store) Watch(ctx context.Context, prefix string, after store.Revision) (store.Watcher, error) {
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	if after < s.Compacted() {
		return nil, store.ErrCompacted
	}
	if after > s.hub.Revision() {
		// The caller may have the revision from another instance.
		if _, err := s.Revision(ctx); err != nil {
			return nil, err
		}
	}
	w, err := s.hub.Watch(ctx, prefix, after)
	if err != nil {
		return nil, err
	}
	return &watcher{Watcher: w, store: s}, nil
}

// watcher reads etcd's revision before it promises progress: the hub alone does
// not have what other instances committed last.
type watcher struct {
	store.Watcher
	store *Store
}

func (w *watcher) Progress() { w.store.root.progress(w.Watcher) }
