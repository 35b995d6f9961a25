package history

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Field is one field that a change set, changed or removed.
type Field struct {
	// Path of the field, as in spec.ports[0].port. An element of a list is named by what identifies it, if all have that, as
	// in endpoints[10.0.0.7].
	Path string `json:"path"`
	// From and To are its value before and after; absent: it was not there.
	From json.RawMessage `json:"from,omitempty"`
	To   json.RawMessage `json:"to,omitempty"`
	// Hidden: the values are secret, and left out.
	Hidden bool `json:"hidden,omitempty"`
}

// noise are fields that change with every write, or repeat what the change says.
var noise = []string{
	"apiVersion", "kind", "metadata.managedFields", "metadata.resourceVersion", "metadata.generation", "metadata.uid",
	"metadata.creationTimestamp", "metadata.name", "metadata.namespace",
	`metadata.annotations["endpoints.kubernetes.io/last-change-trigger-time"]`,
}

// differ collects the fields in which two objects differ.
type differ struct {
	// sealed: only what visible names is shown.
	sealed bool
	out    []Field
}

// fieldsOf a change; before or after may be nil. Fields are in order of their paths' first appearance, by name.
func fieldsOf(before, after map[string]any, sealed bool) []Field {
	d := differ{sealed: sealed}
	d.maps("", before, after)
	return d.out
}

func (d *differ) values(path string, before, after any) {
	if slices.Contains(noise, path) || reflect.DeepEqual(before, after) || empty(before) && empty(after) {
		return
	}
	bm, bok := before.(map[string]any)
	am, aok := after.(map[string]any)
	if (bok || before == nil) && (aok || after == nil) && (len(bm) > 0 || len(am) > 0) {
		d.maps(path, bm, am)
		return
	}
	bl, bok := before.([]any)
	al, aok := after.([]any)
	if bok && aok && (len(bl) > 0 || len(al) > 0) && (objects(bl) || objects(al)) {
		d.lists(path, bl, al)
		return
	}
	d.add(path, before, after)
}

// empty reports whether a value is none, or has nothing in it.
func empty(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case map[string]any:
		return len(v) == 0
	case []any:
		return len(v) == 0
	}
	return false
}

func (d *differ) maps(path string, before, after map[string]any) {
	names := map[string]bool{}
	for name := range before {
		names[name] = true
	}
	for name := range after {
		names[name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		d.values(member(path, name), before[name], after[name])
	}
}

// lists are compared by what identifies their elements, if all have such, and else by position.
func (d *differ) lists(path string, before, after []any) {
	was, is := identities(before), identities(after)
	if was == nil || is == nil {
		for i := range max(len(before), len(after)) {
			d.values(path+"["+strconv.Itoa(i)+"]", at(before, i), at(after, i))
		}
		return
	}
	for i, id := range was {
		if j := slices.Index(is, id); j < 0 {
			d.add(path+"["+id+"]", before[i], nil)
		} else {
			d.values(path+"["+id+"]", before[i], after[j])
		}
	}
	for j, id := range is {
		if !slices.Contains(was, id) {
			d.add(path+"["+id+"]", nil, after[j])
		}
	}
}

func (d *differ) add(path string, before, after any) {
	f := Field{Path: path, Hidden: d.sealed && !visible(path)}
	if !f.Hidden {
		f.From, f.To = encoded(before), encoded(after)
	}
	d.out = append(d.out, f)
}

func encoded(v any) json.RawMessage {
	if v == nil {
		return nil
	}
	out, err := json.Marshal(v)
	if err != nil {
		return json.RawMessage(strconv.Quote(err.Error()))
	}
	return out
}

func at(list []any, i int) any {
	if i < len(list) {
		return list[i]
	}
	return nil
}

// objects reports whether a list has objects, which are compared one by one.
func objects(list []any) bool {
	for _, e := range list {
		if _, ok := e.(map[string]any); !ok {
			return false
		}
	}
	return len(list) > 0
}

// identities of the elements of a list; nil: they have none, or not one each.
func identities(list []any) []string {
	out := make([]string, 0, len(list))
	for _, e := range list {
		o, _ := e.(map[string]any)
		id := identity(o)
		if id == "" || slices.Contains(out, id) {
			return nil
		}
		out = append(out, id)
	}
	return out
}

// identity of an element: that by which the lists of Kubernetes are keyed, and the addresses of an endpoint.
func identity(o map[string]any) string {
	if addresses, ok := o["addresses"].([]any); ok && len(addresses) > 0 {
		return strings.Trim(fmt.Sprint(addresses), "[]")
	}
	for _, name := range []string{"name", "type", "ip", "uid", "key"} {
		if s, ok := o[name].(string); ok && s != "" {
			return s
		}
	}
	return ""
}

var plainName = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

func member(path, name string) string {
	switch {
	case !plainName.MatchString(name):
		return path + "[" + strconv.Quote(name) + "]"
	case path == "":
		return name
	}
	return path + "." + name
}

// lastApplied is the annotation in which kubectl keeps a whole object, with its values.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// visible reports whether a field of a sealed kind is no secret.
func visible(path string) bool {
	if strings.HasPrefix(path, "metadata.") {
		return !strings.Contains(path, lastApplied)
	}
	return path == "type" || path == "immutable"
}

// withoutSecrets removes from an object of a sealed kind what is secret.
func withoutSecrets(object map[string]any) {
	for name := range object {
		if name != "apiVersion" && name != "kind" && name != "metadata" && !visible(name) {
			delete(object, name)
		}
	}
	if meta, ok := object["metadata"].(map[string]any); ok {
		if annotations, ok := meta["annotations"].(map[string]any); ok {
			delete(annotations, lastApplied)
		}
	}
}
