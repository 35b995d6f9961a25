package apiserver

import (
	"fmt"
	"maps"
	"reflect"
	"testing"

	"k8s.io/apimachinery/pkg/fields"

	"github.com/proxima-mesh/proxima/internal/resource"
)

func TestRecentFields(t *testing.T) {
	var recent recentFields
	key := func(i int) resource.Key { return resource.Key{Namespace: "default", Name: fmt.Sprint(i)} }
	set := func(i int, value string) fields.Set { return fields.Set{"metadata.name": fmt.Sprint(i), "type": value} }
	same := func(a, b fields.Set) bool { return reflect.ValueOf(a).Pointer() == reflect.ValueOf(b).Pointer() }
	first := recent.share(key(0), set(0, "a"))
	if !same(recent.share(key(0), set(0, "a")), first) {
		t.Error("equal fields of two versions are kept twice")
	}
	if got := recent.share(key(0), set(0, "b")); !maps.Equal(got, set(0, "b")) {
		t.Errorf("the fields of a version that differs are %v", got)
	}
	if got := recent.share(key(1), set(0, "b")); !maps.Equal(got, set(0, "b")) {
		t.Errorf("the fields of another object are %v", got)
	}
	latest := recent.share(key(0), set(0, "b"))
	for i := range 10 * maxYoung {
		recent.share(key(2+i), set(2+i, "a"))
		if i%1000 == 0 && !same(recent.share(key(0), set(0, "b")), latest) {
			t.Fatal("an object that changes often is forgotten")
		}
	}
	if n := recent.sets.Len(); n > 2*maxYoung {
		t.Errorf("%d sets are kept, want %d at most", n, 2*maxYoung)
	}
}
