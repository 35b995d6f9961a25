package garbage

import (
	"context"
	"log/slog"
	"time"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/reflector"
)

// The delay between attempts to list and watch a kind grows while they fail: a kind whose
// objects cannot be read stays so until an operator acts.
const (
	watchRetry    = time.Second
	watchRetryMax = 32 * time.Second
)

// handler is kept up to date with the objects of kinds. Its methods are called one after the
// other for each kind.
type handler interface {
	// replace gets all that exist, at first and after disconnected.
	replace(kind *resource.Descriptor, all []resource.Object)
	// set gets an object that was created or changed.
	set(kind *resource.Descriptor, obj resource.Object)
	// remove gets an object that is gone.
	remove(kind *resource.Descriptor, obj resource.Object)
	// disconnected: the kind is not watched until the next replace.
	disconnected(kind *resource.Descriptor)
}

// reflect keeps a handler up to date with a kind until ctx ends. It lists again after each
// cut: objects are deleted because of what is absent.
func reflect(ctx context.Context, client resource.Client, kind *resource.Descriptor, to handler, log *slog.Logger) {
	_ = reflector.Run(ctx, reflector.Config{
		Client:       client,
		Kind:         kind,
		AlwaysRelist: true,
		Backoff:      backoff.Policy{First: watchRetry, Last: watchRetryMax},
		Logger:       log,
		Level:        slog.LevelWarn,
	}, func(e reflector.Event) error {
		switch e.Type {
		case reflector.Replace:
			to.replace(e.Kind, e.Objects)
		case reflector.Set:
			to.set(e.Kind, e.Object())
		case reflector.Delete:
			to.remove(e.Kind, e.Object())
		case reflector.Disconnected:
			to.disconnected(e.Kind)
		}
		return nil
	})
}
