package resource

import (
	"context"
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/watch"
)

// Wrapper makes a client that does something more than the one it is given:
// measure, limit, remember, fail. It keeps the promises of Client.
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

// Managers is a Client that sends each kind to the client that is customized for
// it, and all others to one. It is immutable and safe for concurrent use.
//
// Kinds may be apart in how they are read, limited or measured, and even in
// where they are kept; then the resource versions of two kinds have nothing to
// do with one another. Kinds that are written in one transaction (a Service and
// its IPAddresses) must end in one place.
type Managers struct {
	fallback Client
	kinds    map[*Descriptor]Client
	types    map[reflect.Type]Client
}

var _ Client = (*Managers)(nil)

// NewManagers makes a client of several. A kind may be overridden once; two kinds
// of one Go type must have the same client, as a write names only the object.
func NewManagers(fallback Client, overrides ...Override) (*Managers, error) {
	m := &Managers{fallback: fallback, kinds: map[*Descriptor]Client{}, types: map[reflect.Type]Client{}}
	for _, o := range overrides {
		if o.Kind == nil || o.Client == nil {
			return nil, fmt.Errorf("managers: an override needs a kind and a client")
		}
		if _, twice := m.kinds[o.Kind]; twice {
			return nil, fmt.Errorf("managers: %s is overridden twice", o.Kind.Resource)
		}
		t := reflect.TypeOf(o.Kind.New())
		if other, taken := m.types[t]; taken && other != o.Client {
			return nil, fmt.Errorf("managers: two clients for objects of type %s", t)
		}
		m.kinds[o.Kind], m.types[t] = o.Client, o.Client
	}
	return m, nil
}

// Of returns the client of a kind. Descriptors are made anew by those who ask for
// them, so what counts is the Go type.
func (m *Managers) Of(kind *Descriptor) Client {
	if c, ok := m.kinds[kind]; ok {
		return c
	}
	return m.of(kind.New())
}

func (m *Managers) of(obj Object) Client {
	if c, ok := m.types[reflect.TypeOf(obj)]; ok {
		return c
	}
	return m.fallback
}

// Get implements Client.
func (m *Managers) Get(ctx context.Context, kind *Descriptor, key Key) (Object, error) {
	return m.Of(kind).Get(ctx, kind, key)
}

// List implements Client.
func (m *Managers) List(ctx context.Context, kind *Descriptor, opts ListOptions) ([]Object, string, error) {
	return m.Of(kind).List(ctx, kind, opts)
}

// Watch implements Client.
func (m *Managers) Watch(ctx context.Context, kind *Descriptor, opts WatchOptions) (watch.Interface, error) {
	return m.Of(kind).Watch(ctx, kind, opts)
}

// Create implements Client.
func (m *Managers) Create(ctx context.Context, obj Object) (Object, error) {
	return m.of(obj).Create(ctx, obj)
}

// Update implements Client.
func (m *Managers) Update(ctx context.Context, obj Object) (Object, error) {
	return m.of(obj).Update(ctx, obj)
}

// UpdateStatus implements Client.
func (m *Managers) UpdateStatus(ctx context.Context, obj Object) (Object, error) {
	return m.of(obj).UpdateStatus(ctx, obj)
}

// Delete implements Client.
func (m *Managers) Delete(ctx context.Context, kind *Descriptor, key Key, pre Preconditions) error {
	return m.Of(kind).Delete(ctx, kind, key, pre)
}
