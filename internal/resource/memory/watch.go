package memory

import (
	"context"
	"strconv"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/proxima-mesh/proxima/internal/resource"
)

// Watch implements resource.Client. A watch that is more than historyLimit changes behind
// ends with 410 (Expired).
func (c *Client) Watch(ctx context.Context, d *resource.Descriptor, opts resource.WatchOptions) (watch.Interface, error) {
	if err := c.known(d); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	w := &watcher{client: c, kind: d, opts: opts, after: c.revision, expired: c.expired, dropped: c.dropped,
		results: make(chan watch.Event), stop: make(chan struct{})}
	if opts.ResourceVersion == "" {
		w.initial = c.initialEvents(d, opts)
	} else {
		after, err := strconv.ParseUint(opts.ResourceVersion, 10, 64)
		switch {
		case err != nil || after > c.revision:
			return nil, apierrors.NewBadRequest("invalid resource version " + opts.ResourceVersion)
		case !c.has(after):
			return nil, apierrors.NewResourceExpired("resource version " + opts.ResourceVersion + " is too old")
		}
		w.after = after
	}
	go w.run(ctx)
	return w, nil
}

// has reports whether the history has every change after a revision. Callers hold mu.
func (c *Client) has(after uint64) bool {
	return after == c.revision || len(c.history) > 0 && c.history[0].revision <= after+1
}

// Expire forgets the history. All watches end with 410, as if each were too far behind.
func (c *Client) Expire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expired++
	c.history = nil
	c.wake()
}

// Disconnect ends all watches without an error, as a lost connection does.
func (c *Client) Disconnect() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dropped++
	c.wake()
}

// initialEvents are the objects that exist, and the mark that ends them. Callers hold mu.
func (c *Client) initialEvents(d *resource.Descriptor, opts resource.WatchOptions) []watch.Event {
	var events []watch.Event
	for _, obj := range c.objects[d.GVK] {
		if selected(d, opts.ListOptions, obj) {
			events = append(events, watch.Event{Type: watch.Added, Object: clone(obj)})
		}
	}
	mark := d.New()
	mark.SetResourceVersion(format(c.revision))
	mark.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	return append(events, watch.Event{Type: watch.Bookmark, Object: mark})
}

// watcher reads the history at the pace of its reader.
type watcher struct {
	client  *Client
	kind    *resource.Descriptor
	opts    resource.WatchOptions
	initial []watch.Event
	after   uint64
	expired uint64 // of the client when the watch began, as dropped
	dropped uint64
	results chan watch.Event
	stop    chan struct{}
	once    sync.Once
}

// ResultChan implements watch.Interface.
func (w *watcher) ResultChan() <-chan watch.Event { return w.results }

// Stop implements watch.Interface. It is idempotent.
func (w *watcher) Stop() { w.once.Do(func() { close(w.stop) }) }

func (w *watcher) run(ctx context.Context) {
	defer close(w.results)
	for _, event := range w.initial {
		if !w.send(ctx, event) {
			return
		}
	}
	w.initial = nil
	for {
		records, changed, err := w.read()
		if err != nil {
			w.send(ctx, watch.Event{Type: watch.Error, Object: &err.ErrStatus})
		}
		if changed == nil {
			return
		}
		for _, r := range records {
			if event, ok := w.translate(r); ok && !w.send(ctx, event) {
				return
			}
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

// read returns what is new, and the channel that the next change closes; nil if the watch is
// over, with an error if a part of what is new is forgotten. Records are never changed.
func (w *watcher) read() (records []record, changed <-chan struct{}, err *apierrors.StatusError) {
	c := w.client
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case w.expired != c.expired || !c.has(w.after):
		return nil, nil, apierrors.NewResourceExpired("the watch is too far behind")
	case w.dropped != c.dropped:
		return nil, nil, nil
	}
	fresh := int(c.revision - w.after) // the history has no gaps
	w.after = c.revision
	return c.history[len(c.history)-fresh:], c.changed, nil
}

// translate turns a change into what a watch with a selector sees of it.
func (w *watcher) translate(r record) (watch.Event, bool) {
	if r.kind != w.kind.GVK {
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
