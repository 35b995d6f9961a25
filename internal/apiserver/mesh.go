package apiserver

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/apiserver/kvstorage"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/store"
)

// meshPrefix holds a key for every mesh that a namespace was ever put into, by
// the mesh's name. It is written with each such namespace and guarded by each
// deletion of a mesh, so that of two that would miss each other one fails. The
// value is the namespace that came last, for people who look.
const meshPrefix = "/proxima/meshes/"

// meshes is the registry of Meshes. One that namespaces belong to is not deleted,
// nor is the default one; and a namespace is put into a mesh that exists only.
type meshes struct {
	*registry
	namespaces *namespaces
	store      store.Store
	stored     *kvstorage.Resource
}

var (
	_ rest.CollectionDeleter = (*meshes)(nil)
	_ rest.GracefulDeleter   = (*meshes)(nil)
)

// follow makes writes of Namespaces ask for the mesh that they name.
func (m *meshes) follow() {
	m.namespaces.guarded = true
	done := func(context.Context, bool) {}
	m.namespaces.BeginCreate = func(ctx context.Context, obj runtime.Object, _ *metav1.CreateOptions) (genericregistry.FinishFunc, error) {
		return done, m.join(ctx, obj.(*corev1.Namespace), "")
	}
	m.namespaces.BeginUpdate = func(ctx context.Context, obj, old runtime.Object, _ *metav1.UpdateOptions) (genericregistry.FinishFunc, error) {
		return done, m.join(ctx, obj.(*corev1.Namespace), kind.MeshOf(old.(*corev1.Namespace).Labels))
	}
}

// join checks that the mesh of a namespace exists, if it is another than before,
// and sets up the guard that it stays. before is empty for a new namespace.
func (m *meshes) join(ctx context.Context, namespace *corev1.Namespace, before string) error {
	set := kvstorage.CompanionsFrom(ctx)
	if set == nil {
		return apierrors.NewInternalError(fmt.Errorf("write of namespace %s past its registry", namespace.Name))
	}
	set.Reset()
	name := kind.MeshOf(namespace.Labels)
	if name == meshv1alpha1.DefaultMesh || name == before {
		return nil
	}
	path := field.NewPath("metadata", "labels").Key(meshv1alpha1.LabelMesh)
	key, err := m.KeyFunc(ctx, name)
	if err != nil {
		return invalidNamespace(namespace, field.Invalid(path, name, "must be the name of a Mesh"))
	}
	var mesh meshv1alpha1.Mesh
	switch err := m.Storage.Get(ctx, key, storage.GetOptions{}, &mesh); {
	case storage.IsNotFound(err):
		return invalidNamespace(namespace, field.NotFound(path, name))
	case err != nil:
		return apierrors.NewInternalError(fmt.Errorf("read mesh %s: %w", name, err))
	case !mesh.DeletionTimestamp.IsZero():
		return invalidNamespace(namespace, field.Invalid(path, name, "this mesh is being deleted"))
	}
	held, err := guardOf(m.stored, &mesh)
	if err != nil {
		return err
	}
	set.Guard(held.key, kvstorage.IfAt(held.at))
	set.Put(meshPrefix+name, []byte(namespace.Name), kvstorage.Always())
	return nil
}

func invalidNamespace(namespace *corev1.Namespace, mistake *field.Error) error {
	return apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Namespace").GroupKind(), namespace.Name, field.ErrorList{mistake})
}

// Delete removes a mesh that nobody is in.
func (m *meshes) Delete(ctx context.Context, name string, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions) (out runtime.Object, gone bool, err error) {
	err = m.attempts(ctx, func(ctx context.Context) error {
		out, gone, err = m.registry.Delete(ctx, name, m.leaving(validate), options.DeepCopy())
		return err
	})
	return out, gone, err
}

// DeleteCollection deletes Meshes one after the other, each as Delete does.
func (m *meshes) DeleteCollection(ctx context.Context, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions, list *metainternalversion.ListOptions) (out runtime.Object, err error) {
	err = m.attempts(ctx, func(ctx context.Context) error {
		out, err = m.registry.DeleteCollection(ctx, m.leaving(validate), options, list)
		return err
	})
	return out, err
}

// leaving makes the check of a deletion refuse where the mesh is needed, and set
// up the guard that nobody comes in.
func (m *meshes) leaving(validate rest.ValidateObjectFunc) rest.ValidateObjectFunc {
	return func(ctx context.Context, obj runtime.Object) error {
		if validate != nil {
			if err := validate(ctx, obj); err != nil {
				return err
			}
		}
		return m.unused(ctx, obj.(*meshv1alpha1.Mesh))
	}
}

// maxNamed is how many namespaces a refusal names.
const maxNamed = 5

func (m *meshes) unused(ctx context.Context, mesh *meshv1alpha1.Mesh) error {
	set := kvstorage.CompanionsFrom(ctx)
	if set == nil {
		return apierrors.NewInternalError(fmt.Errorf("deletion of mesh %s past its registry", mesh.Name))
	}
	set.Reset()
	if mesh.Name == meshv1alpha1.DefaultMesh {
		return apierrors.NewForbidden(m.DefaultQualifiedResource, mesh.Name, errors.New("this mesh may not be deleted: it is that of every namespace that names no other"))
	}
	// The order matters: who comes in after the claim was read changes it.
	rec, claimed, _, err := m.store.Get(ctx, meshPrefix+mesh.Name, 0)
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("read claim of mesh %s: %w", mesh.Name, err))
	}
	if !claimed {
		set.Guard(meshPrefix+mesh.Name, kvstorage.IfAbsent())
	} else {
		set.Delete(rec.Key, kvstorage.IfAt(rec.Modified))
	}
	list, err := m.namespaces.List(ctx, &metainternalversion.ListOptions{
		LabelSelector: labels.SelectorFromSet(labels.Set{meshv1alpha1.LabelMesh: mesh.Name}),
	})
	if err != nil {
		return err
	}
	namespaces := list.(*corev1.NamespaceList).Items
	if len(namespaces) == 0 {
		return nil
	}
	var names []string
	for _, n := range namespaces[:min(len(namespaces), maxNamed)] {
		names = append(names, n.Name)
	}
	if more := len(namespaces) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return apierrors.NewConflict(m.DefaultQualifiedResource, mesh.Name,
		fmt.Errorf("namespaces belong to it: %s; change their label %s first", strings.Join(names, ", "), meshv1alpha1.LabelMesh))
}
