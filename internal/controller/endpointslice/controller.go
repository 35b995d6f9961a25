package endpointslice

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/resource"
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
	// Workers is how many Services are written at the same time; 0: 4.
	Workers int
	// Window is how long the slices of a Service are left alone after a write,
	// so that a burst of changes shares the next one; 0: DefaultWindow, negative:
	// none.
	Window time.Duration
	// Clock; nil: the real one.
	Clock clock.WithTicker
	// Logger; nil: silence.
	Logger *slog.Logger
}

// DefaultWindow: ten writes per Service and second are as many as readers profit
// from while many workloads start at once.
const DefaultWindow = 100 * time.Millisecond

// A failed Service is tried again after 1 s, 2 s, 4 s, … as Kubernetes does it
// (pkg/controller/endpointslice: maxRetries, defaultSyncBackOff, maxSyncBackOff).
const (
	maxRetries   = 15
	minRetry     = time.Second
	maxRetry     = 1000 * time.Second
	staleRecheck = time.Second
)

// errStale: the catalog does not show our own last write yet.
var errStale = errors.New("catalog is older than the last write")

// Controller keeps the slices of all Services. Make it with New.
type Controller struct {
	Config
	queue workqueue.TypedDelayingInterface[resource.Key]

	mu     sync.Mutex
	states map[resource.Key]*state
	stale  map[resource.Key]struct{} // to be looked at after the next delta
}

// New makes a controller; Run starts it.
func New(config Config) *Controller {
	c := &Controller{
		Config: config,
		states: make(map[resource.Key]*state),
		stale:  make(map[resource.Key]struct{}),
	}
	if c.Workers == 0 {
		c.Workers = 4
	}
	if c.Window == 0 {
		c.Window = DefaultWindow
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Run works until ctx ends, and returns nil then. It must be called once.
func (c *Controller) Run(ctx context.Context) error {
	c.queue = workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[resource.Key]{Clock: c.Clock})
	// Subscribed before the workers start: whatever they see, a change after it
	// comes as a delta.
	sub := c.Catalog.Subscribe(catalog.Services, catalog.Slices, catalog.Nodes, catalog.Pods, catalog.Dataplanes)
	defer sub.Close()

	var workers sync.WaitGroup
	for range c.Workers {
		workers.Go(func() { c.work(ctx) })
	}
	for {
		delta, err := sub.Next(ctx)
		if err != nil {
			break
		}
		c.dispatch(delta)
	}
	c.queue.ShutDown()
	workers.Wait()
	return nil
}

func (c *Controller) work(ctx context.Context) {
	for {
		key, shutdown := c.queue.Get()
		if shutdown {
			return
		}
		if ctx.Err() == nil {
			c.handle(ctx, key)
		}
		c.queue.Done(key)
	}
}

// handle syncs one Service, unless it was written within the window, and sees to
// what follows from the outcome. The queue never gives one key to two workers.
func (c *Controller) handle(ctx context.Context, key resource.Key) {
	st := c.state(key)
	if wait := c.Window - c.Clock.Since(st.lastWrite); !st.lastWrite.IsZero() && wait > 0 {
		c.queue.AddAfter(key, wait)
		return
	}
	err := c.sync(ctx, key, st)
	switch {
	case ctx.Err() != nil:
	case err == nil:
		st.failures = 0
	case errors.Is(err, errStale):
		// The event that ends the wait is on its way; the timer is for the case
		// that it was swallowed by a relist.
		c.queue.AddAfter(key, staleRecheck)
	case st.failures < maxRetries:
		wait := min(minRetry<<st.failures, maxRetry)
		st.failures++
		c.Logger.Warn("endpoint slices are not up to date", "service", key, "error", err, "retry", wait)
		c.queue.AddAfter(key, wait)
	default:
		st.failures = 0
		c.Logger.Error("endpoint slices are not up to date; given up until the next change", "service", key, "error", err)
		c.report(ctx, key, err)
	}
}

// sync brings the slices of one Service to what they should be.
func (c *Controller) sync(ctx context.Context, key resource.Key, st *state) error {
	snapshot, existing, fresh := c.view(key, st)
	if !fresh {
		return errStale
	}
	service, ok := snapshot.Services.Get(key)
	if !ok {
		return c.clear(ctx, key, st, existing)
	}
	if !Applies(service) {
		return nil
	}
	in := gather(snapshot, service, existing)
	in.Options = c.Options
	trigger, seen := st.trigger.next(&in)
	in.TriggerTime = trigger

	plan := Reconcile(in)
	if err := c.execute(ctx, key, st, plan); err != nil {
		return err
	}
	st.trigger = seen
	if len(plan.Skipped) > 0 {
		s := plan.Skipped[0]
		return fmt.Errorf("service %s: %d workloads left out: node %q of %s does not exist", key, len(plan.Skipped), s.Node, s.Workload)
	}
	return nil
}

// view is the newest snapshot and the Service's slices in it. If it does not
// show our own last writes, the Service is marked to be looked at after the next
// delta; the snapshot is taken again after marking, so that one that came in
// between is not missed.
func (c *Controller) view(key resource.Key, st *state) (*catalog.Snapshot, []*discoveryv1.EndpointSlice, bool) {
	look := func() (*catalog.Snapshot, []*discoveryv1.EndpointSlice, bool) {
		snapshot := c.Catalog.Snapshot()
		existing := managed(snapshot, key)
		c.mu.Lock()
		defer c.mu.Unlock()
		return snapshot, existing, st.shows(snapshot.Slices.Revision(), existing)
	}
	if snapshot, existing, ok := look(); ok {
		return snapshot, existing, true
	}
	c.mu.Lock()
	c.stale[key] = struct{}{}
	c.mu.Unlock()
	snapshot, existing, ok := look()
	if ok {
		c.mu.Lock()
		delete(c.stale, key)
		c.mu.Unlock()
	}
	return snapshot, existing, ok
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
	}
	for _, pod := range snapshot.PodsMatching(service.Namespace, service.Spec.Selector) {
		in.Pods = append(in.Pods, pod)
	}
	for _, dataplane := range snapshot.DataplanesMatching(service.Namespace, service.Spec.Selector) {
		in.Dataplanes = append(in.Dataplanes, dataplane)
	}
	return in
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
func (c *Controller) clear(ctx context.Context, key resource.Key, st *state, existing []*discoveryv1.EndpointSlice) error {
	if err := c.execute(ctx, key, st, Plan{Delete: existing}); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.states, key)
	return nil
}

// execute writes a plan: what is new first, so that no endpoint that stays is
// missing in between.
func (c *Controller) execute(ctx context.Context, key resource.Key, st *state, plan Plan) error {
	if plan.Empty() {
		return nil
	}
	st.lastWrite = c.Clock.Now()
	for _, slice := range plan.Create {
		made, err := c.Client.Create(ctx, slice)
		if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return nil // nothing can be created any more, and all will be deleted
		}
		if err != nil {
			return fmt.Errorf("create endpoint slice of service %s: %w", key, err)
		}
		c.wrote(st, made)
	}
	for _, slice := range plan.Update {
		made, err := c.Client.Update(ctx, slice)
		if err != nil {
			return fmt.Errorf("update endpoint slice %s of service %s: %w", slice.Name, key, err)
		}
		c.wrote(st, made)
	}
	for _, slice := range plan.Delete {
		err := c.Client.Delete(ctx, c.Slices, resource.KeyOf(slice), resource.Preconditions{UID: slice.UID})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete endpoint slice %s of service %s: %w", slice.Name, key, err)
		}
		c.mu.Lock()
		st.deleted[slice.UID] = struct{}{}
		c.mu.Unlock()
	}
	return nil
}

// report tells the user, on the Service, that its slices could not be written.
func (c *Controller) report(ctx context.Context, key resource.Key, cause error) {
	service, ok := c.Catalog.Snapshot().Services.Get(key)
	if !ok {
		return
	}
	now := metav1.NewTime(c.Clock.Now())
	_, err := c.Client.Create(ctx, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, GenerateName: key.Name + "-"},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: "v1", Kind: "Service", Namespace: key.Namespace, Name: key.Name,
			UID: service.UID, ResourceVersion: service.ResourceVersion,
		},
		Type: corev1.EventTypeWarning, Reason: "FailedToUpdateEndpointSlices",
		Message:             fmt.Sprintf("Error updating Endpoint Slices for Service %s: %v", key, cause),
		Source:              corev1.EventSource{Component: "endpoint-slice-controller"},
		ReportingController: "endpoint-slice-controller",
		FirstTimestamp:      now, LastTimestamp: now, Count: 1,
	})
	if err != nil {
		c.Logger.Warn("event could not be written", "service", key, "error", err)
	}
}
