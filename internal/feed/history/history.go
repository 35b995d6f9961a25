package history

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/proxima-mesh/proxima/internal/feed"
	"github.com/proxima-mesh/proxima/internal/feed/seglog"
	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/store"
)

// Bounds of answers.
const (
	// DefaultLimit and MaxLimit of changes in an answer.
	DefaultLimit = 100
	MaxLimit     = 1000

	// reachTimeout is how long an answer waits for the feed to have what was committed before the question.
	reachTimeout = 5 * time.Second
)

// Objects tells what keys and values of the store stand for. An *apiserver.Stored does, and documents the methods.
type Objects interface {
	ObjectOf(key string) (kind *resource.Descriptor, name resource.Key, ok bool)
	Prefix(kind *resource.Descriptor, name resource.Key) string
	Decode(ctx context.Context, key string, value []byte, at store.Revision) (resource.Object, error)
	Table(ctx context.Context, kind *resource.Descriptor, objects []resource.Object) (*metav1.Table, error)
}

// Config of a Reader. All fields are required.
type Config struct {
	Feed    *feed.Feed
	Objects Objects
	// Sealed reports whether the values of a kind are secret.
	Sealed func(*resource.Descriptor) bool
	// Kept reports whether the feed has changes of a kind.
	Kept func(*resource.Descriptor) bool
}

// Reader answers questions about the past. Safe for concurrent use.
type Reader struct{ Config }

// New makes a Reader.
func New(c Config) *Reader { return &Reader{c} }

// Operation is what a change did to an object.
type Operation string

// The operations.
const (
	Create Operation = "create"
	Update Operation = "update"
	// Terminate is a deletion that begins: the object is there until its grace period or its finalizers end.
	Terminate Operation = "terminate"
	Delete    Operation = "delete"
)

// Change of one object.
type Change struct {
	Position  seglog.Position `json:"position"`
	Time      time.Time       `json:"time"`
	Operation Operation       `json:"operation"`
	// Resource is the plural, Group empty for the core group.
	Group     string `json:"group,omitempty"`
	Resource  string `json:"resource"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	UID       string `json:"uid,omitempty"`
	// ResourceVersion of the object after the change, if that is not the position: in a Kubernetes cluster.
	ResourceVersion string `json:"resourceVersion,omitempty"`
	// User who made the change; absent: it is not known. Manager is the field manager, where the change tells one.
	User    string `json:"user,omitempty"`
	Manager string `json:"manager,omitempty"`
	// Registry by which the object came, if it did.
	Registry *Registration `json:"registry,omitempty"`
	// Fields that changed, but for those that every write changes.
	Fields []Field `json:"fields,omitempty"`
	// Object after the change, before a deletion; only where the question requests it. Secrets are without data.
	Object map[string]any `json:"object,omitempty"`
	// Problem is why fields and object are missing.
	Problem string `json:"problem,omitempty"`
}

// Registration is the way on which an instance came.
type Registration struct {
	// Protocol as in the label registry.LabelProtocol.
	Protocol string `json:"protocol"`
	// By is the user of the registry who registered it; Instance is the one of the control plane that has its session.
	By       string `json:"by,omitempty"`
	Instance string `json:"instance,omitempty"`
}

// Question selects changes.
type Question struct {
	// Match reports whether changes of an object are wanted.
	Match func(kind *resource.Descriptor, name resource.Key) bool
	// After is the position after which changes are wanted.
	After seglog.Position
	// Limit of changes; 0: DefaultLimit. History gives the newest, Follow the oldest.
	Limit int
	// Full: with objects.
	Full bool
}

// Answer has changes in their order.
type Answer struct {
	// Begins is when the feed begins, after the position First.
	Begins  time.Time       `json:"begins"`
	First   seglog.Position `json:"first"`
	Changes []Change        `json:"changes"`
	// More: there are older ones, beyond the limit.
	More bool `json:"more,omitempty"`
	// Next is the position after which Follow goes on.
	Next seglog.Position `json:"next"`
	// Notes say what could not be read.
	Notes []string `json:"notes,omitempty"`
}

// Begins is when the feed begins to have all changes: after a position, at a time.
func (r *Reader) Begins() (seglog.Position, time.Time) {
	first, _ := r.Feed.Log.First()
	for _, s := range r.Feed.Log.Segments() {
		if s.After == first {
			return first, s.Created
		}
	}
	return first, time.Now()
}

// reach waits until the feed has what is committed now.
func (r *Reader) reach(ctx context.Context) (seglog.Position, error) {
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	status := r.Feed.Status(ctx)
	if err := r.Feed.Reach(ctx, status.Revision); err != nil {
		return 0, fmt.Errorf("the change feed is at position %d, and the store at %d: %s",
			status.Complete, status.Revision, cmp.Or(status.Problem, "it is catching up; try again in a moment"))
	}
	return status.Revision, nil
}

// History answers with the newest changes. It reads the feed from q.After on, and blocks for that. After a position before the
// beginning of the feed means from the beginning.
func (r *Reader) History(ctx context.Context, q Question) (*Answer, error) {
	if _, err := r.reach(ctx); err != nil {
		return nil, err
	}
	out := r.answer()
	limit := cmp.Or(q.Limit, DefaultLimit)
	var last []*seglog.Entry
	reader := r.Feed.Log.Read(max(q.After, out.First))
	for {
		entries, err := reader.Poll()
		if skip(&err, &out.Notes) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if len(entries) == 0 {
			break
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		for _, e := range entries {
			if !r.matches(q, e.Key) {
				continue
			}
			if len(last) == limit {
				last, out.More = slices.Delete(last, 0, 1), true
			}
			last = append(last, kept(e))
		}
	}
	for _, e := range last {
		out.Changes = append(out.Changes, r.Change(ctx, e, q.Full))
	}
	out.Next = reader.At()
	return out, nil
}

// Follow answers with the changes that follow q.After, and waits for the first of them until ctx ends; that is no error, and
// the answer then has none. Errors: *seglog.ExpiredError.
func (r *Reader) Follow(ctx context.Context, q Question) (*Answer, error) {
	out := r.answer()
	entries, next, err := r.Entries(ctx, q, &out.Notes)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		out.Changes = append(out.Changes, r.Change(ctx, e, q.Full))
	}
	out.Next = next
	return out, nil
}

// Entries is Follow with the entries of the feed: values are as stored, and must not be changed. next is the position after which to go on.
// What could not be read is added to notes.
func (r *Reader) Entries(ctx context.Context, q Question, notes *[]string) (out []*seglog.Entry, next seglog.Position, err error) {
	limit := cmp.Or(q.Limit, DefaultLimit)
	reader := r.Feed.Log.Read(q.After)
	next = q.After
	for {
		read := func() ([]*seglog.Entry, error) { return reader.Next(ctx) }
		if len(out) > 0 {
			read = reader.Poll // what is there, without waiting
		}
		entries, err := read()
		if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			return out, max(next, reader.At()), nil
		}
		if skip(&err, notes) {
			continue
		}
		if err != nil {
			return nil, 0, err
		}
		if len(entries) == 0 {
			return out, next, nil
		}
		for _, e := range entries {
			if len(out) == limit {
				return out, next, nil
			}
			next = e.Position
			if r.matches(q, e.Key) {
				out = append(out, e)
			}
		}
	}
}

func (r *Reader) answer() *Answer {
	out := &Answer{Changes: []Change{}}
	out.First, out.Begins = r.Begins()
	return out
}

// skip reports whether a reader goes on behind an error, which is noted.
func skip(err *error, notes *[]string) bool {
	var damaged *seglog.DamagedError
	if !errors.As(*err, &damaged) {
		return false
	}
	*notes = append(*notes, damaged.Error())
	return true
}

func (r *Reader) matches(q Question, key string) bool {
	kind, name, ok := r.Objects.ObjectOf(key)
	return ok && q.Match(kind, name)
}

// kept is an entry that does not hold the block that it was read from.
func kept(e *seglog.Entry) *seglog.Entry {
	own := *e
	own.Value, own.PrevValue = bytes.Clone(e.Value), bytes.Clone(e.PrevValue)
	return &own
}

// Change tells what an entry of the feed did; full: with the object. It reads the state before from the feed, and blocks for that.
func (r *Reader) Change(ctx context.Context, e *seglog.Entry, full bool) Change {
	kind, name, _ := r.Objects.ObjectOf(e.Key)
	c := Change{
		Position: e.Position, Time: e.Time.UTC(), Operation: Update, User: e.Actor,
		Group: kind.GVK.Group, Resource: kind.Resource, Kind: kind.GVK.Kind, Namespace: name.Namespace, Name: name.Name,
	}
	switch {
	case e.Kind == seglog.Delete:
		c.Operation = Delete
	case e.Prev == 0:
		c.Operation = Create
	}
	var before, after resource.Object
	previous, there, err := r.Feed.Log.Previous(e)
	if err == nil && there {
		before, err = r.Objects.Decode(ctx, e.Key, previous, store.Revision(e.Prev))
	}
	if err == nil && e.Kind != seglog.Delete {
		after, err = r.Objects.Decode(ctx, e.Key, e.Value, store.Revision(e.Position))
	}
	if err != nil {
		c.Problem = err.Error()
		return c
	}
	if c.Operation == Update && before == nil {
		c.Problem = "the state before it is not in the change feed any more"
	}
	if before != nil && after != nil && before.GetDeletionTimestamp() == nil && after.GetDeletionTimestamp() != nil {
		c.Operation = Terminate
	}
	c.Manager = managerOf(before, after)
	if err := r.describe(&c, kind, before, after, full); err != nil {
		c.Problem = err.Error()
	}
	return c
}

// describe adds what the objects before and after tell; either may be nil.
func (r *Reader) describe(c *Change, kind *resource.Descriptor, before, after resource.Object, full bool) error {
	was, err := content(before)
	if err != nil {
		return err
	}
	is, err := content(after)
	if err != nil {
		return err
	}
	sealed := r.Sealed(kind)
	if c.Operation == Create || before != nil && after != nil {
		c.Fields = fieldsOf(was, is, sealed)
	}
	now, object := after, is
	if now == nil {
		now, object = before, was
	}
	if now == nil {
		return nil
	}
	c.UID, c.Registry = string(now.GetUID()), registrationOf(now)
	if v := now.GetResourceVersion(); after != nil && v != strconv.FormatInt(int64(c.Position), 10) {
		c.ResourceVersion = v
	}
	if full {
		if sealed {
			withoutSecrets(object)
		}
		c.Object = object
	}
	return nil
}

func content(obj resource.Object) (map[string]any, error) {
	if obj == nil {
		return nil, nil //nolint:nilnil // no object has no content
	}
	return runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
}

// managerOf a change is the field manager of the entry that it added or renewed; empty: there is none.
func managerOf(before, after resource.Object) string {
	if after == nil {
		return ""
	}
	var had []metav1.ManagedFieldsEntry
	if before != nil {
		had = before.GetManagedFields()
	}
	manager, newest := "", time.Time{}
	for _, m := range after.GetManagedFields() {
		same := slices.ContainsFunc(had, func(h metav1.ManagedFieldsEntry) bool {
			return h.Manager == m.Manager && h.Operation == m.Operation && h.Subresource == m.Subresource && h.Time.Equal(m.Time) &&
				(h.FieldsV1 == nil) == (m.FieldsV1 == nil) && (h.FieldsV1 == nil || bytes.Equal(h.FieldsV1.GetRawBytes(), m.FieldsV1.GetRawBytes()))
		})
		if !same && m.Time != nil && !m.Time.Time.Before(newest) {
			manager, newest = m.Manager, m.Time.Time
		}
	}
	return manager
}

func registrationOf(obj resource.Object) *Registration {
	protocol := obj.GetLabels()[registry.LabelProtocol]
	if protocol == "" {
		return nil
	}
	return &Registration{
		Protocol: protocol, By: obj.GetAnnotations()[registry.AnnotationRegisteredBy], Instance: obj.GetAnnotations()[registry.AnnotationOwner],
	}
}

// State returns the objects of a kind at a position, in order of namespaces and names. An empty namespace is all, an empty name
// all of the namespace. The objects are the caller's. Errors: *seglog.ExpiredError; a value cannot be decoded.
func (r *Reader) State(ctx context.Context, kind *resource.Descriptor, name resource.Key, at seglog.Position) ([]resource.Object, error) {
	prefix := r.Objects.Prefix(kind, name)
	items, err := r.Feed.State(ctx, prefix, at)
	if err != nil {
		return nil, err
	}
	var out []resource.Object
	for _, item := range items {
		of, key, ok := r.Objects.ObjectOf(item.Key)
		if !ok || of.GVK != kind.GVK || name.Name != "" && item.Key != prefix {
			continue
		}
		obj, err := r.Objects.Decode(ctx, item.Key, item.Value, store.Revision(item.Modified))
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", kind.Singular, key, err)
		}
		out = append(out, obj)
	}
	return out, nil
}

// Encode an object as JSON. Secrets are without data.
func (r *Reader) Encode(kind *resource.Descriptor, obj resource.Object) (json.RawMessage, error) {
	object, err := content(obj)
	if err != nil {
		return nil, err
	}
	if r.Sealed(kind) {
		withoutSecrets(object)
	}
	return json.Marshal(object)
}
