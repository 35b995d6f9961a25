package catalog

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestTree puts and removes in every order, with trees of several levels, and compares with a map: what is in
// the tree, in which order, what its nodes promise, and that earlier versions stay as they were.
func TestTree(t *testing.T) {
	const names, batch = 6000, 500
	random := rand.New(rand.NewPCG(1, 2))
	item := func(i, version int) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprint("n", i%3), Name: fmt.Sprintf("%05d", i), ResourceVersion: fmt.Sprint(version)}}
	}
	var now tree[*corev1.Pod]
	model := map[Key]*corev1.Pod{}
	for step, pick := range []func(k int) (i int, put bool){
		func(k int) (int, bool) { return k, true },                              // in order
		func(int) (int, bool) { return random.IntN(names), random.IntN(3) > 0 }, // mostly puts
		func(int) (int, bool) { return random.IntN(names), random.IntN(3) == 0 },
		func(k int) (int, bool) { return names - 1 - k, k%7 == 0 },
		func(k int) (int, bool) { return k, false },
		func(k int) (int, bool) { return names - 1 - k, true },
		func(k int) (int, bool) { return k, false },
	} {
		for k := 0; k < names; {
			before, want := now, sorted(model)
			x := now.txn()
			for range batch {
				i, put := pick(k)
				k++
				p := item(i, step)
				if old, ok := x.get(keyOf(p)); old != model[keyOf(p)] || ok != (old != nil) {
					t.Fatalf("step %d: get %s: %v, %v", step, keyOf(p), old, ok)
				}
				if put {
					x.put(p)
					model[keyOf(p)] = p
					continue
				}
				if old, ok := x.remove(keyOf(p)); old != model[keyOf(p)] || ok != (old != nil) {
					t.Fatalf("step %d: remove %s: %v, %v", step, keyOf(p), old, ok)
				}
				delete(model, keyOf(p))
			}
			now = x.tree
			checkTree(t, now, sorted(model))
			checkTree(t, before, want)
		}
	}
	if now.root != nil {
		t.Error("the empty tree has nodes")
	}
}

// TestTreeAnyOrder fills empty trees in many orders, and empties them in others: what was put is there until it is removed.
func TestTreeAnyOrder(t *testing.T) {
	const names = 600
	pods := make([]*corev1.Pod, names)
	for i := range pods {
		pods[i] = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%03d", i)}}
	}
	for seed := range uint64(60) {
		random := rand.New(rand.NewPCG(seed, 3))
		model := map[Key]*corev1.Pod{}
		x := tree[*corev1.Pod]{}.txn()
		step := func(k int, change func(p *corev1.Pod)) {
			change(pods[k])
			if random.IntN(40) == 0 {
				checkTree(t, x.tree, sorted(model))
				x = x.txn()
			}
		}
		for _, k := range random.Perm(names) {
			step(k, func(p *corev1.Pod) { x.put(p); model[keyOf(p)] = p })
		}
		checkTree(t, x.tree, sorted(model))
		for i, k := range random.Perm(names) {
			step(k, func(p *corev1.Pod) { x.remove(keyOf(p)); delete(model, keyOf(p)) })
			if i%3 == 0 {
				again := pods[random.IntN(names)]
				x.put(again)
				model[keyOf(again)] = again
			}
		}
		checkTree(t, x.tree, sorted(model))
		for _, p := range pods {
			if got, ok := x.get(keyOf(p)); got != model[keyOf(p)] || ok != (got != nil) {
				t.Fatalf("seed %d: get %s: %v, %t", seed, keyOf(p), got, ok)
			}
		}
	}
}

func sorted(model map[Key]*corev1.Pod) []*corev1.Pod {
	all := make([]*corev1.Pod, 0, len(model))
	for _, p := range model {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b *corev1.Pod) int { return compareKeys(keyOf(a), keyOf(b)) })
	return all
}

func checkTree(t *testing.T, got tree[*corev1.Pod], want []*corev1.Pod) {
	t.Helper()
	if all := slices.Collect(got.from(Key{})); got.len != len(want) || !slices.Equal(all, want) {
		t.Fatalf("%d items, %d of them iterated, want %d", got.len, len(all), len(want))
	}
	if len(want) == 0 {
		return
	}
	checkNode(t, got.root)
	for _, i := range []int{0, len(want) / 3, len(want) - 1} {
		n := 0
		for p := range got.from(keyOf(want[i])) {
			if p != want[i+n] {
				t.Fatalf("from %s: %s at %d", keyOf(want[i]), keyOf(p), n)
			}
			if n++; n == 3 {
				break
			}
		}
	}
	if slices.Collect(got.from(Key{Namespace: "o"})) != nil {
		t.Fatal("items behind the last")
	}
}

// checkNode: all leaves of a node are equally deep, and no node is empty or too large, or out of its place.
func checkNode(t *testing.T, n *node[*corev1.Pod]) (depth int) {
	t.Helper()
	if size, most := n.size(); size == 0 || size > most || len(n.firsts) != len(n.children) || len(n.items) > 0 && len(n.children) > 0 {
		t.Fatalf("a node of %d items, %d children, %d dividers", len(n.items), len(n.children), len(n.firsts))
	}
	for i, c := range n.children {
		if i > 0 && compareKeys(n.firsts[i-1], n.firsts[i]) >= 0 {
			t.Fatalf("the divider %s follows %s", n.firsts[i], n.firsts[i-1])
		}
		d := checkNode(t, c) + 1
		if i > 0 && d != depth {
			t.Fatalf("leaves %d and %d deep", d, depth)
		}
		depth = d
		c.each(0, func(p *corev1.Pod) bool {
			if key := keyOf(p); compareKeys(key, n.firsts[i]) < 0 || i+1 < len(n.firsts) && compareKeys(key, n.firsts[i+1]) >= 0 {
				t.Fatalf("%s is in the wrong child of %d", key, len(n.children))
			}
			return true
		})
	}
	return depth
}
