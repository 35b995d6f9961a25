// Package sqlite keeps state in one SQLite file: the default store of a control
// plane that is a single process.
//
// It owns the file, its write-ahead log and its lock, and everything in them.
// Enter at Open. A commit that returned is on the disk. The package never lets a
// second process open the file, never deletes a damaged one, and never compacts
// by itself: that is the caller's, by Compact.
//
// DESIGN.md one folder up has the table layout and why group commit is safe.
package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"

	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/expiry"
	"github.com/proxima-mesh/proxima/internal/store/group"
	"github.com/proxima-mesh/proxima/internal/store/position"
	"github.com/proxima-mesh/proxima/internal/store/watch"
)

// Options of Open. The zero value is usable.
type Options struct {
	// Logger; nil: none.
	Logger *slog.Logger
	// Clock for expiry; nil: the real one.
	Clock clock.Clock
	// Recent bounds the events kept in memory for watchers; zero: 16,384 events
	// and 64 MiB. A watcher further behind reads the file.
	Recent watch.Limits
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
	return o
}

// readers bounds concurrent reads; each has a connection with its own cache.
const readers = 4

// Store implements store.Store.
type Store struct {
	path   string
	epoch  string
	logger *slog.Logger
	clock  clock.Clock
	hub    *watch.Hub
	expiry *expiry.Queue

	lock   *lock
	writer *writer
	reads  *sql.DB
	// readMeta and readNewest are prepared once for each connection of reads, which closes them: parsing took more than half of a Get.
	readMeta, readNewest *sql.Stmt

	compacted atomic.Int64
	size      atomic.Int64
	fault     atomic.Pointer[fault] // of the last write; nil: it went well

	queue      *group.Queue                      // of the one goroutine that writes
	dirty      chan struct{}                     // holds a token while the position is to be recorded
	recorded   atomic.Pointer[position.Position] // in the file beside the state; nil: not known
	background sync.WaitGroup
	stop       context.CancelFunc
	close      sync.Once
	closed     error
}

var (
	_ store.Store  = (*Store)(nil)
	_ watch.Source = (*Store)(nil)
)

// Open opens the state in the file at path and makes it if it does not exist.
// It blocks for as long as SQLite needs to recover and check the file. Errors:
// *InUseError if another process has it open, *DamagedError, *SchemaError, and
// those of the medium.
func Open(ctx context.Context, path string, opts Options) (*Store, error) {
	opts = opts.withDefaults()
	s := &Store{
		path: path, logger: opts.Logger, clock: opts.Clock,
		expiry: expiry.New(opts.Clock, opts.Logger),
		queue:  group.New(),
		dirty:  make(chan struct{}, 1),
	}
	var err error
	if s.lock, err = acquire(path); err != nil {
		return nil, fmt.Errorf("open state %q: %w", path, err)
	}
	if err := s.open(ctx, opts); err != nil {
		_ = s.release() // the first error is the one that helps
		return nil, fmt.Errorf("open state %q: %w", path, err)
	}
	background, stop := context.WithCancel(context.Background())
	s.stop = stop
	go s.write()
	s.background.Go(func() { s.expiry.Run(background, s.Commit) })
	s.background.Go(func() { s.recordPosition(background) })
	return s, nil
}

func (s *Store) open(ctx context.Context, opts Options) error {
	if err := prepare(ctx, s.path); err != nil {
		return err
	}
	var err error
	if s.writer, err = newWriter(ctx, s.path); err != nil {
		return err
	}
	if s.reads, err = sql.Open(driverName, dsn(s.path, "query_only(1)")); err != nil {
		return err
	}
	s.reads.SetMaxOpenConns(readers)
	s.reads.SetMaxIdleConns(readers)
	if s.readMeta, err = s.reads.PrepareContext(ctx, selectMeta); err != nil {
		return err
	}
	if s.readNewest, err = s.reads.PrepareContext(ctx, selectNewest); err != nil {
		return err
	}
	if err := s.resume(); err != nil {
		return err
	}
	s.epoch = s.writer.epoch
	s.compacted.Store(int64(s.writer.compacted))
	s.size.Store(s.writer.size)
	s.hub = watch.NewHub(s, s.writer.revision, opts.Recent)
	deadlines, err := s.deadlines(ctx)
	if err != nil {
		return err
	}
	s.expiry.Observe(deadlines)
	return nil
}

// Close implements store.Store. It waits for the commit that is under way;
// those that wait for their turn fail with store.ErrClosed.
func (s *Store) Close() error {
	s.close.Do(func() {
		s.queue.Close()
		s.stop()
		<-s.queue.Finished()
		s.background.Wait()
		s.hub.Close()
		err := s.release()
		if err == nil && s.hub.Revision() > 0 {
			if err := s.writePosition(); err != nil { // the state itself is complete
				s.logger.Warn("how far the state is could not be recorded beside it", "error", err)
			}
		}
		if err != nil {
			s.closed = fmt.Errorf("close state %q: %w", s.path, err)
		}
	})
	return s.closed
}

// release gives back what open acquired, as far as it came.
func (s *Store) release() error {
	var errs []error
	if s.reads != nil {
		errs = append(errs, s.reads.Close())
	}
	if s.writer != nil {
		errs = append(errs, s.writer.close())
	}
	return errors.Join(append(errs, s.lock.release())...)
}

// usable is the error that a call begins with.
func (s *Store) usable(ctx context.Context) error {
	if s.queue.Closing() {
		return store.ErrClosed
	}
	return ctx.Err()
}

// failed gives an error of the medium its operation and, where the store was
// closed or the context ended meanwhile, its true cause.
func (s *Store) failed(ctx context.Context, op string, err error) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	return &store.MediumError{Op: op, At: strconv.Quote(s.path), Err: explain(err)}
}

// Properties implements store.Store.
func (s *Store) Properties() store.Properties { return store.Properties{} }

// Epoch implements store.Store.
func (s *Store) Epoch() string { return s.epoch }

// Compacted implements store.Store.
func (s *Store) Compacted() store.Revision { return store.Revision(s.compacted.Load()) }

// Revision implements store.Store.
func (s *Store) Revision(ctx context.Context) (store.Revision, error) {
	if err := s.usable(ctx); err != nil {
		return 0, err
	}
	return s.hub.Revision(), nil
}

// Size implements store.Store: the bytes of live values. The file is larger.
func (s *Store) Size(ctx context.Context) (int64, error) {
	if err := s.usable(ctx); err != nil {
		return 0, err
	}
	return s.size.Load(), nil
}

// Watch implements store.Store.
func (s *Store) Watch(ctx context.Context, prefix string, after store.Revision) (store.Watcher, error) {
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	if after < s.Compacted() {
		return nil, store.ErrCompacted
	}
	return s.hub.Watch(ctx, prefix, after)
}

// Ready implements store.Store. After a write that failed it tries one, so that
// it succeeds as soon as the medium works again.
func (s *Store) Ready(ctx context.Context) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	if s.fault.Load() == nil {
		return nil
	}
	var err error
	if missed := s.task(ctx, func() { err = s.noted(s.writer.probe()) }); missed != nil {
		return missed
	}
	if err != nil {
		since := time.Now()
		if f := s.fault.Load(); f != nil {
			since = f.since
		}
		return fmt.Errorf("state %q cannot be written since %s: %w", s.path, since.Format(time.DateTime), explain(err))
	}
	return nil
}

// fault is why writes fail, and when the first of them in a row did.
type fault struct {
	err   error
	since time.Time
}

// noted remembers the result of a write for Ready.
func (s *Store) noted(err error) error {
	was := s.fault.Load()
	switch {
	case err != nil:
		now := &fault{err: err, since: time.Now()}
		if was != nil {
			now.since = was.since
		}
		s.fault.Store(now)
		if was == nil {
			s.logger.Error("state cannot be written", "path", s.path, "error", explain(err))
		}
	case was != nil:
		s.fault.Store(nil)
		s.logger.Info("state can be written again", "path", s.path)
	}
	return err
}
