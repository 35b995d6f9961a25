// Package cached is a resource.Client that reads from memory.
//
// It owns an index for each of the kinds that it is given, kept up to date by a reflector.
// Enter at New, and run Run. Writes, and reads of other kinds, go to the client underneath;
// so do reads while an index is not synced. So it is never wrong, only slower.
//
// # What a read promises
//
// A read of a kind shows everything that this client's writes of that kind, watches of it
// through this client, and reads that the server answered, have shown any caller before: what
// came back from a write or a read, and what an event contained, goes into the index at once if
// the watch has not delivered it yet. Newer writes of others come with the watch, a moment
// later.
//
// That is enough for callers that read, decide and write on condition of the resource version
// that they read: a decision on an old state is a conflict. It is not enough to find out that
// something is absent, or what other kinds' events imply; for that read from the client
// underneath.
package cached

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/reflector"
)

// Config of a Client.
type Config struct {
	// Client underneath.
	Client resource.Client
	// Kinds that are read from memory. Each costs the memory of its objects.
	Kinds  []*resource.Descriptor
	Logger *slog.Logger
	// Registerer of the metrics; nil: they are not registered.
	Registerer prometheus.Registerer
}

// Client implements resource.Client. Objects that it returns belong to the
// caller.
type Client struct {
	inner resource.Client
	log   *slog.Logger
	kinds map[schema.GroupVersionKind]*index
	// reflectors keep the indexes up to date, one each.
	reflectors []*reflector.Reflector
	reads      *prometheus.Desc
}

var _ resource.Client = (*Client)(nil)

// New makes a client, which reads from the client underneath until Run has read the
// kinds. It panics if another one has the Registerer.
func New(cfg Config) *Client {
	c := &Client{
		inner: cfg.Client, log: cfg.Logger, kinds: map[schema.GroupVersionKind]*index{},
		reads: prometheus.NewDesc("proxima_resource_cached_reads_total",
			"Reads of kinds that are kept in memory, by whether memory (hit) or the server (miss) answered.", []string{"resource", "answer"}, nil),
	}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	for _, d := range cfg.Kinds {
		ix := newIndex(d)
		reflector := c.newReflector(ix)
		ix.relist = reflector.Relist
		c.kinds[d.GVK] = ix
		c.reflectors = append(c.reflectors, reflector)
	}
	if cfg.Registerer != nil {
		cfg.Registerer.MustRegister(collector{c})
	}
	return c
}

// Reads of a kind so far, that memory answered and that the server did. Both are
// 0 for a kind that is not in memory.
func (c *Client) Reads(kind *resource.Descriptor) (hits, misses uint64) {
	ix := c.indexOf(kind)
	if ix == nil {
		return 0, 0
	}
	return ix.hits.Load(), ix.misses.Load()
}

// collector reads the counters when metrics are collected.
type collector struct{ *Client }

// Describe implements prometheus.Collector.
func (c collector) Describe(to chan<- *prometheus.Desc) { to <- c.reads }

// Collect implements prometheus.Collector.
func (c collector) Collect(to chan<- prometheus.Metric) {
	for _, ix := range c.kinds {
		to <- prometheus.MustNewConstMetric(c.reads, prometheus.CounterValue, float64(ix.hits.Load()), ix.kind.Resource, "hit")
		to <- prometheus.MustNewConstMetric(c.reads, prometheus.CounterValue, float64(ix.misses.Load()), ix.kind.Resource, "miss")
	}
}

// Run keeps the indexes up to date until ctx ends, and returns nil then.
func (c *Client) Run(ctx context.Context) error {
	var running sync.WaitGroup
	for _, r := range c.reflectors {
		running.Go(func() { _ = r.Run(ctx) })
	}
	running.Wait()
	return nil
}

// Delays between attempts to watch a kind.
const (
	watchRetry    = 50 * time.Millisecond
	watchRetryMax = 5 * time.Second
)

// newReflector makes what keeps an index up to date.
func (c *Client) newReflector(ix *index) *reflector.Reflector {
	return reflector.New(reflector.Config{
		Client:       c.inner,
		Kind:         ix.kind,
		Select:       resource.ListOptions{Shared: true}, // see entry
		AlwaysRelist: true,                               // see index.disconnected
		Backoff:      backoff.Policy{First: watchRetry, Last: watchRetryMax},
		Logger:       c.log,
		Level:        slog.LevelDebug,
	}, func(e reflector.Event) error {
		switch e.Type {
		case reflector.Disconnected:
			ix.disconnected()
			return nil
		case reflector.Replace:
			return ix.replace(e.Objects, e.Version)
		default:
			return ix.apply(e)
		}
	})
}

// Get implements resource.Client.
func (c *Client) Get(ctx context.Context, kind *resource.Descriptor, key resource.Key) (resource.Object, error) {
	ix := c.indexOf(kind)
	if ix == nil {
		return c.inner.Get(ctx, kind, key)
	}
	obj, ok := ix.get(key)
	if !ok {
		ix.misses.Add(1)
		obj, err := c.inner.Get(ctx, kind, key)
		switch {
		case err == nil:
			ix.observe(watch.Modified, obj)
		case apierrors.IsNotFound(err):
			ix.observeAbsent(key)
		}
		return obj, err
	}
	ix.hits.Add(1)
	if obj == nil {
		return nil, apierrors.NewNotFound(kind.GroupResource(), key.Name)
	}
	return clone(obj), nil
}

// List implements resource.Client. A watch from the version that it returns may
// deliver again what the list shows.
func (c *Client) List(ctx context.Context, kind *resource.Descriptor, opts resource.ListOptions) ([]resource.Object, string, error) {
	ix := c.indexOf(kind)
	if ix == nil {
		return c.inner.List(ctx, kind, opts)
	}
	objects, version, ok := ix.list(func(obj resource.Object) bool {
		return (opts.Namespace == "" || obj.GetNamespace() == opts.Namespace) &&
			(opts.Labels == nil || opts.Labels.Matches(labels.Set(obj.GetLabels())))
	})
	if !ok {
		ix.misses.Add(1)
		objects, version, err := c.inner.List(ctx, kind, opts)
		if err == nil {
			ix.observeList(version)
		}
		return objects, version, err
	}
	ix.hits.Add(1)
	for i, obj := range objects {
		objects[i] = clone(obj)
	}
	slices.SortFunc(objects, func(a, b resource.Object) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
	return objects, version, nil
}

// Watch implements resource.Client: a watch of the client underneath, whose
// events are in the index before a caller sees them.
func (c *Client) Watch(ctx context.Context, kind *resource.Descriptor, opts resource.WatchOptions) (watch.Interface, error) {
	w, err := c.inner.Watch(ctx, kind, opts)
	ix := c.indexOf(kind)
	if err != nil || ix == nil {
		return w, err
	}
	// With a selector DELETED may mean that the object is no longer selected.
	selective := opts.Labels != nil && !opts.Labels.Empty()
	return newTap(w, func(event watch.Event, stopped <-chan struct{}) {
		obj, ok := event.Object.(resource.Object)
		switch {
		case !ok || event.Type == watch.Bookmark:
		case event.Type == watch.Deleted && selective:
			ix.await(obj, stopped)
		default:
			ix.observe(event.Type, obj)
		}
	}), nil
}

// Create implements resource.Client.
func (c *Client) Create(ctx context.Context, kind *resource.Descriptor, obj resource.Object) (resource.Object, error) {
	out, err := c.inner.Create(ctx, kind, obj)
	return c.written(kind, out, err)
}

// Update implements resource.Client.
func (c *Client) Update(ctx context.Context, kind *resource.Descriptor, obj resource.Object) (resource.Object, error) {
	out, err := c.inner.Update(ctx, kind, obj)
	return c.written(kind, out, err)
}

// UpdateStatus implements resource.Client.
func (c *Client) UpdateStatus(ctx context.Context, kind *resource.Descriptor, obj resource.Object) (resource.Object, error) {
	out, err := c.inner.UpdateStatus(ctx, kind, obj)
	return c.written(kind, out, err)
}

func (c *Client) written(kind *resource.Descriptor, obj resource.Object, err error) (resource.Object, error) {
	if err != nil {
		return nil, err
	}
	if ix := c.indexOf(kind); ix != nil {
		ix.observe(watch.Modified, obj)
	}
	return obj, nil
}

// deleteTries bounds how often an object may be replaced by another of its name
// while it is deleted.
const deleteTries = 5

// Delete implements resource.Client. Of kinds in memory it reads the object before and after:
// the answer to a deletion does not show what became of the object.
func (c *Client) Delete(ctx context.Context, kind *resource.Descriptor, key resource.Key, pre resource.Preconditions) error {
	ix := c.indexOf(kind)
	if ix == nil {
		return c.inner.Delete(ctx, kind, key, pre)
	}
	for try := 1; ; try++ {
		before, err := c.inner.Get(ctx, kind, key)
		if err != nil {
			return err
		}
		exact := pre
		if exact.UID == "" {
			exact.UID = before.GetUID()
		}
		err = c.inner.Delete(ctx, kind, key, exact)
		if apierrors.IsConflict(err) && pre.UID == "" && pre.ResourceVersion == "" && try < deleteTries {
			continue // another object took the name
		}
		if err != nil {
			return err
		}
		return c.deleted(context.WithoutCancel(ctx), ix, key, before)
	}
}

// deleted notes what a deletion left: nothing, or an object that is terminating.
func (c *Client) deleted(ctx context.Context, ix *index, key resource.Key, before resource.Object) error {
	ctx, cancel := context.WithTimeout(ctx, watchRetryMax)
	defer cancel()
	after, err := c.inner.Get(ctx, ix.kind, key)
	switch {
	case err == nil:
		if after.GetUID() != before.GetUID() {
			ix.gone(before)
		}
		ix.observe(watch.Modified, after)
	case apierrors.IsNotFound(err):
		ix.gone(before)
	default:
		ix.needsResync() // it is deleted; a new list shows what exists now
	}
	return nil
}

func (c *Client) indexOf(kind *resource.Descriptor) *index {
	return c.kinds[kind.GVK]
}

func clone(obj resource.Object) resource.Object { return obj.DeepCopyObject().(resource.Object) }
