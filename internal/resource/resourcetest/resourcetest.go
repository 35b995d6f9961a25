// Package resourcetest is an in-memory resource.Client for tests of everything
// that reads and writes through that interface.
//
// It keeps the promises that controllers build on: one rising resourceVersion,
// conflicts, generateName, status apart from the rest, preconditions, watches
// that start anywhere in history and end with 410 when it is gone. It runs the
// rules of the descriptors it is given and has none of its own: no admission, no
// garbage collection, no finalizers, no addresses. Enter at New.
package resourcetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/proxima-mesh/proxima/internal/resource"
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
	byType map[reflect.Type]*resource.Descriptor

	mu        sync.Mutex
	changed   chan struct{} // closed and replaced at every change of history
	revision  uint64
	compacted uint64
	dropped   uint64 // watches started before this count are to end
	expired   uint64 // and those before this one with 410
	objects   map[schema.GroupKind]map[resource.Key]resource.Object
	history   []record
	names     uint64
	intercept func(Call) error
}

// record is one change, in order of revision.
type record struct {
	revision  uint64
	kind      schema.GroupKind
	event     watch.EventType
	obj, prev resource.Object
}

var _ resource.Client = (*Client)(nil)

// New makes a client for the given kinds; none: Descriptors.
func New(descriptors ...*resource.Descriptor) *Client {
	if len(descriptors) == 0 {
		descriptors = Descriptors()
	}
	c := &Client{
		byType:  make(map[reflect.Type]*resource.Descriptor, len(descriptors)),
		changed: make(chan struct{}),
		objects: make(map[schema.GroupKind]map[resource.Key]resource.Object, len(descriptors)),
	}
	for _, d := range descriptors {
		c.byType[reflect.TypeOf(d.New())] = d
		c.objects[d.GVK.GroupKind()] = make(map[resource.Key]resource.Object)
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
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, obj := range objects {
		d := c.byType[reflect.TypeOf(obj)]
		if d == nil {
			panic(fmt.Sprintf("resourcetest: unknown type %T", obj))
		}
		stored := clone(obj)
		old := c.objects[d.GVK.GroupKind()][resource.KeyOf(obj)]
		switch {
		case stored.GetUID() != "":
		case old != nil:
			stored.SetUID(old.GetUID())
		default:
			stored.SetUID(c.nextUID())
		}
		if created := stored.GetCreationTimestamp(); created.IsZero() {
			stored.SetCreationTimestamp(now())
		}
		c.store(d, stored, old)
	}
}

// Expire forgets history, as compaction does. All watches end with 410, as if
// each were too far behind.
func (c *Client) Expire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.compacted = c.revision
	c.expired++
	c.history = nil
	c.wake()
}

// Disconnect ends all watches without an error, as a lost connection does.
func (c *Client) Disconnect() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dropped++
	c.wake()
}

// Get implements resource.Client.
func (c *Client) Get(_ context.Context, d *resource.Descriptor, key resource.Key) (resource.Object, error) {
	if err := c.ask(Call{Verb: Get, Kind: d.GVK, Key: key}); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	obj, ok := c.objects[d.GVK.GroupKind()][key]
	if !ok {
		return nil, apierrors.NewNotFound(d.GroupResource(), key.Name)
	}
	return clone(obj), nil
}

// List implements resource.Client.
func (c *Client) List(_ context.Context, d *resource.Descriptor, opts resource.ListOptions) ([]resource.Object, string, error) {
	if err := c.ask(Call{Verb: List, Kind: d.GVK}); err != nil {
		return nil, "", err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []resource.Object
	for _, obj := range c.objects[d.GVK.GroupKind()] {
		if selected(d, opts, obj) {
			out = append(out, clone(obj))
		}
	}
	return out, format(c.revision), nil
}

// Create implements resource.Client.
func (c *Client) Create(ctx context.Context, kind *resource.Descriptor, obj resource.Object) (resource.Object, error) {
	d, err := c.begin(Create, kind, obj)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	stored := clone(obj)
	if stored.GetName() == "" && stored.GetGenerateName() != "" {
		c.names++
		stored.SetName(stored.GetGenerateName() + fmt.Sprintf("%05d", c.names))
	}
	key := resource.KeyOf(stored)
	switch {
	case key.Name == "":
		return nil, apierrors.NewBadRequest("name or generateName is required")
	case stored.GetResourceVersion() != "":
		return nil, apierrors.NewBadRequest("resourceVersion should not be set on objects to be created")
	case c.objects[d.GVK.GroupKind()][key] != nil:
		return nil, apierrors.NewAlreadyExists(d.GroupResource(), key.Name)
	}
	stored.SetUID(c.nextUID())
	stored.SetCreationTimestamp(now())
	whole := resource.StatusIncluded(ctx)
	if d.Status && !whole {
		copyStatus(stored, d.New())
	}
	if err := admit(d, stored, nil, false, whole); err != nil {
		return nil, err
	}
	c.store(d, stored, nil)
	return clone(stored), nil
}

// Update implements resource.Client.
func (c *Client) Update(ctx context.Context, kind *resource.Descriptor, obj resource.Object) (resource.Object, error) {
	return c.update(Update, kind, obj, resource.StatusIncluded(ctx))
}

// UpdateStatus implements resource.Client.
func (c *Client) UpdateStatus(_ context.Context, kind *resource.Descriptor, obj resource.Object) (resource.Object, error) {
	return c.update(UpdateStatus, kind, obj, false)
}

func (c *Client) update(verb Verb, kind *resource.Descriptor, obj resource.Object, whole bool) (resource.Object, error) {
	d, err := c.begin(verb, kind, obj)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	key := resource.KeyOf(obj)
	old := c.objects[d.GVK.GroupKind()][key]
	switch {
	case old == nil:
		return nil, apierrors.NewNotFound(d.GroupResource(), key.Name)
	case obj.GetResourceVersion() != "" && obj.GetResourceVersion() != old.GetResourceVersion(),
		obj.GetUID() != "" && obj.GetUID() != old.GetUID():
		return nil, apierrors.NewConflict(d.GroupResource(), key.Name, errors.New("the object has been modified"))
	}
	stored := clone(obj)
	if verb == UpdateStatus {
		stored = clone(old)
		copyStatus(stored, obj)
	} else if d.Status && !whole {
		copyStatus(stored, old)
	}
	stored.SetUID(old.GetUID())
	stored.SetCreationTimestamp(old.GetCreationTimestamp())
	stored.SetDeletionTimestamp(old.GetDeletionTimestamp())
	stored.SetResourceVersion(old.GetResourceVersion())
	if err := admit(d, stored, old, verb == UpdateStatus, whole); err != nil {
		return nil, err
	}
	if !equality.Semantic.DeepEqual(stored, old) {
		c.store(d, stored, old)
	}
	return clone(stored), nil
}

// Delete implements resource.Client. The object is gone at once.
func (c *Client) Delete(_ context.Context, d *resource.Descriptor, key resource.Key, pre resource.Preconditions) error {
	if err := c.ask(Call{Verb: Delete, Kind: d.GVK, Key: key, Now: pre.Now}); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	gk := d.GVK.GroupKind()
	old := c.objects[gk][key]
	switch {
	case old == nil:
		return apierrors.NewNotFound(d.GroupResource(), key.Name)
	case pre.UID != "" && pre.UID != old.GetUID(),
		pre.ResourceVersion != "" && pre.ResourceVersion != old.GetResourceVersion():
		return apierrors.NewConflict(d.GroupResource(), key.Name, errors.New("precondition failed"))
	}
	delete(c.objects[gk], key)
	c.revision++
	last := clone(old)
	last.SetResourceVersion(format(c.revision))
	c.record(gk, watch.Deleted, last, old)
	return nil
}

// begin finds the descriptor that the client has of a kind, whose rules count, and
// calls the interceptor.
func (c *Client) begin(verb Verb, kind *resource.Descriptor, obj resource.Object) (*resource.Descriptor, error) {
	d := c.byType[reflect.TypeOf(obj)]
	if d == nil || d.GVK.GroupKind() != kind.GVK.GroupKind() {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("%s %T: no such kind, or an object of another one", kind.Resource, obj))
	}
	return d, c.ask(Call{Verb: verb, Kind: d.GVK, Key: resource.KeyOf(obj), Object: obj})
}

func (c *Client) ask(call Call) error {
	c.mu.Lock()
	f := c.intercept
	c.mu.Unlock()
	if f == nil {
		return nil
	}
	return f(call)
}

// store gives the object the next revision and wakes the watches. Callers hold mu.
func (c *Client) store(d *resource.Descriptor, obj, old resource.Object) {
	gk := d.GVK.GroupKind()
	c.revision++
	obj.SetResourceVersion(format(c.revision))
	c.objects[gk][resource.KeyOf(obj)] = obj
	event := watch.Modified
	if old == nil {
		event = watch.Added
	}
	c.record(gk, event, obj, old)
}

func (c *Client) record(gk schema.GroupKind, event watch.EventType, obj, prev resource.Object) {
	c.history = append(c.history, record{revision: c.revision, kind: gk, event: event, obj: obj, prev: prev})
	c.wake()
}

func (c *Client) wake() {
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *Client) nextUID() types.UID {
	c.names++
	return types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", c.names))
}

// admit runs the kind's own rules, as the write path does.
func admit(d *resource.Descriptor, obj, old resource.Object, status, whole bool) error {
	prepare, validate := d.Prepare, d.Validate
	switch {
	case status:
		prepare, validate = d.PrepareStatus, d.ValidateStatus
	case whole:
		prepare, validate = d.PrepareWhole, d.ValidateWhole
	}
	if d.Default != nil {
		d.Default(obj)
	}
	if prepare != nil {
		prepare(obj, old)
	}
	if validate != nil {
		if errs := validate(obj, old); len(errs) > 0 {
			return apierrors.NewInvalid(d.GVK.GroupKind(), obj.GetName(), errs)
		}
	}
	return nil
}

func selected(d *resource.Descriptor, opts resource.ListOptions, obj resource.Object) bool {
	return (opts.Namespace == "" || opts.Namespace == obj.GetNamespace()) &&
		(opts.Labels == nil || opts.Labels.Matches(labelSet(obj.GetLabels()))) &&
		(opts.Fields == nil || opts.Fields.Matches(fieldsOf(d, obj)))
}

func fieldsOf(d *resource.Descriptor, obj resource.Object) fields.Set {
	set := fields.Set{"metadata.name": obj.GetName(), "metadata.namespace": obj.GetNamespace()}
	if d.Fields != nil {
		maps.Copy(set, d.Fields(obj))
	}
	return set
}

// labelSet adapts a map to labels.Labels, nil included.
type labelSet map[string]string

func (s labelSet) Has(key string) bool              { _, ok := s[key]; return ok }
func (s labelSet) Get(key string) string            { return s[key] }
func (s labelSet) Lookup(key string) (string, bool) { v, ok := s[key]; return v, ok }

// copyStatus copies the field Status of an API type, sharing nothing.
func copyStatus(to, from resource.Object) {
	field := reflect.ValueOf(clone(from)).Elem().FieldByName("Status")
	reflect.ValueOf(to).Elem().FieldByName("Status").Set(field)
}

func clone(obj resource.Object) resource.Object { return obj.DeepCopyObject().(resource.Object) }

func format(revision uint64) string { return strconv.FormatUint(revision, 10) }

func now() metav1.Time { return metav1.NewTime(time.Now().Truncate(time.Second)) }
