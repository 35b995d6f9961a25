package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/federation"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// errStale: a copy is not what the receiver takes it for. Another stream, or a user,
// has written it; the receiver must be made again.
var errStale = errors.New("a copy was changed by another writer")

// errTaken: the name of a copy is that of an object of this control plane.
var errTaken = errors.New("the name is taken")

// apply writes a transaction object by object, along the one write path. It may be
// repeated: what is done already is not done again.
func (i *Inlet) apply(ctx context.Context, tx *federation.Transaction) (federation.Outcome, error) {
	k := i.kinds[tx.Type]
	out := federation.Outcome{Refused: map[string]error{}, Waiting: map[string]error{}}
	for _, put := range tx.Puts {
		err := i.put(ctx, k, put)
		if err == nil && put.Replaces != nil {
			err = i.delete(ctx, k, *put.Replaces)
		}
		switch {
		case err == nil:
		case errors.Is(err, errTaken) || namespaceMissing(err):
			out.Waiting[put.Resource] = err
		case refuses(err):
			out.Refused[put.Resource] = err
		default:
			return out, err
		}
	}
	for _, c := range tx.Deletes {
		if err := i.delete(ctx, k, c); err != nil {
			return out, err
		}
	}
	return out, nil
}

// put creates or replaces a copy, with its status and the version by which a later stream
// finds it complete: in one transaction where the client has such.
func (i *Inlet) put(ctx context.Context, k Kind, put federation.Put) error {
	obj, err := k.decode(put)
	if err != nil {
		return &refusal{err}
	}
	existing, err := i.present(ctx, k, put.Key)
	if err != nil && !apierrors.IsNotFound(err) {
		return &unreadable{k.Type.Name, put.Key, err}
	}
	whole := ctx
	if k.carriesStatus() {
		whole = resource.WithStatus(ctx)
	}
	if err != nil {
		_, err := i.config.Client.Create(whole, k.Descriptor, obj)
		if errors.Is(err, resource.ErrStatusApart) {
			return i.createApart(ctx, k, obj)
		}
		return err
	}
	if err := i.mayReplace(k, put, existing); err != nil {
		return err
	}
	meta, err := metaOf(obj)
	if err != nil {
		return &refusal{err}
	}
	meta.UID, meta.ResourceVersion = existing.GetUID(), existing.GetResourceVersion()
	meta.Finalizers, meta.OwnerReferences = existing.GetFinalizers(), existing.GetOwnerReferences()
	_, err = i.config.Client.Update(whole, k.Descriptor, obj)
	if errors.Is(err, resource.ErrStatusApart) {
		return i.updateApart(ctx, k, obj)
	}
	return err
}

// createApart creates a copy where a status is written by a request of its own. The version comes
// last: a copy without one is incomplete, and the peer sends it again.
func (i *Inlet) createApart(ctx context.Context, k Kind, obj resource.Object) error {
	first := obj.DeepCopyObject().(resource.Object)
	notes := maps.Clone(first.GetAnnotations())
	delete(notes, federation.AnnotationSyncVersion)
	first.SetAnnotations(notes)
	made, err := i.config.Client.Create(ctx, k.Descriptor, first)
	if err != nil {
		return err
	}
	obj.SetUID(made.GetUID())
	obj.SetResourceVersion(made.GetResourceVersion())
	err = i.updateApart(ctx, k, obj)
	if err != nil && refuses(err) { // nothing of what is refused stays
		gone := i.config.Client.Delete(ctx, k.Descriptor, resource.KeyOf(made), resource.Preconditions{UID: made.GetUID()})
		if gone != nil && !apierrors.IsNotFound(gone) {
			return gone
		}
	}
	return err
}

// updateApart replaces a copy: the status first, then the rest with the version of all.
func (i *Inlet) updateApart(ctx context.Context, k Kind, obj resource.Object) error {
	made, err := i.config.Client.UpdateStatus(ctx, k.Descriptor, obj)
	if err != nil {
		return err
	}
	obj.SetResourceVersion(made.GetResourceVersion())
	_, err = i.config.Client.Update(ctx, k.Descriptor, obj)
	return err
}

const (
	// goneTimeout bounds how long a put waits for a copy that is being deleted.
	goneTimeout = 5 * time.Second
	goneCheck   = 20 * time.Millisecond
)

// present reads an object. It waits for one that is being deleted: what is written to it
// would go with it.
func (i *Inlet) present(ctx context.Context, k Kind, key federation.Key) (resource.Object, error) {
	for began := i.config.Clock.Now(); ; {
		obj, err := i.config.Client.Get(ctx, k.Descriptor, keyOf(key))
		if err != nil || obj.GetDeletionTimestamp() == nil {
			return obj, err
		}
		if i.config.Clock.Since(began) > goneTimeout {
			return nil, fmt.Errorf("%s %s is being deleted, for longer than %s: what holds it? see its finalizers", k.Type.Name, keyOf(key), goneTimeout)
		}
		if !backoff.SleepBy(ctx, i.config.Clock, goneCheck) {
			return nil, ctx.Err()
		}
	}
}

// carriesStatus reports whether a copy has the status of the original.
func (k Kind) carriesStatus() bool { return k.Descriptor.Status && !k.OwnStatus }

// mayReplace verifies that an object is the copy that the receiver takes it for, or one that
// a copy may replace.
func (i *Inlet) mayReplace(k Kind, put federation.Put, existing resource.Object) error {
	c, ok := i.copyOf(existing)
	switch {
	case !ok && k.givesWay(existing):
		i.noteReplaced(k, existing)
		return nil
	case !ok || c.Owner != put.Owner:
		return i.taken(k, put)
	case c.Resource != put.Resource:
		return fmt.Errorf("%w: %v is the copy of %s", errStale, put.Key, c.Resource)
	case put.Before == "" && k.learnt(existing): // it was loaded without a version
	case c.Version != put.Before && c.Version != put.Version:
		return fmt.Errorf("%w: %v has version %s, not %s", errStale, put.Key, c.Version, put.Before)
	}
	return nil
}

// noteReplaced logs a policy of the zone that one of global replaces, with its content: it is
// nowhere else.
func (i *Inlet) noteReplaced(k Kind, own resource.Object) {
	if !k.zonesOwn(own) {
		return
	}
	own = own.DeepCopyObject().(resource.Object)
	own.SetManagedFields(nil)
	was, err := json.Marshal(own)
	if err != nil {
		was = []byte(err.Error())
	}
	i.config.Log.Warn("global has a policy of the same name as one of this zone, which gives way", "type", k.Type.Name, "name", keyOfObject(own), "was", string(was))
}

func keyOfObject(obj resource.Object) string {
	return strings.TrimPrefix(resource.KeyOf(obj).String(), "/")
}

// taken says how the name of a copy becomes free.
func (i *Inlet) taken(k Kind, put federation.Put) error {
	name := k.Descriptor.Singular + " " + put.Key.Name
	if put.Key.Namespace != "" {
		name += " -n " + put.Key.Namespace
	}
	if i.config.Side == federation.AtGlobal {
		return fmt.Errorf("%w: global has a %s that is not of zone %s", errTaken, name, i.config.Zone)
	}
	command := "proxima delete " + name
	return fmt.Errorf("%w: zone %s has a %s of its own, and keeps it: write at global what matters of it, then run %q in the zone; "+
		"that of global takes its place", errTaken, i.config.Zone, name, command)
}

// delete removes a copy, if it is there and belongs to its owner. What refers to it as
// its owner stays: a copy never takes objects of this control plane with it. Of transient
// types, which users own nothing by, that is not looked after: they go at once.
func (i *Inlet) delete(ctx context.Context, k Kind, c federation.Copy) error {
	existing, err := i.config.Client.Get(ctx, k.Descriptor, keyOf(c.Key))
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if found, ok := i.copyOf(existing); !ok || found.Owner != c.Owner || found.Resource != c.Resource {
		return nil
	}
	pre := resource.Preconditions{UID: existing.GetUID(), ResourceVersion: existing.GetResourceVersion(), Now: true}
	if !k.Type.Transient {
		// The object goes when the garbage collector has looked for what it owns, a moment later.
		pre.Propagation = metav1.DeletePropagationOrphan
	}
	err = i.config.Client.Delete(ctx, k.Descriptor, keyOf(c.Key), pre)
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func keyOf(k federation.Key) resource.Key {
	return resource.Key{Namespace: k.Namespace, Name: k.Name}
}

// refusal is an object that this side cannot decode.
type refusal struct{ err error }

func (r *refusal) Error() string { return r.err.Error() }
func (r *refusal) Unwrap() error { return r.err }

// unreadable is a read that failed. Whatever the store says of it is not about the object: an API
// server that has just started has no roles yet, and forbids everything.
type unreadable struct {
	typ string
	key federation.Key
	err error
}

func (u *unreadable) Error() string {
	return fmt.Sprintf("read %s %s: %v", u.typ, keyOf(u.key), u.err)
}
func (u *unreadable) Unwrap() error { return u.err }

// refuses reports whether an error is about the object, not about the store.
func refuses(err error) bool {
	var u *unreadable
	if errors.As(err, &u) {
		return false
	}
	var r *refusal
	return errors.As(err, &r) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsForbidden(err) ||
		apierrors.IsMethodNotSupported(err) || apierrors.IsRequestEntityTooLargeError(err)
}

// namespaceMissing reports whether a create failed as its namespace does not exist, or
// is being deleted.
func namespaceMissing(err error) bool {
	if apierrors.HasStatusCause(err, "NamespaceTerminating") {
		return true
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) || !apierrors.IsNotFound(err) {
		return false
	}
	details := status.Status().Details
	return details != nil && details.Kind == "namespaces"
}
