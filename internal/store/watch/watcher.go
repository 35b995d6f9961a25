package watch

import (
	"context"
	"errors"
	"sync"

	"github.com/proxima-mesh/proxima/internal/store"
)

// errEnded is the cause of a watcher that its owner closed.
var errEnded = errors.New("watcher closed")

// buffered is the capacity of the channel: a burst is read without a context switch per batch.
const buffered = 16

type watcher struct {
	hub    *Hub
	prefix string
	parent context.Context
	ctx    context.Context
	cancel context.CancelCauseFunc
	out    chan store.Batch
	wake   chan struct{}

	// Guarded by hub.mu.
	position store.Revision // everything up to it is delivered
	idle     bool           // waits, and everything published is delivered
	marker   bool           // a marker is requested …
	target   store.Revision // … once position is here

	endMu sync.Mutex
	ended bool
	err   error
}

func newWatcher(ctx context.Context, h *Hub, prefix string, after store.Revision) *watcher {
	w := &watcher{
		hub: h, prefix: prefix, parent: ctx, position: after,
		out: make(chan store.Batch, buffered), wake: make(chan struct{}, 1),
	}
	w.ctx, w.cancel = context.WithCancelCause(ctx)
	return w
}

func (w *watcher) Batches() <-chan store.Batch { return w.out }

func (w *watcher) Progress() {
	w.hub.mu.Lock()
	w.marker, w.target = true, w.hub.revision
	w.hub.mu.Unlock()
	w.signal()
}

func (w *watcher) Err() error {
	w.endMu.Lock()
	defer w.endMu.Unlock()
	if errors.Is(w.err, errEnded) {
		return nil
	}
	return w.err
}

// Close waits for the watcher's goroutine, which never blocks on anything but
// the reader and a context.
func (w *watcher) Close() {
	w.cancel(errEnded)
	w.endMu.Lock()
	if !w.ended {
		w.err = errEnded
	}
	w.endMu.Unlock()
	for range w.out { //nolint:revive // drains until the watcher has ended
	}
}

func (w *watcher) signal() {
	select {
	case w.wake <- struct{}{}:
	default: // a wake-up is pending
	}
}

// run delivers until the watcher ends.
func (w *watcher) run() {
	err := w.deliver()
	w.hub.mu.Lock()
	delete(w.hub.watchers, w)
	w.hub.mu.Unlock()
	w.cancel(err)
	w.endMu.Lock()
	w.ended = true
	if w.err == nil {
		w.err = err
	}
	w.endMu.Unlock()
	close(w.out)
}

func (w *watcher) deliver() error {
	for {
		if w.ctx.Err() != nil {
			return w.reason()
		}
		next := w.hub.next(w)
		switch {
		case next.wait:
			select {
			case <-w.wake:
			case <-w.ctx.Done():
				return w.reason()
			}
			continue
		case next.marker:
			next.batches = []store.Batch{{Revision: next.done}}
		case next.history:
			var err error
			if next, err = w.past(next.done); err != nil {
				return err
			}
		}
		for _, b := range next.batches {
			select {
			case w.out <- b:
			case <-w.ctx.Done():
				return w.reason()
			}
		}
		w.hub.mu.Lock()
		w.position = next.done
		w.hub.mu.Unlock()
	}
}

// past reads the store's history; only this goroutine moves the position while
// the watcher is not idle.
func (w *watcher) past(until store.Revision) (work, error) {
	w.hub.mu.Lock()
	after := w.position
	w.hub.mu.Unlock()
	batches, done, err := w.hub.source.History(w.ctx, w.prefix, after, until)
	if err != nil {
		if w.ctx.Err() != nil {
			return work{}, w.reason()
		}
		return work{}, err
	}
	next := work{done: done}
	for _, b := range batches {
		if cut := w.cut(b, after); len(cut.Events) > 0 {
			next.batches = append(next.batches, cut)
		}
	}
	return next, nil
}

// reason is why the watcher's context ended.
func (w *watcher) reason() error {
	cause := context.Cause(w.ctx)
	if errors.Is(cause, errEnded) || errors.Is(cause, store.ErrClosed) {
		return cause
	}
	if err := w.parent.Err(); err != nil {
		return err
	}
	return cause
}
