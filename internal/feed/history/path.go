package history

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// MaxPath bounds a Path in bytes.
const MaxPath = 1024

// Path of a field of an object, as Field has it.
type Path struct {
	text  string
	steps []step
}

// step is from a value to one in it: to the member of a map, or to an element of a list.
type step struct {
	name    string
	element bool
}

// ParsePath reads a path in the syntax of Field.Path: names with dots between them; ["NAME"] for a name with other characters than letters,
// digits, "-" and "_"; [ID] or [INDEX] for the element of a list.
func ParsePath(text string) (Path, error) {
	bad := func(why string) (Path, error) {
		return Path{}, fmt.Errorf("%q is no path of a field: %s; write it as history shows it, as in spec.ports[0].name or data[\"app.conf\"]", text, why)
	}
	if text == "" || len(text) > MaxPath {
		return bad(fmt.Sprintf("want 1 to %d bytes", MaxPath))
	}
	p := Path{text: text}
	for rest := text; rest != ""; {
		if rest[0] == '[' {
			s, left, err := bracketed(rest)
			if err != nil {
				return bad(err.Error())
			}
			if len(p.steps) == 0 && s.element {
				return bad("an object is no list")
			}
			p.steps, rest = append(p.steps, s), left
			continue
		}
		if len(p.steps) > 0 {
			var ok bool
			if rest, ok = strings.CutPrefix(rest, "."); !ok {
				return bad("after ] comes . or [")
			}
		}
		n := strings.IndexAny(rest, ".[")
		if n < 0 {
			n = len(rest)
		}
		if !plainName.MatchString(rest[:n]) {
			return bad(fmt.Sprintf("%q is no name", rest[:n]))
		}
		p.steps, rest = append(p.steps, step{name: rest[:n]}), rest[n:]
	}
	return p, nil
}

// bracketed reads the step in brackets that a text begins with.
func bracketed(text string) (s step, rest string, err error) {
	if quoted, err := strconv.QuotedPrefix(text[1:]); err == nil && quoted[0] == '"' {
		rest, ok := strings.CutPrefix(text[1+len(quoted):], "]")
		if !ok {
			return s, "", errors.New("a ] is missing")
		}
		name, err := strconv.Unquote(quoted)
		return step{name: name}, rest, err
	}
	id, rest, ok := strings.Cut(text[1:], "]")
	if !ok || id == "" {
		return s, "", errors.New("brackets are empty, or a ] is missing")
	}
	return step{name: id, element: true}, rest, nil
}

// String is what was parsed.
func (p Path) String() string { return p.text }

// Names are the names of members on the path; ok is false if there are elements of lists among them.
func (p Path) Names() (names []string, ok bool) {
	for _, s := range p.steps {
		if s.element {
			return nil, false
		}
		names = append(names, s.name)
	}
	return names, true
}

// Place is where a value is: in a map, or in a list.
type Place struct {
	Map   map[string]any
	Key   string
	List  []any
	Index int
}

// Get the value.
func (p Place) Get() any {
	if p.Map != nil {
		return p.Map[p.Key]
	}
	return p.List[p.Index]
}

// Set another value; nil: there is none.
func (p Place) Set(v any) {
	switch {
	case p.Map == nil:
		p.List[p.Index] = v
	case v == nil:
		delete(p.Map, p.Key)
	default:
		p.Map[p.Key] = v
	}
}

// Places are where an object has values at the path: none, or one, and several where elements of a list have the same identity. An empty
// value is none.
func (p Path) Places(object map[string]any) []Place {
	return places(object, p.steps)
}

func places(v any, steps []step) (out []Place) {
	var next []Place
	switch s := steps[0]; v := v.(type) {
	case map[string]any:
		if _, ok := v[s.name]; ok && !s.element {
			next = append(next, Place{Map: v, Key: s.name})
		}
	case []any:
		if s.element {
			next = elements(v, s.name)
		}
	}
	for _, place := range next {
		switch {
		case len(steps) > 1:
			out = append(out, places(place.Get(), steps[1:])...)
		case !empty(place.Get()):
			out = append(out, place)
		}
	}
	return out
}

// elements of a list that have an identity, else the one that is there by number.
func elements(list []any, id string) (out []Place) {
	for i, e := range list {
		if o, ok := e.(map[string]any); ok && identity(o) == id {
			out = append(out, Place{List: list, Index: i})
		}
	}
	if i, err := strconv.Atoi(id); err == nil && len(out) == 0 && i >= 0 && i < len(list) {
		out = append(out, Place{List: list, Index: i})
	}
	return out
}

// unredactable are fields by which objects are identified and the feed works.
var unredactable = []string{
	"apiVersion", "kind", "metadata", "metadata.name", "metadata.namespace", "metadata.uid", "metadata.resourceVersion", "metadata.generation",
	"metadata.creationTimestamp", "metadata.deletionTimestamp", "metadata.deletionGracePeriodSeconds", "metadata.managedFields",
}

// Identifies reports whether an object is identified by the field, or it is kept by the API server itself.
func (p Path) Identifies() bool {
	names, _ := p.Names()
	return slices.Contains(unredactable, strings.Join(names, ".")) || len(p.steps) > 1 && p.steps[0].name == "metadata" && p.steps[1].name == "managedFields"
}

// LastApplied is the annotation in which kubectl keeps a whole object, with its values.
const LastApplied = lastApplied
