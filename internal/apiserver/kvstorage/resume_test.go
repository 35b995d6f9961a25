package kvstorage_test

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/proxima-mesh/proxima/internal/store"
)

// change is one event, as tests compare it.
type change struct {
	Type watch.EventType
	Name string
	At   string
}

// podOf returns the pod of an event; events of the cache have it wrapped.
func podOf(e watch.Event) *example.Pod {
	obj := e.Object
	if cached, ok := obj.(runtime.CacheableObject); ok {
		obj = cached.GetObject()
	}
	p, _ := obj.(*example.Pod)
	return p
}

func seen(t *testing.T, w watch.Interface, n int) []change {
	t.Helper()
	var out []change
	for range n {
		e := next(t, w)
		p := podOf(e)
		if p == nil {
			t.Fatalf("event %s with %+v after %v", e.Type, e.Object, out)
		}
		out = append(out, change{e.Type, p.Name, p.ResourceVersion})
	}
	return out
}

func create(ctx context.Context, t *testing.T, r *genericregistry.Store, name, tier string) string {
	t.Helper()
	p := pod(name)
	p.Labels = map[string]string{"tier": tier}
	obj, err := r.Create(ctx, p, rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return obj.(*example.Pod).ResourceVersion
}

func watchFrom(ctx context.Context, t *testing.T, r *genericregistry.Store, at string, selector labels.Selector) watch.Interface {
	t.Helper()
	w, err := r.Watch(ctx, &metainternalversion.ListOptions{ResourceVersion: at, LabelSelector: selector})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// TestWatchResumesAfterRestart: the cache of a new server begins now, a client's watch where
// the client was.
func TestWatchResumesAfterRestart(t *testing.T) {
	for backend, open := range backends {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			s := open(t)
			ctx, before := newRegistry(t, s, false)
			start := create(ctx, t, before, "a", "web")
			want := []change{
				{watch.Added, "b", create(ctx, t, before, "b", "web")},
				{watch.Added, "c", create(ctx, t, before, "c", "db")},
			}
			if _, _, err := before.Delete(ctx, "b", rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			rev, err := s.Revision(ctx)
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, change{watch.Deleted, "b", strconv.FormatInt(int64(rev), 10)})
			before.Destroy()

			ctx, after := newRegistry(t, s, false)
			web := labels.SelectorFromSet(labels.Set{"tier": "web"})
			all, some := watchFrom(ctx, t, after, start, nil), watchFrom(ctx, t, after, start, web)
			behind := watchFrom(ctx, t, after, want[1].At, nil)
			if diff := cmp.Diff(want, seen(t, all, 3)); diff != "" {
				t.Errorf("all pods (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]change{want[0], want[2]}, seen(t, some, 2)); diff != "" {
				t.Errorf("one tier (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(want[2:], seen(t, behind, 1)); diff != "" {
				t.Errorf("one event behind (-want +got):\n%s", diff)
			}
			later := []change{{watch.Added, "d", create(ctx, t, after, "d", "web")}}
			for name, w := range map[string]watch.Interface{"all": all, "some": some, "behind": behind} {
				if diff := cmp.Diff(later, seen(t, w, 1)); diff != "" {
					t.Errorf("%s, what is new (-want +got):\n%s", name, diff)
				}
				w.Stop()
				for range w.ResultChan() { //nolint:revive // until it is closed
				}
			}
		})
	}
}

// TestWatchBeforeCompaction: what the store has forgotten is too old.
func TestWatchBeforeCompaction(t *testing.T) {
	s := backends["sqlite"](t)
	ctx, before := newRegistry(t, s, false)
	start := create(ctx, t, before, "a", "web")
	create(ctx, t, before, "b", "web")
	rev, err := s.Revision(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Compact(ctx, rev); err != nil {
		t.Fatal(err)
	}
	before.Destroy()
	ctx, after := newRegistry(t, s, false)
	w := watchFrom(ctx, t, after, start, nil)
	defer w.Stop()
	e := next(t, w)
	if status, ok := e.Object.(*metav1.Status); !ok || status.Code != http.StatusGone {
		t.Errorf("event %s with %+v, want 410", e.Type, e.Object)
	}
	if e, ok := <-w.ResultChan(); ok {
		t.Errorf("%+v after the error", e)
	}
}

// TestWatchResumesUnderLoad: watches that begin anywhere, before the cache and after, miss
// nothing and see nothing twice while others write.
func TestWatchResumesUnderLoad(t *testing.T) {
	const past, writes = 50, 300
	s := backends["sqlite"](t)
	ctx, before := newRegistry(t, s, false)
	at := []string{create(ctx, t, before, "first", "web")}
	for i := range past {
		at = append(at, create(ctx, t, before, fmt.Sprintf("past-%d", i), "web"))
	}
	before.Destroy()
	ctx, after := newRegistry(t, s, false)

	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		for i := range writes {
			// Transactions of several changes, as of companions, and of other kinds.
			ops := []store.Op{{Kind: store.Put, Key: "/elsewhere", Value: []byte(strconv.Itoa(i))}}
			if _, err := s.Commit(context.WithoutCancel(ctx), store.Txn{Ops: ops}); err != nil {
				t.Error(err)
			}
			if _, err := after.Create(ctx, pod(fmt.Sprintf("new-%d", i)), rest.ValidateAllObjectFunc, &metav1.CreateOptions{}); err != nil {
				t.Error(err)
			}
		}
	})
	for begin := range past {
		wg.Go(func() {
			last := at[begin]
			for i := begin; i < past+writes; {
				// The cache ends watches whose clients are slow; they go on where they were.
				w, err := after.Watch(ctx, &metainternalversion.ListOptions{ResourceVersion: last})
				if err != nil {
					t.Error(err)
					return
				}
				for ; i < past+writes; i++ {
					e, ok := <-w.ResultChan()
					if !ok {
						break
					}
					want := fmt.Sprintf("past-%d", i)
					if i >= past {
						want = fmt.Sprintf("new-%d", i-past)
					}
					p := podOf(e)
					if p == nil || e.Type != watch.Added || p.Name != want {
						t.Errorf("from %s: event %s with %+v, want %s", last, e.Type, e.Object, want)
						return
					}
					last = p.ResourceVersion
				}
				w.Stop()
			}
		})
	}
}
