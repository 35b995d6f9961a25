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
)

func object(uid string, version int) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: types.UID(uid), ResourceVersion: strconv.Itoa(version)}}
}

func mark(version int) *corev1.ConfigMap {
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{ResourceVersion: strconv.Itoa(version)}}
	m.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
	return m
}

// step is one thing that happens to an index, and the version of the object that
// is read then; 0: absent.
type step struct {
	what   func(*index) error
	expect int
}

func feed(event watch.EventType, obj resource.Object, expect int) step {
	return step{func(ix *index) error { return ix.fed(event, obj) }, expect}
}

func tell(event watch.EventType, obj resource.Object, expect int) step {
	return step{func(ix *index) error { ix.told(event, obj); return nil }, expect}
}

func gone(last resource.Object, expect int) step {
	return step{func(ix *index) error { ix.gone(last); return nil }, expect}
}

// again lets the feed begin anew with one object, or none, at a version.
func again(at int, obj resource.Object, expect int) step {
	return step{func(ix *index) error {
		ix.lost()
		ix.collect()
		if obj != nil {
			if err := ix.fed(watch.Added, obj); err != nil {
				return err
			}
		}
		return ix.fed(watch.Bookmark, mark(at))
	}, expect}
}

// TestOrders plays what a feed tells and what callers know in the orders that
// happen. Nothing that was read before comes back.
func TestOrders(t *testing.T) {
	for name, steps := range map[string][]step{
		"a write before its event": {
			tell(watch.Modified, object("x", 5), 5), feed(watch.Added, object("x", 5), 5), feed(watch.Modified, object("x", 7), 7),
		},
		"an event before its write": {
			feed(watch.Added, object("x", 5), 5), feed(watch.Modified, object("x", 7), 7), tell(watch.Modified, object("x", 5), 7),
		},
		"a write after its deletion was told": {
			feed(watch.Added, object("x", 5), 5), feed(watch.Deleted, object("x", 7), 0), tell(watch.Modified, object("x", 5), 0),
		},
		"a deletion before the creation was told": {
			gone(object("x", 5), 0), feed(watch.Added, object("x", 3), 0), feed(watch.Modified, object("x", 5), 0),
			feed(watch.Deleted, object("x", 7), 0), feed(watch.Added, object("y", 8), 8),
		},
		"a deletion while its creation is known": {
			tell(watch.Modified, object("x", 5), 5), gone(object("x", 5), 0), feed(watch.Added, object("x", 5), 0), feed(watch.Deleted, object("x", 6), 0),
		},
		"another of its name before the deletion was told": {
			feed(watch.Added, object("x", 5), 5), gone(object("x", 5), 0), tell(watch.Modified, object("y", 8), 8),
			feed(watch.Deleted, object("x", 7), 8), feed(watch.Added, object("y", 8), 8),
		},
		"another's watch is ahead": {
			tell(watch.Deleted, object("x", 9), 0), feed(watch.Added, object("x", 5), 0), feed(watch.Deleted, object("x", 9), 0),
		},
		"begun anew, behind what is known": {
			tell(watch.Modified, object("x", 20), 20), again(15, object("x", 12), 20), feed(watch.Modified, object("x", 20), 20),
		},
		"begun anew, behind a deletion": {
			tell(watch.Modified, object("x", 12), 12), gone(object("x", 12), 0), again(15, object("x", 12), 0),
			feed(watch.Deleted, object("x", 16), 0),
		},
		"begun anew, after a deletion": {
			feed(watch.Added, object("x", 12), 12), again(20, nil, 0), tell(watch.Modified, object("x", 12), 0),
		},
	} {
		t.Run(name, func(t *testing.T) {
			ix := newIndex(kind.ConfigMap)
			ix.collect()
			if err := ix.fed(watch.Bookmark, mark(1)); err != nil {
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
			if again(100, nil, 0).what(ix) != nil || len(ix.graves) != 0 {
				t.Errorf("graves that stay: %v", ix.graves)
			}
		})
	}
}

// TestNoNumbers: versions that can't be compared leave reads to the server.
func TestNoNumbers(t *testing.T) {
	ix := newIndex(kind.ConfigMap)
	ix.collect()
	odd := object("x", 1)
	odd.ResourceVersion = "odd"
	if err := ix.fed(watch.Added, odd); err == nil {
		t.Error("it was taken")
	}
	ix.lost()
	if _, ok := ix.get(resource.Key{Name: "a"}); ok {
		t.Error("it answers")
	}
}
