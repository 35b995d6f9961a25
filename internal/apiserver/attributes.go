package apiserver

import (
	"fmt"
	"maps"
	"sync"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/proxima-mesh/proxima/internal/recent"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// attributes are what selectors see of an object.
func attributes(kind *resource.Descriptor) storage.AttrFunc {
	var fieldsOf recentFields
	return func(obj runtime.Object) (labels.Set, fields.Set, error) {
		o, ok := obj.(resource.Object)
		if !ok {
			return nil, nil, fmt.Errorf("attributes of %s: %T is no object", kind.GVK.Kind, obj)
		}
		set := fields.Set{"metadata.name": o.GetName()}
		if kind.Namespaced {
			set["metadata.namespace"] = o.GetNamespace()
		}
		if kind.Fields != nil {
			maps.Copy(set, kind.Fields(o))
		}
		return o.GetLabels(), fieldsOf.share(resource.KeyOf(o), set), nil
	}
}

// recentFields shares the fields of the versions of an object, which hardly ever differ.
// The watch cache keeps a map of 300 bytes and more for each version in its history
// otherwise. The zero value is ready. Safe for concurrent use.
type recentFields struct {
	mu   sync.Mutex
	sets recent.Cache[resource.Key, fields.Set]
}

// maxYoung bounds what is kept of objects that are gone: twice so many sets for each kind.
const maxYoung = 4096

// share returns a set that equals this one and was returned for an earlier version of the
// object, or this one. Nobody may change it.
func (r *recentFields) share(key resource.Key, set fields.Set) fields.Set {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sets.Most = maxYoung
	if earlier, ok := r.sets.Get(key); ok && maps.Equal(earlier, set) {
		return earlier
	}
	r.sets.Put(key, set)
	return set
}
