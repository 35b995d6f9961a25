package endpoints

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/backend"
	"github.com/proxima-mesh/proxima/internal/controller/event"
	"github.com/proxima-mesh/proxima/internal/controller/loop"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// Config of a Controller.
type Config struct {
	// Client to write with.
	Client resource.Client
	// Catalog to read from. It must follow Services, Endpoints, Pods and
	// Dataplanes.
	Catalog *catalog.Catalog
	// Endpoints is the descriptor of Endpoints.
	Endpoints *resource.Descriptor
	// Workers is how many Services are written at the same time; 0: 4.
	Workers int
	// Window is how long an object is left alone after a write, so that a burst of
	// changes shares the next one; 0: loop.DefaultWindow, negative: none.
	Window time.Duration
	// Clock; nil: the real one.
	Clock clock.WithTicker
	// Logger; nil: silence.
	Logger *slog.Logger
}

// Controller keeps the Endpoints of all Services. Make it with New.
type Controller struct {
	Config
	loop *loop.Loop

	mu       sync.Mutex
	triggers map[resource.Key]backend.Trigger
	// gone are Services that were seen to go and whose Endpoints follow them,
	// their author.
	gone map[resource.Key]struct{}
}

// New makes a controller; Run starts it.
func New(config Config) *Controller {
	c := &Controller{
		Config: config, triggers: make(map[resource.Key]backend.Trigger), gone: make(map[resource.Key]struct{}),
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.loop = loop.New(loop.Config{
		What: "service", Sync: c.sync, OnExhausted: c.report,
		Workers: c.Workers, Window: c.Window, Clock: c.Clock, Logger: c.Logger,
	})
	return c
}

// Run works until ctx ends, and returns nil then. It must be called once.
func (c *Controller) Run(ctx context.Context) error {
	return c.loop.Run(ctx, c.Catalog, c.dispatch, append(backend.Kinds(), catalog.Endpoints)...)
}

// dispatch queues the Services that a delta concerns.
func (c *Controller) dispatch(d catalog.Delta) {
	for _, change := range d.Services {
		if change.New == nil {
			c.mu.Lock()
			c.gone[change.Key] = struct{}{}
			c.mu.Unlock()
		}
		c.loop.Add(change.Key)
	}
	for _, change := range d.Endpoints {
		if !loop.Echo(c.loop, change.Key, change) {
			c.loop.Add(change.Key)
		}
	}
	backend.Changed(d, c.loop.Add)
}

// sync brings the Endpoints of one Service to what they should be.
func (c *Controller) sync(ctx context.Context, key resource.Key) error {
	snapshot := c.Catalog.Snapshot()
	existing, found := snapshot.Endpoints.Get(key)
	if !found {
		existing = nil
	}
	expected := c.loop.Expectations(key)
	if !loop.Observed(expected, snapshot.Endpoints.Revision(), seen(existing)...) {
		return loop.ErrStale
	}
	service, ok := snapshot.Services.Get(key)
	if !ok {
		return c.clear(ctx, key, existing)
	}
	c.mu.Lock()
	delete(c.gone, key)
	known := c.triggers[key]
	c.mu.Unlock()
	if !Applies(service) {
		return nil
	}
	in := Input{Service: service, Existing: existing, Shifts: backend.ShiftsOf(snapshot), Node: func(name string) *corev1.Node {
		node, _ := snapshot.Nodes.Get(resource.Key{Name: name})
		return node
	}}
	in.Pods, in.Dataplanes = backend.Selected(snapshot, service)
	trigger, next := known.Next(service, in.Pods, in.Dataplanes)
	in.TriggerTime = trigger
	if object, write := Reconcile(in); write {
		if err := c.write(ctx, key, object); err != nil {
			return err
		}
	}
	c.mu.Lock()
	c.triggers[key] = next
	c.mu.Unlock()
	return nil
}

func seen(existing *corev1.Endpoints) []*corev1.Endpoints {
	if existing == nil {
		return nil
	}
	return []*corev1.Endpoints{existing}
}

func (c *Controller) write(ctx context.Context, key resource.Key, object *corev1.Endpoints) error {
	c.loop.Writes(key)
	var made resource.Object
	var err error
	verb := "update"
	if object.ResourceVersion == "" {
		verb = "create"
		made, err = c.Client.Create(ctx, kind.Endpoints, object)
	} else {
		made, err = c.Client.Update(ctx, kind.Endpoints, object)
	}
	switch {
	case err == nil:
		c.loop.Expectations(key).Wrote(made)
		return nil
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return nil // nothing can be created any more, and all will be deleted
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		return loop.ErrStale // another writer was first; what it wrote is on its way
	default:
		return fmt.Errorf("%s endpoints of service %s: %w", verb, key, err)
	}
}

// clear deletes the Endpoints of a Service that is gone: those of any author if
// it went before our eyes, as in Kubernetes, else our own only, as a user may
// have made theirs ahead of the Service. A lock of a leader election stays.
func (c *Controller) clear(ctx context.Context, key resource.Key, existing *corev1.Endpoints) error {
	c.mu.Lock()
	_, gone := c.gone[key]
	c.mu.Unlock()
	if existing != nil {
		_, lock := existing.Annotations[LeaderAnnotation]
		if !lock && (gone || existing.Labels[LabelManagedBy] == ManagedBy) {
			if err := c.delete(ctx, key, existing); err != nil {
				return err
			}
		}
	}
	c.loop.Forget(key)
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.triggers, key)
	delete(c.gone, key)
	return nil
}

func (c *Controller) delete(ctx context.Context, key resource.Key, existing *corev1.Endpoints) error {
	err := c.Client.Delete(ctx, c.Endpoints, key, resource.Preconditions{UID: existing.UID})
	switch {
	case err == nil, apierrors.IsNotFound(err):
		return nil
	case apierrors.IsConflict(err):
		return loop.ErrStale
	default:
		return fmt.Errorf("delete endpoints %s: %w", key, err)
	}
}

// report sends an event about the Service: that its Endpoints could not be written.
func (c *Controller) report(ctx context.Context, key resource.Key, cause error) {
	service, ok := c.Catalog.Snapshot().Services.Get(key)
	if !ok {
		return
	}
	about := event.About(corev1.SchemeGroupVersion.WithKind("Service"), service)
	_, err := c.Client.Create(ctx, kind.Event, event.Warning(about, "endpoint-controller", c.Clock.Now(), "FailedToUpdateEndpoint",
		fmt.Sprintf("Failed to update endpoint %s: %v", key, cause)))
	if err != nil {
		c.Logger.Warn("event could not be written", "service", key, "error", err)
	}
}
