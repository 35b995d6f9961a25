package apiserver

import (
	"context"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/proxima-mesh/proxima/internal/payload"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// checkMeta reports few mistakes in an object's metadata if there are many; if there
// are few, upstream reports them itself.
func checkMeta(kind schema.GroupKind, obj runtime.Object) error {
	o, ok := obj.(resource.Object)
	if !ok {
		return nil
	}
	parts := len(o.GetLabels()) + len(o.GetAnnotations()) + len(o.GetFinalizers()) + len(o.GetOwnerReferences()) + len(o.GetManagedFields())
	if parts <= payload.MaxMistakes {
		return nil
	}
	anyName := func(string, bool) []string { return nil }
	errs := apivalidation.ValidateObjectMetaAccessor(o, o.GetNamespace() != "", anyName, field.NewPath("metadata"))
	if len(errs) <= payload.MaxMistakes {
		return nil
	}
	return apierrors.NewInvalid(kind, o.GetName(), payload.Few(errs))
}

// distinct names each mistake of a refused update once: upstream checks the metadata twice, and kinds
// of Kubernetes do so again.
func distinct(err error) error {
	invalid, ok := err.(*apierrors.StatusError) //nolint:errorlint // upstream's errors are never wrapped
	if !ok || invalid.ErrStatus.Reason != metav1.StatusReasonInvalid || invalid.ErrStatus.Details == nil {
		return err
	}
	seen := map[metav1.StatusCause]bool{}
	invalid.ErrStatus.Details.Causes = slices.DeleteFunc(invalid.ErrStatus.Details.Causes, func(c metav1.StatusCause) bool {
		again := seen[c]
		seen[c] = true
		return again
	})
	return err
}

// checkedMeta does so for an update.
func checkedMeta(kind schema.GroupKind, info rest.UpdatedObjectInfo) rest.UpdatedObjectInfo {
	return rest.WrapUpdatedObjectInfo(info, func(_ context.Context, obj, old runtime.Object) (runtime.Object, error) {
		if err := checkAppliers(kind, obj, old); err != nil {
			return nil, err
		}
		return obj, checkMeta(kind, obj)
	})
}

// maxAppliers of an object. Upstream bounds the managers that update (10), and not those that
// apply, of which each costs time and space in every later write of the object.
const maxAppliers = 100

// checkAppliers refuses a manager too many. An object that has more already can be written.
func checkAppliers(kind schema.GroupKind, obj, old runtime.Object) error {
	is, ok := obj.(resource.Object)
	was, _ := old.(resource.Object)
	if !ok || len(is.GetManagedFields()) <= maxAppliers {
		return nil
	}
	count := func(o resource.Object) (n int) {
		for _, m := range o.GetManagedFields() {
			if m.Operation == metav1.ManagedFieldsOperationApply {
				n++
			}
		}
		return n
	}
	n := count(is)
	if n <= maxAppliers || was != nil && n <= count(was) {
		return nil
	}
	err := field.TooMany(field.NewPath("metadata", "managedFields"), n, maxAppliers)
	err.Detail += " of operation Apply; apply as a manager that the object has"
	return apierrors.NewInvalid(kind, is.GetName(), field.ErrorList{err})
}
