package garbage

import (
	"context"
	"log/slog"
	"time"

	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/follow"
)

// A broken watch is taken up again after a pause, which grows while it goes on
// breaking: a kind whose objects cannot be read stays so until somebody acts.
const (
	firstPause = time.Second
	lastPause  = 32 * time.Second
)

// follower hears of the objects of kinds. Its methods are called one after the
// other for each kind.
type follower interface {
	// replace is told all that exist, at first and after a break.
	replace(kind *resource.Descriptor, all []resource.Object)
	// set is told of one that came or changed.
	set(kind *resource.Descriptor, obj resource.Object)
	// remove is told of one that is gone.
	remove(kind *resource.Descriptor, obj resource.Object)
	// broke is told that nothing is heard of the kind for now.
	broke(kind *resource.Descriptor)
}

// followKind keeps a follower up with a kind until ctx ends.
func followKind(ctx context.Context, client resource.Client, kind *resource.Descriptor, to follower, log *slog.Logger) {
	_ = follow.Run(ctx, follow.Config{
		Client: client, Kind: kind, Logger: log, Level: slog.LevelWarn,
		Pause: follow.Pause{First: firstPause, Last: lastPause},
	}, func(c follow.Change) error {
		switch {
		case c.Lost != nil:
			to.broke(c.Kind)
		case c.Fresh:
			to.replace(c.Kind, c.Set)
		case c.Removed != nil:
			to.remove(c.Kind, c.Removed)
		default:
			to.set(c.Kind, c.Set[0])
		}
		return nil
	})
}
