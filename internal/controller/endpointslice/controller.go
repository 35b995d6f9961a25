package endpointslice

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/clock"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/backend"
	"github.com/proxima-mesh/proxima/internal/controller/changes"
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
	// Catalog to read from. It must follow Services, EndpointSlices, Nodes, Pods
	// and Dataplanes.
	Catalog *catalog.Catalog
	// Slices is the descriptor of EndpointSlice.
	Slices  *resource.Descriptor
	Options Options
	// Advisor knows the hints of Services; nil: Options.Hints have all of them.
	Advisor Advisor
	// Workers is how many Services are written at the same time; 0: 4.
	Workers int
	// Window is how long the slices of a Service are left alone after a write,
	// so that a burst of changes shares the next one; 0: loop.DefaultWindow,
	// negative: none.
	Window time.Duration
	// Clock; nil: the real one.
	Clock clock.WithTicker
	// Logger; nil: silence.
	Logger *slog.Logger
}

// Controller keeps the slices of all Services. Make it with New.
type Controller struct {
	Config
	loop *loop.Loop
	// queued is closed once all Services there were have been queued.
	queued     chan struct{}
	queuedOnce sync.Once

	mu       sync.Mutex
	triggers map[resource.Key]backend.Trigger
}

// New makes a controller; Run starts it.
func New(config Config) *Controller {
	c := &Controller{Config: config, queued: make(chan struct{}), triggers: make(map[resource.Key]backend.Trigger)}
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
	var following sync.WaitGroup
	defer following.Wait()
	if c.Advisor != nil {
		advice := c.Advisor.Subscribe()
		following.Go(func() {
			defer advice.Close()
			c.followAdvice(ctx, advice)
		})
	}
	return c.loop.Run(ctx, c.Catalog, c.dispatch, append(backend.Kinds(), catalog.Slices)...)
}

// followAdvice queues the Services whose hints may be others, until ctx ends.
func (c *Controller) followAdvice(ctx context.Context, advice *changes.Subscription[resource.Key]) {
	select {
	case <-c.queued: // until then a change of advice comes with all Services
	case <-ctx.Done():
		return
	}
	for {
		services, err := advice.Next(ctx)
		if err != nil {
			return // ctx has ended
		}
		for _, service := range services {
			c.loop.Add(service)
		}
	}
}

// sync brings the slices of one Service to what they should be.
func (c *Controller) sync(ctx context.Context, key resource.Key) error {
	snapshot := c.Catalog.Snapshot()
	existing := managed(snapshot, key)
	if !loop.Observed(c.loop.Expectations(key), snapshot.Slices.Revision(), existing...) {
		return loop.ErrStale
	}
	service, ok := snapshot.Services.Get(key)
	if !ok {
		return c.clear(ctx, key, existing)
	}
	if !Applies(service) {
		return nil
	}
	in := gather(snapshot, service, existing)
	in.Options = c.Options
	var hinted func(context.Context)
	if c.Advisor != nil {
		in.Options.Hints, hinted = c.Advisor.Advise(service)
	}
	trigger, seen := c.trigger(key).Next(in.Service, in.Pods, in.Dataplanes)
	in.TriggerTime = trigger

	plan := Reconcile(in)
	if err := c.execute(ctx, key, plan); err != nil {
		return err
	}
	c.remember(key, seen)
	if hinted != nil {
		hinted(ctx)
	}
	if len(plan.Skipped) > 0 {
		s := plan.Skipped[0]
		return fmt.Errorf("service %s: %d workloads left out: node %q of %s does not exist", key, len(plan.Skipped), s.Node, s.Workload)
	}
	return nil
}

func (c *Controller) trigger(key resource.Key) backend.Trigger {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.triggers[key]
}

func (c *Controller) remember(key resource.Key, seen backend.Trigger) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.triggers[key] = seen
}

// gather collects what Reconcile needs to know of a Service.
func gather(snapshot *catalog.Snapshot, service *corev1.Service, existing []*discoveryv1.EndpointSlice) Input {
	in := Input{
		Service: service,
		Slices:  existing,
		Node: func(name string) *corev1.Node {
			node, _ := snapshot.Nodes.Get(resource.Key{Name: name})
			return node
		},
		Shifts: backend.ShiftsOf(snapshot),
	}
	in.Pods, in.Dataplanes = backend.Selected(snapshot, service)
	return in
}

// Expected are the slices of a Service as they will be once what has changed is written, without
// topology hints, besides those that others manage. They must not be changed.
func Expected(snapshot *catalog.Snapshot, service *corev1.Service) []*discoveryv1.EndpointSlice {
	key := resource.KeyOf(service)
	existing := managed(snapshot, key)
	plan := Reconcile(gather(snapshot, service, existing))
	changed := map[string]bool{}
	for _, slice := range append(slices.Clone(plan.Update), plan.Delete...) {
		changed[slice.Name] = true
	}
	out := append(slices.Clone(plan.Create), plan.Update...)
	for _, slice := range snapshot.SlicesOf(key) {
		if !changed[slice.Name] {
			out = append(out, slice)
		}
	}
	return out
}

// managed are the slices of a Service that this package keeps.
func managed(snapshot *catalog.Snapshot, key resource.Key) []*discoveryv1.EndpointSlice {
	var out []*discoveryv1.EndpointSlice
	for _, slice := range snapshot.SlicesOf(key) {
		if slice.Labels[discoveryv1.LabelManagedBy] == ManagedBy {
			out = append(out, slice)
		}
	}
	return out
}

// clear deletes what a Service that is gone left behind. Where a garbage
// collector does so too, the one finds the other's work done.
func (c *Controller) clear(ctx context.Context, key resource.Key, existing []*discoveryv1.EndpointSlice) error {
	if err := c.execute(ctx, key, Plan{Delete: existing}); err != nil {
		return err
	}
	c.loop.Forget(key)
	if c.Advisor != nil {
		c.Advisor.Forget(key)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.triggers, key)
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
		What:         "endpoint slice of service " + key.String(),
	}
	return w.Write(ctx, plan.Create, plan.Update, plan.Delete)
}

// report sends an event about the Service: that its slices could not be written.
func (c *Controller) report(ctx context.Context, key resource.Key, cause error) {
	service, ok := c.Catalog.Snapshot().Services.Get(key)
	if !ok {
		return
	}
	about := event.About(corev1.SchemeGroupVersion.WithKind("Service"), service)
	_, err := c.Client.Create(ctx, kind.Event, event.Warning(about, "endpoint-slice-controller", c.Clock.Now(), "FailedToUpdateEndpointSlices",
		fmt.Sprintf("Error updating Endpoint Slices for Service %s: %v", key, cause)))
	if err != nil {
		c.Logger.Warn("event could not be written", "service", key, "error", err)
	}
}
