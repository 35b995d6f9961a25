package cached

import (
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/reflector"
)

func object(uid string, version int) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: types.UID(uid), ResourceVersion: strconv.Itoa(version)}}
}

// step is one thing that happens to an index, and the version of the object that
// is read then; 0: absent.
type step struct {
	what   func(*index) error
	expect int
}

func event(what reflector.EventType, obj resource.Object, expect int) step {
	return step{func(ix *index) error {
		return ix.apply(reflector.Event{Type: what, Objects: []resource.Object{obj}, Version: obj.GetResourceVersion()})
	}, expect}
}

func observe(what watch.EventType, obj resource.Object, expect int) step {
	return step{func(ix *index) error { ix.observe(what, obj); return nil }, expect}
}

func gone(last resource.Object, expect int) step {
	return step{func(ix *index) error { ix.gone(last); return nil }, expect}
}

// relist disconnects the index, and connects it with one object, or none, at a version.
func relist(at int, obj resource.Object, expect int) step {
	return step{func(ix *index) error {
		ix.disconnected()
		return replace(ix, at, obj)
	}, expect}
}

func replace(ix *index, at int, obj resource.Object) error {
	var objects []resource.Object
	if obj != nil {
		objects = append(objects, obj)
	}
	return ix.replace(objects, strconv.Itoa(at))
}

// TestOrders applies what a reflector delivers and what callers were shown, in the orders that
// happen. Nothing that was read before comes back.
func TestOrders(t *testing.T) {
	for name, steps := range map[string][]step{
		"a write before its event": {
			observe(watch.Modified, object("x", 5), 5), event(reflector.Set, object("x", 5), 5), event(reflector.Set, object("x", 7), 7),
		},
		"an event before its write": {
			event(reflector.Set, object("x", 5), 5), event(reflector.Set, object("x", 7), 7), observe(watch.Modified, object("x", 5), 7),
		},
		"a write after its deletion": {
			event(reflector.Set, object("x", 5), 5), event(reflector.Delete, object("x", 7), 0), observe(watch.Modified, object("x", 5), 0),
		},
		"a deletion before the event of the creation": {
			gone(object("x", 5), 0), event(reflector.Set, object("x", 3), 0), event(reflector.Set, object("x", 5), 0),
			event(reflector.Delete, object("x", 7), 0), event(reflector.Set, object("y", 8), 8),
		},
		"a deletion while its creation is known": {
			observe(watch.Modified, object("x", 5), 5), gone(object("x", 5), 0), event(reflector.Set, object("x", 5), 0),
			event(reflector.Delete, object("x", 6), 0),
		},
		"another of its name before the event of the deletion": {
			event(reflector.Set, object("x", 5), 5), gone(object("x", 5), 0), observe(watch.Modified, object("y", 8), 8),
			event(reflector.Delete, object("x", 7), 8), event(reflector.Set, object("y", 8), 8),
		},
		"another's watch is ahead": {
			observe(watch.Deleted, object("x", 9), 0), event(reflector.Set, object("x", 5), 0), event(reflector.Delete, object("x", 9), 0),
		},
		"relisted, behind what was shown": {
			observe(watch.Modified, object("x", 20), 20), relist(15, object("x", 12), 20), event(reflector.Set, object("x", 20), 20),
		},
		"relisted, behind a deletion": {
			observe(watch.Modified, object("x", 12), 12), gone(object("x", 12), 0), relist(15, object("x", 12), 0),
			event(reflector.Delete, object("x", 16), 0),
		},
		"relisted, after a deletion": {
			event(reflector.Set, object("x", 12), 12), relist(20, nil, 0), observe(watch.Modified, object("x", 12), 0),
		},
	} {
		t.Run(name, func(t *testing.T) {
			ix := newIndex(kind.ConfigMap)
			if err := replace(ix, 1, nil); err != nil {
				t.Fatal(err)
			}
			for i, s := range steps {
				if err := s.what(ix); err != nil {
					t.Fatalf("step %d: %v", i, err)
				}
				obj, ok := ix.get(resource.Key{Name: "a"})
				got := 0
				if obj != nil {
					got, _ = strconv.Atoi(obj.GetResourceVersion())
				}
				if !ok || got != s.expect {
					t.Fatalf("step %d: it has version %d, %v; want %d", i, got, ok, s.expect)
				}
			}
			if relist(100, nil, 0).what(ix) != nil || len(ix.tombstones) != 0 {
				t.Errorf("tombstones that stay: %v", ix.tombstones)
			}
		})
	}
}

// TestNotComparable: versions that can't be compared leave reads to the server.
func TestNotComparable(t *testing.T) {
	ix := newIndex(kind.ConfigMap)
	odd := object("x", 1)
	odd.ResourceVersion = "odd"
	if err := replace(ix, 1, odd); err == nil {
		t.Error("the index took an object of an odd version")
	}
	if _, ok := ix.get(resource.Key{Name: "a"}); ok {
		t.Error("the index answers a read")
	}
}

// TestSharedObjects: what a caller's write has left is given up for the object of the reflector at the same
// version, which shares memory with the client underneath.
func TestSharedObjects(t *testing.T) {
	ix := newIndex(kind.ConfigMap)
	if err := replace(ix, 1, nil); err != nil {
		t.Fatal(err)
	}
	ix.observe(watch.Modified, object("x", 5))
	delivered := object("x", 5)
	if err := event(reflector.Set, delivered, 5).what(ix); err != nil {
		t.Fatal(err)
	}
	if obj, ok := ix.get(resource.KeyOf(delivered)); !ok || obj != resource.Object(delivered) {
		t.Errorf("the index holds %p, not %p of the reflector", obj, delivered)
	}
}
