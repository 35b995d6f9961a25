package resourcetest

import (
	"context"
	"strconv"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/proxima-mesh/proxima/internal/resource"
)

// Watch implements resource.Client.
func (c *Client) Watch(ctx context.Context, d *resource.Descriptor, opts resource.WatchOptions) (watch.Interface, error) {
	if err := c.ask(Call{Verb: Watch, Kind: d.GVK}); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	w := &watcher{client: c, kind: d, opts: opts, after: c.revision, dropped: c.dropped, expired: c.expired,
		results: make(chan watch.Event), stop: make(chan struct{})}
	if opts.ResourceVersion != "" {
		after, err := strconv.ParseUint(opts.ResourceVersion, 10, 64)
		if err != nil {
			return nil, apierrors.NewBadRequest("invalid resource version " + opts.ResourceVersion)
		}
		if after < c.compacted {
			return nil, apierrors.NewResourceExpired("resource version " + opts.ResourceVersion + " is too old")
		}
		w.after = after
	} else {
		w.initial = c.initialEvents(d, opts)
	}
	go w.run(ctx)
	return w, nil
}

// initialEvents are the objects that exist, and the mark that ends them.
func (c *Client) initialEvents(d *resource.Descriptor, opts resource.WatchOptions) []watch.Event {
	var events []watch.Event
	for _, obj := range c.objects[d.GVK.GroupKind()] {
		if selected(d, opts.ListOptions, obj) {
			events = append(events, watch.Event{Type: watch.Added, Object: clone(obj)})
		}
	}
	mark := d.New()
	mark.SetResourceVersion(format(c.revision))
	mark.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	return append(events, watch.Event{Type: watch.Bookmark, Object: mark})
}

// watcher reads the client's history at its reader's pace.
type watcher struct {
	client  *Client
	kind    *resource.Descriptor
	opts    resource.WatchOptions
	initial []watch.Event
	after   uint64
	dropped uint64
	expired uint64
	results chan watch.Event
	stop    chan struct{}
	once    sync.Once
}

func (w *watcher) ResultChan() <-chan watch.Event { return w.results }
func (w *watcher) Stop()                          { w.once.Do(func() { close(w.stop) }) }

func (w *watcher) run(ctx context.Context) {
	defer close(w.results)
	for _, event := range w.initial {
		if !w.send(ctx, event) {
			return
		}
	}
	for {
		records, changed, end := w.read()
		for _, r := range records {
			if event, ok := w.translate(r); ok && !w.send(ctx, event) {
				return
			}
		}
		if end != nil {
			w.send(ctx, *end)
		}
		if changed == nil {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		case <-w.stop:
			return
		}
	}
}

// read returns what is new and the channel that signals more; nil if the watch
// is over, with the event to end it.
func (w *watcher) read() (records []record, changed <-chan struct{}, end *watch.Event) {
	c := w.client
	c.mu.Lock()
	defer c.mu.Unlock()
	if w.after < c.compacted || w.expired != c.expired {
		status := apierrors.NewResourceExpired("history is gone").Status()
		return nil, nil, &watch.Event{Type: watch.Error, Object: &status}
	}
	if w.dropped != c.dropped {
		return nil, nil, nil
	}
	for i := len(c.history); i > 0 && c.history[i-1].revision > w.after; i-- {
		records = c.history[i-1:]
	}
	w.after = c.revision
	return records, c.changed, nil
}

// translate turns a change into what a watch with a selector sees of it.
func (w *watcher) translate(r record) (watch.Event, bool) {
	if r.kind != w.kind.GVK.GroupKind() {
		return watch.Event{}, false
	}
	was := r.prev != nil && selected(w.kind, w.opts.ListOptions, r.prev)
	is := r.event != watch.Deleted && selected(w.kind, w.opts.ListOptions, r.obj)
	event := watch.Event{Type: watch.Modified, Object: clone(r.obj)}
	switch {
	case !was && !is:
		return watch.Event{}, false
	case !was:
		event.Type = watch.Added
	case !is:
		event.Type = watch.Deleted
	}
	return event, true
}

func (w *watcher) send(ctx context.Context, event watch.Event) bool {
	select {
	case w.results <- event:
		return true
	case <-ctx.Done():
		return false
	case <-w.stop:
		return false
	}
}
