package local

import (
	"context"
	"errors"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/federation"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

func newChecker(t testing.TB) (*Checker, Kind) {
	d := newDescriptors()
	c := &Checker{
		Zone: "east", Client: resourcetest.New(d.mesh, d.costs, d.dataplane, d.ingress, d.namespace, d.config), Kinds: d.kinds(t),
		Try: func(context.Context, *resource.Descriptor, resource.Object) error { return nil },
	}
	return c, c.Kinds[0]
}

func TestChecker(t *testing.T) {
	c, meshes := newChecker(t)
	m := &meshv1alpha1.Mesh{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}
	body, err := meshes.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	newer, err := (&federation.Object{Key: federation.Key{Name: "shop"}, Payload: []byte(`{"spec":{"colour":"red"}}`)}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	broken, err := (&federation.Object{Key: federation.Key{Name: "shop"}, Payload: []byte(`{"spec":7}`)}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	var tried resource.Object
	var tryErr error
	c.Try = func(_ context.Context, _ *resource.Descriptor, obj resource.Object) error { tried = obj; return tryErr }
	check := func(what, typ string, body []byte, refusal, warning string) {
		t.Helper()
		v, err := c.Check(t.Context(), typ, body)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		got := strings.Join(v.Warnings, "; ")
		if (refusal == "") != (v.Refusal == "") || !strings.Contains(v.Refusal, refusal) || (warning == "") != (got == "") || !strings.Contains(got, warning) {
			t.Errorf("%s: refusal %q, warnings %q; want %q, %q", what, v.Refusal, got, refusal, warning)
		}
	}
	check("a new one", meshes.Type.Name, body, "", "")
	if owner, ok := federation.OwnerOf(tried.GetLabels()); !ok || owner.Zone != "" || tried.GetName() != "shop" || tried.GetResourceVersion() != "" {
		t.Errorf("tried %v", tried)
	}
	check("another type", "example.com/Colour", body, "", "does not take objects of type example.com/Colour")
	check("a type of zones", "mesh.proxima.dev/Dataplane", body, "", "does not take objects")
	check("no object", meshes.Type.Name, []byte("x"), "parse object", "")
	check("a newer field", meshes.Type.Name, newer, "", `does not know the fields spec.colour`)
	check("no mesh", meshes.Type.Name, broken, "decode payload", "")
	tryErr = apierrors.NewInvalid(schema.GroupKind{Kind: "Mesh"}, "shop", nil)
	check("invalid there", meshes.Type.Name, body, "is invalid", "")
	tryErr = apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "shop")
	check("no namespace", meshes.Type.Name, body, "", `it would wait: namespaces "shop" not found`)
	tryErr = errors.New("no store")
	if _, err := c.Check(t.Context(), meshes.Type.Name, body); !errors.Is(err, tryErr) {
		t.Errorf("a store that fails: %v", err)
	}
	tryErr = nil
	stored := m.DeepCopy()
	stored.Labels = map[string]string{federation.LabelOrigin: federation.OriginGlobal}
	if _, err := c.Client.Create(t.Context(), meshes.Descriptor, stored); err != nil {
		t.Fatal(err)
	}
	check("a copy that is there", meshes.Type.Name, body, "", "")
	if tried.GetResourceVersion() == "" {
		t.Error("a copy that is there is not updated")
	}
	own := m.DeepCopy()
	own.Name = "own"
	if _, err := c.Client.Create(t.Context(), meshes.Descriptor, own); err != nil {
		t.Fatal(err)
	}
	own.Labels = nil
	if body, err = meshes.Marshal(own); err != nil {
		t.Fatal(err)
	}
	check("an object of the zone", meshes.Type.Name, body, "", "it would wait: own is the name of an object of the zone itself")
	labelled := &meshv1alpha1.Mesh{ObjectMeta: metav1.ObjectMeta{Name: "labelled"}}
	if body, err = meshes.Marshal(labelled); err != nil {
		t.Fatal(err)
	}
	labelled.Labels = map[string]string{federation.LabelOrigin: federation.OriginZone, federation.LabelZone: "east"}
	if _, err := c.Client.Create(t.Context(), meshes.Descriptor, labelled); err != nil {
		t.Fatal(err)
	}
	check("a policy of the zone alone", meshes.Type.Name, body, "", "it would replace labelled, a policy of the zone itself")
	untouched := &meshv1alpha1.Mesh{ObjectMeta: metav1.ObjectMeta{Name: meshv1alpha1.DefaultMesh}}
	if _, err := c.Client.Create(t.Context(), meshes.Descriptor, untouched); err != nil {
		t.Fatal(err)
	}
	if body, err = meshes.Marshal(&meshv1alpha1.Mesh{ObjectMeta: metav1.ObjectMeta{Name: meshv1alpha1.DefaultMesh}}); err != nil {
		t.Fatal(err)
	}
	check("a default mesh that nobody changed", meshes.Type.Name, body, "", "")
}

// TestCheckDeletion: what the end of an object would mean in the zone.
func TestCheckDeletion(t *testing.T) {
	c, meshes := newChecker(t)
	c.Uses = func(obj resource.Object) []string { return []string{obj.GetName() + " is used"} }
	for name, test := range map[string]struct {
		labels     map[string]string
		finalizers []string
		want       string
	}{
		"copy":     {map[string]string{federation.LabelOrigin: federation.OriginGlobal}, nil, "copy is used"},
		"held":     {map[string]string{federation.LabelOrigin: federation.OriginGlobal}, []string{"a.b/c"}, "removed: a.b/c; held is used"},
		"own":      {nil, nil, "own would stay: it is an object of the zone itself"},
		"labelled": {map[string]string{federation.LabelOrigin: federation.OriginZone}, nil, "labelled would stay"},
		"absent":   {},
	} {
		m := &meshv1alpha1.Mesh{ObjectMeta: metav1.ObjectMeta{Name: name}}
		body, err := meshes.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if m.Labels, m.Finalizers = test.labels, test.finalizers; test.want != "" {
			if _, err := c.Client.Create(t.Context(), meshes.Descriptor, m); err != nil {
				t.Fatal(err)
			}
		}
		v, err := c.CheckDeletion(t.Context(), meshes.Type.Name, body)
		got := strings.Join(v.Warnings, "; ")
		if err != nil || v.Refusal != "" || !strings.Contains(got, test.want) || test.want == "" && got != "" {
			t.Errorf("%s: %+v, %v, want %q", name, v, err, test.want)
		}
	}
	if v, err := c.CheckDeletion(t.Context(), "example.com/Colour", []byte("x")); err != nil || v.Refusal != "" || v.Warnings != nil {
		t.Errorf("a type that the zone does not have: %+v, %v", v, err)
	}
}

// FuzzCheck: nothing that global sends makes a zone panic.
func FuzzCheck(f *testing.F) {
	c, meshes := newChecker(f)
	body, err := meshes.Marshal(&meshv1alpha1.Mesh{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(meshes.Type.Name, body)
	f.Add("", []byte("x"))
	f.Fuzz(func(t *testing.T, typ string, body []byte) {
		if _, err := c.Check(t.Context(), typ, body); err != nil {
			t.Fatal(err)
		}
		if _, err := c.CheckDeletion(t.Context(), typ, body); err != nil {
			t.Fatal(err)
		}
	})
}
