package catalog

import (
	"iter"
	"maps"
	"slices"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/proxima-mesh/proxima/internal/resource"
)

var noPreconditions resource.Preconditions

func keys[T Row](seq iter.Seq2[Key, T]) []string {
	var out []string
	for key := range seq {
		out = append(out, key.String())
	}
	slices.Sort(out)
	return out
}

// Whatever happens to a table, its indexes say what a scan says, old tables stay
// as they were, and deltas add up to the state.
func TestTableHistory(t *testing.T) {
	label := rapid.MapOfN(rapid.SampledFrom([]string{"app", "tier", "zone", labelRegistryProtocol}), rapid.SampledFrom([]string{"", "a", "b"}), 0, 4)
	rapid.Check(t, func(t *rapid.T) {
		snapshot := newSnapshot(Position{})
		sub := &Subscription{ready: make(chan struct{}, 1), closed: make(chan struct{}), before: snapshot, latest: snapshot}
		sub.kinds[Pods] = true
		model := map[Key]*corev1.Pod{}
		follower := map[Key]*corev1.Pod{}
		version := 0
		draw := func() resource.Object {
			version++
			p := pod(rapid.SampledFrom([]string{"p1", "p2", "p3", "p4"}).Draw(t, "name"),
				rapid.SampledFrom([]string{"", "n1"}).Draw(t, "node"), label.Draw(t, "labels"))
			p.ResourceVersion = strconv.Itoa(version)
			return p
		}
		for range rapid.IntRange(1, 20).Draw(t, "batches") {
			old, oldRows := snapshot, maps.Collect(snapshot.Pods.All())
			b := newBatch(snapshot)
			for range rapid.IntRange(1, 4).Draw(t, "inputs") {
				in := input{kind: Pods}
				switch rapid.IntRange(0, 3).Draw(t, "input") {
				case 0:
					in.full = true
					clear(model)
					for range rapid.IntRange(0, 4).Draw(t, "listed") {
						in.objects = append(in.objects, draw())
					}
				case 1:
					in.deleted = true
					in.objects = []resource.Object{draw()}
				default:
					in.objects = []resource.Object{draw()}
				}
				for _, obj := range in.objects {
					if delete(model, resource.KeyOf(obj)); !in.deleted {
						model[resource.KeyOf(obj)] = obj.(*corev1.Pod)
					}
				}
				b.add(in)
			}
			var changed [Kinds]map[Key]struct{}
			snapshot, changed = b.commit()
			sub.notify(snapshot, changed, false)

			if !maps.Equal(oldRows, maps.Collect(old.Pods.All())) {
				t.Fatal("an old snapshot changed")
			}
			checkIndexes(t, snapshot, model)
			if len(sub.ready) > 0 && rapid.Bool().Draw(t, "read") {
				readInto(t, sub, follower)
				if !maps.Equal(follower, model) {
					t.Fatalf("deltas add up to %v, want %v", follower, model)
				}
			}
		}
	})
}

func checkIndexes(t *rapid.T, s *Snapshot, model map[Key]*corev1.Pod) {
	if got := maps.Collect(s.Pods.All()); !maps.Equal(got, model) || s.Pods.Len() != len(model) {
		t.Fatalf("table holds %v, want %v", got, model)
	}
	for _, selector := range []map[string]string{{"app": "a"}, {"app": ""}, {"app": "a", "tier": "b"}, {"zone": "b", "app": "b", "tier": ""}, {labelRegistryProtocol: "a"}, {labelRegistryProtocol: "a", "app": "b"}} {
		want := map[Key]*corev1.Pod{}
		for key, p := range model {
			if matches(selector, p.Labels) {
				want[key] = p
			}
		}
		if got := maps.Collect(s.PodsMatching("ns", selector)); !maps.Equal(got, want) {
			t.Fatalf("selector %v finds %v, want %v", selector, got, want)
		}
	}
}

func readInto(t *rapid.T, sub *Subscription, state map[Key]*corev1.Pod) {
	d, err := sub.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range d.Pods {
		if state[c.Key] != c.Old {
			t.Fatalf("%s: delta says it was %v, it was %v", c.Key, c.Old, state[c.Key])
		}
		if delete(state, c.Key); c.New != nil {
			state[c.Key] = c.New
		}
	}
}
