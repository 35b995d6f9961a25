// Package follow keeps its callers up with the objects of a kind: all that exist
// first, then each change, and all of them anew after each time the watch broke.
//
// Enter at Run, or Several for more kinds than one. Once is one attempt, and Retry
// the pauses between attempts of anything. The package keeps no objects.
package follow

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/clock"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// Change is one thing that there is to know of a kind.
type Change struct {
	Kind *resource.Descriptor
	// Lost is why nothing is heard of the kind until the next Fresh change; all else
	// but Kind is empty then.
	Lost error
	// Fresh: Set are all objects there are; others are gone.
	Fresh bool
	// Set are objects that came or changed. They belong to who is told.
	Set []resource.Object
	// Removed is an object that is gone, in its last state.
	Removed resource.Object
}

// Keys of the objects that are set.
func (c Change) Keys() map[resource.Key]bool {
	keys := make(map[resource.Key]bool, len(c.Set))
	for _, obj := range c.Set {
		keys[resource.KeyOf(obj)] = true
	}
	return keys
}

// Config of Run.
type Config struct {
	Client resource.Client
	Kind   *resource.Descriptor
	// Select leaves out objects; the zero value none.
	Select resource.ListOptions
	Pause  Pause
	// Logger is told, at Level, of each time the watch broke; nil: nobody is.
	Logger *slog.Logger
	Level  slog.Level
}

// Run watches a kind until ctx ends. tell is called for one change after the
// other. An error of it counts as a watch that broke; the error of a change that
// is Lost does not count. Run returns nil.
func Run(ctx context.Context, cfg Config, tell func(Change) error) error {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	Retry(ctx, cfg.Pause, func(ctx context.Context) error {
		return Once(ctx, cfg.Client, cfg.Kind, cfg.Select, tell)
	}, func(err error, pause time.Duration) {
		_ = tell(Change{Kind: cfg.Kind, Lost: err}) // there is no watch that could break
		cfg.Logger.Log(ctx, cfg.Level, "watch broke; taking it up again", "of", cfg.Kind.Resource, "error", err, "in", pause.String())
	})
	return nil
}

// Several is Run for each of some kinds at a time, whatever cfg.Kind says. What
// there is to tell goes to a channel, which must be read until ctx ends. It blocks
// until then.
func Several(ctx context.Context, cfg Config, kinds []*resource.Descriptor, changes chan<- Change) {
	var running sync.WaitGroup
	for _, kind := range kinds {
		one := cfg
		one.Kind = kind
		running.Go(func() {
			_ = Run(ctx, one, func(c Change) error {
				select {
				case changes <- c:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			})
		})
	}
	running.Wait()
}

// Once watches a kind until the watch breaks, tell fails or ctx ends, and returns
// why. tell gets one Fresh change, then the others.
func Once(ctx context.Context, client resource.Client, kind *resource.Descriptor, selection resource.ListOptions, tell func(Change) error) error {
	w, err := client.Watch(ctx, kind, resource.WatchOptions{ListOptions: selection})
	if err != nil {
		return err
	}
	defer w.Stop()
	fresh := &Change{Kind: kind, Fresh: true} // until it is complete; then nil
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
			if fresh != nil && obj.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true" {
				err, fresh = tell(*fresh), nil
			}
		case fresh != nil:
			fresh.Set = append(fresh.Set, obj)
		case event.Type == watch.Deleted:
			err = tell(Change{Kind: kind, Removed: obj})
		default:
			err = tell(Change{Kind: kind, Set: []resource.Object{obj}})
		}
		if err != nil {
			return err
		}
	}
}

// Pause between attempts: First, then twice as long each time up to Last, and
// First again after an attempt that went on for longer than Last.
type Pause struct {
	First, Last time.Duration
	// Clock; nil: the real one.
	Clock clock.Clock
}

// errNothing stands for an attempt that ended without an error.
var errNothing = errors.New("it ended")

// Retry makes attempts until ctx ends. failed hears of each one that ended before
// that, and of the pause that follows.
func Retry(ctx context.Context, p Pause, attempt func(context.Context) error, failed func(err error, pause time.Duration)) {
	if p.Clock == nil {
		p.Clock = clock.RealClock{}
	}
	retry := backoff.Backoff{Policy: backoff.Policy{First: p.First, Last: p.Last}}
	for ctx.Err() == nil {
		began := p.Clock.Now()
		err := attempt(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			err = errNothing
		}
		if p.Clock.Since(began) > p.Last {
			retry.Reset()
		}
		pause := retry.Next()
		failed(err, pause)
		backoff.SleepBy(ctx, p.Clock, pause)
	}
}
