// Package memory is a resource.Client that keeps objects in memory and nowhere else: for
// kinds that are worked out anew at every start, and below the client of tests (package
// resourcetest).
//
// It owns the objects, and a bounded history for watches. Enter at New. The rules of the
// descriptors hold (defaults, preparation, validation); there is no admission, no garbage
// collection and no grace period. It does no I/O.
package memory

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
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/proxima-mesh/proxima/internal/resource"
)

// historyLimit is how many changes a watch may be behind before it ends with 410. Plans of
// 10,000 Services that are all published at once are fewer.
const historyLimit = 16 << 10

// Client keeps objects in memory. Its methods are safe for concurrent use and wait for
// nothing but each other.
type Client struct {
	kinds  map[schema.GroupVersionKind]*resource.Descriptor
	byType map[reflect.Type]*resource.Descriptor
	limit  int // historyLimit

	mu      sync.Mutex
	changed chan struct{} // closed and replaced at every change
	// revision of the last change, over all kinds.
	revision uint64
	objects  map[schema.GroupVersionKind]map[resource.Key]resource.Object
	history  []record
	names    uint64
	// How often Expire and Disconnect were called: watches that began before are to end.
	expired, dropped uint64
}

// record is one change. The history is in order of revision and without gaps.
type record struct {
	revision  uint64
	kind      schema.GroupVersionKind
	event     watch.EventType
	obj, prev resource.Object
}

var _ resource.Client = (*Client)(nil)

// New makes a client for the given kinds, without objects.
func New(kinds ...*resource.Descriptor) *Client {
	c := &Client{
		kinds:  map[schema.GroupVersionKind]*resource.Descriptor{},
		byType: map[reflect.Type]*resource.Descriptor{},
		limit:  historyLimit, changed: make(chan struct{}),
		objects: map[schema.GroupVersionKind]map[resource.Key]resource.Object{},
	}
	for _, d := range kinds {
		c.kinds[d.GVK], c.objects[d.GVK] = d, map[resource.Key]resource.Object{}
		c.byType[reflect.TypeOf(d.New())] = d
	}
	return c
}

// known refuses kinds that the client was not made for.
func (c *Client) known(d *resource.Descriptor) error {
	if c.kinds[d.GVK] == nil {
		return apierrors.NewBadRequest(fmt.Sprintf("kind %s is not one that this client was made for", d.GVK))
	}
	return nil
}

// check that an object is one of a known kind.
func (c *Client) check(d *resource.Descriptor, obj resource.Object) error {
	if err := c.known(d); err != nil {
		return err
	}
	if own := c.byType[reflect.TypeOf(obj)]; own == nil || own.GVK != d.GVK {
		return apierrors.NewBadRequest(fmt.Sprintf("%s %q: the object is a %T", d.Singular, obj.GetName(), obj))
	}
	return nil
}

// Get implements resource.Client.
func (c *Client) Get(_ context.Context, d *resource.Descriptor, key resource.Key) (resource.Object, error) {
	if err := c.known(d); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	obj, ok := c.objects[d.GVK][key]
	if !ok {
		return nil, apierrors.NewNotFound(d.GroupResource(), key.Name)
	}
	return clone(obj), nil
}

// List implements resource.Client.
func (c *Client) List(_ context.Context, d *resource.Descriptor, opts resource.ListOptions) ([]resource.Object, string, error) {
	if err := c.known(d); err != nil {
		return nil, "", err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []resource.Object
	for _, obj := range c.objects[d.GVK] {
		if selected(d, opts, obj) {
			out = append(out, clone(obj))
		}
	}
	return out, format(c.revision), nil
}

// Create implements resource.Client.
func (c *Client) Create(ctx context.Context, d *resource.Descriptor, obj resource.Object) (resource.Object, error) {
	if err := c.check(d, obj); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	stored := clone(obj)
	if stored.GetName() == "" && stored.GetGenerateName() != "" {
		c.names++
		stored.SetName(fmt.Sprintf("%s%05d", stored.GetGenerateName(), c.names))
	}
	key := resource.KeyOf(stored)
	switch {
	case key.Name == "":
		return nil, apierrors.NewBadRequest("name or generateName is required")
	case stored.GetResourceVersion() != "":
		return nil, apierrors.NewBadRequest("resourceVersion should not be set on objects to be created")
	case c.objects[d.GVK][key] != nil:
		return nil, apierrors.NewAlreadyExists(d.GroupResource(), key.Name)
	}
	stored.SetUID(uuid.NewUUID())
	stored.SetCreationTimestamp(now())
	whole := resource.StatusIncluded(ctx)
	if d.Status && !whole {
		copyStatus(stored, d.New())
	}
	if err := admit(d, stored, nil, false, whole); err != nil {
		return nil, err
	}
	c.put(d, watch.Added, stored, nil)
	return clone(stored), nil
}

// Update implements resource.Client.
func (c *Client) Update(ctx context.Context, d *resource.Descriptor, obj resource.Object) (resource.Object, error) {
	return c.update(d, obj, false, resource.StatusIncluded(ctx))
}

// UpdateStatus implements resource.Client.
func (c *Client) UpdateStatus(_ context.Context, d *resource.Descriptor, obj resource.Object) (resource.Object, error) {
	return c.update(d, obj, true, false)
}

// update writes all but the status, the status alone, or all (whole).
func (c *Client) update(d *resource.Descriptor, obj resource.Object, status, whole bool) (resource.Object, error) {
	if err := c.check(d, obj); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	key := resource.KeyOf(obj)
	old := c.objects[d.GVK][key]
	switch {
	case old == nil:
		return nil, apierrors.NewNotFound(d.GroupResource(), key.Name)
	case obj.GetResourceVersion() != "" && obj.GetResourceVersion() != old.GetResourceVersion(),
		obj.GetUID() != "" && obj.GetUID() != old.GetUID():
		return nil, apierrors.NewConflict(d.GroupResource(), key.Name, errors.New("the object has been modified"))
	}
	stored := clone(obj)
	switch {
	case status:
		stored = clone(old)
		copyStatus(stored, obj)
	case d.Status && !whole:
		copyStatus(stored, old)
	}
	stored.SetUID(old.GetUID())
	stored.SetCreationTimestamp(old.GetCreationTimestamp())
	stored.SetDeletionTimestamp(old.GetDeletionTimestamp())
	stored.SetResourceVersion(old.GetResourceVersion())
	if err := admit(d, stored, old, status, whole); err != nil {
		return nil, err
	}
	if equality.Semantic.DeepEqual(stored, old) {
		return clone(old), nil
	}
	c.put(d, watch.Modified, stored, old)
	return clone(stored), nil
}

// Delete implements resource.Client. The object is gone at once.
func (c *Client) Delete(_ context.Context, d *resource.Descriptor, key resource.Key, pre resource.Preconditions) error {
	if err := c.known(d); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.objects[d.GVK][key]
	switch {
	case old == nil:
		return apierrors.NewNotFound(d.GroupResource(), key.Name)
	case pre.UID != "" && pre.UID != old.GetUID(),
		pre.ResourceVersion != "" && pre.ResourceVersion != old.GetResourceVersion():
		return apierrors.NewConflict(d.GroupResource(), key.Name, errors.New("a precondition failed"))
	}
	delete(c.objects[d.GVK], key)
	last := clone(old)
	c.note(d, watch.Deleted, last, old)
	return nil
}

// Put stores objects as they are, status, deletionTimestamp and all, in place of those of the
// same name, and without the rules of their kinds: what another writer did. It stores all of
// them before anybody sees one, or none. A UID and a creationTimestamp are kept or filled in.
func (c *Client) Put(objects ...resource.Object) error {
	for _, obj := range objects {
		if c.byType[reflect.TypeOf(obj)] == nil {
			return apierrors.NewBadRequest(fmt.Sprintf("%T is of no kind that this client was made for", obj))
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, obj := range objects {
		d, stored, event := c.byType[reflect.TypeOf(obj)], clone(obj), watch.Added
		old := c.objects[d.GVK][resource.KeyOf(obj)]
		if old != nil {
			event = watch.Modified
		}
		switch {
		case stored.GetUID() != "":
		case old != nil:
			stored.SetUID(old.GetUID())
		default:
			stored.SetUID(uuid.NewUUID())
		}
		if created := stored.GetCreationTimestamp(); created.IsZero() {
			stored.SetCreationTimestamp(now())
		}
		c.put(d, event, stored, old)
	}
	return nil
}

// put stores an object. Callers hold mu.
func (c *Client) put(d *resource.Descriptor, event watch.EventType, obj, old resource.Object) {
	c.objects[d.GVK][resource.KeyOf(obj)] = obj
	c.note(d, event, obj, old)
}

// note gives a change the next revision and wakes the watches. Callers hold mu.
func (c *Client) note(d *resource.Descriptor, event watch.EventType, obj, old resource.Object) {
	c.revision++
	obj.SetResourceVersion(format(c.revision))
	if len(c.history) >= 2*c.limit {
		c.history = append([]record(nil), c.history[len(c.history)-c.limit:]...)
	}
	c.history = append(c.history, record{revision: c.revision, kind: d.GVK, event: event, obj: obj, prev: old})
	c.wake()
}

// wake the watches. Callers hold mu.
func (c *Client) wake() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// admit runs the rules of a kind.
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
	if opts.Namespace != "" && opts.Namespace != obj.GetNamespace() {
		return false
	}
	if opts.Labels != nil && !opts.Labels.Matches(labels.Set(obj.GetLabels())) {
		return false
	}
	if opts.Fields == nil {
		return true
	}
	set := fields.Set{"metadata.name": obj.GetName(), "metadata.namespace": obj.GetNamespace()}
	if d.Fields != nil {
		maps.Copy(set, d.Fields(obj))
	}
	return opts.Fields.Matches(set)
}

// copyStatus copies the field Status of an API type, sharing nothing.
func copyStatus(to, from resource.Object) {
	field := reflect.ValueOf(clone(from)).Elem().FieldByName("Status")
	reflect.ValueOf(to).Elem().FieldByName("Status").Set(field)
}

func clone(obj resource.Object) resource.Object { return obj.DeepCopyObject().(resource.Object) }

func now() metav1.Time { return metav1.NewTime(time.Now().Truncate(time.Second)) }

func format(revision uint64) string { return strconv.FormatUint(revision, 10) }
