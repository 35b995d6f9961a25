// Package namespace empties Namespaces that are being deleted and lets them go.
//
// The API server refuses new objects in a Terminating namespace, so what is
// there can only become less. Enter at New. The controller never deletes a
// namespace that no user asked to delete, and leaves finalizers other than its
// own to their owners. Inside Kubernetes it is not run: there the namespace
// controller of Kubernetes does this.
package namespace

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/reflector"
)

// Finalizer takes finalizers off a Namespace, which no ordinary write may do.
type Finalizer interface {
	// FinalizeNamespace replaces spec.finalizers. The namespace goes with the
	// last one. A resourceVersion is a precondition.
	FinalizeNamespace(ctx context.Context, namespace *corev1.Namespace) error
}

const (
	// A namespace is looked at again while something is left in it, first soon,
	// then less often: what is left ends by its own clock or its finalizers.
	firstRetry = 20 * time.Millisecond
	lastRetry  = 2 * time.Second
	// watchRetry is the delay before a watch that failed is established again.
	watchRetry = time.Second
)

// Controller deletes the contents of Terminating namespaces.
type Controller struct {
	client     resource.Client
	finalizer  Finalizer
	namespaces *resource.Descriptor
	contents   []*resource.Descriptor
	log        *slog.Logger
	queue      workqueue.TypedRateLimitingInterface[string]
}

// New makes a controller. Kinds are all that are served, Namespace among them.
func New(client resource.Client, finalizer Finalizer, kinds []*resource.Descriptor, log *slog.Logger) (*Controller, error) {
	c := &Controller{client: client, finalizer: finalizer, log: log}
	for _, kind := range kinds {
		switch {
		case kind.Namespaced:
			c.contents = append(c.contents, kind)
		case kind.GVK == corev1.SchemeGroupVersion.WithKind("Namespace"):
			c.namespaces = kind
		}
	}
	if c.namespaces == nil {
		return nil, errors.New("namespace controller: kind Namespace is not served")
	}
	return c, nil
}

// Run works until ctx ends. It blocks and may be called once.
func (c *Controller) Run(ctx context.Context) error {
	c.queue = workqueue.NewTypedRateLimitingQueue(
		workqueue.NewTypedItemExponentialFailureRateLimiter[string](firstRetry, lastRetry))
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		c.watch(ctx)
	}()
	stop := context.AfterFunc(ctx, c.queue.ShutDown)
	defer stop()
	for {
		name, shutdown := c.queue.Get()
		if shutdown {
			break
		}
		c.work(ctx, name)
	}
	<-watching
	return nil
}

func (c *Controller) work(ctx context.Context, name string) {
	defer c.queue.Done(name)
	gone, err := c.empty(ctx, name)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		c.log.Warn("could not empty a namespace, will try again", "namespace", name, "error", err)
		c.queue.AddRateLimited(name)
	case !gone:
		c.queue.AddRateLimited(name)
	default:
		c.queue.Forget(name)
	}
}

// watch puts the names of Terminating namespaces into the queue.
func (c *Controller) watch(ctx context.Context) {
	_ = reflector.Run(ctx, reflector.Config{
		Client:  c.client,
		Kind:    c.namespaces,
		Backoff: backoff.Policy{First: watchRetry, Last: watchRetry},
		Logger:  c.log,
		Level:   slog.LevelWarn,
	}, func(e reflector.Event) error {
		if e.Type != reflector.Replace && e.Type != reflector.Set {
			return nil
		}
		for _, obj := range e.Objects {
			if isTerminating(obj.(*corev1.Namespace)) {
				c.queue.Add(obj.GetName())
			}
		}
		return nil
	})
}

func isTerminating(namespace *corev1.Namespace) bool { return !namespace.DeletionTimestamp.IsZero() }

// empty deletes what is in a namespace. If nothing is left it takes the
// finalizer off. gone=false: look again.
func (c *Controller) empty(ctx context.Context, name string) (gone bool, err error) {
	got, err := c.client.Get(ctx, c.namespaces, resource.Key{Name: name})
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("read namespace %s: %w", name, err)
	}
	namespace := got.(*corev1.Namespace)
	if !isTerminating(namespace) || !slices.Contains(namespace.Spec.Finalizers, corev1.FinalizerKubernetes) {
		return true, nil
	}
	left := 0
	var errs []error
	for _, kind := range c.contents {
		n, err := c.deleteAll(ctx, kind, name)
		left += n
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil || left > 0 {
		return false, err
	}
	namespace.Spec.Finalizers = slices.DeleteFunc(namespace.Spec.Finalizers, func(f corev1.FinalizerName) bool {
		return f == corev1.FinalizerKubernetes
	})
	err = c.finalizer.FinalizeNamespace(ctx, namespace)
	if err != nil && !apierrors.IsNotFound(err) {
		if apierrors.IsConflict(err) {
			return false, nil
		}
		return false, fmt.Errorf("finalize namespace %s: %w", name, err)
	}
	return true, nil
}

// deleteAll asks for the deletion of every object of a kind and counts those
// that it saw: none is left for sure only when a later look sees none.
func (c *Controller) deleteAll(ctx context.Context, kind *resource.Descriptor, namespace string) (int, error) {
	objects, _, err := c.client.List(ctx, kind, resource.ListOptions{Namespace: namespace})
	if err != nil {
		return 0, fmt.Errorf("list %s in namespace %s: %w", kind.Resource, namespace, err)
	}
	var errs []error
	for _, obj := range objects {
		if obj.GetDeletionTimestamp() != nil {
			continue
		}
		err := c.client.Delete(ctx, kind, resource.KeyOf(obj), resource.Preconditions{UID: obj.GetUID()})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			errs = append(errs, fmt.Errorf("delete %s %s: %w", kind.Singular, resource.KeyOf(obj), err))
		}
	}
	return len(objects), errors.Join(errs...)
}
