// Package sliceset writes the EndpointSlices of one object, as those who keep
// slices planned them. It decides nothing.
package sliceset

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/proxima-mesh/proxima/internal/controller/loop"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// Writer writes the slices of one object.
type Writer struct {
	Client resource.Client
	// Kind is the descriptor of EndpointSlice.
	Kind *resource.Descriptor
	// Expectations of the key, which take note of what was written.
	Expectations *loop.Expectations
	// What the slices are, in errors: "endpoint slice of service shop/web".
	What string
}

// Write creates, updates and deletes, in this order, so that no endpoint that stays
// is missing in between. It ends with the first error, which wraps the client's;
// what was written until then stays. In a namespace that is being deleted nothing
// can be created any more and all will be deleted: that is no error.
func (w Writer) Write(ctx context.Context, create, update, remove []*discoveryv1.EndpointSlice) error {
	for _, slice := range create {
		made, err := w.Client.Create(ctx, kind.EndpointSlice, slice)
		if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("create %s: %w", w.What, err)
		}
		w.Expectations.Wrote(made)
	}
	for _, slice := range update {
		made, err := w.Client.Update(ctx, kind.EndpointSlice, slice)
		if err != nil {
			return fmt.Errorf("update %s, %s: %w", slice.Name, w.What, err)
		}
		w.Expectations.Wrote(made)
	}
	for _, slice := range remove {
		err := w.Client.Delete(ctx, w.Kind, resource.KeyOf(slice), resource.Preconditions{UID: slice.UID})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete %s, %s: %w", slice.Name, w.What, err)
		}
		w.Expectations.Deleted(slice)
	}
	return nil
}
