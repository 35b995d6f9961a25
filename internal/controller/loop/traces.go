package loop

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/tracing"
)

// traces are the sampled changes for which keys were queued. Nothing is in it while tracing is off.
type traces struct {
	tracer *tracing.Recorder // of the catalog; set before workers start
	// dispatched is the sampled change whose delta is being dispatched; nil: none is.
	dispatched atomic.Pointer[tracing.Parents]

	tracesMu sync.Mutex
	causes   map[resource.Key]*cause
}

// cause of a sync: the write spans of sampled changes, and when the first of them came.
type cause struct {
	writes tracing.Parents
	since  time.Time
}

// dispatchTraced dispatches a delta so that each key that a sampled change queues is known to be of that.
func (l *Loop) dispatchTraced(d catalog.Delta, dispatch func(catalog.Delta)) {
	traced, rest := d.Traced(l.tracer)
	for i := range traced {
		l.dispatched.Store(&traced[i].Writes)
		dispatch(traced[i].Delta)
		l.dispatched.Store(nil)
	}
	dispatch(*rest)
}

// noteCause notes that a key is queued for the change that is being dispatched. What others queue at the same moment is taken for
// it, too.
func (l *Loop) noteCause(key resource.Key) {
	writes := l.dispatched.Load()
	if writes == nil {
		return
	}
	l.addCause(key, &cause{*writes, time.Now()})
}

func (l *Loop) addCause(key resource.Key, c *cause) {
	l.tracesMu.Lock()
	defer l.tracesMu.Unlock()
	if before := l.causes[key]; before != nil {
		c = &cause{before.writes.Add(c.writes), before.since}
	}
	if l.causes == nil {
		l.causes = map[resource.Key]*cause{}
	}
	l.causes[key] = c
}

func (l *Loop) takeCause(key resource.Key) *cause {
	l.tracesMu.Lock()
	defer l.tracesMu.Unlock()
	c := l.causes[key]
	if c != nil {
		delete(l.causes, key)
	}
	return c
}

// syncTraced calls Sync, as a span of the traces that the key was queued for. A sync that waits for the catalog is
// none: the next one is.
func (l *Loop) syncTraced(ctx context.Context, key resource.Key) error {
	c := l.takeCause(key)
	if c == nil {
		return l.Sync(ctx, key)
	}
	spans := c.writes.Children()
	err := l.Sync(tracing.WithCause(ctx, spans), key)
	if err != nil {
		l.addCause(key, c)
	}
	if !errors.Is(err, ErrStale) {
		l.tracer.RecordEach(spans, c.writes, tracing.Span{
			Name: tracing.Controller, Begin: c.since, End: time.Now(), Err: err,
			Attributes: []tracing.Attribute{
				tracing.Text(tracing.KeyController, l.What), tracing.Text(tracing.KeyNamespace, key.Namespace), tracing.Text(tracing.KeyName, key.Name),
			},
		})
	}
	return err
}
