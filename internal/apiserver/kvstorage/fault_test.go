package kvstorage_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/proxima-mesh/proxima/internal/store"
)

var errDisk = errors.New("disk is full")

// faultyStore fails every call while switched on, and can end its watches.
type faultyStore struct {
	store.Store
	fault atomic.Pointer[error]
	cut   chan error // ends one watch
}

func (s *faultyStore) fail(err error) {
	if err == nil {
		s.fault.Store(nil)
	} else {
		s.fault.Store(&err)
	}
}

func (s *faultyStore) err() error {
	if p := s.fault.Load(); p != nil {
		return *p
	}
	return nil
}

func (s *faultyStore) Get(ctx context.Context, key string, at store.Revision) (store.Record, bool, store.Revision, error) {
	if err := s.err(); err != nil {
		return store.Record{}, false, 0, err
	}
	return s.Store.Get(ctx, key, at)
}

func (s *faultyStore) List(ctx context.Context, opts store.ListOptions) (store.Page, error) {
	if err := s.err(); err != nil {
		return store.Page{}, err
	}
	return s.Store.List(ctx, opts)
}

func (s *faultyStore) Count(ctx context.Context, prefix string) (int64, error) {
	if err := s.err(); err != nil {
		return 0, err
	}
	return s.Store.Count(ctx, prefix)
}

func (s *faultyStore) Revision(ctx context.Context) (store.Revision, error) {
	if err := s.err(); err != nil {
		return 0, err
	}
	return s.Store.Revision(ctx)
}

func (s *faultyStore) Commit(ctx context.Context, txn store.Txn) (store.Revision, error) {
	if err := s.err(); err != nil {
		return 0, err
	}
	return s.Store.Commit(ctx, txn)
}

func (s *faultyStore) Watch(ctx context.Context, prefix string, after store.Revision) (store.Watcher, error) {
	if err := s.err(); err != nil {
		return nil, err
	}
	w, err := s.Store.Watch(ctx, prefix, after)
	if err != nil {
		return nil, err
	}
	cut := &cutWatcher{Watcher: w, out: make(chan store.Batch), stop: make(chan struct{})}
	go cut.run(s.cut)
	return cut, nil
}

// cutWatcher ends with the error that it is cut with.
type cutWatcher struct {
	store.Watcher
	out    chan store.Batch
	stop   chan struct{}
	reason error
}

func (w *cutWatcher) run(cut <-chan error) {
	defer close(w.out)
	for {
		select {
		case w.reason = <-cut:
			return
		case <-w.stop:
			return
		case b, ok := <-w.Watcher.Batches():
			if !ok {
				return
			}
			select {
			case w.out <- b:
			case <-w.stop:
				return
			}
		}
	}
}

func (w *cutWatcher) Batches() <-chan store.Batch { return w.out }
func (w *cutWatcher) Err() error                  { return w.reason }

func (w *cutWatcher) Close() {
	close(w.stop)
	for range w.out {
		continue // until run has ended
	}
	w.Watcher.Close()
}

func newFaultyBed(t *testing.T) (*bed, *faultyStore) {
	t.Helper()
	faulty := &faultyStore{cut: make(chan error)}
	b := newBed(t, backends["memory"], bedOptions{wrap: func(s store.Store) store.Store {
		faulty.Store = s
		return faulty
	}})
	return b, faulty
}

func TestStoreErrorsSurface(t *testing.T) {
	b, faulty := newFaultyBed(t)
	existing := mustCreate(t, b, "a")
	everything := storage.ListOptions{Recursive: true, Predicate: storage.Everything}
	calls := map[string]func() error{
		"get":    func() error { return b.Get(b.ctx, podKey("a"), storage.GetOptions{}, &example.Pod{}) },
		"list":   func() error { return b.GetList(b.ctx, "/pods", everything, &example.PodList{}) },
		"create": func() error { return b.Create(b.ctx, podKey("b"), pod("b"), nil, 0) },
		"update": func() error {
			return b.GuaranteedUpdate(b.ctx, podKey("a"), &example.Pod{}, false, nil, label(func() {}, "x"), nil)
		},
		"update a suggestion": func() error {
			return b.GuaranteedUpdate(b.ctx, podKey("a"), &example.Pod{}, false, nil, label(func() {}, "x"), existing.DeepCopy())
		},
		"delete": func() error {
			return b.Delete(b.ctx, podKey("a"), &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{})
		},
		"delete a suggestion": func() error {
			return b.Delete(b.ctx, podKey("a"), &example.Pod{}, nil, storage.ValidateAllObjectFunc, existing.DeepCopy(), storage.DeleteOptions{})
		},
		"stats":           func() error { _, err := b.Stats(b.ctx); return err },
		"current version": func() error { _, err := b.GetCurrentResourceVersion(b.ctx); return err },
		"watch from now": func() error {
			opts := everything
			no := false
			opts.SendInitialEvents = &no
			_, err := b.Watch(b.ctx, "/pods", opts)
			return err
		},
	}
	faults := map[string]struct {
		fault error
		is    func(error) bool
	}{
		"medium":   {errDisk, func(err error) bool { return storage.IsInternalError(err) && errors.Is(err, errDisk) }},
		"closed":   {fmt.Errorf("commit: %w", store.ErrClosed), storage.IsUnreachable},
		"canceled": {context.Canceled, func(err error) bool { return errors.Is(err, context.Canceled) }},
		"deadline": {context.DeadlineExceeded, func(err error) bool { return errors.Is(err, context.DeadlineExceeded) }},
	}
	for name, call := range calls {
		for fault, f := range faults {
			faulty.fail(f.fault)
			if err := call(); !f.is(err) {
				t.Errorf("%s with fault %q: error %#v", name, fault, err)
			}
			faulty.fail(nil)
		}
	}
	got := &example.Pod{}
	if err := b.Get(b.ctx, podKey("a"), storage.GetOptions{}, got); err != nil || got.ResourceVersion != existing.ResourceVersion {
		t.Errorf("after the faults the object is at %q, want %s (%v)", got.ResourceVersion, existing.ResourceVersion, err)
	}
}

// next returns the next event of a watch.
func next(t *testing.T, w watch.Interface) watch.Event {
	t.Helper()
	select {
	case e := <-w.ResultChan():
		return e
	case <-time.After(time.Minute):
		t.Fatal("no event")
		return watch.Event{}
	}
}

func TestWatchEndsWithErrorAndResumes(t *testing.T) {
	tests := map[string]struct {
		fault error
		code  int32
	}{
		"medium":    {errDisk, http.StatusInternalServerError},
		"closed":    {store.ErrClosed, http.StatusServiceUnavailable},
		"compacted": {store.ErrCompacted, http.StatusGone},
		"future":    {store.ErrFuture, http.StatusGone},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b, faulty := newFaultyBed(t)
			from := mustCreate(t, b, "a").ResourceVersion
			opts := storage.ListOptions{Recursive: true, Predicate: storage.Everything, ResourceVersion: from}
			w, err := b.Watch(b.ctx, "/pods", opts)
			if err != nil {
				t.Fatal(err)
			}
			mustCreate(t, b, "b")
			seen := next(t, w)
			if got := seen.Object.(*example.Pod).Name; seen.Type != watch.Added || got != "b" {
				t.Fatalf("%s %s, want ADDED b", seen.Type, got)
			}
			faulty.cut <- tt.fault
			mustCreate(t, b, "c")
			end := next(t, w)
			if status, ok := end.Object.(*metav1.Status); end.Type != watch.Error || !ok || status.Code != tt.code {
				t.Fatalf("%s %+v, want an error with code %d", end.Type, end.Object, tt.code)
			}
			if e, open := <-w.ResultChan(); open {
				t.Fatalf("%v after the error", e)
			}
			opts.ResourceVersion = seen.Object.(*example.Pod).ResourceVersion
			w, err = b.Watch(b.ctx, "/pods", opts)
			if err != nil {
				t.Fatal(err)
			}
			defer w.Stop()
			if got := next(t, w).Object.(*example.Pod).Name; got != "c" {
				t.Errorf("the resumed watch goes on with %s, want c", got)
			}
		})
	}
}

func TestWatchFromAnotherHistory(t *testing.T) {
	b := newBed(t, backends["memory"], bedOptions{})
	w, err := b.Watch(b.ctx, "/pods", storage.ListOptions{Recursive: true, Predicate: storage.Everything, ResourceVersion: "1000000"})
	if err != nil {
		t.Fatal(err)
	}
	if status, ok := next(t, w).Object.(*metav1.Status); !ok || status.Code != http.StatusGone {
		t.Errorf("got %+v, want 410, so that the client lists again", status)
	}
}

// TestProgressIsGlobal: without it, consistent lists from the watch cache wait
// for an event that never comes.
func TestProgressIsGlobal(t *testing.T) {
	for name, ask := range map[string]func(*bed) error{
		"RequestWatchProgress":      func(b *bed) error { return b.RequestWatchProgress(b.ctx) },
		"GetCurrentResourceVersion": func(b *bed) error { _, err := b.GetCurrentResourceVersion(b.ctx); return err },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, backends["memory"], bedOptions{progress: time.Hour})
			from := mustCreate(t, b, "a").ResourceVersion
			opts := storage.ListOptions{Recursive: true, Predicate: storage.Everything, ResourceVersion: from, ProgressNotify: true}
			w, err := b.Watch(b.ctx, "/pods", opts)
			if err != nil {
				t.Fatal(err)
			}
			defer w.Stop()
			mustCreate(t, b, "b")
			next(t, w) // now the watch runs
			elsewhere := b.increaseRV(b.ctx, t)
			if err := ask(b); err != nil {
				t.Fatal(err)
			}
			mark := next(t, w)
			if got := mark.Object.(*example.Pod).ResourceVersion; mark.Type != watch.Bookmark || got != fmt.Sprint(elsewhere) {
				t.Errorf("%s at %s, want BOOKMARK at %d", mark.Type, got, elsewhere)
			}
		})
	}
}

// FuzzContinue: whatever a client sends as a token, it sees only what it listed.
func FuzzContinue(f *testing.F) {
	for _, start := range []string{"/b", "b\x00", "../other/x", "/../other/x", "./b", "", "\x00"} {
		for _, rv := range []int64{-1, 0, 2, 1 << 40} {
			token, err := storage.EncodeContinue("p"+start, "p", rv)
			if err == nil {
				f.Add(token)
			}
		}
	}
	f.Add("%")
	f.Fuzz(func(t *testing.T, token string) {
		b := newBed(t, backends["memory"], bedOptions{})
		for _, name := range []string{"a", "b", "c"} {
			mustCreate(t, b, name)
		}
		other := pod("x")
		other.Namespace = "other"
		if err := b.Create(b.ctx, "/pods/other/x", other, nil, 0); err != nil {
			t.Fatal(err)
		}
		pred := storage.Everything
		pred.Continue, pred.Limit = token, 2
		list := &example.PodList{}
		if err := b.GetList(b.ctx, "/pods/ns", storage.ListOptions{Recursive: true, Predicate: pred}, list); err != nil {
			return
		}
		for _, p := range list.Items {
			if p.Namespace != "ns" {
				t.Errorf("token %q shows an object of namespace %s", token, p.Namespace)
			}
		}
	})
}
