package apiserver

import (
	"context"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/proxima-mesh/proxima/internal/apiserver/kvstorage"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/store"
)

// Stored reads keys and values of the store as the server writes them. It does no I/O, is immutable and safe for
// concurrent use.
type Stored struct {
	// kinds in descending order of prefixes.
	kinds []storedKind
}

type storedKind struct {
	kind     *resource.Descriptor
	prefix   string
	resource *kvstorage.Resource
}

// Stored is how this server stores objects.
func (s *Server) Stored() (*Stored, error) {
	out := &Stored{}
	for _, kind := range s.cfg.Kinds {
		if isEventAlias(kind) {
			continue // stored as the kind that it is an alias of
		}
		r, err := s.options.Resource(kind.GroupResource())
		if err != nil {
			return nil, err
		}
		key, err := r.KeyFor("", "x")
		if err != nil {
			return nil, err
		}
		out.kinds = append(out.kinds, storedKind{kind, strings.TrimSuffix(key, "x"), r})
	}
	slices.SortFunc(out.kinds, func(a, b storedKind) int { return strings.Compare(b.prefix, a.prefix) })
	return out, nil
}

func (s *Stored) find(key string) *storedKind {
	for i := range s.kinds {
		if strings.HasPrefix(key, s.kinds[i].prefix) {
			return &s.kinds[i]
		}
	}
	return nil
}

// ObjectOf a key of the store; ok is false if it is not that of an object.
func (s *Stored) ObjectOf(key string) (kind *resource.Descriptor, name resource.Key, ok bool) {
	k := s.find(key)
	if k == nil {
		return nil, resource.Key{}, false
	}
	rest := key[len(k.prefix):]
	if !k.kind.Namespaced {
		return k.kind, resource.Key{Name: rest}, rest != "" && !strings.Contains(rest, "/")
	}
	namespace, object, ok := strings.Cut(rest, "/")
	return k.kind, resource.Key{Namespace: namespace, Name: object}, ok && namespace != "" && object != "" && !strings.Contains(object, "/")
}

// Prefix of the keys of a kind's objects in a namespace; empty: in all. With a name it is the key of that object. It is
// empty for a kind that is not stored.
func (s *Stored) Prefix(kind *resource.Descriptor, name resource.Key) string {
	for i := range s.kinds {
		if s.kinds[i].kind.GVK != kind.GVK {
			continue
		}
		prefix := s.kinds[i].prefix
		if kind.Namespaced && name.Namespace != "" {
			prefix += name.Namespace + "/"
		}
		return prefix + name.Name
	}
	return ""
}

// Decode the value of a key as of a revision: a new object, with its type. Errors: the value cannot be decrypted or
// decoded, or the key is not that of an object.
func (s *Stored) Decode(ctx context.Context, key string, value []byte, at store.Revision) (resource.Object, error) {
	k := s.find(key)
	if k == nil {
		return nil, fmt.Errorf("%s is not the key of an object", key)
	}
	obj := k.kind.New()
	if err := k.resource.Decode(ctx, store.Record{Key: key, Value: value, Modified: at}, obj); err != nil {
		return nil, err
	}
	obj.GetObjectKind().SetGroupVersionKind(k.kind.GVK)
	return obj, nil
}

// Encode an object, of which the server has stored an earlier form under the key, as its value. The object is not changed. Errors: the key
// is not that of the object.
func (s *Stored) Encode(ctx context.Context, key string, obj resource.Object) ([]byte, error) {
	k := s.find(key)
	if k == nil {
		return nil, fmt.Errorf("%s is not the key of an object", key)
	}
	of, value, err := k.resource.Encode(ctx, obj)
	if err == nil && of != key {
		err = fmt.Errorf("an object of %s cannot be stored as %s", of, key)
	}
	return value, err
}

// Table implements history.Objects.
func (s *Stored) Table(ctx context.Context, kind *resource.Descriptor, objects []resource.Object) (*metav1.Table, error) {
	return Table(ctx, kind, objects)
}

// Table of objects of one kind, as a server answers it. Rows have the metadata of their objects, without managedFields.
func Table(ctx context.Context, kind *resource.Descriptor, objects []resource.Object) (*metav1.Table, error) {
	table := &metav1.Table{}
	for _, obj := range objects {
		one, err := tables{kind}.ConvertToTable(ctx, obj, &metav1.TableOptions{NoHeaders: true})
		if err != nil {
			return nil, err
		}
		for i := range one.Rows {
			one.Rows[i].Object = runtime.RawExtension{Object: &metav1.PartialObjectMetadata{
				TypeMeta:   metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"},
				ObjectMeta: metav1.ObjectMeta{Namespace: obj.GetNamespace(), Name: obj.GetName(), UID: obj.GetUID(), CreationTimestamp: obj.GetCreationTimestamp(), Labels: obj.GetLabels()},
			}}
		}
		table.Rows = append(table.Rows, one.Rows...)
	}
	table.TypeMeta = metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "Table"}
	table.ColumnDefinitions = tables{kind}.columns()
	return table, nil
}
