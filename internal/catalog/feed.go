package catalog

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// feed lists and watches one kind and hands what it learns to the writer.
type feed struct {
	kind       Kind
	descriptor *resource.Descriptor
}

// errResync says that the watch cannot be continued where it stopped: list anew.
// The tables keep what they have meanwhile, and the list then changes only what
// differs.
var errResync = errors.New("watch cannot be resumed")

// maxRetry is the longest delay after a failure.
const maxRetry = 5 * time.Second

// newBackoff spaces the attempts to list or watch.
func newBackoff() backoff.Backoff {
	return backoff.Backoff{Policy: backoff.Policy{First: 100 * time.Millisecond, Last: maxRetry}}
}

// run lists, then watches for as long as that can be resumed, then lists again.
func (f feed) run(ctx context.Context, c *Catalog) {
	retry := newBackoff()
	for ctx.Err() == nil {
		started := time.Now()
		version, err := f.list(ctx, c)
		if err == nil {
			err = f.follow(ctx, c, version)
		}
		if time.Since(started) > maxRetry {
			retry.Reset()
		}
		if ctx.Err() != nil {
			return
		}
		delay := retry.Next()
		if errors.Is(err, errResync) {
			c.log.Info("catalog lists anew", "resource", f.descriptor.Resource, "reason", err)
		} else {
			c.log.Warn("catalog cannot read", "resource", f.descriptor.Resource, "error", err, "retry", delay)
		}
		if !backoff.Sleep(ctx, delay) {
			return
		}
	}
}

func (f feed) list(ctx context.Context, c *Catalog) (version string, err error) {
	objects, version, err := c.client.List(ctx, f.descriptor, resource.ListOptions{})
	if err != nil {
		return "", fmt.Errorf("list %s: %w", f.descriptor.Resource, err)
	}
	for _, obj := range objects {
		obj.SetManagedFields(nil)
	}
	return version, c.send(ctx, input{kind: f.kind, full: true, objects: objects, revision: parseRevision(version)})
}

// follow watches from a version, again from where it stopped if a watch just
// ends, until errResync or ctx.
func (f feed) follow(ctx context.Context, c *Catalog, version string) error {
	retry := newBackoff()
	for {
		w, err := c.client.Watch(ctx, f.descriptor, resource.WatchOptions{ResourceVersion: version})
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && !passing(err):
			return fmt.Errorf("%w: watch %s: %w", errResync, f.descriptor.Resource, err)
		case err != nil:
			delay := retry.Next()
			c.log.Warn("catalog cannot watch", "resource", f.descriptor.Resource, "error", err, "retry", delay)
			if !backoff.Sleep(ctx, delay) {
				return ctx.Err()
			}
			continue
		}
		next, err := f.drain(ctx, c, w, version)
		w.Stop()
		if err != nil {
			return err
		}
		// A watch that ends without having told anything is not progress: pause,
		// or a server that closes at once would be called in a tight loop.
		if next == version && !backoff.Sleep(ctx, retry.Next()) {
			return ctx.Err()
		}
		version = next
		retry.Reset()
	}
}

// drain reads a watch to its end and returns the version it came to.
func (f feed) drain(ctx context.Context, c *Catalog, w watch.Interface, version string) (string, error) {
	for {
		var event watch.Event
		var ok bool
		select {
		case <-ctx.Done():
			return version, ctx.Err()
		case event, ok = <-w.ResultChan():
		}
		if !ok {
			return version, nil
		}
		if event.Type == watch.Error {
			return version, fmt.Errorf("%w: %w", errResync, apierrors.FromObject(event.Object))
		}
		obj, ok := event.Object.(resource.Object)
		if !ok {
			return version, fmt.Errorf("%w: watch %s delivered a %T", errResync, f.descriptor.Resource, event.Object)
		}
		version = obj.GetResourceVersion()
		in := input{kind: f.kind, deleted: event.Type == watch.Deleted, revision: parseRevision(version)}
		if event.Type != watch.Bookmark {
			obj.SetManagedFields(nil)
			in.objects = []resource.Object{obj}
		}
		if err := c.send(ctx, in); err != nil {
			return version, err
		}
	}
}

// send hands an input to the writer. It blocks while the writer is behind.
func (c *Catalog) send(ctx context.Context, in input) error {
	select {
	case c.inputs <- in:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// passing reports whether a watch may be tried again from the same version:
// the server was not reached, or had no time. Any other answer is about the
// version itself.
func passing(err error) bool {
	var status apierrors.APIStatus
	return !errors.As(err, &status) || apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsInternalError(err)
}
