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
		s.Labels, s.Annotations = map[string]string{own("app"): own("web")}, map[string]string{own("app"): own("WEB")}
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
	if reflect.ValueOf(a.Labels).Pointer() != reflect.ValueOf(b.Labels).Pointer() || reflect.ValueOf(a.Annotations).Pointer() != reflect.ValueOf(b.Annotations).Pointer() {
		t.Error("the labels or annotations are in memory twice")
	}
	if a.ManagedFields[0].FieldsV1 != b.ManagedFields[0].FieldsV1 {
		t.Error("the field set is in memory twice")
	}
}

// TestCompactPairs: labels that differ stay as they are, also if their hashes are equal, and their keys are shared.
func TestCompactPairs(t *testing.T) {
	c := newCompactor(nil)
	keys := map[*byte]bool{}
	for i := range 3 {
		m := c.equalPairs(map[string]string{strings.Clone("app"): fmt.Sprint("web", i), strings.Clone("zone"): "a"})
		if m["app"] != fmt.Sprint("web", i) || m["zone"] != "a" || len(m) != 2 {
			t.Errorf("labels %d are %v", i, m)
		}
		for k := range m {
			keys[unsafe.StringData(k)] = true
		}
		c.pairs.Put(c.hash(m), map[string]string{"app": "other"})
		if got := c.equalPairs(map[string]string{"app": fmt.Sprint("web", i), "zone": "a"}); len(got) != 2 {
			t.Errorf("labels %d are those of another object: %v", i, got)
		}
	}
	if len(keys) != 2 {
		t.Errorf("two keys are in memory %d times", len(keys))
	}
	long := map[string]string{"text": strings.Repeat("x", maxShared)}
	c.equalPairs(long)
	if _, ok := c.pairs.Get(c.hash(long)); ok {
		t.Error("long annotations are kept")
	}
}

// TestCompactForgets: field sets that no object has any more do not stay.
func TestCompactForgets(t *testing.T) {
	c := newCompactor(nil)
	for i := range 10 * maxFieldSets {
		c.compact(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{
			{FieldsV1: metav1.NewFieldsV1(fmt.Sprintf(`{"f:%d":{}}`, i))},
			{FieldsV1: metav1.NewFieldsV1(`{"f:` + strings.Repeat("x", maxShared) + `":{}}`)},
		}}})
	}
	if n := c.fieldSets.Len(); n > 2*maxFieldSets {
		t.Errorf("%d field sets are kept", n)
	}
	if _, ok := c.fieldSets.Get(`{"f:` + strings.Repeat("x", maxShared) + `":{}}`); ok {
		t.Error("a large set is kept")
	}
}
