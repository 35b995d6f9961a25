// Package postgres keeps state in a PostgreSQL database: the store of a control
// plane that has several processes, or keeps its state on another machine.
//
// It owns the tables proxima_* in one schema, whose layout it migrates forward.
// Enter at Open. A commit that returned is as durable as the server makes it.
// Any number of processes may have the same state open; each sees the others'
// commits. The package never compacts by itself, never opens a schema that is
// newer than itself, and never guesses the outcome of a commit.
//
// DESIGN.md one folder up has the table layout, and why each commit takes a lock.
package postgres

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

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
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
	// Clock for expiry; nil: the real one. Processes that share a state should
	// agree on the time: a key expires by the clock of the instance that deletes it.
	Clock clock.Clock
	// Recent bounds the events kept in memory for watchers; zero: 16,384 events
	// and 64 MiB. A watcher further behind reads the database.
	Recent watch.Limits
	// Exclusive: no other process may open the state as exclusive. Open waits a moment
	// for a predecessor to go and then fails with *InUseError. Should another
	// process take the state over while this process is cut off, the store ends with
	// that error: the claim belongs to the very session that commits, so
	// nothing is written without it.
	Exclusive bool
	// Shared: no process may open the state as exclusive while this store is open, and
	// Open fails with *InUseError if one has. Without Exclusive and Shared nothing is claimed.
	Shared bool

	// SeenFile keeps the newest revision that this instance has seen, in a folder that exists, so
	// that a database that was set back is noticed at the next Open; empty: it is not.
	SeenFile string

	dial          pgconn.DialFunc // for tests; nil: the real one
	outageTimeout time.Duration   // for tests; 0: the constant
	// exchangeTimeout bounds one exchange of a commit, for tests; 0: that of outages. A server
	// that is there and does not answer is an outage, too.
	exchangeTimeout time.Duration
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
	if o.outageTimeout == 0 {
		o.outageTimeout = outage.Timeout
	}
	if o.exchangeTimeout == 0 {
		o.exchangeTimeout = outage.Timeout
	}
	return o
}

// Store implements store.Store.
type Store struct {
	target target
	epoch  string
	logger *slog.Logger
	clock  clock.Clock
	hub    *watch.Hub
	expiry *expiry.Queue
	// seenFile is Options.SeenFile.
	seenFile string

	pool     *pgxpool.Pool // for everything but commits and notifications
	writer   *writer
	follower *follower

	compacted atomic.Int64
	fault     outage.Fault          // of the last write; nil: it went well
	ended     atomic.Pointer[error] // why the store came to an end by itself
	reads     outage.Outage
	writes    outage.Outage

	queue   *group.Queue    // of the one goroutine that has the writer
	running context.Context // ends with the store
	stop    context.CancelFunc
	others  sync.WaitGroup // goroutines besides the writer's
	close   sync.Once
}

var (
	_ store.Store  = (*Store)(nil)
	_ watch.Source = (*Store)(nil)
)

// Open opens the state in the database that a URL names, and makes or migrates
// its tables if need be. The URL is that of libpq: several hosts, sslmode,
// sslrootcert and so on; search_path=NAME puts the tables into a schema, which is
// made if it does not exist. Without a password in it, PGPASSWORD and the
// password file apply. The connection must be one to the server or to a pooler
// that gives whole sessions: a pooler that gives transactions breaks LISTEN.
//
// Errors: *URLError, *SchemaError, *DamagedError, *InUseError, and those of the
// connection; none contains the password.
func Open(ctx context.Context, url string, opts Options) (*Store, error) {
	opts = opts.withDefaults()
	t, err := parse(url)
	if err != nil {
		return nil, fmt.Errorf("open state: %w", err)
	}
	if opts.dial != nil {
		t.config.ConnConfig.DialFunc = opts.dial
	}
	running, stop := context.WithCancel(context.Background())
	s := &Store{
		target: t, logger: opts.Logger, clock: opts.Clock,
		expiry:   expiry.New(opts.Clock, opts.Logger),
		seenFile: opts.SeenFile,
		follower: newFollower(),
		queue:    group.New(),
		running:  running, stop: stop,
		reads: outage.Outage{Timeout: opts.outageTimeout}, writes: outage.Outage{Timeout: opts.outageTimeout},
	}
	if err := s.open(ctx, opts); err != nil {
		stop()
		s.release()
		return nil, fmt.Errorf("open state %s: %w", t.label, explain(err))
	}
	go s.write()
	s.others.Go(func() { s.listen(running) })
	s.others.Go(func() { s.follow(running) })
	s.others.Go(func() { s.expiry.Run(running, s.expire) })
	if s.seenFile != "" {
		s.others.Go(func() { s.keepSighting(running) })
	}
	return s, nil
}

func (s *Store) open(ctx context.Context, opts Options) error {
	var id [8]byte
	_, _ = rand.Read(id[:]) // crypto/rand.Read never fails
	s.writer = &writer{target: s.target, store: s, id: int64(binary.BigEndian.Uint64(id[:]) >> 1), limit: opts.exchangeTimeout}
	conn, err := s.writer.connected(ctx)
	if err != nil {
		return err
	}
	if err := s.target.inspect(ctx, conn, s.logger); err != nil {
		return err
	}
	if err := s.target.migrate(ctx, conn); err != nil {
		return err
	}
	s.writer.shared = opts.Shared && !opts.Exclusive
	if opts.Exclusive || opts.Shared {
		if err := s.writer.claimFirst(ctx, conn); err != nil {
			return err
		}
	}
	now, err := verify(ctx, conn)
	if err != nil {
		return err
	}
	if now, err = s.resume(ctx, conn, now); err != nil {
		return err
	}
	s.epoch = now.epoch
	s.compacted.Store(int64(now.compacted))
	s.hub = watch.NewHub(s, now.revision, opts.Recent)
	if s.pool, err = pgxpool.NewWithConfig(ctx, s.target.config); err != nil {
		return err
	}
	// Read after the revision: what is committed between is observed again.
	deadlines, err := s.deadlines(ctx)
	if err != nil {
		return err
	}
	s.expiry.Observe(deadlines)
	return nil
}

// verify compares the bookkeeping with the end of the history.
func verify(ctx context.Context, conn *pgx.Conn) (now bookkeeping, err error) {
	var last store.Revision
	err = conn.QueryRow(ctx, `SELECT epoch, revision, compacted, swept, size,
			(SELECT coalesce(max(revision), 0) FROM proxima_history) FROM proxima_meta`).
		Scan(&now.epoch, &now.revision, &now.compacted, &now.swept, &now.size, &last)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return now, &DamagedError{Detail: "proxima_meta is empty"}
	case err != nil:
		return now, err
	case last > now.revision || (now.revision > now.compacted && last < now.revision):
		return now, &DamagedError{Detail: fmt.Sprintf("the newest revision is recorded as %d, but the history ends at %d", now.revision, last)}
	}
	return now, nil
}

// closeTimeout is how long Close waits for a commit that is under way before it
// cuts the connection.
const closeTimeout = 5 * time.Second

// Close implements store.Store. It waits for the commit that is under way;
// those that wait for their turn fail with store.ErrClosed.
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
	if s.pool != nil {
		s.pool.Close()
	}
	if s.writer != nil {
		s.writer.disconnect()
	}
}

// end ends the store for a reason that no later call can fix.
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
func (s *Store) Properties() store.Properties { return store.Properties{} }

// Epoch implements store.Store.
func (s *Store) Epoch() string { return s.epoch }

// Compacted implements store.Store. A compaction by another process is known a
// moment later.
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

// watcher reads the revision from the database before it promises progress: the hub
// alone may be behind what is committed.
type watcher struct {
	store.Watcher
	store *Store
}

func (w *watcher) Progress() { w.store.follower.progress(w.Watcher) }

// readyTimeout bounds Ready where its caller does not.
const readyTimeout = 10 * time.Second

// Ready implements store.Store. After a write that failed it tries one, so that
// it succeeds as soon as the database is available again.
func (s *Store) Ready(ctx context.Context) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	if !s.fault.Present() {
		if _, err := s.ask(bounded, question{}); err != nil {
			return s.failed(ctx, "read", err)
		}
		return nil
	}
	var err error
	if missed := s.task(bounded, func(ctx context.Context) { err = s.noted(s.writer.probe(ctx)) }); missed != nil {
		return missed
	}
	if err != nil {
		return s.failed(ctx, "write", err)
	}
	return nil
}

// noted remembers the result of a write for Ready.
func (s *Store) noted(err error) error { return s.fault.Note(err, s.logger, s.target.label, explain) }
