package local

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/clock"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// retryPolicy of a watch that breaks.
var retryPolicy = backoff.Policy{First: 100 * time.Millisecond, Last: 5 * time.Second, Jitter: 0.5}

// handler receives the objects of a kind. A revision is the kind's: what was handled up
// to it is complete.
type handler struct {
	// replace: these are all objects.
	replace func(objects []resource.Object, revision uint64) error
	// change: one object has changed, or is gone in this last state; nil: only the
	// revision has moved.
	change func(obj resource.Object, removed bool, revision uint64) error
	// broken: the watch has ended with err, and will be started again.
	broken func(err error)
}

// errRelist ends a watch so that all objects are listed again.
var errRelist = errors.New("to be listed again")

// relistPause between two lists that relist asks for.
const relistPause = time.Second

// follow keeps a handler up with a kind until ctx ends. A watch that breaks is resumed
// at its revision; where that is too old, and when relist has an entry, all objects are
// listed again. relist may be nil.
func follow(ctx context.Context, clk clock.Clock, client resource.Client, kind *resource.Descriptor, relist <-chan struct{}, h handler) {
	retry := backoff.Backoff{Policy: retryPolicy}
	var from *uint64 // nil: to be listed
	var relisted time.Time
	for ctx.Err() == nil {
		began := clk.Now()
		var err error
		from, err = followOnce(ctx, client, kind, from, relist, h)
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errRelist) {
			if !relisted.IsZero() {
				backoff.SleepBy(ctx, clk, relistPause-clk.Since(relisted))
			}
			relisted = clk.Now()
			continue
		}
		if h.broken != nil {
			h.broken(err)
		}
		if clk.Since(began) > retryPolicy.Last {
			retry.Reset()
		}
		backoff.SleepBy(ctx, clk, retry.Next())
	}
}

// followOnce watches from a revision, or lists first. It returns where to go on, and why
// the watch ended.
func followOnce(
	ctx context.Context, client resource.Client, kind *resource.Descriptor, from *uint64, relist <-chan struct{}, h handler,
) (*uint64, error) {
	if from == nil {
		objects, version, err := client.List(ctx, kind, resource.ListOptions{})
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", kind.Resource, err)
		}
		revision, err := parseRevision(version)
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", kind.Resource, err)
		}
		if err := h.replace(objects, revision); err != nil {
			return nil, err
		}
		from = &revision
	}
	w, err := client.Watch(ctx, kind, resource.WatchOptions{ResourceVersion: strconv.FormatUint(*from, 10)})
	if err != nil {
		return unlessExpired(from, err), fmt.Errorf("watch %s: %w", kind.Resource, err)
	}
	defer w.Stop()
	for {
		var event watch.Event
		var open bool
		select {
		case <-ctx.Done():
			return from, ctx.Err()
		case <-relist:
			return nil, errRelist
		case event, open = <-w.ResultChan():
		}
		if !open {
			return from, fmt.Errorf("watch of %s ended", kind.Resource)
		}
		if event.Type == watch.Error {
			err := apierrors.FromObject(event.Object)
			return unlessExpired(from, err), fmt.Errorf("watch %s: %w", kind.Resource, err)
		}
		obj, ok := event.Object.(resource.Object)
		if !ok {
			return nil, fmt.Errorf("watch of %s delivered a %T", kind.Resource, event.Object)
		}
		at, err := parseRevision(obj.GetResourceVersion())
		if err != nil {
			return nil, fmt.Errorf("watch %s: %w", kind.Resource, err)
		}
		if event.Type == watch.Bookmark {
			obj = nil
		}
		if err := h.change(obj, event.Type == watch.Deleted, at); err != nil {
			return nil, err
		}
		from = &at
	}
}

// unlessExpired returns nil if the history that a watch needs is gone.
func unlessExpired(from *uint64, err error) *uint64 {
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return nil
	}
	return from
}

// parseRevision reads a resource version. Kubernetes' are revisions of etcd, whose
// order may be relied on (KEP-5504, comparable resource versions).
func parseRevision(s string) (uint64, error) {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0, errors.New("resource version " + strconv.Quote(s) + " is not a number: its order is not known")
	}
	return n, nil
}
