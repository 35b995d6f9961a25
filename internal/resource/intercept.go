package resource

import (
	"context"

	"k8s.io/apimachinery/pkg/watch"
)

// Verb is a method of Client.
type Verb string

// The verbs.
const (
	VerbGet          Verb = "get"
	VerbList         Verb = "list"
	VerbWatch        Verb = "watch"
	VerbCreate       Verb = "create"
	VerbUpdate       Verb = "update"
	VerbUpdateStatus Verb = "update-status"
	VerbDelete       Verb = "delete"
)

// Verbs are all of them.
func Verbs() []Verb {
	return []Verb{VerbGet, VerbList, VerbWatch, VerbCreate, VerbUpdate, VerbUpdateStatus, VerbDelete}
}

// Writes reports whether the verb changes objects.
func (v Verb) Writes() bool {
	return v == VerbCreate || v == VerbUpdate || v == VerbUpdateStatus || v == VerbDelete
}

// Call is one call of a Client, as an interceptor sees it.
type Call struct {
	Verb Verb
	Kind *Descriptor
	// Object that is written, not to be changed; nil for reads and deletions.
	Object Object
	// Key is empty for lists and watches; its Namespace is theirs.
	Key Key
}

// Interceptor surrounds a call: it calls next once, or not at all and returns why. Its
// error is the outcome.
type Interceptor func(ctx context.Context, call Call, next func(context.Context) error) error

// Intercept is the wrapper that calls an interceptor for every call. Of a watch it
// surrounds the beginning.
func Intercept(interceptor Interceptor) Wrapper {
	return func(c Client) Client { return &intercepted{inner: c, intercept: interceptor} }
}

type intercepted struct {
	inner     Client
	intercept Interceptor
}

// Get implements Client.
func (c *intercepted) Get(ctx context.Context, kind *Descriptor, key Key) (obj Object, err error) {
	err = c.intercept(ctx, Call{Verb: VerbGet, Kind: kind, Key: key}, func(ctx context.Context) (err error) {
		obj, err = c.inner.Get(ctx, kind, key)
		return err
	})
	return only(obj, err)
}

// List implements Client.
func (c *intercepted) List(ctx context.Context, kind *Descriptor, opts ListOptions) (objects []Object, version string, err error) {
	err = c.intercept(ctx, Call{Verb: VerbList, Kind: kind, Key: Key{Namespace: opts.Namespace}}, func(ctx context.Context) (err error) {
		objects, version, err = c.inner.List(ctx, kind, opts)
		return err
	})
	if err != nil {
		return nil, "", err
	}
	return objects, version, nil
}

// Watch implements Client.
func (c *intercepted) Watch(ctx context.Context, kind *Descriptor, opts WatchOptions) (w watch.Interface, err error) {
	err = c.intercept(ctx, Call{Verb: VerbWatch, Kind: kind, Key: Key{Namespace: opts.Namespace}}, func(ctx context.Context) (err error) {
		w, err = c.inner.Watch(ctx, kind, opts)
		return err
	})
	if err != nil && w != nil { // the interceptor refused a watch that had begun
		w.Stop()
		return nil, err
	}
	return w, err
}

// Create implements Client.
func (c *intercepted) Create(ctx context.Context, kind *Descriptor, obj Object) (Object, error) {
	return c.write(ctx, VerbCreate, kind, obj, c.inner.Create)
}

// Update implements Client.
func (c *intercepted) Update(ctx context.Context, kind *Descriptor, obj Object) (Object, error) {
	return c.write(ctx, VerbUpdate, kind, obj, c.inner.Update)
}

// UpdateStatus implements Client.
func (c *intercepted) UpdateStatus(ctx context.Context, kind *Descriptor, obj Object) (Object, error) {
	return c.write(ctx, VerbUpdateStatus, kind, obj, c.inner.UpdateStatus)
}

func (c *intercepted) write(ctx context.Context, verb Verb, kind *Descriptor, obj Object,
	f func(context.Context, *Descriptor, Object) (Object, error),
) (out Object, err error) {
	err = c.intercept(ctx, Call{Verb: verb, Kind: kind, Object: obj, Key: KeyOf(obj)}, func(ctx context.Context) (err error) {
		out, err = f(ctx, kind, obj)
		return err
	})
	return only(out, err)
}

// Delete implements Client.
func (c *intercepted) Delete(ctx context.Context, kind *Descriptor, key Key, pre Preconditions) error {
	return c.intercept(ctx, Call{Verb: VerbDelete, Kind: kind, Key: key}, func(ctx context.Context) error {
		return c.inner.Delete(ctx, kind, key, pre)
	})
}

// only returns an object where there is no error.
func only(obj Object, err error) (Object, error) {
	if err != nil {
		return nil, err
	}
	return obj, nil
}
