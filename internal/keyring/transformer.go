package keyring

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"
)

// Transformer encrypts what the API server stores. The name of a value is its
// key in the store.
func (r *Ring) Transformer() value.Transformer { return transformer{r} }

// Transformers gives the Transformer to some resources, and nil to all others.
func (r *Ring) Transformers(groups ...schema.GroupResource) func(schema.GroupResource) value.Transformer {
	return func(group schema.GroupResource) value.Transformer {
		if slices.Contains(groups, group) {
			return r.Transformer()
		}
		return nil
	}
}

type transformer struct{ ring *Ring }

// TransformToStorage implements value.Transformer.
func (t transformer) TransformToStorage(_ context.Context, data []byte, name value.Context) ([]byte, error) {
	return t.ring.Seal(name.AuthenticatedData(), data)
}

// TransformFromStorage implements value.Transformer. A value encrypted with a key
// other than the first is stale, so that any update re-encrypts it.
func (t transformer) TransformFromStorage(_ context.Context, data []byte, name value.Context) ([]byte, bool, error) {
	return t.ring.Unseal(name.AuthenticatedData(), data)
}
