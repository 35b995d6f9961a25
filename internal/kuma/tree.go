package kuma

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
)

// Problem is a field that was not translated, and why.
type Problem struct {
	// Object as KIND NAME, and the path of the field in it; empty: all of it.
	Object, Field, Reason string
}

func (p Problem) String() string {
	if p.Field == "" {
		return p.Object + ": " + p.Reason
	}
	return p.Object + ": " + p.Field + ": " + p.Reason
}

// node is a mapping of an object, that remembers which of its values were read. The nil node is
// empty.
type node struct {
	o      *object
	path   string
	values map[string]any
	read   map[string]bool
	below  map[string][]*node
}

func (o *object) node(path string, values map[string]any) *node {
	return &node{o: o, path: path, values: values, read: map[string]bool{}, below: map[string][]*node{}}
}

func (n *node) at(key string) string {
	if n == nil || n.path == "" {
		return key
	}
	return n.path + "." + key
}

// has reports whether there is a value, and does not read it.
func (n *node) has(key string) bool {
	if n == nil {
		return false
	}
	_, ok := n.values[key]
	return ok
}

// raw reads a value as it is.
func (n *node) raw(key string) any {
	if !n.has(key) {
		return nil
	}
	n.read[key] = true
	return n.values[key]
}

// refuse a value, with the reason.
func (n *node) refuse(key, reason string) {
	if n.has(key) {
		n.read[key] = true
		n.o.refuse(n.at(key), reason)
	}
}

func (n *node) text(key string) string {
	switch v := n.raw(key).(type) {
	case nil:
		return ""
	case string:
		return v
	case bool, int64, float64:
		return fmt.Sprint(v)
	default:
		n.o.refuse(n.at(key), "is no text")
		return ""
	}
}

func (n *node) flag(key string) bool {
	v := n.raw(key)
	b, ok := v.(bool)
	if v != nil && !ok {
		n.o.refuse(n.at(key), "is neither true nor false")
	}
	return b
}

// number reads an integer; nil: there is none.
func (n *node) number(key string) *int32 {
	f := n.fraction(key)
	if f == nil {
		return nil
	}
	i := int32(*f)
	if float64(i) != *f {
		n.o.refuse(n.at(key), "is no integer")
		return nil
	}
	return &i
}

// fraction reads a number, which may be a text, as IntOrString is; nil: there is none.
func (n *node) fraction(key string) *float64 {
	var f float64
	switch v := n.raw(key).(type) {
	case nil:
		return nil
	case int64:
		f = float64(v)
	case float64:
		f = v
	case string:
		var err error
		if f, err = strconv.ParseFloat(v, 64); err != nil {
			n.o.refuse(n.at(key), "is no number")
			return nil
		}
	default:
		n.o.refuse(n.at(key), "is no number")
		return nil
	}
	return &f
}

// child reads a mapping; nil: there is none.
func (n *node) child(key string) *node {
	if n != nil && len(n.below[key]) > 0 {
		return n.below[key][0]
	}
	v, ok := n.raw(key).(map[string]any)
	if !ok {
		if n.has(key) && n.values[key] != nil {
			n.o.fail(n.at(key), "is no mapping")
		}
		return nil
	}
	c := n.o.node(n.at(key), v)
	n.below[key] = append(n.below[key], c)
	return c
}

// list reads a list of mappings.
func (n *node) list(key string) []*node {
	if n != nil && len(n.below[key]) > 0 {
		return n.below[key]
	}
	all, _ := n.raw(key).([]any)
	var out []*node
	for i, v := range all {
		path := fmt.Sprintf("%s[%d]", n.at(key), i)
		m, ok := v.(map[string]any)
		if !ok {
			n.o.fail(path, "is no mapping")
			continue
		}
		c := n.o.node(path, m)
		n.below[key] = append(n.below[key], c)
		out = append(out, c)
	}
	return out
}

func (n *node) texts(key string) []string {
	all, _ := n.raw(key).([]any)
	var out []string
	for _, v := range all {
		out = append(out, fmt.Sprint(v))
	}
	return out
}

// labels reads a mapping of texts.
func (n *node) labels(key string) map[string]string {
	m, _ := n.raw(key).(map[string]any)
	out := map[string]string{}
	for k, v := range m {
		out[k] = fmt.Sprint(v)
	}
	return out
}

// skip a value that is reported on as a whole.
func (n *node) skip(key string) {
	n.raw(key)
	if n != nil {
		delete(n.below, key)
	}
}

// unread refuses what nobody read.
func (n *node) unread() {
	for _, key := range slices.Sorted(maps.Keys(n.values)) {
		if !n.read[key] {
			n.o.refuse(n.at(key), "no policy of Proxima has it")
			continue
		}
		for _, c := range n.below[key] {
			c.unread()
		}
	}
}
