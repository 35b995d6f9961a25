package kvstorage

import (
	"context"
	"net/http"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/proxima-mesh/proxima/internal/store"
)

// maxCatchUps is how often one watch reads the store's history before it gives up: a
// second time is needed only if the cache lost events while the first was read.
const maxCatchUps = 3

// withHistory is a watch cache whose watches may begin before the cache does. After a
// start the cache knows only what changes from then on, and later only some minutes;
// the store has its history since the last compaction. Such a watch reads the store
// until it is as new as the cache, and is the cache's from there.
type withHistory struct {
	storage.Interface // the watch cache
	bare              *Storage
}

// Watch implements storage.Interface. It differs from the cache's in that a revision
// which the cache no longer has is too old (410) only if the store lacks it, too.
func (h *withHistory) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	cached, err := h.Interface.Watch(ctx, key, opts)
	if err != nil || opts.ResourceVersion == "" || opts.ResourceVersion == "0" {
		return cached, err
	}
	if opts.SendInitialEvents != nil && *opts.SendInitialEvents {
		return cached, nil
	}
	// A refused watch of the cache has its error ready. Any other watch may have an event.
	select {
	case first, ok := <-cached.ResultChan():
		switch {
		case !ok:
			return cached, nil
		case expired(first):
			cached.Stop()
			return h.resume(ctx, key, opts, nil, nil), nil
		}
		return h.resume(ctx, key, opts, cached, &first), nil
	default:
		return cached, nil
	}
}

// expired reports whether an event says that a watch began at a revision that is gone.
func expired(e watch.Event) bool {
	status, ok := e.Object.(*metav1.Status)
	return ok && e.Type == watch.Error && status.Code == http.StatusGone
}

// resumed is one watch that began before the cache. Its goroutine ends with Stop, with
// the context, or with its source.
type resumed struct {
	*withHistory
	key  string
	opts storage.ListOptions

	ctx    context.Context
	cancel context.CancelFunc
	result chan watch.Event
}

// resume starts a watch with the store's history, or, if cached is given, with first and
// then what cached sends.
func (h *withHistory) resume(
	ctx context.Context, key string, opts storage.ListOptions, cached watch.Interface, first *watch.Event,
) watch.Interface {
	r := &resumed{withHistory: h, key: key, opts: opts, result: make(chan watch.Event, resultBuffer)}
	r.ctx, r.cancel = context.WithCancel(ctx)
	go func() {
		defer close(r.result)
		defer r.cancel()
		if first != nil {
			r.send(*first)
		}
		if cached == nil {
			if cached = r.catchUp(); cached == nil {
				return
			}
		}
		defer cached.Stop()
		for e := range r.events(cached) {
			r.send(e)
		}
	}()
	return r
}

// ResultChan implements watch.Interface.
func (r *resumed) ResultChan() <-chan watch.Event { return r.result }

// Stop implements watch.Interface.
func (r *resumed) Stop() { r.cancel() }

// events yields what a source sends until it ends or the watch does.
func (r *resumed) events(source watch.Interface) func(yield func(watch.Event) bool) {
	return func(yield func(watch.Event) bool) {
		for {
			select {
			case <-r.ctx.Done():
				return
			case e, ok := <-source.ResultChan():
				if !ok || !yield(e) {
					return
				}
			}
		}
	}
}

func (r *resumed) send(e watch.Event) {
	select {
	case r.result <- e:
	case <-r.ctx.Done():
	}
}

// catchUp sends the history and returns the watch of the cache that goes on from there; nil
// if this watch has ended.
func (r *resumed) catchUp() watch.Interface {
	for attempt := 1; ; attempt++ {
		if !r.sendHistory() {
			return nil
		}
		cached, err := r.Interface.Watch(r.ctx, r.key, r.opts)
		if err != nil { // the cache starts anew; the client tries again from what it has
			r.send(errorEvent(err))
			return nil
		}
		select {
		case first, ok := <-cached.ResultChan():
			if !ok {
				return nil
			}
			if expired(first) && attempt < maxCatchUps {
				cached.Stop()
				continue
			}
			r.send(first)
		default:
		}
		return cached
	}
}

// sendHistory sends what the store has after the watch's revision, until it is as new as
// the store is now, and moves the watch there. False: the watch has ended.
func (r *resumed) sendHistory() bool {
	now, err := r.bare.store.Revision(r.ctx)
	if err != nil {
		r.send(errorEvent(storageError("watch", r.key, err)))
		return false
	}
	opts := r.opts
	opts.ProgressNotify = true
	source, err := r.bare.Watch(r.ctx, r.key, opts)
	if err != nil {
		r.send(errorEvent(err))
		return false
	}
	defer source.Stop()
	source.(*watcher).requestProgress()
	for e := range r.events(source) {
		if e.Type == watch.Error {
			r.send(e)
			return false
		}
		at, err := r.revision(e)
		if err != nil {
			r.send(errorEvent(apierrors.NewInternalError(err)))
			return false
		}
		if e.Type != watch.Bookmark { // progress, which the client did not ask for
			r.send(e)
		}
		r.opts.ResourceVersion = strconv.FormatInt(int64(at), 10)
		if at >= now {
			return true
		}
	}
	return false
}

func (r *resumed) revision(e watch.Event) (store.Revision, error) {
	obj, err := meta.Accessor(e.Object)
	if err != nil {
		return 0, err
	}
	at, err := r.bare.versioner.ParseResourceVersion(obj.GetResourceVersion())
	return store.Revision(at), err
}
