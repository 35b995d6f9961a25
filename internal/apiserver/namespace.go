package apiserver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	storeerr "k8s.io/apiserver/pkg/storage/errors"

	"github.com/proxima-mesh/proxima/internal/apiserver/kvstorage"
	"github.com/proxima-mesh/proxima/internal/payload"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/store"
)

// immortal namespaces can be emptied but not deleted, as in Kubernetes.
var immortal = []string{metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic}

// namespaces is the registry of Namespaces. A deletion only begins here: the
// namespace turns Terminating, a controller deletes what is in it and takes
// itself off spec.finalizers, and with the last finalizer the namespace goes.
//
// Objects are created under the guard that their namespace has not changed since it
// was checked (see admit). So once a namespace is Terminating, a list of its content
// is complete, whichever instance handled the creation.
type namespaces struct {
	*registry
	// stored is how Namespaces are stored.
	stored *kvstorage.Resource
}

func newNamespaces(r *registry, stored *kvstorage.Resource) *namespaces {
	r.ShouldDeleteDuringUpdate = func(_ context.Context, _ string, obj, _ runtime.Object) bool {
		return len(obj.(*corev1.Namespace).Spec.Finalizers) == 0
	}
	// The answer shows clients that the namespace is still terminating.
	r.ReturnDeletedObject = true
	return &namespaces{registry: r, stored: stored}
}

// Delete turns a namespace Terminating, or removes it if nothing holds it.
func (n *namespaces) Delete(
	ctx context.Context, name string, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions,
) (runtime.Object, bool, error) {
	if slices.Contains(immortal, name) {
		return nil, false, apierrors.NewForbidden(n.DefaultQualifiedResource, name, errors.New("this namespace may not be deleted"))
	}
	if options == nil {
		options = &metav1.DeleteOptions{}
	}
	obj, err := n.terminate(ctx, name, validate, options)
	if err != nil {
		return nil, false, err
	}
	namespace := obj.(*corev1.Namespace)
	if len(namespace.Spec.Finalizers) > 0 || len(namespace.Finalizers) > 0 {
		return namespace, false, nil
	}
	options = options.DeepCopy()
	options.Preconditions = metav1.NewUIDPreconditions(string(namespace.UID))
	return n.registry.Delete(ctx, name, validate, options)
}

// terminate sets the deletion timestamp and the phase. Idempotent.
func (n *namespaces) terminate(
	ctx context.Context, name string, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions,
) (runtime.Object, error) {
	key, err := n.KeyFunc(ctx, name)
	if err != nil {
		return nil, err
	}
	var preconditions storage.Preconditions
	if p := options.Preconditions; p != nil {
		preconditions = storage.Preconditions{UID: p.UID, ResourceVersion: p.ResourceVersion}
	}
	out := n.New()
	err = n.Storage.GuaranteedUpdate(ctx, key, out, false, &preconditions,
		storage.SimpleUpdate(func(existing runtime.Object) (runtime.Object, error) {
			if validate != nil {
				if err := validate(ctx, existing); err != nil {
					return nil, err
				}
			}
			namespace := existing.(*corev1.Namespace)
			if namespace.DeletionTimestamp.IsZero() {
				now := metav1.Now()
				namespace.DeletionTimestamp = &now
			}
			namespace.Status.Phase = corev1.NamespaceTerminating
			return namespace, nil
		}), len(options.DryRun) > 0, nil)
	if err != nil {
		return nil, storeerr.InterpretUpdateError(err, n.DefaultQualifiedResource, name)
	}
	return out, nil
}

// finalizeStrategy is the strategy of namespaces/finalize: spec.finalizers may
// change, and nothing else does.
type finalizeStrategy struct{ strategy }

func (finalizeStrategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	next, prev := obj.(*corev1.Namespace), old.(*corev1.Namespace)
	finalizers := next.Spec.Finalizers
	version, managed := next.ResourceVersion, next.ManagedFields
	prev.DeepCopyInto(next)
	next.Spec.Finalizers = finalizers
	next.ResourceVersion, next.ManagedFields = version, managed
}

func (finalizeStrategy) ValidateUpdate(_ context.Context, obj, _ runtime.Object) (errs field.ErrorList) {
	for i, name := range obj.(*corev1.Namespace).Spec.Finalizers {
		if name == "" {
			errs = append(errs, field.Required(field.NewPath("spec", "finalizers").Index(i), ""))
		}
	}
	return payload.Few(errs)
}

func (finalizeStrategy) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}

// admit refuses to create in a namespace that is missing or being deleted. It
// refuses by the newest state only, so an object can follow its namespace at
// once. What it allows holds for as long as the guard does.
func (n *namespaces) admit(ctx context.Context, kind *resource.Descriptor, obj resource.Object) (guard, error) {
	name := request.NamespaceValue(ctx)
	if name == "" {
		return guard{}, nil // refused by validation
	}
	key, err := n.KeyFunc(ctx, name)
	if err != nil {
		return guard{}, err
	}
	if ctx.Value(firstAttempt{}) != nil {
		// Where the guard decides, a yes from the watch cache is enough. A no may be
		// out of date.
		var cached corev1.Namespace
		err := n.Storage.Get(ctx, key, storage.GetOptions{ResourceVersion: "0"}, &cached)
		if err == nil && cached.Status.Phase != corev1.NamespaceTerminating {
			return guardOf(n.stored, &cached)
		}
	}
	var namespace corev1.Namespace
	if err := n.Storage.Get(ctx, key, storage.GetOptions{}, &namespace); err != nil {
		return guard{}, storeerr.InterpretGetError(err, n.DefaultQualifiedResource, name)
	}
	if namespace.Status.Phase == corev1.NamespaceTerminating {
		return guard{}, terminatingError(kind.GroupResource(), obj.GetName(), name)
	}
	return guardOf(n.stored, &namespace)
}

// guardOf is the guard that a cluster-scoped object stays as it is.
func guardOf(stored *kvstorage.Resource, obj metav1.Object) (guard, error) {
	key, err := stored.KeyFor("", obj.GetName())
	if err != nil {
		return guard{}, apierrors.NewInternalError(err)
	}
	at, err := strconv.ParseInt(obj.GetResourceVersion(), 10, 64)
	if err != nil {
		return guard{}, apierrors.NewInternalError(fmt.Errorf("resource version of %s: %w", key, err))
	}
	return guard{key: key, at: store.Revision(at)}, nil
}

// terminatingError is Kubernetes' own error; clients check its cause.
func terminatingError(group schema.GroupResource, name, namespace string) error {
	err := apierrors.NewForbidden(group, name,
		fmt.Errorf("unable to create new content in namespace %s because it is being terminated", namespace))
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{
		Type:    corev1.NamespaceTerminatingCause,
		Message: fmt.Sprintf("namespace %s is being terminated", namespace),
		Field:   "metadata.namespace",
	})
	return err
}
