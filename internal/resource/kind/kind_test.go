package kind_test

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"pgregory.net/rapid"
	"sigs.k8s.io/randfill"

	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

func TestDescriptorsAreComplete(t *testing.T) {
	seen := map[schema.GroupResource]bool{}
	for name, d := range descriptors() {
		t.Run(name, func(t *testing.T) {
			if seen[d.GroupResource()] {
				t.Errorf("%s described twice", d.GroupResource())
			}
			seen[d.GroupResource()] = true
			if d.GVK.Empty() || d.Resource == "" || d.Singular == "" {
				t.Errorf("names missing: %+v", d.GVK)
			}
			if d.Validate == nil || d.Cells == nil || len(d.Columns) == 0 {
				t.Error("Validate, Columns or Cells missing")
			}
			if d.Status != (d.PrepareStatus != nil) || d.Status != (d.ValidateStatus != nil) {
				t.Error("PrepareStatus and ValidateStatus must be there exactly with a status")
			}
			if err := meta.EachListItem(d.NewList(), nil); err != nil {
				t.Errorf("NewList: %v", err)
			}
			if got := len(d.Cells(d.New())); got != len(d.Columns) {
				t.Errorf("%d cells for %d columns", got, len(d.Columns))
			}
			for _, c := range d.Columns {
				if c.Description == "" {
					t.Errorf("column %s has no description", c.Name)
				}
			}
			if _, ok := base[name]; !ok {
				t.Error("no example object")
			}
		})
	}
	if len(base) != len(kind.All()) {
		t.Errorf("%d examples for %d kinds", len(base), len(kind.All()))
	}
}

// TestNamesAreClear: kubectl takes a word for a category first, and then for a
// kind, so none may be both.
func TestNamesAreClear(t *testing.T) {
	words := map[string]string{}
	for _, d := range kind.All() {
		if d.GVK.Group == "events.k8s.io" {
			continue // the same kind as core's
		}
		for _, word := range append([]string{d.Resource, d.Singular}, d.ShortNames...) {
			if other, ok := words[word]; ok && other != d.GVK.Kind {
				t.Errorf("%q means %s and %s", word, other, d.GVK.Kind)
			}
			words[word] = d.GVK.Kind
		}
	}
	for _, d := range kind.All() {
		for _, category := range d.Categories {
			if other, ok := words[category]; ok {
				t.Errorf("category %q of %s is a name of %s", category, d.GVK.Kind, other)
			}
		}
	}
}

func TestExamplesAreValidOnCreateAndUpdate(t *testing.T) {
	for name, d := range descriptors() {
		t.Run(name, func(t *testing.T) {
			obj := create(t, d, base[name])
			if errs := d.Validate(obj, nil); len(errs) > 0 {
				t.Errorf("create: %v", errs.ToAggregate())
			}
			obj.SetResourceVersion("1")
			again := clone(obj)
			if d.Prepare != nil {
				d.Prepare(again, obj)
			}
			if diff := cmp.Diff(obj, again); diff != "" {
				t.Errorf("an update without a change changed (-old +new):\n%s", diff)
			}
			if errs := d.Validate(again, obj); len(errs) > 0 {
				t.Errorf("update: %v", errs.ToAggregate())
			}
			if d.Status {
				d.PrepareStatus(again, obj)
				if errs := d.ValidateStatus(again, obj); len(errs) > 0 {
					t.Errorf("status update: %v", errs.ToAggregate())
				}
			}
			if d.Warnings != nil {
				if w := d.Warnings(again, obj); len(w) > 0 {
					t.Errorf("warnings: %v", w)
				}
			}
		})
	}
}

// random fills an object with anything its Go type can hold.
func random(d *resource.Descriptor, seed int64) resource.Object {
	obj := d.New()
	randfill.NewWithSeed(seed).NilChance(0.3).NumElements(0, 3).MaxDepth(12).Fill(obj)
	return obj
}

func TestDefaultIsIdempotent(t *testing.T) {
	for name, d := range descriptors() {
		if d.Default == nil {
			continue
		}
		t.Run(name, rapid.MakeCheck(func(t *rapid.T) {
			obj := random(d, rapid.Int64().Draw(t, "seed"))
			d.Default(obj)
			once := clone(obj)
			d.Default(obj)
			if !equality.Semantic.DeepEqual(once, obj) {
				t.Fatalf("defaulting twice differs:\n%s", cmp.Diff(once, obj))
			}
		}))
	}
}

// TestAnythingIsJudgedAndOldIsLeftAlone runs all functions on anything that the
// types can hold: none may panic, and none may change or share parts of the old
// object, which belongs to the cache.
func TestAnythingIsJudgedAndOldIsLeftAlone(t *testing.T) {
	for name, d := range descriptors() {
		t.Run(name, rapid.MakeCheck(func(t *rapid.T) {
			old := random(d, rapid.Int64().Draw(t, "seed"))
			was := clone(old)
			obj := random(d, rapid.Int64().Draw(t, "new seed"))
			exercise(d, obj, old)
			scribble(reflect.ValueOf(obj)) // what Prepare took over must be a copy
			if d.Default != nil {
				d.Default(was)
			}
			if !equality.Semantic.DeepEqual(was, old) {
				t.Fatalf("old changed:\n%s", cmp.Diff(was, old))
			}
		}))
	}
}

// scribble overwrites in place whatever can be reached from v.
func scribble(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			scribble(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			scribble(v.Field(i))
		}
	case reflect.Slice:
		for i := range v.Len() {
			scribble(v.Index(i))
		}
	case reflect.Map:
		v.Clear()
	default:
		if v.CanSet() {
			v.SetZero()
		}
	}
}

// exercise runs every function of a descriptor.
func exercise(d *resource.Descriptor, obj, old resource.Object) {
	for _, o := range []resource.Object{obj, old} {
		if d.Default != nil {
			d.Default(o)
		}
	}
	fresh := clone(obj)
	if d.Prepare != nil {
		d.Prepare(fresh, nil)
	}
	d.Validate(fresh, nil)
	if d.Status {
		whole := clone(obj)
		d.PrepareWhole(whole, nil)
		d.ValidateWhole(whole, nil)

		status := clone(obj)
		d.PrepareStatus(status, old)
		d.ValidateStatus(status, old)
	}
	if d.Prepare != nil {
		d.Prepare(obj, old)
	}
	_ = d.Validate(obj, old).ToAggregate()
	if d.Warnings != nil {
		d.Warnings(obj, old)
	}
	if d.Fields != nil {
		d.Fields(obj)
	}
	d.Cells(obj)
}

func TestDefaultsSurviveARoundTrip(t *testing.T) {
	for name, d := range descriptors() {
		t.Run(name, func(t *testing.T) {
			obj := create(t, d, base[name])
			raw, err := json.Marshal(obj)
			if err != nil {
				t.Fatal(err)
			}
			got := decode(t, d, string(raw))
			if diff := cmp.Diff(obj, got); diff != "" {
				t.Errorf("-stored +read:\n%s", diff)
			}
		})
	}
}

func fuzz(f *testing.F, name string) {
	d := descriptors()[name]
	obj := d.New()
	f.Add([]byte(`{}`))
	raw, err := json.Marshal(create(f, d, base[name]))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	old := create(f, d, base[name])
	f.Fuzz(func(t *testing.T, data []byte) {
		obj = d.New()
		if json.Unmarshal(data, obj) != nil {
			return
		}
		exercise(d, obj, clone(old))
	})
}

func FuzzService(f *testing.F)       { fuzz(f, "Service") }
func FuzzEndpointSlice(f *testing.F) { fuzz(f, "EndpointSlice") }
func FuzzEndpoints(f *testing.F)     { fuzz(f, "Endpoints") }
func FuzzPod(f *testing.F)           { fuzz(f, "Pod") }
func FuzzNode(f *testing.F)          { fuzz(f, "Node") }
func FuzzEvent(f *testing.F)         { fuzz(f, "Event") }
func FuzzSecret(f *testing.F)        { fuzz(f, "Secret") }
func FuzzDataplane(f *testing.F)     { fuzz(f, "Dataplane") }
