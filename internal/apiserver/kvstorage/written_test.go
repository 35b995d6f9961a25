package kvstorage_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
)

// TestWritten: what a writer has decoded is what the watch of the cache sends, equal to what another watch decodes, an
// object of its own; and a writer that lost to another leaves nothing behind that is sent.
func TestWritten(t *testing.T) {
	b := newBed(t, backends["memory"], bedOptions{})
	follow := func(cache bool) <-chan watch.Event {
		t.Helper()
		w, err := b.bare.Watch(b.ctx, "/pods/", storage.ListOptions{
			Predicate: storage.SelectionPredicate{Label: storage.Everything.Label, Field: storage.Everything.Field, AllowWatchBookmarks: true},
			Recursive: true, RecordTimestamps: cache, SendInitialEvents: new(true),
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.Stop)
		if e := <-w.ResultChan(); e.Type != watch.Bookmark {
			t.Fatalf("the first event is %v", e)
		}
		return w.ResultChan()
	}
	cache, other := follow(true), follow(false)
	const anyNumber = -1
	check := func(what string, written *example.Pod, decodings int64) {
		t.Helper()
		sent := (<-cache).Object.(storage.WatchEventWithRecordTime).Unwrap().(*example.Pod)
		decoded := (<-other).Object
		if diff := cmp.Diff(decoded, runtime.Object(sent)); diff != "" {
			t.Errorf("%s: the cache got another object (-decoded +sent):\n%s", what, diff)
		}
		if got := b.fail.decodings.Swap(0); decodings != anyNumber && got != decodings {
			t.Errorf("%s: %d decodings, want %d", what, got, decodings)
		}
		if sent.ResourceVersion != written.ResourceVersion || sent.ResourceVersion == "" {
			t.Errorf("%s: version %q was sent, and %q written", what, sent.ResourceVersion, written.ResourceVersion)
		}
		written.Labels["a"] = "changed by the writer"
		if sent.Labels["a"] == written.Labels["a"] {
			t.Errorf("%s: the writer has the object of the cache", what)
		}
	}
	pod := func(value string) *example.Pod {
		return &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u", Labels: map[string]string{"a": value}}}
	}
	b.fail.decodings.Store(0)
	out := &example.Pod{}
	if err := b.bare.Create(b.ctx, "/pods/ns/p", pod("1"), out, 0); err != nil {
		t.Fatal(err)
	}
	check("a creation", out, 2) // the writer's, and that of the other watch
	if err := b.bare.Create(b.ctx, "/pods/ns/p", pod("lost"), &example.Pod{}, 0); !storage.IsExist(err) {
		t.Fatalf("a second creation: %v", err)
	}
	update := func(value string, meanwhile func()) *example.Pod {
		t.Helper()
		out := &example.Pod{}
		err := b.bare.GuaranteedUpdate(b.ctx, "/pods/ns/p", out, false, nil, func(in runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) {
			meanwhile()
			meanwhile = func() {}
			in.(*example.Pod).Labels["a"] = value
			return in, nil, nil
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	b.fail.decodings.Store(0)
	out = update("2", func() {})
	check("an update", out, 3) // and what the writer began with
	var first *example.Pod
	out = update("4", func() { first = update("3", func() {}) })
	if diff := cmp.Diff("3 4", fmt.Sprint(first.Labels["a"], " ", out.Labels["a"])); diff != "" {
		t.Error(diff)
	}
	check("the faster of two", first, anyNumber)
	check("the slower of two", out, anyNumber)
}
