package kvstorage

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"

	"github.com/proxima-mesh/proxima/internal/store"
)

// Resource maps the objects of one resource to keys and values of the store. It
// does no I/O, is immutable and safe for concurrent use. Get one from
// [RESTOptions.Resource].
type Resource struct {
	group       schema.GroupResource
	pathPrefix  string // starts and ends with "/"
	prefix      string // below pathPrefix; starts and ends with "/"
	codec       runtime.Codec
	transformer value.Transformer
	versioner   storage.APIObjectVersioner
	// corruptible: a value that does not decode is reported as *CorruptError.
	corruptible bool
}

func newResource(
	group schema.GroupResource, pathPrefix, resourcePrefix string, codec runtime.Codec, transformer value.Transformer,
) (*Resource, error) {
	if codec == nil {
		return nil, fmt.Errorf("resource %s: no codec", group)
	}
	if !strings.HasPrefix(resourcePrefix, "/") || path.Clean(resourcePrefix) == "/" {
		return nil, fmt.Errorf("resource %s: prefix %q must start with / and name a folder below it", group, resourcePrefix)
	}
	if transformer == nil {
		transformer = identity.NewEncryptCheckTransformer()
	}
	return &Resource{
		group:       group,
		pathPrefix:  folder(path.Join("/", pathPrefix)),
		prefix:      folder(resourcePrefix),
		codec:       codec,
		transformer: transformer,
	}, nil
}

func folder(p string) string {
	if strings.HasSuffix(p, "/") {
		return p
	}
	return p + "/"
}

// KeyFor returns the key of an object in the store. Namespace is empty for
// cluster-scoped resources.
func (r *Resource) KeyFor(namespace, name string) (string, error) {
	segments := []string{name}
	if namespace != "" {
		segments = []string{namespace, name}
	}
	for _, s := range segments {
		if s == "" {
			return "", fmt.Errorf("key of %s: empty name", r.group)
		}
		if problems := content.IsPathSegmentName(s); len(problems) > 0 {
			return "", fmt.Errorf("key of %s: name %q %s", r.group, s, strings.Join(problems, "; "))
		}
	}
	return r.pathPrefix + r.prefix[1:] + strings.Join(segments, "/"), nil
}

// Encode returns the key and the value by which an object is stored. The object
// is not changed and must be complete: nothing runs its strategy, so name, uid
// and creationTimestamp are required, and defaults are the caller's concern. A
// resourceVersion is left out, as it is in every stored object.
func (r *Resource) Encode(ctx context.Context, obj runtime.Object) (key string, value []byte, err error) {
	m, err := meta.Accessor(obj)
	if err != nil {
		return "", nil, fmt.Errorf("encode %s: %w", r.group, err)
	}
	key, err = r.KeyFor(m.GetNamespace(), m.GetName())
	if err != nil {
		return "", nil, err
	}
	switch created := m.GetCreationTimestamp(); {
	case m.GetUID() == "":
		return "", nil, fmt.Errorf("encode %s: no uid", key)
	case created.IsZero():
		return "", nil, fmt.Errorf("encode %s: no creationTimestamp", key)
	}
	value, err = r.seal(ctx, key, obj.DeepCopyObject())
	return key, value, err
}

// Decode reads a record of this resource into an object and sets its
// resourceVersion.
func (r *Resource) Decode(ctx context.Context, rec store.Record, into runtime.Object) error {
	data, _, err := r.unseal(ctx, rec.Key, rec.Value)
	if err != nil {
		return err
	}
	return r.decode(rec.Key, data, into, rec.Modified)
}

// seal encodes and transforms an object, which it changes.
func (r *Resource) seal(ctx context.Context, key string, obj runtime.Object) ([]byte, error) {
	data, err := r.encode(obj)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", key, err)
	}
	return r.transform(ctx, key, data)
}

// encode strips what is not stored from an object and serialises it.
func (r *Resource) encode(obj runtime.Object) ([]byte, error) {
	if err := r.versioner.PrepareObjectForStorage(obj); err != nil {
		return nil, fmt.Errorf("prepare for storage: %w", err)
	}
	return runtime.Encode(r.codec, obj)
}

func (r *Resource) transform(ctx context.Context, key string, data []byte) ([]byte, error) {
	sealed, err := r.transformer.TransformToStorage(ctx, data, value.DefaultContext(key))
	if err != nil {
		return nil, storage.NewInternalError(fmt.Errorf("transform %s: %w", key, err))
	}
	return sealed, nil
}

// unseal undoes transform. stale: the value should be written again.
func (r *Resource) unseal(ctx context.Context, key string, sealed []byte) (data []byte, stale bool, err error) {
	data, stale, err = r.transformer.TransformFromStorage(ctx, sealed, value.DefaultContext(key))
	if err != nil {
		return nil, false, storage.NewInternalError(fmt.Errorf("unable to transform key %q: %w", key, err))
	}
	return data, stale, nil
}

// decode reads serialised data of a key into an object as of a revision.
func (r *Resource) decode(key string, data []byte, into runtime.Object, rev store.Revision) error {
	if into == nil {
		return errors.New("decode: no object to decode into")
	}
	if _, _, err := r.codec.Decode(data, nil, into); err != nil {
		if r.corruptible {
			return &CorruptError{Err: err}
		}
		return undecodable(key, err)
	}
	return r.versioner.UpdateObject(into, uint64(rev))
}

// decodeNew reads a stored value into a new object as of a revision.
func (r *Resource) decodeNew(ctx context.Context, key string, sealed []byte, rev store.Revision) (runtime.Object, error) {
	data, _, err := r.unseal(ctx, key, sealed)
	if err != nil {
		return nil, err
	}
	obj, err := runtime.Decode(r.codec, data)
	if err != nil {
		if r.corruptible {
			return nil, &CorruptError{Err: err}
		}
		return nil, undecodable(key, err)
	}
	return obj, r.versioner.UpdateObject(obj, uint64(rev))
}
