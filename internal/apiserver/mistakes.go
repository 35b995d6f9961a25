package apiserver

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
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

// checkedMeta does so for an update.
func checkedMeta(kind schema.GroupKind, info rest.UpdatedObjectInfo) rest.UpdatedObjectInfo {
	return rest.WrapUpdatedObjectInfo(info, func(_ context.Context, obj, _ runtime.Object) (runtime.Object, error) {
		return obj, checkMeta(kind, obj)
	})
}
