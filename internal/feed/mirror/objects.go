package mirror

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/store"
)

// Prefix of all keys of a copy.
const Prefix = "/registry/"

// Objects reads keys and values of a copy. Values are JSON, with the resource versions of the cluster. It does no I/O, is immutable and
// safe for concurrent use.
type Objects struct {
	// kinds in descending order of prefixes.
	kinds []mirrored
}

type mirrored struct {
	kind   *resource.Descriptor
	prefix string
}

// NewObjects of some kinds.
func NewObjects(kinds []*resource.Descriptor) *Objects {
	o := &Objects{}
	for _, d := range kinds {
		folder := d.Resource + "/"
		if d.GVK.Group != "" {
			folder = d.GVK.Group + "/" + folder
		}
		o.kinds = append(o.kinds, mirrored{d, Prefix + folder})
	}
	slices.SortFunc(o.kinds, func(a, b mirrored) int { return cmp.Compare(b.prefix, a.prefix) })
	return o
}

// Kinds of the objects, in no order.
func (o *Objects) Kinds() []*resource.Descriptor {
	out := make([]*resource.Descriptor, len(o.kinds))
	for i := range o.kinds {
		out[i] = o.kinds[i].kind
	}
	return out
}

func (o *Objects) find(key string) *mirrored {
	for i := range o.kinds {
		if strings.HasPrefix(key, o.kinds[i].prefix) {
			return &o.kinds[i]
		}
	}
	return nil
}

// ObjectOf a key; ok is false if it is not that of an object.
func (o *Objects) ObjectOf(key string) (kind *resource.Descriptor, name resource.Key, ok bool) {
	m := o.find(key)
	if m == nil {
		return nil, resource.Key{}, false
	}
	namespace, object := "", key[len(m.prefix):]
	if m.kind.Namespaced {
		if namespace, object, ok = strings.Cut(object, "/"); !ok || namespace == "" {
			return nil, resource.Key{}, false
		}
	}
	return m.kind, resource.Key{Namespace: namespace, Name: object}, object != "" && !strings.Contains(object, "/")
}

// Prefix of the keys of a kind's objects in a namespace; empty: in all. With a name it is the key of that object. It is empty for a
// kind that is not copied.
func (o *Objects) Prefix(kind *resource.Descriptor, name resource.Key) string {
	for _, m := range o.kinds {
		if m.kind.GVK != kind.GVK {
			continue
		}
		if kind.Namespaced && name.Namespace != "" {
			return m.prefix + name.Namespace + "/" + name.Name
		}
		return m.prefix + name.Name
	}
	return ""
}

// Decode the value of a key: a new object, with its type. at is not used: the object has the resource version that the cluster gave
// it. Errors: the value is malformed, or the key is not that of an object.
func (o *Objects) Decode(_ context.Context, key string, value []byte, _ store.Revision) (resource.Object, error) {
	m := o.find(key)
	if m == nil {
		return nil, fmt.Errorf("%s is not the key of an object", key)
	}
	obj := m.kind.New()
	if err := json.Unmarshal(value, obj); err != nil {
		return nil, fmt.Errorf("%s is not a %s: %w", key, m.kind.GVK.Kind, err)
	}
	obj.GetObjectKind().SetGroupVersionKind(m.kind.GVK)
	return obj, nil
}

// Encode an object as the value of its key. The object is not changed, but for its type. Errors: the key is not that of the object.
func (o *Objects) Encode(_ context.Context, key string, obj resource.Object) ([]byte, error) {
	m := o.find(key)
	if m == nil {
		return nil, fmt.Errorf("%s is not the key of an object", key)
	}
	if of := o.Prefix(m.kind, resource.KeyOf(obj)); of != key {
		return nil, fmt.Errorf("an object of %s cannot be kept as %s", of, key)
	}
	obj.GetObjectKind().SetGroupVersionKind(m.kind.GVK)
	return json.Marshal(obj)
}
