package redact

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/proxima-mesh/proxima/internal/feed/history"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/store"
)

// hash is what takes the place of a text.
func hash(key []byte, text string) string {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(text))
	return "sha256:" + hex.EncodeToString(mac.Sum(nil))
}

// replacement of a value at a path.
type replacement struct {
	id   string
	path history.Path
	key  []byte
}

// apply replacements to the stored value of a key. It returns how many values each has
// replaced, by their IDs; next is nil if nothing has to change.
func apply(ctx context.Context, objects Objects, key string, value []byte, at store.Revision, all []replacement) (next []byte, values map[string]int, err error) {
	obj, err := objects.Decode(ctx, key, value, at)
	if err != nil {
		return nil, nil, err
	}
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		return nil, nil, err
	}
	object = runtime.DeepCopyJSON(object)
	empty := func() resource.Object { return reflect.New(reflect.TypeOf(obj).Elem()).Interface().(resource.Object) }
	values = map[string]int{}
	for _, r := range all {
		n := r.redact(object, func() bool {
			return runtime.DefaultUnstructuredConverter.FromUnstructured(object, empty()) == nil
		})
		if n > 0 {
			values[r.id] += n
		}
	}
	if len(values) == 0 {
		return nil, nil, nil
	}
	edited := empty()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object, edited); err != nil {
		return nil, nil, err
	}
	next, err = objects.Encode(ctx, key, edited)
	return next, values, err
}

// leaf is a place with something that is no map and no list.
type leaf struct {
	history.Place
	// forms of the hash, best first; none: it cannot be text.
	forms []string
}

// replace what is in places by hashes, as fits reports that the type of the object takes them: as text, or as that of binary data; what takes
// neither is removed.
func (r replacement) replace(object map[string]any, found []history.Place, fits func() bool) {
	var leaves []leaf
	for _, place := range found {
		leaves = r.leaves(leaves, place)
	}
	for _, l := range leaves {
		l.Set(nil)
		if len(l.forms) > 0 {
			l.Set(l.forms[0])
		}
	}
	if fits() {
		return
	}
	for _, l := range leaves {
		l.Set(nil)
	}
	for _, l := range leaves {
		for _, form := range l.forms {
			if l.Set(form); fits() {
				break
			}
			l.Set(nil)
		}
	}
}

// leaves of the value at a place.
func (r replacement) leaves(out []leaf, at history.Place) []leaf {
	switch v := at.Get().(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			out = r.leaves(out, history.Place{Map: v, Key: name})
		}
	case []any:
		for i := range v {
			out = r.leaves(out, history.Place{List: v, Index: i})
		}
	case string:
		text := hash(r.key, v)
		out = append(out, leaf{at, []string{text, base64.StdEncoding.EncodeToString([]byte(text))}})
	default:
		out = append(out, leaf{Place: at})
	}
	return out
}

// redact an object, which has the type that fits judges by. It returns how many values it had. With them goes what repeats them: the annotation of
// kubectl, and the fields of managers, in whose names there are values.
func (r replacement) redact(object map[string]any, fits func() bool) (values int) {
	found := r.path.Places(object)
	values = len(found)
	r.replace(object, found, fits)
	meta, _ := object["metadata"].(map[string]any)
	annotations, _ := meta["annotations"].(map[string]any)
	if text, ok := annotations[history.LastApplied].(string); ok && !r.covers(history.LastApplied) {
		there := applied(text, r.path)
		if there && len(found) == 0 {
			values++
		}
		if there || len(found) > 0 {
			delete(annotations, history.LastApplied)
		}
	}
	if values == 0 {
		return 0
	}
	managers, _ := meta["managedFields"].([]any)
	for _, m := range managers {
		if entry, ok := m.(map[string]any); ok {
			delete(entry, "fieldsV1")
		}
	}
	return values
}

// covers reports whether the path is that of an annotation, or of all.
func (r replacement) covers(annotation string) bool {
	names, _ := r.path.Names()
	return slices.Equal(names, []string{"metadata", "annotations"}) || slices.Equal(names, []string{"metadata", "annotations", annotation})
}

// applied reports whether the object that kubectl keeps in its annotation has a value at a path.
func applied(text string, path history.Path) bool {
	var object map[string]any
	if err := json.Unmarshal([]byte(text), &object); err != nil {
		return false // it is none of kubectl
	}
	if len(path.Places(object)) > 0 {
		return true
	}
	// A Secret is applied with stringData, and stored with data.
	names, ok := path.Names()
	plain, _ := object["stringData"].(map[string]any)
	if !ok || names[0] != "data" || len(plain) == 0 {
		return false
	}
	if len(names) == 1 {
		return true
	}
	_, there := plain[names[1]]
	return there
}

// present reports whether an object has a value at a path, or an annotation of kubectl that has one.
func present(obj resource.Object, path history.Path) (bool, error) {
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil || len(path.Places(object)) > 0 {
		return err == nil, err
	}
	return applied(obj.GetAnnotations()[history.LastApplied], path), nil
}

// String is what is redacted, in a line.
func (r *Request) String() string {
	out := r.Resource
	if r.Group != "" {
		out += "." + r.Group
	}
	if r.Namespace != "" {
		out += " " + r.Namespace + "/" + r.Name
	} else {
		out += " " + r.Name
	}
	return fmt.Sprintf("%s %s", out, r.Field)
}
