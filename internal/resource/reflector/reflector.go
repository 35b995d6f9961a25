// Package reflector keeps handlers up to date with the objects of a kind: it lists them,
// watches from there, and resumes the watch after a cut.
//
// Enter at Run, at RunAll for several kinds, or at New for a Reflector that can be made to
// list again. The package stores no objects, and it never writes. How a watch is continued:
//
//	list ──▶ Replace ──▶ watch from the version of the list ──▶ Set, Delete, Bookmark
//	 ▲                        ▲                                     │
//	 │                        └── Resumed ◀── cut: Disconnected ◀───┤
//	 └── delay ◀── Disconnected ◀── 410, another history, an error ─┘
package reflector

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/clock"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// EventType is the meaning of an Event.
type EventType string

// The types of events. The first event of a kind is Replace or Disconnected; after
// Disconnected comes Replace, Resumed or another Disconnected.
const (
	// Replace: Objects are all that exist at Version; others are gone. A watch from Version
	// is established.
	Replace EventType = "Replace"
	// Set: the one object of Objects was created or changed.
	Set EventType = "Set"
	// Delete: the one object of Objects is gone, or not selected any more. It is in its
	// last state.
	Delete EventType = "Delete"
	// Bookmark: every change up to Version was handled.
	Bookmark EventType = "Bookmark"
	// Disconnected: the watch has ended, or could not begin, because of Err. What was
	// handled before stays valid as of then.
	Disconnected EventType = "Disconnected"
	// Resumed: a watch is established again from Version. The changes made in between
	// follow; nothing marks the last of them.
	Resumed EventType = "Resumed"
)

// Event is one step in the life of a kind. Only Kind, Type and the fields that the type names
// are set.
type Event struct {
	Type EventType
	Kind *resource.Descriptor
	// Objects belong to the handler.
	Objects []resource.Object
	// Version is the resource version that the handler is at when it has handled the event.
	Version string
	Err     error
}

// Object returns the object of an event of type Set or Delete; nil for other types.
func (e Event) Object() resource.Object {
	if e.Type != Set && e.Type != Delete {
		return nil
	}
	return e.Objects[0]
}

// Keys returns the keys of Objects.
func (e Event) Keys() map[resource.Key]bool {
	keys := make(map[resource.Key]bool, len(e.Objects))
	for _, obj := range e.Objects {
		keys[resource.KeyOf(obj)] = true
	}
	return keys
}

// Handler handles one event after the other; the next watch event waits until it returns.
// After an error the kind is listed again. The error of a Disconnected event has no effect.
type Handler func(Event) error

// Config of a Reflector. Client and Kind are required.
type Config struct {
	Client resource.Client
	Kind   *resource.Descriptor
	// Select restricts the objects; the zero value selects all.
	Select resource.ListOptions
	// Backoff is the delay between attempts. It starts over after a watch that delivered
	// something before it was cut, or that lasted longer than Backoff.Last.
	Backoff backoff.Policy
	// AlwaysRelist lists again after every cut. It is for handlers that draw conclusions
	// from an event that did not come, or that must never be behind what the server has
	// shown others: after Resumed a handler may be.
	AlwaysRelist bool
	// Check, if not nil, is called before a watch is resumed. If it fails, versions seen
	// before must not be used any more, and the kind is listed again. The Check of
	// kubeclient/remote.Store compares epochs.
	Check func(context.Context) error
	// Clock measures delays; nil: the real one.
	Clock clock.Clock
	// Logger logs, at Level, each failure to list or watch, and each cut if AlwaysRelist is
	// set; cuts after which a watch is resumed are logged at the debug level. nil: no logs.
	Logger *slog.Logger
	Level  slog.Level
}

// Reflector feeds one Handler with one kind.
type Reflector struct {
	cfg    Config
	handle Handler
	relist chan struct{} // holds one request to list again

	// Of Run alone.
	version   string // from which to resume; empty: list
	delivered bool   // whether the current attempt handled a watch event
	retry     backoff.Backoff
}

// New makes a reflector; Run starts it.
func New(cfg Config, handle Handler) *Reflector {
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Reflector{cfg: cfg, handle: handle, relist: make(chan struct{}, 1), retry: backoff.Backoff{Policy: cfg.Backoff}}
}

// Run is Run of a new Reflector.
func Run(ctx context.Context, cfg Config, handle Handler) error { return New(cfg, handle).Run(ctx) }

// RunAll runs a reflector for each of several kinds, ignoring cfg.Kind, and sends their
// events to a channel, which must be read until ctx ends. It blocks until then.
func RunAll(ctx context.Context, cfg Config, kinds []*resource.Descriptor, events chan<- Event) {
	var running sync.WaitGroup
	for _, kind := range kinds {
		one := cfg
		one.Kind = kind
		running.Go(func() {
			_ = Run(ctx, one, func(e Event) error {
				select {
				case events <- e:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			})
		})
	}
	running.Wait()
}

// Start runs RunAll in the background. The channel must be read until stop is called, which
// waits until nothing runs any more.
func Start(ctx context.Context, cfg Config, kinds []*resource.Descriptor) (events <-chan Event, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	out, ended := make(chan Event), make(chan struct{})
	go func() {
		defer close(ended)
		RunAll(ctx, cfg, kinds, out)
	}()
	return out, func() {
		cancel()
		<-ended
	}
}

// Relist ends the watch and has the kind listed again, by a List that begins after the call
// of Relist. It does not block.
func (r *Reflector) Relist() {
	select {
	case r.relist <- struct{}{}:
	default: // one is pending
	}
}

// Errors that end an attempt.
var (
	// errCut ends a watch that may be resumed.
	errCut = errors.New("watch ended")
	// errRelist wraps whatever makes the last version useless.
	errRelist = errors.New("watch cannot be resumed")
	// errRequested is the effect of Relist.
	errRequested = fmt.Errorf("%w: a new list was requested", errRelist)
)

// Run lists and watches until ctx ends, and returns nil then. It blocks and must be called
// once.
func (r *Reflector) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		began := r.cfg.Clock.Now()
		r.delivered = false
		err := r.attempt(ctx)
		if ctx.Err() != nil {
			return nil
		}
		_ = r.handle(Event{Type: Disconnected, Kind: r.cfg.Kind, Err: err}) // there is nothing left to end
		resumable := !r.cfg.AlwaysRelist && !errors.Is(err, errRelist)
		progress := resumable && r.delivered && errors.Is(err, errCut)
		if !resumable {
			r.version = ""
		}
		if progress || r.cfg.Clock.Since(began) > r.cfg.Backoff.Last {
			r.retry.Reset()
		}
		if progress {
			r.cfg.Logger.Debug("watch resumes", "resource", r.cfg.Kind.Resource, "version", r.version)
			continue
		}
		delay := r.retry.Next()
		r.cfg.Logger.Log(ctx, r.cfg.Level, "watch is not established", "resource", r.cfg.Kind.Resource, "error", err, "retry_in", delay.String())
		backoff.SleepBy(ctx, r.cfg.Clock, delay)
	}
	return nil
}

// attempt lists the kind unless a watch can be resumed, and handles events until that watch
// ends. It returns why.
func (r *Reflector) attempt(ctx context.Context) error {
	first, err := r.first(ctx)
	if err != nil {
		return err
	}
	w, err := r.cfg.Client.Watch(ctx, r.cfg.Kind, resource.WatchOptions{ListOptions: r.cfg.Select, ResourceVersion: first.Version})
	if err != nil {
		err = fmt.Errorf("watch %s: %w", r.cfg.Kind.Resource, err)
		if !isTransient(err) {
			err = fmt.Errorf("%w: %w", errRelist, err)
		}
		return err
	}
	defer w.Stop()
	if err := r.pass(first); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.relist:
			return errRequested
		case event, open := <-w.ResultChan():
			if !open {
				return fmt.Errorf("%w: %s", errCut, r.cfg.Kind.Resource)
			}
			if err := r.receive(event); err != nil {
				return err
			}
			r.delivered = true
		}
	}
}

// first returns the event of an attempt that comes before those of its watch. It is handled
// once the watch is established: until then the list may be behind what others were shown.
func (r *Reflector) first(ctx context.Context) (Event, error) {
	if r.version != "" {
		if r.cfg.Check != nil {
			if err := r.cfg.Check(ctx); err != nil {
				return Event{}, fmt.Errorf("%w: %w", errRelist, err)
			}
		}
		return Event{Type: Resumed, Version: r.version}, nil
	}
	select {
	case <-r.relist: // by this list
	default:
	}
	objects, version, err := r.cfg.Client.List(ctx, r.cfg.Kind, r.cfg.Select)
	if err != nil {
		return Event{}, fmt.Errorf("list %s: %w", r.cfg.Kind.Resource, err)
	}
	return Event{Type: Replace, Objects: objects, Version: version}, nil
}

// receive passes on an event of the watch.
func (r *Reflector) receive(event watch.Event) error {
	if event.Type == watch.Error {
		return fmt.Errorf("%w: %w", errRelist, apierrors.FromObject(event.Object))
	}
	obj, ok := event.Object.(resource.Object)
	if !ok {
		return fmt.Errorf("%w: watch %s delivered a %T", errRelist, r.cfg.Kind.Resource, event.Object)
	}
	version := obj.GetResourceVersion()
	if isOlder(version, r.version) {
		return fmt.Errorf("%w: watch %s went from version %s to %s: the server has another history now",
			errRelist, r.cfg.Kind.Resource, r.version, version)
	}
	switch event.Type {
	case watch.Bookmark:
		return r.pass(Event{Type: Bookmark, Version: version})
	case watch.Deleted:
		return r.pass(Event{Type: Delete, Objects: []resource.Object{obj}, Version: version})
	default:
		return r.pass(Event{Type: Set, Objects: []resource.Object{obj}, Version: version})
	}
}

// pass hands an event to the handler. The version counts once it was handled.
func (r *Reflector) pass(e Event) error {
	e.Kind = r.cfg.Kind
	if err := r.handle(e); err != nil {
		return fmt.Errorf("%w: handle %s of %s: %w", errRelist, e.Type, r.cfg.Kind.Resource, err)
	}
	r.version = e.Version
	return nil
}

// isTransient reports whether a watch may be tried again from the same version: the server
// was not reached, or had no time. Any other answer is about the version itself.
func isTransient(err error) bool {
	var status apierrors.APIStatus
	return !errors.As(err, &status) || apierrors.IsTooManyRequests(err) ||
		apierrors.IsServiceUnavailable(err) || apierrors.IsInternalError(err)
}

// isOlder compares versions that are numbers. All changes of one kind have rising versions.
func isOlder(a, b string) bool {
	x, errX := strconv.ParseUint(a, 10, 64)
	y, errY := strconv.ParseUint(b, 10, 64)
	return errX == nil && errY == nil && x < y
}
