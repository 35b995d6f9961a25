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

// cause of a sync: the write spans of sampled changes, and when each of them came.
type cause struct {
	writes tracing.Parents
	since  []time.Time
}

// add what is not there yet.
func (c *cause) add(writes tracing.Parents, since func(i int) time.Time) {
	for i := range writes {
		if c.writes = c.writes.Add(writes[i : i+1]); len(c.writes) > len(c.since) {
			c.since = append(c.since, since(i))
		}
	}
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
	now := time.Now()
	l.addCause(key, *writes, func(int) time.Time { return now })
}

func (l *Loop) addCause(key resource.Key, writes tracing.Parents, since func(i int) time.Time) {
	l.tracesMu.Lock()
	defer l.tracesMu.Unlock()
	if l.causes == nil {
		l.causes = map[resource.Key]*cause{}
	}
	c := l.causes[key]
	if c == nil {
		c = &cause{}
		l.causes[key] = c
	}
	c.add(writes, since)
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
		l.addCause(key, c.writes, func(i int) time.Time { return c.since[i] })
	}
	if errors.Is(err, ErrStale) {
		return err
	}
	s := tracing.Span{
		Name: tracing.Controller, End: time.Now(), Err: err,
		Attributes: []tracing.Attribute{
			tracing.Text(tracing.KeyController, l.What), tracing.Text(tracing.KeyNamespace, key.Namespace), tracing.Text(tracing.KeyName, key.Name),
		},
	}
	for i := range spans {
		s.Begin = c.since[i]
		l.tracer.RecordEach(spans[i:i+1], c.writes[i:i+1], s)
	}
	return err
}
