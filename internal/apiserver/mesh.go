package apiserver

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/apiserver/kvstorage"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/store"
)

// meshPrefix holds a key for every mesh that ever had a member, by the mesh's name.
// It is written with each such object and guarded by each deletion of a mesh, so that
// of two concurrent transactions one fails. The value names the last member written,
// for debugging.
const meshPrefix = "/proxima/meshes/"

// meshes is the registry of Meshes. One that namespaces belong to, or that others
// name, is not deleted, nor is the default one; and nothing is put into a mesh that
// does not exist.
type meshes struct {
	*registry
	namespaces *namespaces
	// members name their mesh themselves.
	members []member
	store   store.Store
	stored  *kvstorage.Resource
}

// member is a kind whose spec.mesh, unless it is empty, is the mesh of the object.
type member struct {
	*registry
	meshOf func(runtime.Object) string
}

// meshMembers are the kinds that name their mesh.
var meshMembers = map[string]func(runtime.Object) string{
	"Dataplane":       func(obj runtime.Object) string { return obj.(*meshv1alpha1.Dataplane).Spec.Mesh },
	"ExternalService": func(obj runtime.Object) string { return obj.(*meshv1alpha1.ExternalService).Spec.Mesh },
}

var (
	_ rest.CollectionDeleter = (*meshes)(nil)
	_ rest.GracefulDeleter   = (*meshes)(nil)
)

// follow makes writes of what belongs to meshes ask for the mesh that they name.
func (m *meshes) follow() {
	m.ask(m.namespaces.registry, field.NewPath("metadata", "labels").Key(meshv1alpha1.LabelMesh), func(obj runtime.Object) string {
		return kind.MeshOf(obj.(*corev1.Namespace))
	})
	for _, k := range m.members {
		m.ask(k.registry, field.NewPath("spec", "mesh"), k.meshOf)
	}
}

// ask makes the writes of a kind ask.
func (m *meshes) ask(r *registry, path *field.Path, meshOf func(runtime.Object) string) {
	r.guarded = true
	done := func(context.Context, bool) {}
	r.BeginCreate = func(ctx context.Context, obj runtime.Object, _ *metav1.CreateOptions) (genericregistry.FinishFunc, error) {
		return done, m.join(ctx, r, obj.(resource.Object), path, meshOf(obj), "")
	}
	r.BeginUpdate = func(ctx context.Context, obj, old runtime.Object, _ *metav1.UpdateOptions) (genericregistry.FinishFunc, error) {
		return done, m.join(ctx, r, obj.(resource.Object), path, meshOf(obj), meshOf(old))
	}
}

// join checks that the mesh of an object exists, if it names another than before,
// and sets up the guard that it stays. name is empty where the object names none,
// before also for a new object.
func (m *meshes) join(ctx context.Context, r *registry, obj resource.Object, path *field.Path, name, before string) error {
	set := kvstorage.CompanionsFrom(ctx)
	if set == nil {
		return apierrors.NewInternalError(fmt.Errorf("write of %s %s past its registry", r.kind.GVK.Kind, obj.GetName()))
	}
	set.Reset()
	if name == "" || name == meshv1alpha1.DefaultMesh || name == before {
		return nil
	}
	refuse := func(mistake *field.Error) error {
		return apierrors.NewInvalid(r.kind.GVK.GroupKind(), obj.GetName(), field.ErrorList{mistake})
	}
	key, err := m.KeyFunc(ctx, name)
	if err != nil {
		return refuse(field.Invalid(path, name, "must be the name of a Mesh"))
	}
	var mesh meshv1alpha1.Mesh
	switch err := m.Storage.Get(ctx, key, storage.GetOptions{}, &mesh); {
	case storage.IsNotFound(err):
		return refuse(field.NotFound(path, name))
	case err != nil:
		return apierrors.NewInternalError(fmt.Errorf("read mesh %s: %w", name, err))
	case !mesh.DeletionTimestamp.IsZero():
		return refuse(field.Invalid(path, name, "this mesh is being deleted"))
	}
	held, err := guardOf(m.stored, &mesh)
	if err != nil {
		return err
	}
	set.Guard(held.key, kvstorage.IfAt(held.at))
	set.Put(meshPrefix+name, []byte(r.kind.Resource+" "+resource.KeyOf(obj).String()), kvstorage.Always())
	return nil
}

// Delete removes a mesh that has no members.
func (m *meshes) Delete(
	ctx context.Context, name string, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions,
) (out runtime.Object, gone bool, err error) {
	err = m.attempts(ctx, func(ctx context.Context) error {
		out, gone, err = m.registry.Delete(ctx, name, m.leaving(validate), options.DeepCopy())
		return err
	})
	return out, gone, err
}

// DeleteCollection deletes Meshes one after the other, each as Delete does.
func (m *meshes) DeleteCollection(
	ctx context.Context, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions, list *metainternalversion.ListOptions,
) (out runtime.Object, err error) {
	err = m.attempts(ctx, func(ctx context.Context) error {
		out, err = m.registry.DeleteCollection(ctx, m.leaving(validate), options, list)
		return err
	})
	return out, err
}

// leaving extends the validation of a deletion: it refuses if the mesh is in use, and
// sets up the guard against new members.
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

// maxNamed is how many objects a refusal names.
const maxNamed = 5

func (m *meshes) unused(ctx context.Context, mesh *meshv1alpha1.Mesh) error {
	set := kvstorage.CompanionsFrom(ctx)
	if set == nil {
		return apierrors.NewInternalError(fmt.Errorf("deletion of mesh %s past its registry", mesh.Name))
	}
	set.Reset()
	if mesh.Name == meshv1alpha1.DefaultMesh {
		return apierrors.NewForbidden(m.DefaultQualifiedResource, mesh.Name,
			errors.New("this mesh may not be deleted: it is that of every namespace that names no other"))
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
	list, err := m.namespacesOf(ctx, mesh.Name)
	if err != nil {
		return err
	}
	if err := m.inUse(mesh, list, "namespaces belong to it", "change their label "+meshv1alpha1.LabelMesh); err != nil {
		return err
	}
	everywhere := request.WithNamespace(ctx, metav1.NamespaceAll)
	for _, k := range m.members {
		list, err := k.List(everywhere, &metainternalversion.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.mesh", mesh.Name)})
		if err != nil {
			return err
		}
		if err := m.inUse(mesh, list, k.kind.Resource+" name it", "change their spec.mesh, or delete them,"); err != nil {
			return err
		}
	}
	return nil
}

// namespacesOf a mesh. What names it may be a label or an annotation, so all are looked at.
func (m *meshes) namespacesOf(ctx context.Context, name string) (*corev1.NamespaceList, error) {
	all, err := m.namespaces.List(ctx, &metainternalversion.ListOptions{})
	if err != nil {
		return nil, err
	}
	out := &corev1.NamespaceList{}
	err = meta.EachListItem(all, func(obj runtime.Object) error {
		if n := obj.(*corev1.Namespace); kind.MeshOf(n) == name {
			out.Items = append(out.Items, *n)
		}
		return nil
	})
	return out, err
}

// inUse refuses the deletion of a mesh if a list is not empty. how describes the
// list's relation to the mesh, and fix how to resolve it.
func (m *meshes) inUse(mesh *meshv1alpha1.Mesh, list runtime.Object, how, fix string) error {
	var names []string
	more := 0
	if err := meta.EachListItem(list, func(obj runtime.Object) error {
		if len(names) == maxNamed {
			more++
			return nil
		}
		name := obj.(resource.Object).GetName()
		if ns := obj.(resource.Object).GetNamespace(); ns != "" {
			name = ns + "/" + name
		}
		names = append(names, name)
		return nil
	}); err != nil {
		return apierrors.NewInternalError(fmt.Errorf("read who is in mesh %s: %w", mesh.Name, err))
	}
	if len(names) == 0 {
		return nil
	}
	if more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return apierrors.NewConflict(m.DefaultQualifiedResource, mesh.Name, fmt.Errorf("%s: %s; %s first", how, strings.Join(names, ", "), fix))
}
