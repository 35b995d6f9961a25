package sink

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/feed/history"
	"github.com/proxima-mesh/proxima/internal/feed/seglog"
)

// worker delivers for one sink.
type worker struct {
	sinks  *Sinks
	spec   *Spec
	pace   Pace
	target Target
	cancel context.CancelCauseFunc
	done   chan struct{}
	// stuck: the delivery that failed had something in it. That an empty one succeeds says nothing then.
	stuck bool

	mu     sync.Mutex
	status Status
}

func newWorker(s *Sinks, spec *Spec) (*worker, error) {
	k := s.kinds[cmp.Or(spec.Kind, Webhook)]
	if k == nil {
		return nil, Invalid("kind %q: there is none", spec.Kind)
	}
	target, err := k.Open(spec, s.log.With("sink", spec.Name))
	if err != nil {
		return nil, err
	}
	return &worker{sinks: s, spec: spec, pace: k.Pace(), target: target, done: make(chan struct{}), status: Status{Here: true}}, nil
}

func (w *worker) start(ctx context.Context) {
	ctx, w.cancel = context.WithCancelCause(ctx)
	go func() {
		defer close(w.done)
		defer w.target.Close()
		retry := backoff.Backoff{Policy: w.pace.Retry}
		for ctx.Err() == nil {
			err := w.run(ctx, &retry)
			if ctx.Err() != nil {
				return
			}
			w.failed(err)
			backoff.Sleep(ctx, retry.Next())
		}
	}()
}

// stop delivering, and wait until that is over.
func (w *worker) stop() {
	if w.cancel != nil {
		w.cancel(errStopped)
		<-w.done
	}
}

func (w *worker) describe(s *Status) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s.Here, s.Delivered, s.Failures, s.Problem, s.Since = true, w.status.Delivered, w.status.Failures, w.status.Problem, w.status.Since
	s.Position = max(s.Position, w.status.Position)
}

// run delivers from the cursor on, until a delivery fails.
func (w *worker) run(ctx context.Context, retry *backoff.Backoff) error {
	c, err := w.sinks.cfg.Cursors.OpenExpired(ctx, cursorName(w.spec.Name))
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if err := c.Close(closing); err != nil {
			w.sinks.log.Warn("how far a sink is was not written: some events are delivered again", "sink", w.spec.Name, "error", err)
		}
	}()
	// Whether the receiver is there is asked before something happens.
	at := c.State().Mark
	batch := &Batch{After: at, Next: at}
	for {
		if err := c.Err(); err != nil {
			return err
		}
		to, delivering := w.target.Deliver(ctx, batch)
		if to > batch.After {
			if err := c.AckThrough(to); err != nil {
				return err
			}
			retry.Reset()
		}
		w.progress(batch.through(to), max(to, batch.After))
		has := batch.Next > batch.After
		if delivering != nil {
			w.stuck = w.stuck || has
			return delivering
		}
		if has || !w.stuck {
			w.stuck = false
			w.accepted()
		}
		if batch, err = w.next(ctx, c.State().Mark); err != nil {
			return err
		}
	}
}

// next returns what is to be delivered after a position. There are no entries, if nothing happened for a while that the sink wants.
func (w *worker) next(ctx context.Context, at seglog.Position) (*Batch, error) {
	waiting, cancel := context.WithTimeout(ctx, idleEvery)
	defer cancel()
	var notes []string
	entries, next, err := w.sinks.cfg.History.Entries(waiting, history.Question{Match: w.spec.matches, After: at, Limit: w.pace.Entries}, &notes)
	for _, n := range notes {
		w.sinks.log.Error("changes are left out for a sink: the feed cannot read them", "sink", w.spec.Name, "error", n)
	}
	var expired *seglog.ExpiredError
	switch {
	case errors.As(err, &expired):
		return &Batch{After: at, Next: expired.First, Expired: true}, nil
	case err != nil:
		return nil, err
	case ctx.Err() != nil:
		return nil, ctx.Err()
	}
	return &Batch{After: at, Next: next, Entries: entries}, nil
}

// through is how many events of a batch are up to a position.
func (b *Batch) through(to seglog.Position) (n int) {
	if b.Expired && to >= b.Next {
		return 1
	}
	for n < len(b.Entries) && b.Entries[n].Position <= to {
		n++
	}
	return n
}

// progress counts what was accepted.
func (w *worker) progress(events int, at seglog.Position) {
	w.sinks.delivered.WithLabelValues(w.spec.Name).Add(float64(events))
	last, _ := w.sinks.cfg.History.Feed.Log.End()
	w.sinks.behind.WithLabelValues(w.spec.Name).Set(float64(max(last-at, 0)))
	w.mu.Lock()
	defer w.mu.Unlock()
	w.status.Delivered += uint64(events)
	w.status.Position = int64(at)
}

// accepted is called when all of a batch was.
func (w *worker) accepted() {
	w.sinks.up.WithLabelValues(w.spec.Name).Set(1)
	w.mu.Lock()
	again := w.status.Problem != ""
	w.status.Problem, w.status.Since = "", nil
	w.mu.Unlock()
	if again {
		w.sinks.log.Info("a sink of the change feed delivers again", "sink", w.spec.Name)
	}
}

func (w *worker) failed(err error) {
	w.sinks.failures.WithLabelValues(w.spec.Name).Inc()
	w.sinks.up.WithLabelValues(w.spec.Name).Set(0)
	w.mu.Lock()
	first := w.status.Problem == ""
	w.status.Failures++
	w.status.Problem = strings.ReplaceAll(err.Error(), "\n", ": ") // it is a cell of a table
	if first {
		now := w.sinks.cfg.Now().UTC()
		w.status.Since = &now
	}
	at := w.status.Position
	w.mu.Unlock()
	last, _ := w.sinks.cfg.History.Feed.Log.End()
	w.sinks.behind.WithLabelValues(w.spec.Name).Set(float64(max(int64(last)-at, 0)))
	if first {
		w.sinks.log.Warn("a sink of the change feed does not deliver; it is tried again, and nothing is left out", "sink", w.spec.Name, "url", w.spec.Shown(), "error", err)
	}
}
