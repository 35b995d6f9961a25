// Package watch delivers the history of a store to its watchers, so that every
// store does it in the same way.
//
// It owns the watchers and a bounded list of recent batches. Enter at Hub: the
// store publishes each batch once it is durable, the hub does the rest. A
// watcher that fell behind the recent batches reads the store's history by
// itself, at its own pace. Publishing never waits for a reader, and the package
// never decides what is compacted.
package watch

import (
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/proxima-mesh/proxima/internal/store"
)

// Source is the store's own history, for watchers that the hub's recent batches
// no longer serve.
type Source interface {
	// History returns batches in order that have events after `after`, up to and
	// including `until`. It may return whole batches and foreign keys; the hub
	// cuts both. It may stop early, as long as it makes progress: done is the
	// revision up to which the answer is complete. Errors: store.ErrCompacted if
	// the events right after `after` are gone. The hub's lock is not held.
	History(ctx context.Context, prefix string, after, until store.Revision) (batches []store.Batch, done store.Revision, err error)
}

// Limits bound what a hub keeps in memory. Zero values keep nothing.
type Limits struct {
	// Events is the number of recent events kept.
	Events int
	// Bytes of keys and values in recent events, counted roughly.
	Bytes int
}

// Hub connects one store to its watchers. Safe for concurrent use, except that
// the caller of Publish orders its calls.
type Hub struct {
	source Source
	limits Limits

	mu       sync.Mutex
	revision store.Revision
	recent   []store.Batch
	floor    store.Revision // recent has everything after this revision
	events   int
	bytes    int
	watchers map[*watcher]struct{}
	awaited  chan struct{} // closed by the next Publish; nil: no waiter
	closed   bool
	running  sync.WaitGroup
}

// NewHub starts at a revision; what is older comes from source.
func NewHub(source Source, revision store.Revision, limits Limits) *Hub {
	return &Hub{source: source, limits: limits, revision: revision, floor: revision, watchers: make(map[*watcher]struct{})}
}

// Revision is the newest published revision.
func (h *Hub) Revision() store.Revision {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.revision
}

// Publish announces a durable batch that follows the one before without a gap.
// The batch and its records must not change any more. Does not block.
func (h *Hub) Publish(batch store.Batch) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.keep(batch)
	before := h.revision
	h.revision = batch.Revision
	if h.awaited != nil {
		close(h.awaited)
		h.awaited = nil
	}
	for w := range h.watchers {
		// A watcher that is up to date and matches none of this stays asleep.
		if w.idle && w.position == before && !slices.ContainsFunc(batch.Events, w.matches) {
			w.position = batch.Revision
			continue
		}
		w.signal()
	}
}

// Advance announces that nothing changed up to a revision, for a store whose
// revisions have gaps. Ordered like Publish. Does not block.
func (h *Hub) Advance(revision store.Revision) {
	h.mu.Lock()
	defer h.mu.Unlock()
	before := h.revision
	if revision <= before {
		return
	}
	h.revision = revision
	if h.awaited != nil {
		close(h.awaited)
		h.awaited = nil
	}
	for w := range h.watchers {
		if w.idle && w.position == before {
			w.position = revision
			continue
		}
		w.signal()
	}
}

// Skip announces history up to a revision without its batches, for a store whose
// history another process moves on: watchers read it from the source, or end if
// it is compacted. Ordered like Publish. Does not block.
func (h *Hub) Skip(revision store.Revision) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.recent, h.events, h.bytes = nil, 0, 0
	h.revision, h.floor = revision, revision
	if h.awaited != nil {
		close(h.awaited)
		h.awaited = nil
	}
	for w := range h.watchers {
		w.signal()
	}
}

// Await blocks until a revision is published. A store calls it when a reader got
// ahead of the hub, so that what was read can be watched from.
func (h *Hub) Await(ctx context.Context, revision store.Revision) error {
	for {
		h.mu.Lock()
		if h.revision >= revision {
			h.mu.Unlock()
			return nil
		}
		if h.closed {
			h.mu.Unlock()
			return store.ErrClosed
		}
		if h.awaited == nil {
			h.awaited = make(chan struct{})
		}
		awaited := h.awaited
		h.mu.Unlock()
		select {
		case <-awaited:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (h *Hub) keep(batch store.Batch) {
	h.recent = append(h.recent, batch)
	h.events += len(batch.Events)
	h.bytes += weight(batch)
	for len(h.recent) > 0 && (h.events > h.limits.Events || h.bytes > h.limits.Bytes) {
		oldest := h.recent[0]
		h.floor = oldest.Revision
		h.events -= len(oldest.Events)
		h.bytes -= weight(oldest)
		h.recent[0] = store.Batch{} // let the values go before the array does
		h.recent = h.recent[1:]
	}
}

// weight counts a previous value too: it may be the last reference to it.
func weight(batch store.Batch) int {
	n := 0
	for _, e := range batch.Events {
		n += len(e.Record.Key) + len(e.Record.Value)
		if e.Prev != nil {
			n += len(e.Prev.Value)
		}
	}
	return n
}

// Watch starts a watcher. Errors: store.ErrFuture, store.ErrClosed, and the
// context's. The store checks its compaction before.
func (h *Hub) Watch(ctx context.Context, prefix string, after store.Revision) (store.Watcher, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, store.ErrClosed
	}
	if after > h.revision {
		return nil, store.ErrFuture
	}
	w := newWatcher(ctx, h, prefix, after)
	h.watchers[w] = struct{}{}
	h.running.Add(1)
	go func() {
		defer h.running.Done()
		w.run()
	}()
	return w, nil
}

// Close ends all watchers with store.ErrClosed and waits until they are gone.
// Idempotent.
func (h *Hub) Close() {
	h.mu.Lock()
	h.closed = true
	for w := range h.watchers {
		w.cancel(store.ErrClosed)
	}
	if h.awaited != nil {
		close(h.awaited)
		h.awaited = nil
	}
	h.mu.Unlock()
	h.running.Wait()
}

// chunk bounds what a watcher takes at once, so that the hub's lock is held
// shortly and a slow reader pins little memory.
const chunk = 128

// work is what a watcher does next.
type work struct {
	batches []store.Batch  // to deliver
	done    store.Revision // position after that
	marker  bool           // deliver a progress marker
	history bool           // ask the source, up to done
	wait    bool           // nothing to do
}

func (h *Hub) next(w *watcher) work {
	h.mu.Lock()
	defer h.mu.Unlock()
	w.idle = false
	switch {
	case w.marker && w.position >= w.target:
		w.marker = false
		return work{done: w.position, marker: true}
	case w.position >= h.revision:
		w.idle = true
		return work{wait: true}
	case w.position < h.floor:
		return work{history: true, done: h.revision}
	}
	first, _ := slices.BinarySearchFunc(h.recent, w.position, func(b store.Batch, position store.Revision) int {
		if b.Revision <= position {
			return -1
		}
		return 1
	})
	next := work{done: h.revision}
	for _, b := range h.recent[first:] {
		if len(next.batches) == chunk {
			break
		}
		next.done = b.Revision
		if cut := w.cut(b, w.position); len(cut.Events) > 0 {
			next.batches = append(next.batches, cut)
		}
	}
	return next
}

func (w *watcher) matches(e store.Event) bool { return strings.HasPrefix(e.Record.Key, w.prefix) }

// cut returns the events of a batch that match the watcher and were not yet delivered.
func (w *watcher) cut(b store.Batch, after store.Revision) store.Batch {
	events := b.Events
	for len(events) > 0 && events[0].Record.Modified <= after {
		events = events[1:]
	}
	for i := range events {
		if w.matches(events[i]) {
			continue
		}
		matched := slices.Clone(events[:i])
		for _, e := range events[i+1:] {
			if w.matches(e) {
				matched = append(matched, e)
			}
		}
		return store.Batch{Events: matched, Revision: b.Revision}
	}
	return store.Batch{Events: events, Revision: b.Revision}
}
