package policy

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// level of a policy: how closely its target describes what is asked for. A higher one wins.
type level int

const (
	levelMesh level = iota
	levelNamespace
	levelSelector
	levelObject
	levelPort
	levelRoute
)

// role of a policy of a backend: that of a client's namespace wins over that of the backend's.
type role int

const (
	producer role = iota
	consumer
)

// Source names a policy.
type Source struct {
	Kind string
	Key  resource.Key
}

func (s Source) String() string { return s.Kind + " " + s.Key.String() }

// layer is what one policy says, and where it is in the order.
type layer struct {
	source Source
	level  level
	role   role
	age    age
	fields map[string]any
}

// age decides between objects that say different things of the same.
type age struct {
	// ofGlobal: it is a copy of an object of the global control plane, to which zones' own ones give way.
	ofGlobal bool
	created  time.Time
}

// ageOf an object: that of its original, if it is a copy.
func ageOf(obj resource.Object) age {
	a := age{created: obj.GetCreationTimestamp().Time}
	if obj.GetLabels()[mesh.LabelOrigin] == mesh.OriginGlobal {
		a.ofGlobal = true
		if t, err := time.Parse(time.RFC3339, obj.GetAnnotations()[mesh.AnnotationCreated]); err == nil {
			a.created = t
		}
	}
	return a
}

// compareLayers orders layers; of two that set the same field the last one wins: Mesh, namespace,
// selector, object, port, route; producer, consumer; a zone's own, global's; newer, older;
// by name, descending.
func compareLayers(a, b layer) int {
	switch {
	case a.level != b.level:
		return int(a.level) - int(b.level)
	case a.role != b.role:
		return int(a.role) - int(b.role)
	case a.age.ofGlobal != b.age.ofGlobal:
		if a.age.ofGlobal {
			return 1
		}
		return -1
	case !a.age.created.Equal(b.age.created):
		return b.age.created.Compare(a.age.created)
	}
	if c := strings.Compare(b.source.Key.Name, a.source.Key.Name); c != 0 {
		return c
	}
	return strings.Compare(b.source.Key.Namespace, a.source.Key.Namespace)
}

// Override is a field of a policy that another one sets, and wins.
type Override struct {
	Policy Source
	Field  string
	By     Source
}

// merged is the sum of layers.
type merged struct {
	fields map[string]any
	// from is the policy that set a field, by its path. What is not in it is a default.
	from      map[string]Source
	overrides []Override
}

// merge layers over defaults, which are not changed.
func merge(defaults map[string]any, layers []layer) merged {
	layers = slices.Clone(layers)
	slices.SortStableFunc(layers, compareLayers)
	out := merged{fields: clone(defaults), from: map[string]Source{}}
	for _, l := range layers {
		out.apply(out.fields, l.fields, "", l.source)
	}
	slices.SortFunc(out.overrides, func(a, b Override) int {
		return strings.Compare(a.Policy.String()+a.Field, b.Policy.String()+b.Field)
	})
	return out
}

// apply a merge patch (RFC 7396): objects are merged, all else is replaced.
func (m *merged) apply(to, patch map[string]any, path string, source Source) {
	for _, key := range slices.Sorted(maps.Keys(patch)) {
		at := join(path, key)
		switch value := patch[key].(type) {
		case nil:
			m.replace(at, source)
			delete(to, key)
		case map[string]any:
			inner, ok := to[key].(map[string]any)
			if !ok {
				inner = map[string]any{}
				to[key] = inner
			}
			if len(value) == 0 {
				m.from[at] = source
			}
			m.apply(inner, value, at, source)
		default:
			m.replace(at, source)
			to[key] = value
		}
	}
}

func (m *merged) replace(path string, source Source) {
	if before, ok := m.from[path]; ok && before != source {
		m.overrides = append(m.overrides, Override{Policy: before, Field: path, By: source})
	}
	m.from[path] = source
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func clone(in map[string]any) map[string]any {
	out := make(map[string]any, len(in))
	for k, v := range in {
		if inner, ok := v.(map[string]any); ok {
			v = clone(inner)
		}
		out[k] = v
	}
	return out
}

// decode the fields into a spec. They come from objects of that type, so they fit.
func decode[T any](fields map[string]any) T {
	var out T
	data, err := json.Marshal(fields)
	if err == nil {
		err = json.Unmarshal(data, &out)
	}
	if err != nil {
		panic("policy: fields of a spec do not fit it: " + err.Error())
	}
	return out
}

// fieldsOf a spec, without those that say what it is for.
func fieldsOf(spec any) map[string]any {
	data, err := json.Marshal(spec)
	if err != nil {
		panic("policy: encode a spec: " + err.Error())
	}
	var out map[string]any
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if err := d.Decode(&out); err != nil {
		panic("policy: decode a spec: " + err.Error())
	}
	for _, name := range []string{"targetRefs", "selector", "ports"} {
		delete(out, name)
	}
	return out
}

// Settings have who set which field.
type Settings struct {
	// From is the policy that set a field, by its path in the spec; others are defaults.
	From map[string]Source
	// Overrides are fields of policies that others set.
	Overrides []Override
}

// Equal reports whether settings are the same.
func (s Settings) Equal(other Settings) bool { return equality.Semantic.DeepEqual(s, other) }
