// Package metered wraps a store and measures it.
//
// It owns the metrics of a store. Enter at New. It changes nothing about
// the calls and their results, and never reads keys or values.
//
//	proxima_store_operation_seconds{operation}          histogram, failed calls too
//	proxima_store_operation_errors_total{operation,reason}
//	proxima_store_operations_in_flight{operation}
//	proxima_store_watches                               open now
//	proxima_store_revision, proxima_store_compacted_revision, proxima_store_bytes
//
// Reasons are conflict, invalid, compacted, future, closed, canceled and medium.
// Only medium is about the store's health; the others are results of calls.
package metered

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/proxima-mesh/proxima/internal/store"
)

// Config of a Store.
type Config struct {
	// Registerer of the metrics; nil: they are not registered.
	Registerer prometheus.Registerer
}

// Store is the wrapped store.
type Store struct {
	store.Store
	seconds  *prometheus.HistogramVec
	errors   *prometheus.CounterVec
	inFlight *prometheus.GaugeVec
	watches  prometheus.Gauge
	state    []gauge
}

// gauge is read when metrics are collected.
type gauge struct {
	desc *prometheus.Desc
	read func(context.Context) (float64, error)
}

var _ store.Store = (*Store)(nil)

// operations that are measured.
var operations = [...]string{"get", "list", "count", "commit", "watch", "revision", "compact", "size", "ready"}

// New wraps a store; closing the wrapper closes it. It panics if another one has the
// Registerer.
func New(inner store.Store, cfg Config) *Store {
	const namespace, subsystem = "proxima", "store"
	byOperation := []string{"operation"}
	s := &Store{
		Store: inner,
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "operation_seconds",
			Help: "How long calls of the store took, failed ones too.",
			// From a read in memory to a disk that hangs: 50 µs to 13 s.
			Buckets: prometheus.ExponentialBuckets(50e-6, 4, 10),
		}, byOperation),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "operation_errors_total",
			Help: "Calls of the store that failed. Only reason medium is about the store's health.",
		}, []string{"operation", "reason"}),
		inFlight: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "operations_in_flight",
			Help: "Calls of the store that have not returned.",
		}, byOperation),
		watches: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "watches",
			Help: "Open watches on the store.",
		}),
	}
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName(namespace, subsystem, name), help, nil, nil)
	}
	s.state = []gauge{
		{desc("revision", "Newest revision of the store."), func(ctx context.Context) (float64, error) {
			rev, err := inner.Revision(ctx)
			return float64(rev), err
		}},
		{desc("compacted_revision", "Newest revision whose history is gone."), func(context.Context) (float64, error) {
			return float64(inner.Compacted()), nil
		}},
		{desc("bytes", "Bytes of live values in the store."), func(ctx context.Context) (float64, error) {
			size, err := inner.Size(ctx)
			return float64(size), err
		}},
	}
	for _, op := range operations { // so that rates begin at 0
		s.seconds.WithLabelValues(op)
		s.inFlight.WithLabelValues(op)
		s.errors.WithLabelValues(op, "medium")
	}
	if cfg.Registerer != nil {
		cfg.Registerer.MustRegister(collector{s})
	}
	return s
}

// Unwrap returns the store that is measured.
func (s *Store) Unwrap() store.Store { return s.Store }

// collector reads the state of the store when metrics are collected.
type collector struct{ *Store }

// Describe implements prometheus.Collector.
func (s collector) Describe(to chan<- *prometheus.Desc) {
	s.seconds.Describe(to)
	s.errors.Describe(to)
	s.inFlight.Describe(to)
	s.watches.Describe(to)
	for _, g := range s.state {
		to <- g.desc
	}
}

// collectTime bounds what a store that hangs does to a scrape.
const collectTime = time.Second

// Collect implements prometheus.Collector.
func (s collector) Collect(to chan<- prometheus.Metric) {
	s.seconds.Collect(to)
	s.errors.Collect(to)
	s.inFlight.Collect(to)
	s.watches.Collect(to)
	ctx, cancel := context.WithTimeout(context.Background(), collectTime)
	defer cancel()
	for _, g := range s.state {
		// A value that cannot be read is left out; the others are still reported.
		if v, err := g.read(ctx); err == nil {
			to <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, v)
		}
	}
}

// measure is deferred with a pointer to the call's error.
func (s *Store) measure(op string) func(*error) {
	inFlight := s.inFlight.WithLabelValues(op)
	inFlight.Inc()
	start := time.Now()
	return func(err *error) {
		s.seconds.WithLabelValues(op).Observe(time.Since(start).Seconds())
		inFlight.Dec()
		if *err != nil {
			s.errors.WithLabelValues(op, reason(*err)).Inc()
		}
	}
}

func reason(err error) string {
	var conflict *store.ConflictError
	var invalid *store.InvalidError
	switch {
	case errors.As(err, &conflict):
		return "conflict"
	case errors.As(err, &invalid):
		return "invalid"
	case errors.Is(err, store.ErrCompacted):
		return "compacted"
	case errors.Is(err, store.ErrFuture):
		return "future"
	case errors.Is(err, store.ErrClosed):
		return "closed"
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return "canceled"
	}
	return "medium"
}

// Get implements store.Store.
func (s *Store) Get(ctx context.Context, key string, at store.Revision) (rec store.Record, ok bool, read store.Revision, err error) {
	defer s.measure("get")(&err)
	return s.Store.Get(ctx, key, at)
}

// List implements store.Store.
func (s *Store) List(ctx context.Context, opts store.ListOptions) (page store.Page, err error) {
	defer s.measure("list")(&err)
	return s.Store.List(ctx, opts)
}

// Count implements store.Store.
func (s *Store) Count(ctx context.Context, prefix string) (n int64, err error) {
	defer s.measure("count")(&err)
	return s.Store.Count(ctx, prefix)
}

// Commit implements store.Store.
func (s *Store) Commit(ctx context.Context, txn store.Txn) (rev store.Revision, err error) {
	defer s.measure("commit")(&err)
	return s.Store.Commit(ctx, txn)
}

// Revision implements store.Store.
func (s *Store) Revision(ctx context.Context) (rev store.Revision, err error) {
	defer s.measure("revision")(&err)
	return s.Store.Revision(ctx)
}

// Compact implements store.Store.
func (s *Store) Compact(ctx context.Context, upTo store.Revision) (err error) {
	defer s.measure("compact")(&err)
	return s.Store.Compact(ctx, upTo)
}

// Size implements store.Store.
func (s *Store) Size(ctx context.Context) (n int64, err error) {
	defer s.measure("size")(&err)
	return s.Store.Size(ctx)
}

// Ready implements store.Store.
func (s *Store) Ready(ctx context.Context) (err error) {
	defer s.measure("ready")(&err)
	return s.Store.Ready(ctx)
}

// Watch implements store.Store. The time measured is that of opening it.
func (s *Store) Watch(ctx context.Context, prefix string, after store.Revision) (w store.Watcher, err error) {
	defer s.measure("watch")(&err)
	inner, err := s.Store.Watch(ctx, prefix, after)
	if err != nil {
		return nil, err
	}
	s.watches.Inc()
	closed := sync.OnceFunc(s.watches.Dec)
	// A watcher whose owner lets its context end instead of closing it is over too.
	stop := context.AfterFunc(ctx, closed)
	return &watcher{Watcher: inner, closed: func() { stop(); closed() }}, nil
}

type watcher struct {
	store.Watcher
	closed func()
}

// Close implements store.Watcher.
func (w *watcher) Close() {
	w.Watcher.Close()
	w.closed()
}
