// Package loop works off the keys of a controller that follows the catalog.
//
// It owns the queue (one key, one worker), the window that lets a burst of
// changes share one write, the wait for the catalog to show what was written,
// and the retries. Enter at New and Loop.Run; what a controller writes goes into
// the Expectations of its key. It knows no kind and writes nothing.
package loop

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// DefaultWindow: ten writes per key and second are as many as readers profit
// from while many workloads start at once.
const DefaultWindow = 100 * time.Millisecond

// A failed key is tried again after 1 s, 2 s, 4 s, … as Kubernetes does it
// (pkg/controller/endpointslice: maxRetries, defaultSyncBackOff, maxSyncBackOff).
const (
	maxRetries   = 15
	minRetry     = time.Second
	maxRetry     = 1000 * time.Second
	staleRecheck = time.Second
)

// ErrStale is what Sync returns when the catalog does not show yet what was
// written, by us or by the client that won a conflict. The key comes again with the next
// delta.
var ErrStale = errors.New("catalog is older than the last write")

// Outcome of a write of a derived object: nil where there is nothing left to do, also as the
// object or its namespace is going; ErrStale where another writer was first, whose write is
// on its way; else the error, with what was done.
func Outcome(what string, err error) error {
	switch {
	case err == nil, apierrors.IsNotFound(err), apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return nil
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		return ErrStale
	}
	return fmt.Errorf("%s: %w", what, err)
}

// Config of a Loop.
type Config struct {
	// What a key stands for, in logs: "service".
	What string
	// Sync brings one key up to date. It is never called for the same key twice
	// at a time. Required.
	Sync func(ctx context.Context, key resource.Key) error
	// OnExhausted is called after the last retry of a key; nil: only logged.
	OnExhausted func(ctx context.Context, key resource.Key, err error)
	// Workers is how many keys are worked on at the same time; 0: 4.
	Workers int
	// Window is how long a key is left alone after a write; 0: DefaultWindow,
	// negative: none.
	Window time.Duration
	// Clock; nil: the real one.
	Clock clock.WithTicker
	// Logger; nil: silence.
	Logger *slog.Logger
}

// Loop is safe for concurrent use.
type Loop struct {
	Config
	queue   workqueue.TypedDelayingInterface[resource.Key]
	running atomic.Bool // the queue is there

	mu    sync.Mutex
	keys  map[resource.Key]*progress
	stale map[resource.Key]struct{} // to be looked at after the next delta
	wakes uint64                    // deltas so far
	traces
}

// progress of one key. Only the expectations are touched by others than its worker.
type progress struct {
	lastWrite time.Time
	failures  int
	expected  Expectations
}

// New makes a loop; Run starts it.
func New(config Config) *Loop {
	l := &Loop{Config: config, keys: make(map[resource.Key]*progress), stale: make(map[resource.Key]struct{})}
	if l.Workers == 0 {
		l.Workers = 4
	}
	if l.Window == 0 {
		l.Window = DefaultWindow
	}
	if l.Clock == nil {
		l.Clock = clock.RealClock{}
	}
	if l.Logger == nil {
		l.Logger = slog.New(slog.DiscardHandler)
	}
	return l
}

// Run follows the catalog until ctx ends: dispatch queues the keys that a delta
// concerns, with Add. It returns nil, and must be called once.
func (l *Loop) Run(ctx context.Context, from *catalog.Catalog, dispatch func(catalog.Delta), kinds ...catalog.Kind) error {
	l.queue = workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[resource.Key]{Clock: l.Clock})
	l.running.Store(true)
	// Subscribed before the workers start: whatever they see, a change after it
	// comes as a delta. They start when the tables of these kinds are filled: before,
	// what is not there yet would look as if it were gone.
	sub := from.Subscribe(kinds...)
	defer sub.Close()
	l.tracer = from.Tracer()

	var workers sync.WaitGroup
	for started := false; ; started = true {
		delta, err := sub.Next(ctx)
		if err != nil {
			break
		}
		for i := 0; i < l.Workers && !started; i++ {
			workers.Go(func() { l.work(ctx) })
		}
		l.wake()
		if started && l.tracer.On() {
			l.dispatchTraced(delta, dispatch)
		} else {
			dispatch(delta) // the first one is everything there is: nothing has changed
		}
	}
	l.queue.ShutDown()
	workers.Wait()
	return nil
}

// Add queues a key. Before Run it does nothing, as the first delta names every object.
func (l *Loop) Add(key resource.Key) {
	if l.running.Load() {
		l.noteCause(key)
		l.queue.Add(key)
	}
}

// AddAfter queues a key later. For dispatch and Sync.
func (l *Loop) AddAfter(key resource.Key, wait time.Duration) {
	l.noteCause(key)
	l.queue.AddAfter(key, wait)
}

// Expectations is where the writes for a key are noted.
func (l *Loop) Expectations(key resource.Key) *Expectations { return &l.progress(key).expected }

// Writes opens the window of a key: to be called before its first write of a
// Sync.
func (l *Loop) Writes(key resource.Key) { l.progress(key).lastWrite = l.Clock.Now() }

// Forget drops what is known of a key whose object is gone.
func (l *Loop) Forget(key resource.Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.keys, key)
}

func (l *Loop) progress(key resource.Key) *progress {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.keys[key]
	if p == nil {
		p = &progress{}
		l.keys[key] = p
	}
	return p
}

// known returns the expectations of a key that was written before; nil: it was not.
func (l *Loop) known(key resource.Key) *Expectations {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p := l.keys[key]; p != nil {
		return &p.expected
	}
	return nil
}

// wake queues the keys that wait for a delta.
func (l *Loop) wake() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wakes++
	for key := range l.stale {
		l.queue.Add(key)
	}
	clear(l.stale)
}

func (l *Loop) work(ctx context.Context) {
	for {
		key, shutdown := l.queue.Get()
		if shutdown {
			return
		}
		if ctx.Err() == nil {
			l.handle(ctx, key)
		}
		l.queue.Done(key)
	}
}

// handle syncs one key, unless it was written within the window, and sees to
// what follows from the outcome.
func (l *Loop) handle(ctx context.Context, key resource.Key) {
	p := l.progress(key)
	if wait := l.Window - l.Clock.Since(p.lastWrite); !p.lastWrite.IsZero() && wait > 0 {
		l.queue.AddAfter(key, wait)
		return
	}
	l.mu.Lock()
	wakes := l.wakes
	l.mu.Unlock()

	err := l.syncTraced(ctx, key)
	switch {
	case ctx.Err() != nil:
	case err == nil:
		p.failures = 0
	case errors.Is(err, ErrStale):
		l.wait(key, wakes)
	case p.failures < maxRetries:
		pause := min(minRetry<<p.failures, maxRetry)
		p.failures++
		l.Logger.Warn("not up to date", l.What, key, "error", err, "retry", pause)
		l.queue.AddAfter(key, pause)
	default:
		p.failures = 0
		l.Logger.Error("not up to date; given up until the next change", l.What, key, "error", err)
		if l.OnExhausted != nil {
			l.OnExhausted(ctx, key, err)
		}
	}
}

// wait has a key queued by the next delta after those that Sync could have seen;
// if one came meanwhile, at once.
func (l *Loop) wait(key resource.Key, wakes uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.wakes != wakes {
		l.queue.Add(key)
		return
	}
	l.stale[key] = struct{}{}
	// The event that ends the wait is on its way; the timer is for the case that
	// it was swallowed by a relist.
	l.queue.AddAfter(key, staleRecheck)
}
