package apiserver

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/proxima-mesh/proxima/internal/apiserver/kvstorage"
)

// nodes is the registry of Nodes. A deletion leaves a record in its transaction, so
// that there is no moment at which the Node is gone and its credentials still hold.
type nodes struct {
	*registry
	record func(n *corev1.Node, who user.Info) (key string, value []byte, err error)
}

var (
	_ rest.CollectionDeleter = (*nodes)(nil)
	_ rest.GracefulDeleter   = (*nodes)(nil)
)

func newNodes(r *registry, record func(*corev1.Node, user.Info) (string, []byte, error)) *nodes {
	n := &nodes{registry: r, record: record}
	r.BeginUpdate = func(ctx context.Context, obj, old runtime.Object, _ *metav1.UpdateOptions) (genericregistry.FinishFunc, error) {
		done := func(context.Context, bool) {}
		next, prev := obj.(*corev1.Node), old.(*corev1.Node)
		if len(next.Finalizers) > 0 || prev.DeletionTimestamp.IsZero() {
			return done, nil
		}
		return done, n.leave(ctx, prev) // this update completes a pending deletion
	}
	return n
}

// Update changes a Node, or removes its last finalizer.
func (n *nodes) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc,
	update rest.ValidateObjectUpdateFunc, allowCreate bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	ctx, _ = kvstorage.WithCompanions(ctx, kvstorage.OnDelete)
	return n.registry.Update(ctx, name, info, create, update, allowCreate, options)
}

// Delete removes a Node and leaves the record.
func (n *nodes) Delete(
	ctx context.Context, name string, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions,
) (runtime.Object, bool, error) {
	ctx, _ = kvstorage.WithCompanions(ctx, kvstorage.OnDelete)
	return n.registry.Delete(ctx, name, n.leaving(validate), options)
}

// DeleteCollection deletes Nodes one after the other, each as Delete does.
func (n *nodes) DeleteCollection(
	ctx context.Context, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions, list *metainternalversion.ListOptions,
) (runtime.Object, error) {
	ctx, _ = kvstorage.WithCompanions(ctx, kvstorage.OnDelete)
	return n.registry.DeleteCollection(ctx, n.leaving(validate), options, list)
}

// leaving makes the check of a deletion, which sees the very state that is deleted,
// set up the record.
func (n *nodes) leaving(validate rest.ValidateObjectFunc) rest.ValidateObjectFunc {
	return func(ctx context.Context, obj runtime.Object) error {
		if validate != nil {
			if err := validate(ctx, obj); err != nil {
				return err
			}
		}
		return n.leave(ctx, obj.(*corev1.Node))
	}
}

func (n *nodes) leave(ctx context.Context, node *corev1.Node) error {
	set := kvstorage.CompanionsFrom(ctx)
	if set == nil {
		return apierrors.NewInternalError(fmt.Errorf("deletion of node %s past its registry", node.Name))
	}
	who, _ := request.UserFrom(ctx)
	key, value, err := n.record(node, who)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	set.Reset()
	set.Put(key, value, kvstorage.Always())
	return nil
}
