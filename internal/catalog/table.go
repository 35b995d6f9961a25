package catalog

import (
	"iter"
	"slices"

	"github.com/proxima-mesh/proxima/internal/resource"
)

// Key names an object within its kind.
type Key = resource.Key

// Row is an object that a Table can hold.
type Row interface {
	comparable
	resource.Object
}

// Table is an immutable set of objects of one kind, ordered by namespace and
// name. The objects are shared and must not be changed. The zero value is empty.
type Table[T Row] struct {
	rows     tree[T]
	indexes  []tree[*group[T]]
	revision uint64
}

// group is the objects that an index files under a value.
type group[T Row] struct {
	value string
	rows  tree[T]
}

// GetNamespace of the group's key: it has none.
func (g *group[T]) GetNamespace() string { return "" }

// GetName of the group's key.
func (g *group[T]) GetName() string { return g.value }

func newTable[T Row](indexes int) Table[T] {
	return Table[T]{indexes: make([]tree[*group[T]], indexes)}
}

// Get returns the object with a key.
func (t Table[T]) Get(key Key) (T, bool) { return t.rows.get(key) }

// Len is the number of objects.
func (t Table[T]) Len() int { return t.rows.len }

// All iterates in order of namespace and name.
func (t Table[T]) All() iter.Seq2[Key, T] { return walk(t.rows) }

// Namespace iterates the objects of one namespace, in order of name.
func (t Table[T]) Namespace(namespace string) iter.Seq2[Key, T] {
	return func(yield func(Key, T) bool) {
		for row := range t.rows.from(Key{Namespace: namespace}) {
			if key := keyOf(row); key.Namespace != namespace || !yield(key, row) {
				return
			}
		}
	}
}

// Revision is the resource version up to which every change of this kind is in
// the table. 0 where resource versions are not numbers.
func (t Table[T]) Revision() uint64 { return t.revision }

// under are the objects that an index files under a value.
func (t Table[T]) under(index int, value string) tree[T] {
	if t.indexes == nil {
		return tree[T]{}
	}
	if g, ok := t.indexes[index].get(Key{Name: value}); ok {
		return g.rows
	}
	return tree[T]{}
}

// separator cannot occur in a name, a namespace, a label key or a label value.
const separator = "\x00"

func walk[T Row](rows tree[T]) iter.Seq2[Key, T] {
	return func(yield func(Key, T) bool) {
		for row := range rows.from(Key{}) {
			if !yield(keyOf(row), row) {
				return
			}
		}
	}
}

// index says under which values an object is filed.
type index[T Row] func(obj T) []string

// tableTxn edits a table. The table that it started from is not changed.
type tableTxn[T Row] struct {
	rows     *treeTxn[T]
	base     []tree[*group[T]]
	groups   []map[string]*treeTxn[T] // by index, then value: the groups opened
	indexes  []index[T]
	revision uint64
	changed  map[Key]struct{}
}

func (t Table[T]) edit(indexes []index[T]) *tableTxn[T] {
	groups := make([]map[string]*treeTxn[T], len(indexes))
	for i := range groups {
		groups[i] = make(map[string]*treeTxn[T])
	}
	return &tableTxn[T]{
		rows: t.rows.txn(), base: t.indexes, groups: groups, indexes: indexes,
		revision: t.revision, changed: make(map[Key]struct{}),
	}
}

// put adds or replaces an object, unless the very same version is there.
func (t *tableTxn[T]) put(obj T) {
	key := keyOf(obj)
	old, replaces := t.rows.get(key)
	if replaces && sameVersion(old, obj) {
		return
	}
	t.rows.put(obj)
	for i, values := range t.indexes {
		now := values(obj)
		if replaces {
			t.unfile(i, key, values(old), now)
		}
		for _, v := range now {
			t.group(i, v).put(obj)
		}
	}
	t.changed[key] = struct{}{}
}

func (t *tableTxn[T]) remove(key Key) {
	old, ok := t.rows.remove(key)
	if !ok {
		return
	}
	for i, values := range t.indexes {
		t.unfile(i, key, values(old), nil)
	}
	t.changed[key] = struct{}{}
}

// replace makes the table hold exactly objs, touching only what differs.
func (t *tableTxn[T]) replace(objs []T) {
	keep := make(map[Key]struct{}, len(objs))
	for _, obj := range objs {
		keep[keyOf(obj)] = struct{}{}
		t.put(obj)
	}
	var gone []Key
	for row := range t.rows.from(Key{}) {
		if _, ok := keep[keyOf(row)]; !ok {
			gone = append(gone, keyOf(row))
		}
	}
	for _, key := range gone {
		t.remove(key)
	}
}

// unfile what an index has under values, but for some.
func (t *tableTxn[T]) unfile(index int, key Key, values, but []string) {
	for _, v := range values {
		if !slices.Contains(but, v) {
			t.group(index, v).remove(key)
		}
	}
}

func (t *tableTxn[T]) group(index int, value string) *treeTxn[T] {
	g, ok := t.groups[index][value]
	if ok {
		return g
	}
	var rows tree[T]
	if filed, ok := t.base[index].get(Key{Name: value}); ok {
		rows = filed.rows
	}
	g = rows.txn()
	t.groups[index][value] = g
	return g
}

func (t *tableTxn[T]) commit() Table[T] {
	out := Table[T]{rows: t.rows.tree, revision: t.revision, indexes: make([]tree[*group[T]], len(t.indexes))}
	for i, groups := range t.groups {
		txn := t.base[i].txn()
		for value, g := range groups {
			if g.len > 0 {
				txn.put(&group[T]{value: value, rows: g.tree})
			} else {
				txn.remove(Key{Name: value})
			}
		}
		out.indexes[i] = txn.tree
	}
	return out
}

func sameVersion(a, b resource.Object) bool {
	return a.GetResourceVersion() != "" && a.GetResourceVersion() == b.GetResourceVersion() && a.GetUID() == b.GetUID()
}
