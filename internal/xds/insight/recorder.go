package insight

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

const (
	// settle is how long a change waits for those that come with it: a response is rejected and
	// accepted in parts within milliseconds.
	settle = 500 * time.Millisecond
	// window between two writes of one proxy.
	window = 10 * time.Second
	// workers write for so many proxies at a time.
	workers = 4
	// registered is how soon it is looked again whether a gateway that is connected has its object.
	registered = time.Second
	// retry of a write that failed.
	retry = 5 * time.Second
	// conflicts of one write with others.
	attempts = 5
)

// Config of a Recorder. Client and Instance are required.
type Config struct {
	// Client writes as the control plane. Inside a cluster Dataplanes do not exist: conditions are
	// of those that do.
	Client resource.Client
	// Cached reads the objects that insights are of, which may be those of a moment ago; nil: Client.
	Cached resource.Client
	// Instance is the name of this instance.
	Instance string
	// Gateways: there are insights of gateways, too. Inside a cluster there are none.
	Gateways bool
	Clock    clock.WithTicker // nil: the real one
	Logger   *slog.Logger     // nil: silence
	// Registerer of metrics; nil: none. Registering twice panics.
	Registerer prometheus.Registerer
}

// Recorder is safe for concurrent use. Only Run blocks.
type Recorder struct {
	config Config
	clock  clock.WithTicker
	log    *slog.Logger
	queue  workqueue.TypedDelayingInterface[Subject]

	mu      sync.Mutex
	proxies map[Subject]*proxy
	// written is when a proxy's insight was written last.
	written map[Subject]time.Time

	writes, failures atomic.Uint64
}

// New makes a recorder. Run writes what it observes.
func New(c Config) *Recorder {
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Cached == nil {
		c.Cached = c.Client
	}
	r := &Recorder{
		config: c, clock: c.Clock, log: c.Logger, proxies: map[Subject]*proxy{}, written: map[Subject]time.Time{},
		queue: workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[Subject]{Clock: c.Clock}),
	}
	if c.Registerer != nil {
		c.Registerer.MustRegister(r)
	}
	return r
}

// observe a proxy; what returns true is written after a time.
func (r *Recorder) observe(key Subject, wait time.Duration, note func(*proxy) (write bool)) {
	if key.Role != OfWorkload && !r.config.Gateways {
		return
	}
	r.mu.Lock()
	p := r.proxies[key]
	if p == nil {
		p = &proxy{}
		r.proxies[key] = p
	}
	write := note(p)
	r.mu.Unlock()
	if write {
		r.queue.AddAfter(key, wait)
	}
}

// on the connection that has the stream of that ID, if it is the newest of its proxy.
func (r *Recorder) on(key Subject, id string, wait time.Duration, note func(*connection) (write bool)) {
	r.mu.Lock()
	write := false
	if p := r.proxies[key]; p != nil && p.connection != nil && p.connection.stream(id) != nil {
		write = note(p.connection)
	}
	r.mu.Unlock()
	if write {
		r.queue.AddAfter(key, wait)
	}
}

// Run writes insights until ctx ends, and returns nil then. What is not written by then, as the
// end of the connections that end with this process, the instance that leads corrects. It must be
// called once.
func (r *Recorder) Run(ctx context.Context) error {
	var running sync.WaitGroup
	for range workers {
		running.Go(func() { r.work(ctx) })
	}
	running.Go(func() { r.watch(ctx) })
	<-ctx.Done()
	r.queue.ShutDown()
	running.Wait()
	return nil
}

// watch for proxies that do not answer, or do so again.
func (r *Recorder) watch(ctx context.Context) {
	ticker := r.clock.NewTicker(window)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C():
			r.mu.Lock()
			for key, p := range r.proxies {
				if c := p.connection; c != nil && c.ended.IsZero() && c.stalls(now) != c.behind {
					r.queue.Add(key)
				}
			}
			r.mu.Unlock()
		}
	}
}

func (r *Recorder) work(ctx context.Context) {
	for {
		key, shutdown := r.queue.Get()
		if shutdown {
			return
		}
		r.handle(ctx, key)
		r.queue.Done(key)
	}
}

// handle a proxy, unless it was written within the window.
func (r *Recorder) handle(ctx context.Context, key Subject) {
	if ctx.Err() != nil {
		return
	}
	now := r.clock.Now()
	r.mu.Lock()
	last, known := r.written[key]
	r.mu.Unlock()
	if wait := window - now.Sub(last); known && wait > 0 {
		r.queue.AddAfter(key, wait)
		return
	}
	err := r.write(ctx, key)
	switch {
	case err != nil && ctx.Err() == nil:
		r.failures.Add(1)
		r.log.Warn("insight of a proxy not written, it is tried again", "proxy", key, "error", err)
		r.queue.AddAfter(key, retry)
	case err == nil:
		r.writes.Add(1)
	}
}

// write what is known of a proxy now.
func (r *Recorder) write(ctx context.Context, key Subject) error {
	now := r.clock.Now()
	r.mu.Lock()
	r.written[key] = now
	p := r.proxies[key]
	var s state
	if p != nil {
		s = p.state(r.config.Instance, now)
	}
	r.mu.Unlock()
	if p == nil {
		return nil
	}
	of, err := r.subject(ctx, key)
	switch {
	case err != nil:
		return err
	case of == nil && key.Role != OfWorkload:
		return r.unregistered(key, p)
	}
	if key.Role != OfWorkload {
		if s.meshes, err = r.meshes(ctx); err != nil {
			return err
		}
	}
	status, err := r.change(ctx, key, of, func(i *meshv1alpha1.ClientInsightStatus) {
		s.apply(i, roles[key.Role].subscriptions)
		if key.Role != OfWorkload {
			r.conclude(i, Conditions(i, now))
		}
	})
	if err != nil {
		return err
	}
	r.mu.Lock()
	p.wrote(s.certificates)
	r.mu.Unlock()
	if d, ok := of.(*meshv1alpha1.Dataplane); ok {
		if err := r.condition(ctx, key.Key, d, Conditions(status, now)); err != nil {
			return err
		}
	}
	r.wrote(key, p, s)
	return nil
}

// subject is the object that an insight is of; nil: there is none.
func (r *Recorder) subject(ctx context.Context, key Subject) (resource.Object, error) {
	obj, err := r.config.Cached.Get(ctx, roles[key.Role].object, key.Key)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return obj, err
}

// meshes that there are.
func (r *Recorder) meshes(ctx context.Context) (map[string]bool, error) {
	objects, _, err := r.config.Client.List(ctx, kind.Mesh, resource.ListOptions{})
	out := map[string]bool{}
	for _, obj := range objects {
		out[obj.GetName()] = true
	}
	return out, err
}

// unregistered: a gateway has no object, and so no insight. One that is connected registers itself
// after it has connected for the first time, and so it is looked at again.
func (r *Recorder) unregistered(key Subject, p *proxy) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.written, key) // nothing was
	if c := p.connection; c != nil && c.ended.IsZero() {
		r.queue.AddAfter(key, registered)
	} else if r.proxies[key] == p {
		delete(r.proxies, key)
	}
	return nil
}

// conclude sets the conditions of an insight. Those of workloads are on their Dataplanes.
func (r *Recorder) conclude(i *meshv1alpha1.ClientInsightStatus, want []metav1.Condition) {
	for _, c := range want {
		if c.Type == meshv1alpha1.DataplaneProxyReady && c.Status == metav1.ConditionFalse && meta.IsStatusConditionTrue(i.Conditions, c.Type) {
			continue // it goes on with what it accepted before
		}
		c.LastTransitionTime = metav1.NewTime(r.clock.Now()) // kept where the status is the same
		meta.SetStatusCondition(&i.Conditions, c)
	}
}

// wrote notes what need not be written again, and forgets a proxy that is not connected.
func (r *Recorder) wrote(key Subject, p *proxy, s state) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range s.certificates {
		// The condition says when it has expired.
		if left := c.Expiry.Sub(r.clock.Now()); left > 0 {
			r.queue.AddAfter(key, left+time.Second)
		}
	}
	if s.proving {
		// What an earlier connection rejected is dropped then, unless this one does, too.
		r.queue.AddAfter(key, window)
	}
	c := p.connection
	if p.unwritten() == 0 && (c == nil || !c.ended.IsZero() && s.ended) && r.proxies[key] == p {
		delete(r.proxies, key)
		// A proxy that comes back soon is still within its window; written is cleaned up with others.
		for k, at := range r.written {
			if r.proxies[k] == nil && r.clock.Since(at) > window {
				delete(r.written, k)
			}
		}
	}
}

// change an insight, or create it. It returns its status.
func (r *Recorder) change(
	ctx context.Context, key Subject, of resource.Object, change func(*meshv1alpha1.ClientInsightStatus),
) (status *meshv1alpha1.ClientInsightStatus, err error) {
	for range attempts {
		if status, err = r.changeOnce(ctx, key, of, change); err == nil || !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("write insight of %s: %w", key, err)
	}
	return status, nil
}

func (r *Recorder) changeOnce(
	ctx context.Context, key Subject, of resource.Object, change func(*meshv1alpha1.ClientInsightStatus),
) (*meshv1alpha1.ClientInsightStatus, error) {
	d := roles[key.Role].insight
	obj, err := r.config.Client.Get(ctx, d, key.Key)
	if apierrors.IsNotFound(err) {
		insight := key.newInsight()
		own(insight, of)
		change(statusOf(insight))
		_, err = r.config.Client.Create(ctx, d, insight)
		return statusOf(insight), err
	}
	if err != nil {
		return nil, err
	}
	insight := obj.DeepCopyObject().(resource.Object)
	own(insight, of)
	change(statusOf(insight))
	if equality.Semantic.DeepEqual(insight, obj) {
		return statusOf(insight), nil
	}
	_, err = r.config.Client.Update(ctx, d, insight)
	return statusOf(insight), err
}

// own makes the object that an insight is of its owner, with which it goes.
func own(insight, of resource.Object) {
	if of == nil {
		return
	}
	d := kind.Dataplane
	switch of.(type) {
	case *meshv1alpha1.ZoneIngress:
		d = kind.ZoneIngress
	case *meshv1alpha1.ZoneEgress:
		d = kind.ZoneEgress
	}
	insight.SetOwnerReferences([]metav1.OwnerReference{{
		APIVersion: d.GVK.GroupVersion().String(), Kind: d.GVK.Kind, Name: of.GetName(), UID: of.GetUID(),
	}})
}

// condition sets conditions of a Dataplane, in whose status others write, too. d is the Dataplane as it was
// read a moment ago; nil: it is read.
func (r *Recorder) condition(ctx context.Context, key resource.Key, d *meshv1alpha1.Dataplane, want []metav1.Condition) (err error) {
	for range attempts {
		if d == nil {
			var obj resource.Object
			if obj, err = r.config.Client.Get(ctx, kind.Dataplane, key); err != nil {
				break
			}
			d = obj.(*meshv1alpha1.Dataplane)
		}
		if err = r.conditionOnce(ctx, d, want); !apierrors.IsConflict(err) {
			break
		}
		d = nil
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("write conditions of dataplane %s: %w", key, err)
	}
	return nil
}

// conditionOnce does so unless somebody else has changed the Dataplane.
func (r *Recorder) conditionOnce(ctx context.Context, of *meshv1alpha1.Dataplane, want []metav1.Condition) error {
	d := of.DeepCopy()
	changed := false
	for _, c := range want {
		if c.Type == meshv1alpha1.DataplaneProxyReady && c.Status == metav1.ConditionFalse && meta.IsStatusConditionTrue(d.Status.Conditions, c.Type) {
			continue // it goes on with what it accepted before
		}
		c.ObservedGeneration = d.Generation
		c.LastTransitionTime = metav1.NewTime(r.clock.Now()) // kept where the status is the same
		changed = meta.SetStatusCondition(&d.Status.Conditions, c) || changed
	}
	if !changed {
		return nil
	}
	_, err := r.config.Client.UpdateStatus(ctx, kind.Dataplane, d)
	return err
}

// Live is the newest connection of a proxy to this instance, with the counts as they are now; ok
// is false if it has none.
func (r *Recorder) Live(key Subject) (s meshv1alpha1.Subscription, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.proxies[key]
	if p == nil || p.connection == nil || !p.connection.ended.IsZero() {
		return s, false
	}
	return p.connection.subscription(r.config.Instance), true
}
