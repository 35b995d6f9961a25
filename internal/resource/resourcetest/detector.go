package resourcetest

import (
	"context"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/proxima-mesh/proxima/internal/resource"
)

// Detector finds objects that were changed though a client shares them (resource.ListOptions.Shared). The zero value is
// ready. Safe for concurrent use.
type Detector struct {
	mu   sync.Mutex
	seen map[resource.Object]resource.Object // → what it was
}

// Wrap is a resource.Wrapper that remembers the objects that a client shares.
func (d *Detector) Wrap(c resource.Client) resource.Client { return &detecting{c, d} }

// Check that all objects are what they were, and return how many there are. Call it when nobody writes any more; who writes an
// object meanwhile is found by the race detector.
func (d *Detector) Check(t testing.TB) int {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	for obj, was := range d.seen {
		if !equality.Semantic.DeepEqual(obj, was) {
			t.Errorf("a shared %T was changed:\n%s", obj, cmp.Diff(was, obj))
		}
	}
	return len(d.seen)
}

func (d *Detector) see(obj resource.Object) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.seen == nil {
		d.seen = map[resource.Object]resource.Object{}
	}
	if d.seen[obj] == nil {
		d.seen[obj] = obj.DeepCopyObject().(resource.Object)
	}
}

type detecting struct {
	resource.Client
	*Detector
}

// List implements resource.Client.
func (d *detecting) List(ctx context.Context, kind *resource.Descriptor, opts resource.ListOptions) ([]resource.Object, string, error) {
	list, version, err := d.Client.List(ctx, kind, opts)
	if opts.Shared {
		for _, obj := range list {
			d.see(obj)
		}
	}
	return list, version, err
}

// Watch implements resource.Client.
func (d *detecting) Watch(ctx context.Context, kind *resource.Descriptor, opts resource.WatchOptions) (watch.Interface, error) {
	w, err := d.Client.Watch(ctx, kind, opts)
	if err != nil || !opts.Shared {
		return w, err
	}
	return resource.MapWatch(w, func(e watch.Event) (watch.Event, bool) {
		if obj, ok := e.Object.(resource.Object); ok && e.Type != watch.Bookmark {
			d.see(obj)
		}
		return e, true
	}), nil
}
