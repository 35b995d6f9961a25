package apiserver_test

import (
	"testing"

	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// TestStoredKeys: each kind has keys of its own, which are read back as what they were made of.
func TestStoredKeys(t *testing.T) {
	stored, err := shared.Stored()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range kind.All() {
		if d.GVK.Group == "events.k8s.io" {
			continue // stored as Events of the core group
		}
		name := resource.Key{Name: "web"}
		if d.Namespaced {
			name.Namespace = "shop"
		}
		key := stored.Prefix(d, name)
		if of, got, ok := stored.ObjectOf(key); !ok || of.GVK != d.GVK || got != name {
			t.Errorf("%s of %s is read as %v %v %t", key, d.GVK, of, got, ok)
		}
		if _, _, ok := stored.ObjectOf(key + "/status"); ok {
			t.Errorf("%s/status is the key of an object", key)
		}
	}
	for _, key := range []string{"", "/registry/", "/registry/services/", "/registry/services/shop", "/registry/services//web", "/registry/widgets/shop/web", "/proxima/x"} {
		if d, got, ok := stored.ObjectOf(key); ok {
			t.Errorf("%q is read as %s %s", key, d.GVK, got)
		}
	}
	if got := stored.Prefix(kind.Service, resource.Key{Namespace: "shop"}); got != "/registry/services/shop/" {
		t.Errorf("the prefix of a namespace is %q", got)
	}
	if _, err := stored.Decode(t.Context(), "/registry/services/shop/web", []byte("damaged"), 1); err == nil {
		t.Error("a damaged value is decoded")
	}
}
