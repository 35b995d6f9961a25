package resource

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

// Wrapper makes a client that does something more than the one it is given:
// measure, limit, cache, fail. It keeps the promises of Client.
type Wrapper func(Client) Client

// Wrap puts wrappers around a client, the first one outermost.
func Wrap(c Client, wrappers ...Wrapper) Client {
	for i := len(wrappers) - 1; i >= 0; i-- {
		c = wrappers[i](c)
	}
	return c
}

// Override gives a kind a client of its own.
type Override struct {
	Kind   *Descriptor
	Client Client
}

// Router is a Client that sends the calls of each kind to the client that is set for
// it, and those of all other kinds to one client. It is immutable and safe for
// concurrent use.
//
// Kinds may differ in how they are read, limited or measured, and even in where
// they are stored; then the resource versions of two kinds have nothing to do with
// one another. Kinds that are written in one transaction (a Service and its
// IPAddresses) must end in one place.
type Router struct {
	fallback Client
	routes   map[schema.GroupVersionKind]Client
}

var _ Client = (*Router)(nil)

// NewRouter makes a client of several. A kind may be overridden once.
func NewRouter(fallback Client, overrides ...Override) (*Router, error) {
	r := &Router{fallback: fallback, routes: make(map[schema.GroupVersionKind]Client, len(overrides))}
	for _, o := range overrides {
		if o.Kind == nil || o.Client == nil {
			return nil, errors.New("router: an override needs a kind and a client")
		}
		if _, twice := r.routes[o.Kind.GVK]; twice {
			return nil, fmt.Errorf("router: %s is overridden twice", o.Kind.Resource)
		}
		r.routes[o.Kind.GVK] = o.Client
	}
	return r, nil
}

// Of returns the client of a kind.
func (r *Router) Of(kind *Descriptor) Client {
	if c, ok := r.routes[kind.GVK]; ok {
		return c
	}
	return r.fallback
}

// Get implements Client.
func (r *Router) Get(ctx context.Context, kind *Descriptor, key Key) (Object, error) {
	return r.Of(kind).Get(ctx, kind, key)
}

// List implements Client.
func (r *Router) List(ctx context.Context, kind *Descriptor, opts ListOptions) ([]Object, string, error) {
	return r.Of(kind).List(ctx, kind, opts)
}

// Watch implements Client.
func (r *Router) Watch(ctx context.Context, kind *Descriptor, opts WatchOptions) (watch.Interface, error) {
	return r.Of(kind).Watch(ctx, kind, opts)
}

// Create implements Client.
func (r *Router) Create(ctx context.Context, kind *Descriptor, obj Object) (Object, error) {
	return r.Of(kind).Create(ctx, kind, obj)
}

// Update implements Client.
func (r *Router) Update(ctx context.Context, kind *Descriptor, obj Object) (Object, error) {
	return r.Of(kind).Update(ctx, kind, obj)
}

// UpdateStatus implements Client.
func (r *Router) UpdateStatus(ctx context.Context, kind *Descriptor, obj Object) (Object, error) {
	return r.Of(kind).UpdateStatus(ctx, kind, obj)
}

// Delete implements Client.
func (r *Router) Delete(ctx context.Context, kind *Descriptor, key Key, pre Preconditions) error {
	return r.Of(kind).Delete(ctx, kind, key, pre)
}
