package garbage

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/proxima-mesh/proxima/internal/resource"
)

// A broken watch is taken up again after a pause, which grows while it goes on
// breaking: a kind whose objects cannot be read stays so until somebody acts.
const (
	firstPause = time.Second
	lastPause  = 32 * time.Second
)

// follower hears of the objects of one kind. Its methods are called one after
// the other.
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

// follow watches a kind until ctx ends, from a fresh list each time the watch
// breaks.
func follow(ctx context.Context, client resource.Client, kind *resource.Descriptor, to follower, log *slog.Logger) {
	pause := firstPause
	for ctx.Err() == nil {
		began := time.Now()
		err := followOnce(ctx, client, kind, to)
		if ctx.Err() != nil {
			return
		}
		to.broke(kind)
		log.Warn("watch broke; taking it up again", "of", kind.Resource, "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		if pause = min(2*pause, lastPause); time.Since(began) > 2*lastPause {
			pause = firstPause
		}
	}
}

func followOnce(ctx context.Context, client resource.Client, kind *resource.Descriptor, to follower) error {
	w, err := client.Watch(ctx, kind, resource.WatchOptions{})
	if err != nil {
		return err
	}
	defer w.Stop()
	var initial []resource.Object
	complete := false
	for {
		var event watch.Event
		var open bool
		select {
		case <-ctx.Done():
			return ctx.Err()
		case event, open = <-w.ResultChan():
		}
		obj, ok := event.Object.(resource.Object)
		switch {
		case !open:
			return fmt.Errorf("watch of %s ended", kind.Resource)
		case event.Type == watch.Error:
			return apierrors.FromObject(event.Object)
		case !ok:
			return fmt.Errorf("watch of %s delivered a %T", kind.Resource, event.Object)
		case event.Type == watch.Bookmark:
			if !complete && obj.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true" {
				complete = true
				to.replace(kind, initial)
				initial = nil
			}
		case !complete:
			initial = append(initial, obj)
		case event.Type == watch.Deleted:
			to.remove(kind, obj)
		default:
			to.set(kind, obj)
		}
	}
}
