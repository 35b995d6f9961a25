package history

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
)

// TestPathsOfFields: each path that a history shows is read, and leads to the value that it showed.
func TestPathsOfFields(t *testing.T) {
	var object map[string]any
	err := json.Unmarshal([]byte(`{
		"metadata": {"annotations": {"a.b/c": "x", "quote\"]": "y"}},
		"spec": {"ports": [{"port": 80}, {"port": 81}], "args": ["a", "b"], "deep": {"x_y-z": [{"name": "n", "value": "v"}, {"name": "m.k[", "value": "w"}]}},
		"endpoints": [{"addresses": ["10.0.0.7", "10.0.0.8"], "ready": true}],
		"data": {"app.conf": "secret", "": "empty name", "n": "7"}
	}`), &object)
	if err != nil {
		t.Fatal(err)
	}
	before := map[string]any{
		"spec": map[string]any{
			"ports": []any{map[string]any{"port": 1.0}, map[string]any{"port": 2.0}},
			"deep":  map[string]any{"x_y-z": []any{map[string]any{"name": "n", "value": "was"}, map[string]any{"name": "m.k[", "value": "was"}}},
		},
	}
	fields := fieldsOf(before, object, false)
	if len(fields) < 9 {
		t.Fatalf("%d fields", len(fields))
	}
	for _, f := range fields {
		p, err := ParsePath(f.Path)
		if err != nil {
			t.Error(err)
			continue
		}
		at := p.Places(object)
		if len(at) != 1 || string(encoded(at[0].Get())) != string(f.To) {
			t.Errorf("%s leads to %v, want %s", f.Path, at, f.To)
		}
	}
}

func TestPaths(t *testing.T) {
	object := func() map[string]any {
		return map[string]any{
			"list": []any{map[string]any{"name": "a", "v": "1"}, map[string]any{"name": "a", "v": "2"}, map[string]any{"v": "3"}},
			"map":  map[string]any{"x": "1", "none": map[string]any{}},
		}
	}
	for text, want := range map[string][]any{
		"list[a].v": {"1", "2"}, "list[2].v": {"3"}, "list[3].v": nil, "list[b]": nil, "map.x": {"1"}, `map["x"]`: {"1"}, "map.none": nil, "map[x]": nil,
		"map.x.y": nil, "absent": nil, "list.v": nil,
	} {
		p, err := ParsePath(text)
		if err != nil {
			t.Error(err)
			continue
		}
		var got []any
		o := object()
		for _, place := range p.Places(o) {
			got = append(got, place.Get())
			place.Set(nil)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
		if left := p.Places(o); len(left) > 0 {
			t.Errorf("%s: after its removal there is %v", text, left)
		}
	}
	for _, text := range []string{"", ".", "a.", ".a", "a..b", "a[", "a[]", "[0]", "a[0]b", `a["x`, `a["x"`, "a b", `a[""`, "a.[0]", string(make([]byte, MaxPath+1))} {
		if _, err := ParsePath(text); err == nil {
			t.Errorf("%q is read", text)
		}
	}
	for text, want := range map[string]bool{
		"metadata.name": true, `metadata["name"]`: true, "metadata": true, "kind": true, "metadata.managedFields[0].manager": true,
		"metadata.annotations.name": false, "spec.name": false, "metadata.labels": false,
	} {
		if p, err := ParsePath(text); err != nil || p.Identifies() != want {
			t.Errorf("%s identifies: %t, %v", text, p.Identifies(), err)
		}
	}
}

// FuzzPath: no text makes the reading of a path panic; what is read is the same when it is written with all names in quotes.
func FuzzPath(f *testing.F) {
	for _, text := range []string{"spec.ports[0].port", "endpoints[10.0.0.7]", `metadata.annotations["a.b/c"]`, `data["\""]`, "a[", "[", `["x"][y]`} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := ParsePath(text)
		if err != nil {
			return
		}
		again := ""
		for _, s := range p.steps {
			if s.element {
				again += "[" + s.name + "]"
			} else {
				again += fmt.Sprintf("[%q]", s.name)
			}
		}
		if len(again) > MaxPath {
			return
		}
		other, err := ParsePath(again)
		if err != nil || !slices.Equal(other.steps, p.steps) {
			t.Fatalf("%q is %v, and %q is %v (%v)", text, p.steps, again, other.steps, err)
		}
		p.Places(map[string]any{"a": []any{map[string]any{"name": "x"}}})
	})
}
