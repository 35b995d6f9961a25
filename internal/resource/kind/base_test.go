package kind_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/kind/kindtest"
)

// base is a valid object of each kind, as its user might write it.
var base = kindtest.Valid()

// descriptors are all kinds under the names of their functions.
func descriptors() map[string]*resource.Descriptor {
	out := map[string]*resource.Descriptor{}
	for _, d := range kind.All() {
		name := d.GVK.Kind
		if d.GVK.GroupKind() == (schema.GroupKind{Group: "events.k8s.io", Kind: "Event"}) {
			name = "EventsV1Event"
		}
		out[name] = d
	}
	return out
}

// decode makes an object and gives it its defaults.
func decode(t testing.TB, d *resource.Descriptor, text string) resource.Object {
	t.Helper()
	obj := d.New()
	if err := yaml.UnmarshalStrict([]byte(text), obj); err != nil {
		t.Fatalf("decode %s: %v", d.GVK, err)
	}
	if d.Default != nil {
		d.Default(obj)
	}
	return obj
}

// create does to an object what a create does.
func create(t testing.TB, d *resource.Descriptor, text string) resource.Object {
	t.Helper()
	obj := decode(t, d, text)
	if d.Prepare != nil {
		d.Prepare(obj, nil)
	}
	return obj
}

func clone[T resource.Object](obj T) T { return obj.DeepCopyObject().(T) }

// service is a stored Service as the registry leaves it.
func service(t testing.TB, addresses ...string) *corev1.Service {
	s := create(t, kind.Service, base["Service"]).(*corev1.Service)
	s.ResourceVersion = "1"
	if len(addresses) == 0 {
		return s
	}
	s.Spec.ClusterIP, s.Spec.ClusterIPs = addresses[0], addresses
	s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}[:len(addresses)]
	s.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicySingleStack)
	if len(addresses) == 2 {
		s.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyRequireDualStack)
	}
	return s
}

// overlay lays YAML over YAML: maps merge, null deletes, all else replaces.
func overlay(t testing.TB, under, over string) string {
	t.Helper()
	out, err := kindtest.Overlay(under, over)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
