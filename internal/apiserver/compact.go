package apiserver

import (
	"reflect"
	"sync"
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/proxima-mesh/proxima/internal/resource"
)

// compactor makes objects small that the watch cache keeps: what many of them have alike is
// in memory once. Safe for concurrent use.
type compactor struct {
	kinds map[reflect.Type]*resource.Descriptor

	mu sync.Mutex
	// young field sets become the old ones when there are enough; the old ones are forgotten then.
	young, old map[string]*metav1.FieldsV1
}

const (
	// maxYoungSets bounds what is kept of field sets that no object has any more: twice so many.
	maxYoungSets = 512
	// maxSharedSet is the size in bytes of a field set above which it is taken for the only one.
	maxSharedSet = 2048
)

func newCompactor(kinds []*resource.Descriptor) *compactor {
	c := &compactor{kinds: make(map[reflect.Type]*resource.Descriptor, len(kinds))}
	for _, kind := range kinds {
		if kind.Compact != nil {
			c.kinds[reflect.TypeOf(kind.New())] = kind
		}
	}
	return c
}

// compact an object that was just decoded, and that nobody else has.
func (c *compactor) compact(obj runtime.Object) {
	if o, ok := obj.(metav1.ObjectMetaAccessor); ok {
		if m, ok := o.GetObjectMeta().(*metav1.ObjectMeta); ok {
			c.meta(m)
		}
	}
	if kind := c.kinds[reflect.TypeOf(obj)]; kind != nil {
		kind.Compact(obj.(resource.Object), share)
	}
}

// meta shares the strings of metadata that are not the object's own, and its field sets:
// clients set the same fields of many objects.
func (c *compactor) meta(m *metav1.ObjectMeta) {
	share(&m.Namespace)
	for i := range m.OwnerReferences {
		share(&m.OwnerReferences[i].APIVersion)
		share(&m.OwnerReferences[i].Kind)
	}
	for i := range m.ManagedFields {
		f := &m.ManagedFields[i]
		share(&f.Manager)
		share((*string)(&f.Operation))
		share(&f.APIVersion)
		share(&f.FieldsType)
		share(&f.Subresource)
		if f.FieldsV1 != nil {
			f.FieldsV1 = c.fieldSet(f.FieldsV1)
		}
	}
}

// fieldSet returns a set that equals this one, for several objects. Nobody may change it.
func (c *compactor) fieldSet(set *metav1.FieldsV1) *metav1.FieldsV1 {
	raw := set.GetRawString()
	if len(raw) > maxSharedSet {
		return set
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if known, ok := c.young[raw]; ok {
		return known
	}
	if known, ok := c.old[raw]; ok {
		set = known
	}
	if len(c.young) >= maxYoungSets {
		c.young, c.old = nil, c.young
	}
	if c.young == nil {
		c.young = map[string]*metav1.FieldsV1{}
	}
	c.young[raw] = set
	return set
}

// share replaces a string by an equal one that is in memory once. It is for strings that many
// objects have.
func share(s *string) {
	if *s != "" {
		*s = unique.Make(*s).Value()
	}
}
