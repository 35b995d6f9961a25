// Package resource describes the kinds of objects that Proxima serves, and
// is the one way to read and write them.
//
// It owns the type Descriptor (scope, sync direction, defaulting, validation,
// columns; package kind has the one of each kind), the Client interface that
// controllers use, and the Router that gives kinds clients of their own. Enter at
// Client. It never does I/O: the API server implements Client in process, package
// kubeclient over HTTP.
package resource

import (
	"context"
	"errors"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// Object is any API object.
type Object interface {
	metav1.Object
	runtime.Object
}

// Key names an object within its kind. Namespace is empty for cluster-scoped
// kinds.
type Key = types.NamespacedName

// KeyOf returns an object's key.
func KeyOf(o metav1.Object) Key {
	return Key{Namespace: o.GetNamespace(), Name: o.GetName()}
}

// ListOptions select objects. The zero value selects all, as new as the server
// has it.
type ListOptions struct {
	Namespace string
	Labels    labels.Selector
	// Fields that the kind's descriptor lets select, besides metadata.name and
	// metadata.namespace.
	Fields fields.Selector
	// Shared: the objects, and what they refer to, may be memory of others, and the caller never
	// changes them. It saves a copy of every object. A client that has nothing to share ignores it.
	Shared bool
}

// WatchOptions start a watch.
type WatchOptions struct {
	ListOptions
	// ResourceVersion to start after; empty: synthetic ADDED events of what
	// exists, then a BOOKMARK annotated k8s.io/initial-events-end, then changes.
	ResourceVersion string
}

// Client reads and writes API objects as one named user, along the one write
// path: defaulting, validation, preparation, one transaction. Errors are those
// of k8s.io/apimachinery/pkg/api/errors (IsNotFound, IsConflict, …). Objects
// passed in are not changed and may be reused; objects returned belong to the
// caller, but see ListOptions.Shared. An object that is written has the Go type of its kind. All methods block
// until the write is durable.
type Client interface {
	// Get reads the newest state.
	Get(ctx context.Context, kind *Descriptor, key Key) (Object, error)
	// List reads all, and the resource version to watch from.
	List(ctx context.Context, kind *Descriptor, opts ListOptions) (objects []Object, resourceVersion string, err error)
	Watch(ctx context.Context, kind *Descriptor, opts WatchOptions) (watch.Interface, error)
	// Create makes an object; metadata.generateName is honoured. The status of obj does
	// not count, unless ctx is of WithStatus.
	Create(ctx context.Context, kind *Descriptor, obj Object) (Object, error)
	// Update replaces everything but the status; with a ctx of WithStatus, the status,
	// too. A resourceVersion in obj is a precondition.
	Update(ctx context.Context, kind *Descriptor, obj Object) (Object, error)
	// UpdateStatus replaces the status alone.
	UpdateStatus(ctx context.Context, kind *Descriptor, obj Object) (Object, error)
	// Delete removes an object; zero preconditions: whatever it is now. Pods and
	// Dataplanes go on as terminating for their grace period, unless pre.Now.
	Delete(ctx context.Context, kind *Descriptor, key Key, pre Preconditions) error
}

// Preconditions of a Delete. Empty fields are not checked.
type Preconditions struct {
	UID             types.UID
	ResourceVersion string
	// Now deletes without a grace period.
	Now bool
	// Propagation is how a deletion propagates to the objects that this one owns;
	// empty: they are deleted after it, in the background.
	Propagation metav1.DeletionPropagation
}

// WithStatus returns a context in which Create and Update write the status of an object
// with all else, in one transaction. It is for copies, whose original has both; who
// observes an object uses UpdateStatus. Only clients in the process of the store can do
// so: those over HTTP return ErrStatusApart.
func WithStatus(ctx context.Context) context.Context {
	return context.WithValue(ctx, withStatus{}, true)
}

// StatusIncluded reports whether ctx is one of WithStatus.
func StatusIncluded(ctx context.Context) bool { return ctx.Value(withStatus{}) != nil }

type withStatus struct{}

// ErrStatusApart is what clients return that cannot write object and status together.
var ErrStatusApart = errors.New("this client cannot write an object and its status in one transaction")
