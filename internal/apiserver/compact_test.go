package apiserver

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/randfill"

	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// TestCompactKeeps: a compact object equals what it was.
func TestCompactKeeps(t *testing.T) {
	c := newCompactor(kind.All())
	fill := randfill.NewWithSeed(1).NilChance(0.2).NumElements(0, 4).Funcs(
		func(f *metav1.FieldsV1, c randfill.Continue) { f.SetRawString(`{"f:` + c.String(8) + `":{}}`) },
	)
	for _, d := range kind.All() {
		for range 50 {
			obj := d.New()
			fill.Fill(obj)
			want := obj.DeepCopyObject()
			c.compact(obj)
			if !reflect.DeepEqual(want, obj.DeepCopyObject()) {
				t.Fatalf("%s changed:\n%s", d.GVK.Kind, cmp.Diff(want, obj))
			}
		}
	}
}

// TestCompactShares: what two objects have alike is in memory once.
func TestCompactShares(t *testing.T) {
	c := newCompactor(kind.All())
	made := func() *discoveryv1.EndpointSlice {
		own := func(s string) string { return strings.Clone(s) }
		s := &discoveryv1.EndpointSlice{}
		s.Namespace = own("default")
		s.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: own("kubectl"), FieldsV1: metav1.NewFieldsV1(`{"f:ports":{}}`)}}
		s.Endpoints = []discoveryv1.Endpoint{{Zone: new(own("zone-a")), NodeName: new(own("node-1"))}}
		c.compact(s)
		return s
	}
	a, b := made(), made()
	for name, pair := range map[string][2]*byte{
		"namespace": {unsafe.StringData(a.Namespace), unsafe.StringData(b.Namespace)},
		"manager":   {unsafe.StringData(a.ManagedFields[0].Manager), unsafe.StringData(b.ManagedFields[0].Manager)},
		"zone":      {unsafe.StringData(*a.Endpoints[0].Zone), unsafe.StringData(*b.Endpoints[0].Zone)},
		"node":      {unsafe.StringData(*a.Endpoints[0].NodeName), unsafe.StringData(*b.Endpoints[0].NodeName)},
	} {
		if pair[0] != pair[1] {
			t.Errorf("the %s is in memory twice", name)
		}
	}
	if a.ManagedFields[0].FieldsV1 != b.ManagedFields[0].FieldsV1 {
		t.Error("the field set is in memory twice")
	}
}

// TestCompactForgets: field sets that no object has any more do not stay.
func TestCompactForgets(t *testing.T) {
	c := newCompactor(nil)
	for i := range 10 * maxYoungSets {
		c.compact(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{
			{FieldsV1: metav1.NewFieldsV1(fmt.Sprintf(`{"f:%d":{}}`, i))},
			{FieldsV1: metav1.NewFieldsV1(`{"f:` + strings.Repeat("x", maxSharedSet) + `":{}}`)},
		}}})
	}
	if n := len(c.young) + len(c.old); n > 2*maxYoungSets {
		t.Errorf("%d field sets are kept", n)
	}
	for set := range c.young {
		if len(set) > maxSharedSet {
			t.Errorf("a set of %d bytes is kept", len(set))
		}
	}
}
