package observed

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/proxima-mesh/proxima/internal/federation"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// Recorder keeps what zones observe, at global. Safe for concurrent use.
type Recorder struct {
	client resource.Client
	kinds  map[string]*resource.Descriptor
}

// NewRecorder makes a recorder. kinds are those of policies, by the name of their type
// between control planes.
func NewRecorder(client resource.Client, kinds map[string]*resource.Descriptor) *Recorder {
	return &Recorder{client: client, kinds: kinds}
}

// InvalidError is a status that is not taken.
type InvalidError struct{ Err error }

func (e *InvalidError) Error() string { return e.Err.Error() }

// Unwrap is the interface of errors.
func (e *InvalidError) Unwrap() error { return e.Err }

// Record what a zone observes of policies. A policy that is gone is none any more, and a
// kind that this version does not know is left out. Errors: of the client, or the first
// *InvalidError: all the others are recorded then.
func (r *Recorder) Record(ctx context.Context, zone string, all []Status) error {
	var refused error
	for _, s := range all {
		err := r.record(ctx, zone, s)
		if err == nil {
			continue
		}
		err = fmt.Errorf("status of %s %s in zone %s: %w", s.Type, s.Policy, zone, err)
		var invalid *InvalidError
		if !errors.As(err, &invalid) {
			return err
		}
		if refused == nil {
			refused = err
		}
	}
	return refused
}

// maxAttempts of a write that others get in the way of.
const maxAttempts = 8

func (r *Recorder) record(ctx context.Context, zone string, s Status) error {
	d := r.kinds[s.Type]
	if d == nil {
		return nil
	}
	if d.Namespaced != (s.Policy.Namespace != "") {
		return &InvalidError{fmt.Errorf("namespace %q: namespaced is %t", s.Policy.Namespace, d.Namespaced)}
	}
	conditions, err := decode(s.Conditions)
	if err != nil {
		return &InvalidError{err}
	}
	for attempt := 1; ; attempt++ {
		obj, err := r.client.Get(ctx, d, s.Policy)
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		if owner, copied := federation.OwnerOf(obj.GetLabels()); copied && owner.Zone != "" {
			return nil // it is not global's
		}
		_, zones := statusOf(obj)
		if zones == nil || !set(zones, zone, conditions) {
			return nil
		}
		_, err = r.client.UpdateStatus(ctx, d, obj)
		switch {
		case err == nil, apierrors.IsNotFound(err):
			return nil
		case apierrors.IsInvalid(err):
			return &InvalidError{err}
		case !apierrors.IsConflict(err) || attempt == maxAttempts:
			return err
		}
	}
}

// Forget what a zone observed, as when it is deleted.
func (r *Recorder) Forget(ctx context.Context, zone string) error {
	for typ, d := range r.kinds {
		objects, _, err := r.client.List(ctx, d, resource.ListOptions{})
		if err != nil {
			return err
		}
		for _, obj := range objects {
			if err := r.record(ctx, zone, Status{Type: typ, Policy: resource.KeyOf(obj)}); err != nil {
				return fmt.Errorf("status of %s %s: %w", typ, resource.KeyOf(obj), err)
			}
		}
	}
	return nil
}
