package catalog

import (
	"context"
	"log/slog"
	"time"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/reflector"
	"github.com/proxima-mesh/proxima/internal/tracing"
)

// feed hands what a reflector learns of one kind to the writer.
type feed struct {
	kind       Kind
	descriptor *resource.Descriptor
	// from when on it is followed; nil: at once.
	from <-chan struct{}
}

// retryPolicy spaces the attempts to list and watch a kind.
var retryPolicy = backoff.Policy{First: 100 * time.Millisecond, Last: 5 * time.Second}

// run feeds the writer until ctx ends. While the kind cannot be watched the tables keep what
// they have; a new list then changes only what differs.
func (f feed) run(ctx context.Context, c *Catalog) {
	if f.from != nil {
		select {
		case <-f.from:
		case <-ctx.Done():
			return
		}
	}
	_ = reflector.Run(ctx, reflector.Config{
		Client:  c.client,
		Kind:    f.descriptor,
		Select:  resource.ListOptions{Shared: c.shared},
		Backoff: retryPolicy,
		Logger:  c.log,
		Level:   slog.LevelWarn,
	}, func(e reflector.Event) error {
		if e.Type == reflector.Disconnected || e.Type == reflector.Resumed {
			return nil
		}
		if !c.shared {
			for _, obj := range e.Objects {
				obj.SetManagedFields(nil)
			}
		}
		if e.Type == reflector.Delete && c.tracer.On() {
			for _, obj := range e.Objects {
				c.tracer.Deleted(tracing.Object{Kind: f.descriptor.GVK.Kind, Namespace: obj.GetNamespace(), Name: obj.GetName()}, parseRevision(e.Version))
			}
		}
		return c.send(ctx, input{
			kind:     f.kind,
			full:     e.Type == reflector.Replace,
			objects:  e.Objects,
			deleted:  e.Type == reflector.Delete,
			revision: parseRevision(e.Version),
		})
	})
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
