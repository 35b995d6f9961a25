package mirroring

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/event"
	"github.com/proxima-mesh/proxima/internal/controller/loop"
	"github.com/proxima-mesh/proxima/internal/controller/sliceset"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// Config of a Controller.
type Config struct {
	// Client to write with.
	Client resource.Client
	// Catalog to read from. It must follow Services, Endpoints and EndpointSlices.
	Catalog *catalog.Catalog
	// Slices is the descriptor of EndpointSlice.
	Slices *resource.Descriptor
	// MaxAddresses of a subset; 0: DefaultMaxAddresses.
	MaxAddresses int
	// Workers is how many objects are mirrored at the same time; 0: 4.
	Workers int
	// Window is how long slices are left alone after a write, so that a burst of
	// changes shares the next one; 0: loop.DefaultWindow, negative: none.
	Window time.Duration
	// Clock; nil: the real one.
	Clock clock.WithTicker
	// Logger; nil: silence.
	Logger *slog.Logger
}

// Controller mirrors all Endpoints. Make it with New.
type Controller struct {
	Config
	loop *loop.Loop

	mu sync.Mutex
	// warned is what the author of an object was warned of last, so that it is said
	// once and not with every sync.
	warned map[resource.Key][]Warning
}

// New makes a controller; Run starts it.
func New(config Config) *Controller {
	c := &Controller{Config: config, warned: make(map[resource.Key][]Warning)}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.loop = loop.New(loop.Config{
		What: "endpoints", Sync: c.sync,
		Workers: c.Workers, Window: c.Window, Clock: c.Clock, Logger: c.Logger,
	})
	return c
}

// Run works until ctx ends, and returns nil then. It must be called once.
func (c *Controller) Run(ctx context.Context) error {
	return c.loop.Run(ctx, c.Catalog, c.dispatch, catalog.Services, catalog.Endpoints, catalog.Slices)
}

// dispatch queues the names that a delta concerns. Of a Service it matters
// whether it is there and selects for itself; Endpoints that are not mirrored
// and were not are passed over, as a leader election changes them all the time.
func (c *Controller) dispatch(d catalog.Delta) {
	for _, change := range d.Services {
		if manual(change.Old) != manual(change.New) {
			c.loop.Add(change.Key)
		}
	}
	for _, change := range d.Endpoints {
		was, _ := d.Before.Services.Get(change.Key)
		is, _ := d.After.Services.Get(change.Key)
		if Applies(change.Old, was) || Applies(change.New, is) {
			c.loop.Add(change.Key)
		}
	}
	for _, change := range d.Slices {
		was, wasOurs := sourceOf(change.Old)
		is, isOurs := sourceOf(change.New)
		if wasOurs && (!isOurs || was != is) && !loop.Echo(c.loop, was, change) {
			c.loop.Add(was)
		}
		if isOurs && !loop.Echo(c.loop, is, change) {
			c.loop.Add(is)
		}
	}
}

// manual reports whether a Service is there and leaves its endpoints to others.
func manual(s *corev1.Service) bool { return s != nil && len(s.Spec.Selector) == 0 }

// sourceOf is the name of the Endpoints of a slice that this package keeps.
func sourceOf(slice *discoveryv1.EndpointSlice) (resource.Key, bool) {
	if slice == nil || slice.Labels[discoveryv1.LabelManagedBy] != ManagedBy {
		return resource.Key{}, false
	}
	name := slice.Labels[discoveryv1.LabelServiceName]
	return resource.Key{Namespace: slice.Namespace, Name: name}, name != ""
}

// sync brings the slices of one name to what they should be.
func (c *Controller) sync(ctx context.Context, key resource.Key) error {
	snapshot := c.Catalog.Snapshot()
	in := Input{MaxAddresses: c.MaxAddresses}
	in.Endpoints, _ = snapshot.Endpoints.Get(key)
	in.Service, _ = snapshot.Services.Get(key)
	for _, slice := range snapshot.SlicesOf(key) {
		if slice.Labels[discoveryv1.LabelManagedBy] == ManagedBy {
			in.Slices = append(in.Slices, slice)
		}
	}
	if !loop.Observed(c.loop.Expectations(key), snapshot.Slices.Revision(), in.Slices...) {
		return loop.ErrStale
	}
	plan := Reconcile(in)
	if err := c.execute(ctx, key, plan); err != nil {
		return err
	}
	c.warn(ctx, key, in.Endpoints, plan.Warnings)
	if !Applies(in.Endpoints, in.Service) {
		c.loop.Forget(key)
	}
	return nil
}

// execute writes a plan.
func (c *Controller) execute(ctx context.Context, key resource.Key, plan Plan) error {
	if plan.Empty() {
		return nil
	}
	c.loop.Writes(key)
	w := sliceset.Writer{
		Client:       c.Client,
		Kind:         c.Slices,
		Expectations: c.loop.Expectations(key),
		What:         "mirrored slice of endpoints " + key.String(),
	}
	err := w.Write(ctx, plan.Create, plan.Update, plan.Delete)
	if apierrors.IsConflict(err) {
		return loop.ErrStale // another writer was first; what it wrote is on its way
	}
	return err
}

// warn sends an event about what was left out of the Endpoints, if that is news.
func (c *Controller) warn(ctx context.Context, key resource.Key, e *corev1.Endpoints, warnings []Warning) {
	c.mu.Lock()
	warned := c.warned[key]
	if len(warnings) == 0 {
		delete(c.warned, key)
	} else {
		c.warned[key] = warnings
	}
	c.mu.Unlock()
	for _, w := range warnings {
		if slices.Contains(warned, w) {
			continue
		}
		about := event.About(corev1.SchemeGroupVersion.WithKind("Endpoints"), e)
		_, err := c.Client.Create(ctx, kind.Event, event.Warning(about, "endpoint-slice-mirroring-controller", c.Clock.Now(), w.Reason, w.Message))
		if err != nil {
			c.Logger.Warn("event could not be written", "endpoints", key, "error", err)
		}
	}
}
