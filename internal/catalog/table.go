package catalog

import (
	"iter"
	"strings"

	iradix "github.com/hashicorp/go-immutable-radix/v2"

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
	rows     *iradix.Tree[T]
	indexes  []*iradix.Tree[*iradix.Tree[T]]
	revision uint64
}

func newTable[T Row](indexes int) Table[T] {
	t := Table[T]{rows: iradix.New[T](), indexes: make([]*iradix.Tree[*iradix.Tree[T]], indexes)}
	for i := range t.indexes {
		t.indexes[i] = iradix.New[*iradix.Tree[T]]()
	}
	return t
}

// Get returns the object with a key.
func (t Table[T]) Get(key Key) (T, bool) { return t.tree().Get(rowKey(key)) }

// Len is the number of objects.
func (t Table[T]) Len() int { return t.tree().Len() }

// All iterates in order of namespace and name.
func (t Table[T]) All() iter.Seq2[Key, T] { return walk(t.tree(), "") }

// Namespace iterates the objects of one namespace, in order of name.
func (t Table[T]) Namespace(namespace string) iter.Seq2[Key, T] {
	return walk(t.tree(), namespace+separator)
}

// Revision is the resource version up to which every change of this kind is in
// the table. 0 where resource versions are not numbers.
func (t Table[T]) Revision() uint64 { return t.revision }

func (t Table[T]) tree() *iradix.Tree[T] {
	if t.rows == nil {
		return iradix.New[T]()
	}
	return t.rows
}

// group is the objects that an index files under a value, nil if there are none.
func (t Table[T]) group(index int, value string) *iradix.Tree[T] {
	if t.indexes == nil {
		return nil
	}
	g, _ := t.indexes[index].Get([]byte(value))
	return g
}

// separator cannot occur in a name, a namespace, a label key or a label value.
const separator = "\x00"

func rowKey(key Key) []byte { return []byte(key.Namespace + separator + key.Name) }

func walk[T Row](tree *iradix.Tree[T], prefix string) iter.Seq2[Key, T] {
	return func(yield func(Key, T) bool) {
		if tree == nil {
			return
		}
		it := tree.Root().Iterator()
		it.SeekPrefix([]byte(prefix))
		for {
			k, row, ok := it.Next()
			if !ok || !yield(parseRowKey(k), row) {
				return
			}
		}
	}
}

func parseRowKey(k []byte) Key {
	namespace, name, _ := strings.Cut(string(k), separator)
	return Key{Namespace: namespace, Name: name}
}

// index says under which values an object is filed.
type index[T Row] func(obj T) []string

// tableTxn edits a table. The table that it started from is not changed.
type tableTxn[T Row] struct {
	rows     *iradix.Txn[T]
	base     []*iradix.Tree[*iradix.Tree[T]]
	groups   []map[string]*iradix.Txn[T] // by index, then value: the groups opened
	indexes  []index[T]
	revision uint64
	changed  map[Key]struct{}
}

func (t Table[T]) edit(indexes []index[T]) *tableTxn[T] {
	groups := make([]map[string]*iradix.Txn[T], len(indexes))
	for i := range groups {
		groups[i] = make(map[string]*iradix.Txn[T])
	}
	return &tableTxn[T]{
		rows: t.rows.Txn(), base: t.indexes, groups: groups, indexes: indexes,
		revision: t.revision, changed: make(map[Key]struct{}),
	}
}

// put adds or replaces an object, unless the very same version is there.
func (t *tableTxn[T]) put(obj T) {
	key := resource.KeyOf(obj)
	k := rowKey(key)
	if old, ok := t.rows.Get(k); ok {
		if sameVersion(old, obj) {
			return
		}
		t.unfile(k, old)
	}
	t.rows.Insert(k, obj)
	for i, values := range t.indexes {
		for _, v := range values(obj) {
			t.group(i, v).Insert(k, obj)
		}
	}
	t.changed[key] = struct{}{}
}

func (t *tableTxn[T]) remove(key Key) {
	k := rowKey(key)
	old, ok := t.rows.Delete(k)
	if !ok {
		return
	}
	t.unfile(k, old)
	t.changed[key] = struct{}{}
}

// replace makes the table hold exactly objs, touching only what differs.
func (t *tableTxn[T]) replace(objs []T) {
	keep := make(map[Key]struct{}, len(objs))
	for _, obj := range objs {
		keep[resource.KeyOf(obj)] = struct{}{}
		t.put(obj)
	}
	var gone []Key
	t.rows.Root().Walk(func(k []byte, _ T) bool {
		key := parseRowKey(k)
		if _, ok := keep[key]; !ok {
			gone = append(gone, key)
		}
		return false
	})
	for _, key := range gone {
		t.remove(key)
	}
}

func (t *tableTxn[T]) unfile(k []byte, old T) {
	for i, values := range t.indexes {
		for _, v := range values(old) {
			t.group(i, v).Delete(k)
		}
	}
}

func (t *tableTxn[T]) group(index int, value string) *iradix.Txn[T] {
	g, ok := t.groups[index][value]
	if ok {
		return g
	}
	tree, ok := t.base[index].Get([]byte(value))
	if !ok {
		tree = iradix.New[T]()
	}
	g = tree.Txn()
	t.groups[index][value] = g
	return g
}

func (t *tableTxn[T]) commit() Table[T] {
	out := Table[T]{
		rows: t.rows.Commit(), revision: t.revision,
		indexes: make([]*iradix.Tree[*iradix.Tree[T]], len(t.indexes)),
	}
	for i, groups := range t.groups {
		txn := t.base[i].Txn()
		for value, g := range groups {
			if tree := g.Commit(); tree.Len() > 0 {
				txn.Insert([]byte(value), tree)
			} else {
				txn.Delete([]byte(value))
			}
		}
		out.indexes[i] = txn.Commit()
	}
	return out
}

func sameVersion(a, b resource.Object) bool {
	return a.GetResourceVersion() != "" && a.GetResourceVersion() == b.GetResourceVersion() && a.GetUID() == b.GetUID()
}
