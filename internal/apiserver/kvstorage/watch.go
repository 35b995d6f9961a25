package kvstorage

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"

	"github.com/proxima-mesh/proxima/internal/store"
)

const (
	// resultBuffer is how many events wait for the client. When it is full the
	// watch stops reading the store, which falls back to history by itself.
	resultBuffer = 100
	// initialPage bounds how many objects one read of the initial state returns.
	initialPage = 1000
	// futureRetrySeconds is the Retry-After for a revision that this instance has not
	// reached yet.
	futureRetrySeconds = 1
)

// watcher is one watch. Its goroutine ends with Stop, with the context, or with
// the first error, which is the last event.
type watcher struct {
	*Storage
	key       string
	recursive bool
	progress  bool
	bookmark  bool // one after the initial events
	initial   bool // send what exists first
	cache     bool // the watch cache has what is sent
	pred      storage.SelectionPredicate
	after     store.Revision

	ctx    context.Context
	cancel context.CancelFunc
	result chan watch.Event
	nudge  chan struct{} // holds one request for progress
}

// Watch implements storage.Interface. Errors of the store, compaction among
// them, arrive as an event, as clients expect.
func (s *Storage) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	key, err := s.fullKey(key, opts.Recursive)
	if err != nil {
		return nil, err
	}
	rv, err := s.versioner.ParseResourceVersion(opts.ResourceVersion)
	if err != nil {
		return nil, err
	}
	w := &watcher{
		Storage:   s,
		key:       key,
		recursive: opts.Recursive,
		progress:  opts.ProgressNotify,
		cache:     opts.RecordTimestamps,
		pred:      opts.Predicate,
		after:     store.Revision(rv),
		result:    make(chan watch.Event, resultBuffer),
		nudge:     make(chan struct{}, 1),
	}
	if initial := opts.SendInitialEvents; initial != nil {
		w.initial = *initial
		w.bookmark = *initial && opts.Predicate.AllowWatchBookmarks
	} else {
		w.initial = rv == 0
	}
	if rv == 0 && !w.initial {
		// "From now" is this moment, not the one at which the goroutine runs.
		if w.after, err = s.store.Revision(ctx); err != nil {
			return nil, storageError("watch", key, err)
		}
	}
	w.ctx, w.cancel = context.WithCancel(ctx)
	go w.run()
	return w, nil
}

// ResultChan implements watch.Interface.
func (w *watcher) ResultChan() <-chan watch.Event { return w.result }

// Stop implements watch.Interface. Events already in the channel can be read.
func (w *watcher) Stop() { w.cancel() }

// requestProgress never blocks; one pending request stands for all.
func (w *watcher) requestProgress() {
	select {
	case w.nudge <- struct{}{}:
	default:
	}
}

func (w *watcher) run() {
	defer close(w.result)
	defer w.cancel()
	if w.progress {
		w.follow()
		defer w.unfollow()
	}
	if err := w.pump(); err != nil && w.ctx.Err() == nil {
		w.send(errorEvent(err))
	}
}

func (w *watcher) follow() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.followers[w] = struct{}{}
}

func (w *watcher) unfollow() {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.followers, w)
}

// pump sends the initial events and then changes until something ends it.
func (w *watcher) pump() error {
	if w.cache {
		w.written.follow(1)
		defer w.written.follow(-1)
	}
	if w.initial {
		if w.cache {
			w.kept.reset()
		}
		if err := w.sendInitial(); err != nil {
			return err
		}
	}
	source, err := w.store.Watch(w.ctx, w.key, w.after)
	if err != nil {
		return fmt.Errorf("watch %s: %w", w.key, err)
	}
	defer source.Close()
	utilflowcontrol.WatchInitialized(w.ctx)

	var tick <-chan time.Time
	if w.progress {
		ticker := time.NewTicker(w.progressInterval)
		defer ticker.Stop()
		tick = ticker.C
	}
	for {
		select {
		case <-w.ctx.Done():
			return nil
		case <-tick:
			source.Progress()
		case <-w.nudge:
			source.Progress()
		case batch, ok := <-source.Batches():
			if !ok {
				return source.Err()
			}
			if err := w.deliver(batch); err != nil {
				return err
			}
		}
	}
}

// sendInitial sends what exists as ADDED, at one revision, and goes on from it.
func (w *watcher) sendInitial() (err error) {
	defer func() { w.noteList(w.key, false, false, err) }()
	if w.after > 0 {
		now, err := w.store.Revision(w.ctx)
		if err != nil {
			return err
		}
		if w.after > now {
			return storage.NewTooLargeResourceVersionError(uint64(w.after), uint64(now), futureRetrySeconds)
		}
	}
	opts := store.ListOptions{Prefix: w.key, Limit: initialPage}
	for more := true; more; {
		page, err := w.store.List(w.ctx, opts)
		if err != nil {
			return fmt.Errorf("list %s: %w", w.key, err)
		}
		for _, rec := range page.Records {
			if !w.covers(rec.Key) {
				continue
			}
			if err := w.emit(store.Event{Kind: store.Put, Record: rec}, true); err != nil {
				return err
			}
		}
		if more = page.More; more {
			opts.From = page.Records[len(page.Records)-1].Key + "\x00"
		}
		opts.At, w.after = page.Revision, page.Revision
	}
	if w.bookmark {
		return w.sendBookmark(w.after, true)
	}
	return nil
}

// covers leaves out keys that only share their beginning with the one watched.
func (w *watcher) covers(key string) bool { return w.recursive || key == w.key }

func (w *watcher) deliver(batch store.Batch) error {
	var last store.Revision
	for _, e := range batch.Events {
		last = e.Record.Modified
		if !w.covers(e.Record.Key) {
			continue
		}
		if err := w.emit(e, false); err != nil {
			return err
		}
	}
	if w.progress && batch.Revision > last {
		return w.sendBookmark(batch.Revision, false)
	}
	return nil
}

// emit sends one change as this watch's selector sees it: an object that comes
// into the selection is ADDED, one that leaves it is DELETED.
func (w *watcher) emit(e store.Event, initial bool) error {
	rev := e.Record.Modified
	var now, before runtime.Object
	var err error
	if e.Kind == store.Put {
		if now, err = w.decoded(e.Record); err != nil {
			return err
		}
		w.compact(now)
	}
	deleted := e.Kind == store.Delete
	if e.Prev != nil && (deleted || !w.pred.Empty()) {
		// The last state goes out at the revision at which it ended.
		before, err = w.decodeNew(w.ctx, e.Record.Key, e.Prev.Value, rev)
		var corrupt *CorruptError
		if deleted && errors.As(err, &corrupt) {
			return &corruptDeletionError{corrupt}
		}
		if err != nil {
			return err
		}
	}
	isIn, wasIn := w.selects(now), w.selects(before)
	if e.Prev != nil && !deleted && w.pred.Empty() {
		wasIn = true // not decoded, as everything is selected
	}
	switch {
	case isIn && wasIn:
		w.sendObject(watch.Modified, now, initial)
	case isIn:
		w.sendObject(watch.Added, now, initial)
	case wasIn:
		w.sendObject(watch.Deleted, before, initial)
	}
	return nil
}

// decoded is the object of a record, which nobody else has.
func (w *watcher) decoded(r store.Record) (runtime.Object, error) {
	if w.cache {
		if obj := w.written.take(r.Key, r.Value); obj != nil {
			return obj, w.versioner.UpdateObject(obj, uint64(r.Modified))
		}
	}
	return w.decodeNew(w.ctx, r.Key, r.Value, r.Modified)
}

// sendObject sends what became of an object, and sees to what the watch cache has.
func (w *watcher) sendObject(t watch.EventType, obj runtime.Object, initial bool) {
	if w.cache {
		if t == watch.Deleted {
			w.kept.remove(obj)
		} else {
			w.kept.set(obj)
		}
		if !initial {
			obj = w.age(obj)
		}
	}
	w.send(watch.Event{Type: t, Object: obj})
}

func (w *watcher) selects(obj runtime.Object) bool {
	if obj == nil {
		return false
	}
	if w.pred.Empty() {
		return true
	}
	ok, err := w.pred.Matches(obj)
	return err == nil && ok
}

func (w *watcher) sendBookmark(rev store.Revision, endOfInitial bool) error {
	obj := w.newFunc()
	if err := w.versioner.UpdateObject(obj, uint64(rev)); err != nil {
		return fmt.Errorf("bookmark of %s: %w", w.key, err)
	}
	if endOfInitial {
		if err := storage.AnnotateInitialEventsEndBookmark(obj); err != nil {
			return fmt.Errorf("bookmark of %s: %w", w.key, err)
		}
	}
	w.send(watch.Event{Type: watch.Bookmark, Object: obj})
	return nil
}

// send blocks until the client takes the event or the watch ends.
func (w *watcher) send(e watch.Event) {
	select {
	case w.result <- e:
	case <-w.ctx.Done():
	}
}

// corruptDeletionError ends a watch that cannot determine which object was deleted.
type corruptDeletionError struct{ err *CorruptError }

func (e *corruptDeletionError) Error() string {
	return fmt.Sprintf("saw a DELETED event, but object data is corrupt - %v", e.err)
}

// errorEvent reports to the client why its watch ends. The status decides whether the
// client resumes at the same revision (503, 500) or lists again (410).
func errorEvent(err error) watch.Event {
	var status *apierrors.StatusError
	var corrupt *corruptDeletionError
	var unreadable *unreadableError
	switch {
	case errors.As(err, &status):
	case errors.As(err, &corrupt):
		status = &apierrors.StatusError{ErrStatus: metav1.Status{
			Status:  metav1.StatusFailure,
			Code:    http.StatusInternalServerError,
			Reason:  metav1.StatusReasonStoreReadError,
			Message: corrupt.Error(),
		}}
	case errors.Is(err, store.ErrCompacted):
		status = apierrors.NewResourceExpired(watchExpired)
	case errors.Is(err, store.ErrFuture):
		// A revision that this history never reached comes from another history.
		// Waiting for it would skip changes; listing again is always correct.
		status = apierrors.NewResourceExpired(watchFuture)
	case errors.Is(err, store.ErrClosed):
		status = apierrors.NewServiceUnavailable(err.Error())
	default:
		if err = public(err); errors.As(internalError(err), &unreadable) {
			status = &apierrors.StatusError{ErrStatus: unreadable.Status()}
			break
		}
		status = apierrors.NewInternalError(err)
	}
	return watch.Event{Type: watch.Error, Object: &status.ErrStatus}
}
