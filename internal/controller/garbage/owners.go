// Package garbage removes what is not needed any more: objects whose owners are
// gone, and pods of nodes that are gone.
//
// Owners does with metadata.ownerReferences what the garbage collector of
// Kubernetes does: background, foreground and orphan deletion. Pods does what
// its pod garbage collector does. Enter at NewOwners and NewPods. Inside
// Kubernetes neither is run: its own controllers do this.
//
// An object is deleted only after its owner was read and found absent, whatever
// the watches say; what cannot be read, or is of a kind that is not served, counts
// as there. Nothing here acts before all kinds were listed once.
package garbage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

	"github.com/proxima-mesh/proxima/internal/controller/event"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

const (
	// Workers delete side by side; more would only queue at the store's one writer.
	ownerWorkers = 4
	// A failed object is looked at again soon, then less often.
	firstRetry = 20 * time.Millisecond
	lastRetry  = 30 * time.Second
	// defaultSettle is how long an owner that waits for its dependents is held
	// at least: kinds are watched apart, so a dependent that was made just before
	// may be heard of just after.
	defaultSettle = 250 * time.Millisecond
)

// OwnersConfig of an Owners. Client and Kinds are required.
type OwnersConfig struct {
	Client resource.Client
	// Kinds are all that are served. Events are left out, as in Kubernetes.
	Kinds []*resource.Descriptor
	// Settle, 0: 250 ms.
	Settle time.Duration
	// Now; nil: time.Now.
	Now    func() time.Time
	Logger *slog.Logger
}

// Owners collects objects whose owners are gone.
type Owners struct {
	OwnersConfig
	byKind map[schema.GroupKind]*resource.Descriptor
	queue  workqueue.TypedRateLimitingInterface[types.UID]

	mu sync.Mutex
	*graph
	// pending kinds were never listed; until there is none, nothing is done.
	pending map[schema.GroupVersionKind]bool
	// down kinds cannot be watched now: who depends on what is not known of them.
	down map[schema.GroupVersionKind]bool
	// reported are objects whose wrong reference was reported.
	reported map[types.UID]bool
}

// NewOwners makes a collector; Run starts it.
func NewOwners(cfg OwnersConfig) *Owners {
	o := &Owners{
		OwnersConfig: cfg, graph: newGraph(),
		byKind:   map[schema.GroupKind]*resource.Descriptor{},
		pending:  map[schema.GroupVersionKind]bool{},
		down:     map[schema.GroupVersionKind]bool{},
		reported: map[types.UID]bool{},
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[types.UID](firstRetry, lastRetry)),
	}
	if o.Settle == 0 {
		o.Settle = defaultSettle
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	for _, k := range cfg.Kinds {
		if k.GVK.Kind == "Event" {
			continue
		}
		o.byKind[k.GVK.GroupKind()] = k
		o.pending[k.GVK] = true
	}
	return o
}

// Run works until ctx ends. It blocks, returns nil and may be called once.
func (o *Owners) Run(ctx context.Context) error {
	var all sync.WaitGroup
	kinds := slices.Collect(maps.Values(o.byKind))
	for _, kind := range kinds {
		all.Go(func() { reflect(ctx, o.Client, kind, o, o.Logger) })
	}
	for range ownerWorkers {
		all.Go(func() { o.work(ctx) })
	}
	<-ctx.Done()
	o.queue.ShutDown()
	all.Wait()
	return nil
}

func (o *Owners) replace(kind *resource.Descriptor, all []resource.Object) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.down, kind.GVK)
	present := make(map[types.UID]bool, len(all))
	var look []types.UID
	for _, obj := range all {
		present[obj.GetUID()] = true
		look = append(look, o.graph.set(nodeOf(kind, obj))...)
	}
	for _, uid := range o.ofKind(kind.GVK) {
		if !present[uid] {
			look = append(look, o.graph.remove(uid)...)
		}
	}
	o.add(o.listed(kind, look))
}

func (o *Owners) set(kind *resource.Descriptor, obj resource.Object) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.add(o.graph.set(nodeOf(kind, obj)))
}

func (o *Owners) remove(_ *resource.Descriptor, obj resource.Object) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.reported, obj.GetUID())
	o.add(o.graph.remove(obj.GetUID()))
}

// disconnected lets work begin without a kind that cannot be read: its objects count as
// there, so nothing is deleted on account of it.
func (o *Owners) disconnected(kind *resource.Descriptor) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.down[kind.GVK] = true
	o.add(o.listed(kind, nil))
}

// listed notes that a kind has had its turn. With the last one everything that
// was left for later is looked at.
func (o *Owners) listed(kind *resource.Descriptor, look []types.UID) []types.UID {
	if !o.pending[kind.GVK] {
		return look
	}
	delete(o.pending, kind.GVK)
	if len(o.pending) == 0 {
		return o.allDoubtful()
	}
	return nil
}

func (o *Owners) add(look []types.UID) {
	if len(o.pending) > 0 {
		return
	}
	for _, uid := range look {
		o.queue.Add(uid)
	}
}

func (o *Owners) work(ctx context.Context) {
	for {
		uid, shutdown := o.queue.Get()
		if shutdown {
			return
		}
		o.handle(ctx, uid)
		o.queue.Done(uid)
	}
}

func (o *Owners) handle(ctx context.Context, uid types.UID) {
	o.mu.Lock()
	n := o.nodes[uid]
	o.mu.Unlock()
	if n == nil || ctx.Err() != nil {
		o.queue.Forget(uid)
		return
	}
	wait, err := o.process(ctx, n)
	switch {
	case ctx.Err() != nil:
	case apierrors.IsConflict(err):
		o.queue.AddRateLimited(uid) // it was changed meanwhile
	case err != nil:
		o.Logger.Warn("could not collect, will try again", "kind", n.kind.GVK.Kind, "object", n.key.String(), "error", err)
		o.queue.AddRateLimited(uid)
	default:
		o.queue.Forget(uid)
		if wait > 0 {
			o.queue.AddAfter(uid, wait)
		}
	}
}

// process does what is to be done about one object now. wait > 0: look again then.
func (o *Owners) process(ctx context.Context, n *node) (wait time.Duration, err error) {
	obj, err := o.Client.Get(ctx, n.kind, n.key)
	switch {
	case apierrors.IsNotFound(err) || err == nil && obj.GetUID() != n.uid:
		return 0, nil // the watch will deliver it
	case err != nil:
		return 0, fmt.Errorf("read it: %w", err)
	}
	if !obj.GetDeletionTimestamp().IsZero() {
		switch {
		case slices.Contains(obj.GetFinalizers(), metav1.FinalizerOrphanDependents):
			return o.orphan(ctx, n, obj)
		case slices.Contains(obj.GetFinalizers(), metav1.FinalizerDeleteDependents):
			return o.finish(ctx, n, obj)
		}
		return 0, nil
	}
	if len(obj.GetOwnerReferences()) == 0 {
		return 0, nil
	}
	return 0, o.collect(ctx, n, obj)
}

// orphan takes an owner out of the references of its dependents, and lets it go.
func (o *Owners) orphan(ctx context.Context, n *node, obj resource.Object) (time.Duration, error) {
	var errs []error
	for _, d := range o.dependentNodes(n.uid) {
		dependent, err := o.Client.Get(ctx, d.kind, d.key)
		if apierrors.IsNotFound(err) || err == nil && dependent.GetUID() != d.uid {
			continue
		}
		if err == nil {
			err = o.update(ctx, d.kind, dependent, func(refs []metav1.OwnerReference) []metav1.OwnerReference {
				return slices.DeleteFunc(refs, func(r metav1.OwnerReference) bool { return r.UID == n.uid })
			})
		}
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("orphan %s %s: %w", d.kind.Singular, d.key, err))
		}
	}
	// A dependent that was overlooked would be deleted, against the user's wish.
	if down := o.anyDown(); down != "" {
		errs = append(errs, fmt.Errorf("orphan what depends on it: %s cannot be watched", down))
	}
	if err := errors.Join(errs...); err != nil {
		return 0, err
	}
	if wait := o.settling(obj); wait > 0 {
		return wait, nil
	}
	return 0, o.release(ctx, n.kind, obj, metav1.FinalizerOrphanDependents)
}

// finish lets an owner go that waits for its dependents, if none blocks it.
func (o *Owners) finish(ctx context.Context, n *node, obj resource.Object) (time.Duration, error) {
	blocked := false
	for _, d := range o.dependentNodes(n.uid) {
		if d.blocks(n.uid) {
			blocked = true
		}
		if !d.foreground {
			o.queue.Add(d.uid)
		}
	}
	if blocked {
		return 0, nil // the last one that goes brings us back
	}
	if wait := o.settling(obj); wait > 0 {
		return wait, nil
	}
	return 0, o.release(ctx, n.kind, obj, metav1.FinalizerDeleteDependents)
}

// settling is how long an owner must be held yet.
func (o *Owners) settling(obj resource.Object) time.Duration {
	// The timestamp has whole seconds, and a grace period may lie in it.
	asked := obj.GetDeletionTimestamp().Time
	if grace := obj.GetDeletionGracePeriodSeconds(); grace != nil {
		asked = asked.Add(-time.Duration(*grace) * time.Second)
	}
	return min(asked.Add(time.Second).Add(o.Settle).Sub(o.Now()), time.Second+o.Settle)
}

// release takes a finalizer off.
func (o *Owners) release(ctx context.Context, kind *resource.Descriptor, obj resource.Object, finalizer string) error {
	obj.SetFinalizers(slices.DeleteFunc(obj.GetFinalizers(), func(f string) bool { return f == finalizer }))
	if _, err := o.Client.Update(ctx, kind, obj); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("take off finalizer %s: %w", finalizer, err)
	}
	return nil
}

// update changes the owner references of an object, if there is a change.
func (o *Owners) update(ctx context.Context, kind *resource.Descriptor, obj resource.Object,
	change func([]metav1.OwnerReference) []metav1.OwnerReference,
) error {
	was := obj.GetOwnerReferences()
	is := change(slices.Clone(was))
	if slices.EqualFunc(was, is, equalRefs) {
		return nil
	}
	obj.SetOwnerReferences(is)
	_, err := o.Client.Update(ctx, kind, obj)
	return err
}

// owners of an object, by what they are to it.
type owners struct {
	solid int
	// dangling owners do not exist; waiting ones are being deleted in the foreground.
	dangling, waiting map[types.UID]bool
}

// collect deletes an object whose owners are all gone, and takes those that are
// out of the references of one that has others.
func (o *Owners) collect(ctx context.Context, n *node, obj resource.Object) error {
	of, err := o.classify(ctx, n, obj)
	if err != nil {
		return err
	}
	if of.solid > 0 {
		err := o.update(ctx, n.kind, obj, func(refs []metav1.OwnerReference) []metav1.OwnerReference {
			return slices.DeleteFunc(refs, func(r metav1.OwnerReference) bool { return of.dangling[r.UID] || of.waiting[r.UID] })
		})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("take owners that are gone out of its references: %w", err)
		}
		return nil
	}
	pre := resource.Preconditions{
		UID:             obj.GetUID(),
		ResourceVersion: obj.GetResourceVersion(),
		Propagation:     metav1.DeletePropagationBackground,
	}
	dependents := o.dependentNodes(n.uid)
	switch {
	case len(of.waiting) > 0 && len(dependents) > 0:
		// What waits for one that waits for it would wait for ever.
		if slices.ContainsFunc(dependents, func(d *node) bool { return d.foreground }) {
			return o.unblock(ctx, n, obj)
		}
		pre.Propagation = metav1.DeletePropagationForeground
	case slices.Contains(obj.GetFinalizers(), metav1.FinalizerOrphanDependents):
		pre.Propagation = metav1.DeletePropagationOrphan
	case slices.Contains(obj.GetFinalizers(), metav1.FinalizerDeleteDependents):
		pre.Propagation = metav1.DeletePropagationForeground
	}
	return o.delete(ctx, n, pre)
}

// unblock breaks a circle: the object goes on without blocking its owners, and is deleted.
func (o *Owners) unblock(ctx context.Context, n *node, obj resource.Object) error {
	err := o.update(ctx, n.kind, obj, func(refs []metav1.OwnerReference) []metav1.OwnerReference {
		for i := range refs {
			refs[i].BlockOwnerDeletion = nil
		}
		return refs
	})
	if err != nil {
		return fmt.Errorf("let its owners go: %w", err)
	}
	return o.delete(ctx, n, resource.Preconditions{UID: n.uid, Propagation: metav1.DeletePropagationForeground})
}

func (o *Owners) delete(ctx context.Context, n *node, pre resource.Preconditions) error {
	err := o.Client.Delete(ctx, n.kind, n.key, pre)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete it: %w", err)
	}
	o.Logger.Debug("collected", "kind", n.kind.GVK.Kind, "object", n.key.String(), "propagation", pre.Propagation)
	return nil
}

// classify finds out about each owner of an object.
func (o *Owners) classify(ctx context.Context, n *node, obj resource.Object) (owners, error) {
	out := owners{dangling: map[types.UID]bool{}, waiting: map[types.UID]bool{}}
	for _, ref := range obj.GetOwnerReferences() {
		o.mu.Lock()
		known := o.nodes[ref.UID]
		o.mu.Unlock()
		if known != nil && known.is(ref, n.key.Namespace) && !known.foreground {
			out.solid++ // when it goes, the watch delivers that
			continue
		}
		if known != nil && known.key.Namespace != "" && known.key.Namespace != n.key.Namespace {
			o.report(ctx, n, obj, ref)
		}
		state, err := o.ownerState(ctx, n, ref)
		if err != nil {
			return out, fmt.Errorf("read owner %s %s: %w", ref.Kind, ref.Name, err)
		}
		switch state {
		case dangling:
			out.dangling[ref.UID] = true
		case waiting:
			out.waiting[ref.UID] = true
		default:
			out.solid++
		}
	}
	return out, nil
}

type ownerState uint8

const (
	solid ownerState = iota
	dangling
	waiting
)

// ownerState reads an owner. One of a kind that is not served, or that an object
// of no namespace cannot have, counts as there: nothing can be known of it.
func (o *Owners) ownerState(ctx context.Context, n *node, ref metav1.OwnerReference) (ownerState, error) {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return solid, nil
	}
	kind := o.byKind[schema.GroupKind{Group: gv.Group, Kind: ref.Kind}]
	if kind == nil || kind.Namespaced && n.key.Namespace == "" {
		return solid, nil
	}
	key := resource.Key{Name: ref.Name}
	if kind.Namespaced {
		key.Namespace = n.key.Namespace
	}
	owner, err := o.Client.Get(ctx, kind, key)
	switch {
	case apierrors.IsNotFound(err) || err == nil && owner.GetUID() != ref.UID:
		return dangling, nil
	case err != nil:
		return solid, err
	case nodeOf(kind, owner).foreground:
		return waiting, nil
	}
	return solid, nil
}

// anyDown is a kind that cannot be watched now; empty: none.
func (o *Owners) anyDown() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	for kind := range o.down {
		return kind.Kind
	}
	return ""
}

// dependentNodes are the objects that name an owner, as far as is known.
func (o *Owners) dependentNodes(owner types.UID) (nodes []*node) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for uid := range o.dependents[owner].all() {
		if d := o.nodes[uid]; d != nil {
			nodes = append(nodes, d)
		}
	}
	return nodes
}

// report sends, once, an event about a reference to an owner in another namespace: it never
// counts as there.
func (o *Owners) report(ctx context.Context, n *node, obj resource.Object, ref metav1.OwnerReference) {
	o.mu.Lock()
	reported := o.reported[n.uid]
	o.reported[n.uid] = true
	o.mu.Unlock()
	if reported {
		return
	}
	_, err := o.Client.Create(
		ctx,
		kind.Event,
		event.Warning(
			event.About(n.kind.GVK, obj),
			"garbage-collector-controller",
			o.Now(),
			"OwnerRefInvalidNamespace",
			fmt.Sprintf(
				"ownerRef [%s/%s, name: %s, uid: %s] does not exist in namespace %q",
				ref.APIVersion,
				ref.Kind,
				ref.Name,
				ref.UID,
				n.key.Namespace,
			),
		),
	)
	if err != nil && ctx.Err() == nil {
		o.Logger.Warn("event could not be written", "object", n.key.String(), "error", err)
	}
}
