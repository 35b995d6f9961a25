package kvstorage_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
)

// TestKept: what the watch of the cache sends is kept in its newest version until it is gone, also if it existed before, and
// a new cache begins anew. The events look older the longer the watch runs, so that the cache forgets them sooner.
func TestKept(t *testing.T) {
	b := newBed(t, backends["memory"], bedOptions{})
	put := func(name string, uid types.UID) *example.Pod {
		t.Helper()
		p, out := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: uid}}, &example.Pod{}
		if err := b.bare.Create(b.ctx, "/pods/ns/"+name, p, out, 0); err != nil {
			t.Fatal(err)
		}
		return out
	}
	follow := func() watch.Interface {
		t.Helper()
		w, err := b.bare.Watch(b.ctx, "/pods/", storage.ListOptions{Predicate: storage.Everything, Recursive: true, RecordTimestamps: true, SendInitialEvents: new(true)})
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	existing := put("existing", "first")
	if b.bare.Kept(existing) != nil {
		t.Error("it is kept, and there is no cache")
	}
	w := follow()
	if e := <-w.ResultChan(); e.Type != watch.Added || b.bare.Kept(existing) != e.Object {
		t.Errorf("the first event is %v, kept is %v", e, b.bare.Kept(existing))
	}
	changed := &example.Pod{}
	err := b.bare.GuaranteedUpdate(b.ctx, "/pods/ns/existing", changed, false, nil, func(in runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) {
		in.(*example.Pod).Labels = map[string]string{"a": "b"}
		return in, nil, nil
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	e := <-w.ResultChan()
	timed, ok := e.Object.(storage.WatchEventWithRecordTime)
	if !ok || e.Type != watch.Modified {
		t.Fatalf("the second event is %v", e)
	}
	if timed.RecordTime().Before(time.Now()) {
		t.Error("the clock of the cache is not faster")
	}
	if b.bare.Kept(existing) != nil || b.bare.Kept(changed) != timed.Unwrap() {
		t.Error("the version that is kept is not the newest")
	}
	other, err := b.bare.Watch(b.ctx, "/pods/", storage.ListOptions{Predicate: storage.Everything, Recursive: true, SendInitialEvents: new(true)})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Stop()
	if e := <-other.ResultChan(); b.bare.Kept(changed) == e.Object || b.bare.Kept(changed) == nil {
		t.Error("what another watch sends is kept")
	}
	w.Stop()
	for range w.ResultChan() { // until its goroutine has ended
	}
	if err := b.bare.Delete(b.ctx, "/pods/ns/existing", &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	put("existing", "second")
	w = follow()
	defer w.Stop()
	<-w.ResultChan()
	if b.bare.Kept(changed) != nil {
		t.Error("a new cache keeps what is gone")
	}
	if err := b.bare.Delete(b.ctx, "/pods/ns/existing", &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	e = <-w.ResultChan()
	if gone := e.Object.(storage.WatchEventWithRecordTime).Unwrap().(*example.Pod); e.Type != watch.Deleted || b.bare.Kept(gone) != nil {
		t.Errorf("after %s it is kept", e.Type)
	}
}
