package apiserver

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/payload"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// strategy lets a descriptor's pure functions decide what is written. It is the
// strategy of create, update and delete of every kind.
type strategy struct {
	runtime.ObjectTyper
	names.NameGenerator
	kind *resource.Descriptor
}

func newStrategy(typer runtime.ObjectTyper, kind *resource.Descriptor) strategy {
	return strategy{ObjectTyper: typer, NameGenerator: names.SimpleNameGenerator, kind: kind}
}

func (s strategy) NamespaceScoped() bool                         { return s.kind.Namespaced }
func (s strategy) AllowUnconditionalUpdate(context.Context) bool { return true }
func (s strategy) Canonicalize(runtime.Object)                   {}

// AllowCreateOnUpdate is for requests over HTTP: a controller whose object is gone must learn
// of it.
func (s strategy) AllowCreateOnUpdate(ctx context.Context) bool {
	return s.kind.CreateOnUpdate && ctx.Value(updateOnly{}) == nil
}

// updateOnly marks the context of an update that creates nothing.
type updateOnly struct{}

func (s strategy) PrepareForCreate(ctx context.Context, obj runtime.Object) {
	switch {
	case resource.StatusIncluded(ctx):
		s.kind.PrepareWhole(obj.(resource.Object), nil)
	case s.kind.Prepare != nil:
		s.kind.Prepare(obj.(resource.Object), nil)
	}
}

func (s strategy) Validate(ctx context.Context, obj runtime.Object) field.ErrorList {
	if resource.StatusIncluded(ctx) {
		return payload.Few(s.kind.ValidateWhole(obj.(resource.Object), nil))
	}
	if s.kind.Validate == nil {
		return nil
	}
	return payload.Few(s.kind.Validate(obj.(resource.Object), nil))
}

func (s strategy) WarningsOnCreate(_ context.Context, obj runtime.Object) []string {
	if s.kind.Warnings == nil {
		return nil
	}
	return s.kind.Warnings(obj.(resource.Object), nil)
}

func (s strategy) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	switch {
	case resource.StatusIncluded(ctx):
		s.kind.PrepareWhole(obj.(resource.Object), old.(resource.Object))
	case s.kind.Prepare != nil:
		s.kind.Prepare(obj.(resource.Object), old.(resource.Object))
	}
}

func (s strategy) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	if resource.StatusIncluded(ctx) {
		return payload.Few(s.kind.ValidateWhole(obj.(resource.Object), old.(resource.Object)))
	}
	if s.kind.Validate == nil {
		return nil
	}
	return payload.Few(s.kind.Validate(obj.(resource.Object), old.(resource.Object)))
}

func (s strategy) WarningsOnUpdate(_ context.Context, obj, old runtime.Object) []string {
	if s.kind.Warnings == nil {
		return nil
	}
	return s.kind.Warnings(obj.(resource.Object), old.(resource.Object))
}

// GetResetFields returns the fields that a write of the object cannot own in
// server-side apply: the status, if that is a sub-resource.
func (s strategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	if !s.kind.Status {
		return nil
	}
	return s.reset("status")
}

func (s strategy) reset(part string) map[fieldpath.APIVersion]*fieldpath.Set {
	version := fieldpath.APIVersion(s.kind.GVK.GroupVersion().String())
	return map[fieldpath.APIVersion]*fieldpath.Set{version: fieldpath.NewSet(fieldpath.MakePathOrDie(part))}
}

// statusStrategy is the strategy of the status sub-resource.
type statusStrategy struct{ strategy }

func (s statusStrategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	if s.kind.PrepareStatus != nil {
		s.kind.PrepareStatus(obj.(resource.Object), old.(resource.Object))
	}
}

func (s statusStrategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	if s.kind.ValidateStatus == nil {
		return nil
	}
	return payload.Few(s.kind.ValidateStatus(obj.(resource.Object), old.(resource.Object)))
}

func (s statusStrategy) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}

func (s statusStrategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return s.reset("spec")
}

// gracefulStrategy gives workloads time to end: a deletion first sets the deletion
// timestamp; the object is removed when its grace period is over, or by a deletion
// without one from the agent of the workload.
type gracefulStrategy struct{ strategy }

var _ rest.RESTGracefulDeleteStrategy = gracefulStrategy{}

// CheckGracefulDelete sets the grace period: the user's choice, else the
// object's own; none for what does not run. A Dataplane without one is deleted in one write, as
// nobody waits between the two that a Pod has: registries delete thousands.
func (s gracefulStrategy) CheckGracefulDelete(_ context.Context, obj runtime.Object, options *metav1.DeleteOptions) bool {
	period, running := gracePeriod(obj)
	if options.GracePeriodSeconds != nil {
		period = *options.GracePeriodSeconds
	}
	if !running {
		period = 0
	}
	options.GracePeriodSeconds = &period
	_, isDataplane := obj.(*meshv1alpha1.Dataplane)
	return period > 0 || !isDataplane
}

func gracePeriod(obj runtime.Object) (seconds int64, running bool) {
	switch o := obj.(type) {
	case *corev1.Pod:
		done := o.Status.Phase == corev1.PodSucceeded || o.Status.Phase == corev1.PodFailed
		if o.Spec.TerminationGracePeriodSeconds != nil {
			seconds = *o.Spec.TerminationGracePeriodSeconds
		}
		return seconds, o.Spec.NodeName != "" && !done
	case *meshv1alpha1.Dataplane:
		seconds = int64(meshv1alpha1.DefaultDrainSeconds)
		if o.Spec.DrainSeconds != nil {
			seconds = int64(*o.Spec.DrainSeconds)
		}
		return seconds, true
	}
	return 0, false
}
