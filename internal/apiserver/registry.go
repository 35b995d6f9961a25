package apiserver

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/apiserver/kvstorage"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/store"
)

// registry is everything that happens to the objects of one kind. The HTTP
// handlers and the in-process client both end here.
type registry struct {
	*genericregistry.Store
	kind *resource.Descriptor
	// guarded: a write may depend on another object, such as its namespace, and
	// carries the guard that it is as it was found.
	guarded bool
	// turns of writes in namespaces with a quota; nil: there is none.
	turns *turns
}

// maxGuardAttempts is how often a write is tried whose guards fail. Each failure
// means that another write succeeded, and guarded objects change seldom.
const maxGuardAttempts = 16

// front is a registry as its users see it, with the behaviour that some kinds
// add.
type front interface {
	rest.Getter
	rest.Lister
	rest.CreaterUpdater
	rest.GracefulDeleter
	rest.Watcher
}

// within makes every creation, also one by an update or apply, check whether its
// namespace accepts new objects, and has fewer than its quota, which may be nil. The result is guarded: if any instance that shares
// the store changes the namespace or what the quota counts before the object is stored, the
// object is not stored.
func (r *registry) within(namespaces *namespaces, quota *objectQuota) {
	r.guarded = true
	if quota != nil && r.turns == nil {
		r.turns = &turns{}
	}
	next := r.BeginCreate
	r.BeginCreate = func(ctx context.Context, obj runtime.Object, options *metav1.CreateOptions) (genericregistry.FinishFunc, error) {
		guard, err := namespaces.admit(ctx, r.kind, obj.(resource.Object))
		if err != nil {
			return nil, err
		}
		used, err := quota.admit(ctx, obj.(resource.Object).GetName())
		if err != nil {
			return nil, err
		}
		finish := genericregistry.FinishFunc(func(context.Context, bool) {})
		set := kvstorage.CompanionsFrom(ctx)
		if next != nil {
			if finish, err = next(ctx, obj, options); err != nil {
				return nil, err
			}
		} else if set != nil {
			set.Reset()
		}
		if set != nil && guard.key != "" {
			set.Guard(guard.key, kvstorage.IfAt(guard.at))
		}
		if set != nil {
			used.take(set)
		}
		return finish, nil
	}
}

// guard is an object that a write depends on, as it was found.
type guard struct {
	key string
	at  store.Revision
}

// Create implements rest.Creater.
func (r *registry) Create(
	ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions,
) (out runtime.Object, err error) {
	if err := checkMeta(r.kind.GVK.GroupKind(), obj); err != nil {
		return nil, err
	}
	if !r.guarded || kvstorage.CompanionsFrom(ctx) != nil { // a caller with companions handles their conflicts
		return r.Store.Create(ctx, obj, validate, options)
	}
	err = r.attempts(ctx, func(ctx context.Context) error {
		out, err = r.Store.Create(ctx, obj.DeepCopyObject(), validate, options)
		return err
	})
	return out, err
}

// Update implements rest.Updater.
func (r *registry) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc,
	update rest.ValidateObjectUpdateFunc, allowCreate bool, options *metav1.UpdateOptions) (out runtime.Object, created bool, err error) {
	info = checkedMeta(r.kind.GVK.GroupKind(), info)
	if !r.guarded || kvstorage.CompanionsFrom(ctx) != nil {
		out, created, err = r.Store.Update(ctx, name, info, create, update, allowCreate, options)
		return out, created, distinct(err)
	}
	err = r.attempts(ctx, func(ctx context.Context) error {
		out, created, err = r.Store.Update(ctx, name, info, create, update, allowCreate, options)
		return err
	})
	return out, created, distinct(err)
}

// firstAttempt marks the context of a write that is tried again if what it
// depends on was not the newest.
type firstAttempt struct{}

// attempts runs a write until its guards hold.
func (r *registry) attempts(ctx context.Context, write func(context.Context) error) (err error) {
	for i := range maxGuardAttempts {
		attempt, _ := kvstorage.WithCompanions(ctx)
		if i == 0 {
			attempt = context.WithValue(attempt, firstAttempt{}, true)
		}
		done := r.turns.begin(ctx, i > 0)
		err = write(attempt)
		done()
		var conflict *kvstorage.CompanionConflictError
		if !errors.As(err, &conflict) {
			return err
		}
	}
	return err
}

// newRegistry makes the registry of a kind from its descriptor.
func newRegistry(typer runtime.ObjectTyper, options generic.RESTOptionsGetter, kind *resource.Descriptor) (*registry, error) {
	group := kind.GroupResource()
	strategy := newStrategy(typer, kind)
	made := &genericregistry.Store{
		NewFunc:                   func() runtime.Object { return kind.New() },
		NewListFunc:               kind.NewList,
		DefaultQualifiedResource:  group,
		SingularQualifiedResource: schema.GroupResource{Group: group.Group, Resource: kind.Singular},
		CreateStrategy:            strategy,
		UpdateStrategy:            strategy,
		DeleteStrategy:            strategy,
		ResetFieldsStrategy:       strategy,
		TableConvertor:            tables{kind},
	}
	if isGraceful(kind) {
		made.DeleteStrategy = gracefulStrategy{strategy}
	}
	// Clients of Kubernetes have types for these answers, so they are its own; another kind
	// answers a Status.
	made.ReturnDeletedObject = isGraceful(kind) || kind.GVK == corev1.SchemeGroupVersion.WithKind("Service")
	if kind.TTL > 0 {
		made.TTLFunc = func(runtime.Object, uint64, bool) (uint64, error) { return kind.TTL, nil }
	}
	err := made.CompleteWithOptions(&generic.StoreOptions{RESTOptions: options, AttrFunc: attributes(kind)})
	if err != nil {
		return nil, fmt.Errorf("registry of %s: %w", kind.GVK, err)
	}
	// Events have no owners, as in Kubernetes.
	made.EnableGarbageCollection = kind.GVK.Kind != "Event"
	return &registry{Store: made, kind: kind}, nil
}

// isGraceful reports whether deletions of a kind have a grace period.
func isGraceful(kind *resource.Descriptor) bool {
	return kind.GVK == corev1.SchemeGroupVersion.WithKind("Pod") ||
		kind.GVK == meshv1alpha1.SchemeGroupVersion.WithKind("Dataplane")
}

// ShortNames and Categories are shown by discovery.
func (r *registry) ShortNames() []string { return r.kind.ShortNames }

// Categories are groups of kinds such as "all".
func (r *registry) Categories() []string { return r.kind.Categories }

// subresource is a part of the objects of a registry with a strategy of its
// own. Reads and writes go to the same rows.
type subresource struct {
	store    *genericregistry.Store
	strategy rest.UpdateResetFieldsStrategy
	kind     schema.GroupKind
}

var (
	_ rest.Patcher             = (*subresource)(nil)
	_ rest.ResetFieldsStrategy = (*subresource)(nil)
)

// newSubresource shares a registry's storage.
func newSubresource(r *registry, strategy rest.UpdateResetFieldsStrategy) *subresource {
	store := *r.Store
	store.UpdateStrategy = strategy
	store.ResetFieldsStrategy = strategy
	// What Begin hooks allot depends on the spec, which a sub-resource leaves alone.
	store.BeginCreate, store.BeginUpdate = nil, nil
	return &subresource{store: &store, strategy: strategy, kind: r.kind.GVK.GroupKind()}
}

// New implements rest.Storage.
func (s *subresource) New() runtime.Object { return s.store.New() }

// Destroy does nothing: the storage is the registry's.
func (s *subresource) Destroy() {}

// Get reads the whole object.
func (s *subresource) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	return s.store.Get(ctx, name, options)
}

// Update never creates: a part cannot come before the whole.
func (s *subresource) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc,
	update rest.ValidateObjectUpdateFunc, _ bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	out, created, err := s.store.Update(context.WithValue(ctx, updateOnly{}, true), name, checkedMeta(s.kind, info), create, update, false, options)
	return out, created, distinct(err)
}

// GetResetFields implements rest.ResetFieldsStrategy.
func (s *subresource) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return s.strategy.GetResetFields()
}

// ConvertToTable prints the whole object.
func (s *subresource) ConvertToTable(ctx context.Context, object, options runtime.Object) (*metav1.Table, error) {
	return s.store.ConvertToTable(ctx, object, options)
}
