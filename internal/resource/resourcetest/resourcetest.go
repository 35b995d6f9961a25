// Package resourcetest is the resource.Client for tests of everything that reads
// and writes through that interface: the one that keeps objects in memory
// (package memory), with faults and calls that a test decides, and the contract
// that every client keeps.
//
// It runs the rules of the descriptors it is given and has none of its own: no
// admission, no garbage collection, no finalizers, no addresses. Enter at New.
package resourcetest

import (
	"context"
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/memory"
)

// Verb is the operation of a call.
type Verb string

// The verbs.
const (
	Get          Verb = "get"
	List         Verb = "list"
	Watch        Verb = "watch"
	Create       Verb = "create"
	Update       Verb = "update"
	UpdateStatus Verb = "update status"
	Delete       Verb = "delete"
)

// Call is one call of a Client, as an interceptor sees it.
type Call struct {
	Verb Verb
	Kind schema.GroupVersionKind
	Key  resource.Key // empty for List, Watch and generated names
	// Object to be written; nil for reads and deletes. Not to be changed.
	Object resource.Object
	// Now: a Delete without a grace period.
	Now bool
}

// Client keeps objects in memory. Safe for concurrent use.
type Client struct {
	objects *memory.Client
	kinds   map[schema.GroupKind]*resource.Descriptor

	mu        sync.Mutex
	intercept func(Call) error
}

var _ resource.Client = (*Client)(nil)

// New makes a client for the given kinds; none: Descriptors.
func New(descriptors ...*resource.Descriptor) *Client {
	if len(descriptors) == 0 {
		descriptors = Descriptors()
	}
	c := &Client{
		objects: memory.New(descriptors...),
		kinds:   make(map[schema.GroupKind]*resource.Descriptor, len(descriptors)),
	}
	for _, d := range descriptors {
		c.kinds[d.GVK.GroupKind()] = d
	}
	return c
}

// Intercept calls f before every call of the interface; an error of f is the
// outcome of the call. nil: no more. f may call the client.
func (c *Client) Intercept(f func(Call) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.intercept = f
}

// Seed stores objects as they are, status, deletionTimestamp and all, creating
// or replacing them, as writes of another client. A uid and a creationTimestamp
// are kept or filled in.
func (c *Client) Seed(objects ...resource.Object) {
	if err := c.objects.Put(objects...); err != nil {
		panic(fmt.Sprintf("resourcetest: %v", err))
	}
}

// Expire forgets history, as compaction does. All watches end with 410, as if
// each were too far behind.
func (c *Client) Expire() { c.objects.Expire() }

// Disconnect ends all watches without an error, as a lost connection does.
func (c *Client) Disconnect() { c.objects.Disconnect() }

// Get implements resource.Client.
func (c *Client) Get(ctx context.Context, kind *resource.Descriptor, key resource.Key) (resource.Object, error) {
	if _, err := c.begin(Call{Verb: Get, Kind: kind.GVK, Key: key}); err != nil {
		return nil, err
	}
	return c.objects.Get(ctx, kind, key)
}

// List implements resource.Client.
func (c *Client) List(ctx context.Context, kind *resource.Descriptor, opts resource.ListOptions) ([]resource.Object, string, error) {
	if _, err := c.begin(Call{Verb: List, Kind: kind.GVK}); err != nil {
		return nil, "", err
	}
	return c.objects.List(ctx, kind, opts)
}

// Watch implements resource.Client.
func (c *Client) Watch(ctx context.Context, kind *resource.Descriptor, opts resource.WatchOptions) (watch.Interface, error) {
	if _, err := c.begin(Call{Verb: Watch, Kind: kind.GVK}); err != nil {
		return nil, err
	}
	return c.objects.Watch(ctx, kind, opts)
}

// Create implements resource.Client.
func (c *Client) Create(ctx context.Context, kind *resource.Descriptor, obj resource.Object) (resource.Object, error) {
	d, err := c.begin(Call{Verb: Create, Kind: kind.GVK, Key: resource.KeyOf(obj), Object: obj})
	if err != nil {
		return nil, err
	}
	return c.objects.Create(ctx, d, obj)
}

// Update implements resource.Client.
func (c *Client) Update(ctx context.Context, kind *resource.Descriptor, obj resource.Object) (resource.Object, error) {
	d, err := c.begin(Call{Verb: Update, Kind: kind.GVK, Key: resource.KeyOf(obj), Object: obj})
	if err != nil {
		return nil, err
	}
	return c.objects.Update(ctx, d, obj)
}

// UpdateStatus implements resource.Client.
func (c *Client) UpdateStatus(ctx context.Context, kind *resource.Descriptor, obj resource.Object) (resource.Object, error) {
	d, err := c.begin(Call{Verb: UpdateStatus, Kind: kind.GVK, Key: resource.KeyOf(obj), Object: obj})
	if err != nil {
		return nil, err
	}
	return c.objects.UpdateStatus(ctx, d, obj)
}

// Delete implements resource.Client. The object is gone at once.
func (c *Client) Delete(ctx context.Context, kind *resource.Descriptor, key resource.Key, pre resource.Preconditions) error {
	if _, err := c.begin(Call{Verb: Delete, Kind: kind.GVK, Key: key, Now: pre.Now}); err != nil {
		return err
	}
	return c.objects.Delete(ctx, kind, key, pre)
}

// begin finds the descriptor that the client has of a kind, whose rules count for
// writes, and calls the interceptor.
func (c *Client) begin(call Call) (*resource.Descriptor, error) {
	d := c.kinds[call.Kind.GroupKind()]
	if d == nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("kind %s is not one that this client was made for", call.Kind))
	}
	c.mu.Lock()
	f := c.intercept
	c.mu.Unlock()
	if f == nil {
		return d, nil
	}
	return d, f(call)
}
