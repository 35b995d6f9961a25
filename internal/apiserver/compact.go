package apiserver

import (
	"hash/maphash"
	"maps"
	"math/bits"
	"reflect"
	"sync"
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/proxima-mesh/proxima/internal/recent"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// compactor makes objects small that the watch cache keeps: what many of them have alike is
// in memory once. Safe for concurrent use.
type compactor struct {
	kinds map[reflect.Type]*resource.Descriptor

	mu sync.Mutex
	// What follows is guarded by mu.
	fieldSets recent.Cache[string, *metav1.FieldsV1]
	// pairs are labels and annotations, by hash.
	pairs recent.Cache[uint64, map[string]string]
	seed  maphash.Seed
}

const (
	// maxFieldSets and maxPairs bound what is kept of those that no object has any more: twice so many.
	maxFieldSets, maxPairs = 512, 1024
	// maxShared is the size in bytes of field sets, labels or annotations above which they are taken for the only ones.
	maxShared = 2048
)

func newCompactor(kinds []*resource.Descriptor) *compactor {
	c := &compactor{kinds: make(map[reflect.Type]*resource.Descriptor, len(kinds)), seed: maphash.MakeSeed()}
	c.fieldSets.Most, c.pairs.Most = maxFieldSets, maxPairs
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

// meta shares the strings of metadata that are not the object's own, its labels and annotations, which the
// replicas of a workload have alike, and its field sets: clients set the same fields of many objects.
func (c *compactor) meta(m *metav1.ObjectMeta) {
	share(&m.Namespace)
	m.Labels, m.Annotations = c.equalPairs(m.Labels), c.equalPairs(m.Annotations)
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
	if len(raw) > maxShared {
		return set
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if known, ok := c.fieldSets.Get(raw); ok {
		return known
	}
	c.fieldSets.Put(raw, set)
	return set
}

// equalPairs returns labels or annotations that equal these, for several objects. Nobody may change them.
func (c *compactor) equalPairs(pairs map[string]string) map[string]string {
	size, hash := 0, c.hash(pairs)
	for k, v := range pairs {
		size += len(k) + len(v)
	}
	if size == 0 || size > maxShared {
		return pairs
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if known, ok := c.pairs.Get(hash); ok && maps.Equal(known, pairs) {
		return known
	}
	for k, v := range pairs {
		share(&k)
		pairs[k] = v // which replaces the key, too
	}
	c.pairs.Put(hash, pairs)
	return pairs
}

// hash of labels or annotations, in whatever order they are.
func (c *compactor) hash(pairs map[string]string) (sum uint64) {
	for k, v := range pairs {
		sum += maphash.String(c.seed, k) ^ bits.RotateLeft64(maphash.String(c.seed, v), 1)
	}
	return sum
}

// share replaces a string by an equal one that is in memory once. It is for strings that many
// objects have.
func share(s *string) {
	if *s != "" {
		*s = unique.Make(*s).Value()
	}
}
