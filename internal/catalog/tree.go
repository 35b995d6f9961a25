package catalog

import (
	"iter"
	"slices"
	"strings"
)

// named has a Key.
type named interface {
	GetNamespace() string
	GetName() string
}

func keyOf[E named](item E) Key { return Key{Namespace: item.GetNamespace(), Name: item.GetName()} }

func compareKeys(a, b Key) int {
	if c := strings.Compare(a.Namespace, b.Namespace); c != 0 {
		return c
	}
	return strings.Compare(a.Name, b.Name)
}

// tree is an immutable set of items in order of their keys, a B+ tree whose nodes the versions share. An item takes some
// 25 bytes: its key is not kept beside it. The zero value is empty.
type tree[E named] struct {
	root *node[E]
	len  int
	// edit is above that of all nodes.
	edit uint64
}

// A change copies a node of each level. Leaves are small as it takes a look at an item to compare its key; the keys that divide
// children lie together.
const (
	maxItems    = 16
	maxChildren = 64
)

// node of a tree: a leaf has items, others have children.
type node[E named] struct {
	// edit that made the node, and may change it.
	edit  uint64
	items []E
	// firsts divide the children, ascending: no key in a child is below its own, nor reaches the next one's.
	firsts   []Key
	children []*node[E]
}

// find the place of a key in a leaf.
func (n *node[E]) find(key Key) (int, bool) {
	return slices.BinarySearchFunc(n.items, key, func(item E, key Key) int { return compareKeys(keyOf(item), key) })
}

// child that has a key, if any has.
func (n *node[E]) child(key Key) int {
	i, found := slices.BinarySearchFunc(n.firsts, key, compareKeys)
	if !found {
		i--
	}
	return max(i, 0)
}

// size in items or children, of at most so many.
func (n *node[E]) size() (size, most int) {
	if len(n.children) > 0 {
		return len(n.children), maxChildren
	}
	return len(n.items), maxItems
}

// first divides a node from those before it.
func (n *node[E]) first() Key {
	if len(n.children) > 0 {
		return n.firsts[0]
	}
	return keyOf(n.items[0])
}

// get the item of a key.
func (t tree[E]) get(key Key) (item E, ok bool) {
	n := t.root
	if n == nil {
		return item, false
	}
	for len(n.children) > 0 {
		n = n.children[n.child(key)]
	}
	if i, ok := n.find(key); ok {
		return n.items[i], true
	}
	return item, false
}

// from iterates the items in order, beginning at a key.
func (t tree[E]) from(key Key) iter.Seq[E] {
	return func(yield func(E) bool) {
		if t.root != nil {
			t.root.from(key, yield)
		}
	}
}

func (n *node[E]) from(key Key, yield func(E) bool) bool {
	if len(n.children) == 0 {
		i, _ := n.find(key)
		return n.each(i, yield)
	}
	i := n.child(key)
	return n.children[i].from(key, yield) && n.each(i+1, yield)
}

// each item, beginning at the i-th item or child.
func (n *node[E]) each(i int, yield func(E) bool) bool {
	for _, item := range n.items[min(i, len(n.items)):] {
		if !yield(item) {
			return false
		}
	}
	for _, c := range n.children[min(i, len(n.children)):] {
		if !c.each(0, yield) {
			return false
		}
	}
	return true
}

// treeTxn makes the next version of a tree, which it does not change. It must not be used after its tree was taken.
type treeTxn[E named] struct{ tree[E] }

func (t tree[E]) txn() *treeTxn[E] {
	t.edit++
	return &treeTxn[E]{t}
}

// put adds an item, or replaces that of its key.
func (x *treeTxn[E]) put(item E) {
	if x.root == nil {
		x.root, x.len = &node[E]{edit: x.edit, items: []E{item}}, 1
		return
	}
	left, right := x.putIn(x.root, keyOf(item), item)
	x.root = left
	if right != nil {
		x.root = &node[E]{edit: x.edit, firsts: []Key{left.first(), right.first()}, children: []*node[E]{left, right}}
	}
}

// putIn returns what is in the place of a node, and what follows it; nil: nothing more than before.
func (x *treeTxn[E]) putIn(n *node[E], key Key, item E) (left, right *node[E]) {
	n = x.own(n)
	if len(n.children) == 0 {
		i, found := n.find(key)
		if found {
			n.items[i] = item
			return n, nil
		}
		n.items = slices.Insert(n.items, i, item)
		x.len++
		return x.split(n)
	}
	i := n.child(key)
	if compareKeys(key, n.firsts[i]) < 0 { // below all: what splits off the first child must follow its divider
		n.firsts[i] = key
	}
	left, right = x.putIn(n.children[i], key, item)
	n.children[i] = left
	if right != nil {
		n.firsts, n.children = slices.Insert(n.firsts, i+1, right.first()), slices.Insert(n.children, i+1, right)
	}
	return x.split(n)
}

// own is the node, or a copy that may be changed.
func (x *treeTxn[E]) own(n *node[E]) *node[E] {
	if n.edit == x.edit {
		return n
	}
	return &node[E]{edit: x.edit, items: roomy(n.items), firsts: roomy(n.firsts), children: roomy(n.children)}
}

// roomy is a copy with room for one more.
func roomy[S any](from []S) []S {
	if from == nil {
		return nil
	}
	return append(make([]S, 0, len(from)+1), from...)
}

// split a node that has become too large.
func (x *treeTxn[E]) split(n *node[E]) (left, right *node[E]) {
	size, most := n.size()
	if size <= most {
		return n, nil
	}
	half := size / 2
	right = &node[E]{edit: x.edit}
	if len(n.children) == 0 {
		n.items, right.items = slices.Clone(n.items[:half]), slices.Clone(n.items[half:])
		return n, right
	}
	n.firsts, right.firsts = slices.Clone(n.firsts[:half]), slices.Clone(n.firsts[half:])
	n.children, right.children = slices.Clone(n.children[:half]), slices.Clone(n.children[half:])
	return n, right
}

// remove the item of a key, and return it.
func (x *treeTxn[E]) remove(key Key) (item E, ok bool) {
	item, ok = x.get(key)
	if !ok {
		return item, false
	}
	x.len--
	x.root = x.removeIn(x.root, key)
	for len(x.root.children) == 1 {
		x.root = x.root.children[0]
	}
	if size, _ := x.root.size(); size == 0 {
		x.root = nil
	}
	return item, true
}

// removeIn returns what is in the place of a node that has the key.
func (x *treeTxn[E]) removeIn(n *node[E], key Key) *node[E] {
	n = x.own(n)
	if len(n.children) == 0 {
		i, _ := n.find(key)
		n.items = slices.Delete(n.items, i, i+1)
		return n
	}
	i := n.child(key)
	n.children[i] = x.removeIn(n.children[i], key)
	switch size, most := n.children[i].size(); {
	case size == 0:
		n.firsts, n.children = slices.Delete(n.firsts, i, i+1), slices.Delete(n.children, i, i+1)
	case size < most/4:
		x.join(n, max(i-1, 0))
	}
	return n
}

// join the i-th child and the next one, unless they are too large together.
func (x *treeTxn[E]) join(n *node[E], i int) {
	if i+1 >= len(n.children) {
		return
	}
	size, most := n.children[i].size()
	if next, _ := n.children[i+1].size(); size+next > most/2 {
		return
	}
	left, right := x.own(n.children[i]), n.children[i+1]
	// What divides the two is the parent's: the first divider of the right node may be above keys that were there.
	left.items, left.children = append(left.items, right.items...), append(left.children, right.children...)
	if len(right.firsts) > 0 {
		left.firsts = append(append(left.firsts, n.firsts[i+1]), right.firsts[1:]...)
	}
	n.children[i] = left
	n.firsts, n.children = slices.Delete(n.firsts, i+1, i+2), slices.Delete(n.children, i+1, i+2)
}
