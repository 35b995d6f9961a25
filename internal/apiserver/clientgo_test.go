package apiserver_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/memory"
)

// alone runs a server that the test has to itself, and its store.
func alone(t *testing.T) (*server, store.Store) {
	t.Helper()
	s := memory.New(memory.Options{})
	srv, err := start(s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := srv.stop(); err != nil {
			t.Error(err)
		}
		s.Close()
	})
	return srv, s
}

func createConfigMaps(t *testing.T, cs *kubernetes.Clientset, namespace, prefix string, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%03d", prefix, i)}}
		if _, err := cs.CoreV1().ConfigMaps(namespace).Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestPagesAreOneRevision pages through a list while others write: what comes is
// the list as it was when it was begun, each object once.
func TestPagesAreOneRevision(t *testing.T) {
	cs := shared.clientset(t, "")
	if _, err := cs.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "paged"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	createConfigMaps(t, cs, "paged", "old", 0, 30)
	configMaps := cs.CoreV1().ConfigMaps("paged")
	var names []string
	opts := metav1.ListOptions{Limit: 7}
	version := ""
	for page := 0; ; page++ {
		list, err := configMaps.List(t.Context(), opts)
		if err != nil {
			t.Fatal(err)
		}
		if version == "" {
			version = list.ResourceVersion
		}
		if list.ResourceVersion != version {
			t.Errorf("page %d is of revision %s, the first of %s", page, list.ResourceVersion, version)
		}
		for _, cm := range list.Items {
			names = append(names, cm.Name)
			if cm.Labels["changed"] != "" {
				t.Errorf("%s is as it became after the list was begun", cm.Name)
			}
		}
		if left := list.RemainingItemCount; list.Continue != "" && (left == nil || *left != int64(30-len(names))) {
			t.Errorf("page %d: %v left after %d of 30", page, left, len(names))
		}
		if opts.Continue = list.Continue; opts.Continue == "" {
			break
		}
		// Before, within and behind what was read: new ones, changed ones, gone ones.
		createConfigMaps(t, cs, "paged", fmt.Sprintf("new-%d", page), 0, 2)
		createConfigMaps(t, cs, "paged", fmt.Sprintf("a-new-%d", page), 0, 1)
		last, err := configMaps.Get(t.Context(), fmt.Sprintf("old-%03d", 29-page), metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		last.Labels = map[string]string{"changed": "yes"}
		if _, err := configMaps.Update(t.Context(), last, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := configMaps.Delete(t.Context(), fmt.Sprintf("old-%03d", 20-page), metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	var want []string
	for i := range 30 {
		want = append(want, fmt.Sprintf("old-%03d", i))
	}
	if !slices.Equal(names, want) {
		t.Errorf("pages: %v", names)
	}
}

// TestPagesAfterCompaction: a continue token of a compacted revision is refused with
// a new token that continues at the newest revision, as client-go's pager expects.
func TestPagesAfterCompaction(t *testing.T) {
	srv, s := alone(t)
	cs := srv.clientset(t, "")
	createConfigMaps(t, cs, "default", "c", 0, 20)
	list, err := cs.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{Limit: 5})
	if err != nil || list.Continue == "" {
		t.Fatal(err)
	}
	createConfigMaps(t, cs, "default", "d", 0, 3)
	cs = srv.compacted(t, s)
	_, err = cs.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{Limit: 5, Continue: list.Continue})
	var status apierrors.APIStatus
	if !apierrors.IsResourceExpired(err) || !errors.As(err, &status) || status.Status().Continue == "" {
		t.Fatalf("a token of a compacted revision: %v", err)
	}
	rest, err := cs.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{Continue: status.Status().Continue})
	if err != nil || len(rest.Items) != 15+3 {
		t.Errorf("going on: %v, %d objects", err, len(rest.Items))
	}
}

// compacted forgets the past: that of the store, and by a restart that of the
// server's caches, which would else still know it.
func (s *server) compacted(t *testing.T, kept store.Store) *kubernetes.Clientset {
	t.Helper()
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	at, err := kept.Revision(t.Context())
	if err == nil {
		err = kept.Compact(t.Context(), at)
	}
	if err != nil {
		t.Fatal(err)
	}
	again, err := start(kept)
	if err != nil {
		t.Fatal(err)
	}
	*s = *again
	return s.clientset(t, "")
}

// requests counts the requests of a reflector.
type requests struct {
	mu                      sync.Mutex
	lists, streams, watches int
}

func (r *requests) count(f func(*requests)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(r)
}

// TestWatchListInformer: an informer gets its first state as a stream, in one
// request without a list.
func TestWatchListInformer(t *testing.T) {
	srv, _ := alone(t)
	cs := srv.clientset(t, "")
	createConfigMaps(t, cs, "default", "w", 0, 25)
	r := &requests{}
	store, stop := reflect(t, cs, r)
	defer stop()
	eventually(t, "the informer is in sync", func() bool { return len(store.List()) == 25 })
	createConfigMaps(t, cs, "default", "x", 0, 1)
	eventually(t, "the informer follows", func() bool { return len(store.List()) == 26 })
	r.count(func(r *requests) {
		if r.lists != 0 || r.streams != 1 {
			t.Errorf("%d lists and %d streams, want one stream", r.lists, r.streams)
		}
	})
}

// TestRelistAfterCompaction: a reflector whose watch broke, and whose revision was
// compacted, gets 410 and lists again. The list also shows what was deleted
// meanwhile.
func TestRelistAfterCompaction(t *testing.T) {
	srv, s := alone(t)
	cs := srv.clientset(t, "")
	createConfigMaps(t, cs, "default", "r", 0, 3)
	version := func() string {
		list, err := cs.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return list.ResourceVersion
	}
	early := version()
	if err := cs.CoreV1().ConfigMaps("default").Delete(t.Context(), "r-000", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	createConfigMaps(t, cs, "default", "s", 0, 1)
	cs = srv.compacted(t, s)
	r := &requests{}
	var once sync.Once
	lw := listWatch(cs, r, func(o *metav1.ListOptions) {
		once.Do(func() { o.ResourceVersion, o.SendInitialEvents, o.ResourceVersionMatch = early, nil, "" })
	})
	w, err := lw.WatchFuncWithContext(t.Context(), metav1.ListOptions{})
	if err == nil {
		event, open := <-w.ResultChan()
		if !open || event.Type != watch.Error || !apierrors.IsResourceExpired(apierrors.FromObject(event.Object)) &&
			!apierrors.IsGone(apierrors.FromObject(event.Object)) {
			t.Errorf("a watch from what is compacted: open %v, %+v", open, event)
		}
		w.Stop()
	} else if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		t.Errorf("a watch from what is compacted: %v", err)
	}
	// The same with a reflector that resumes from that revision.
	once = sync.Once{}
	store, stop := reflectWith(t, lw)
	defer stop()
	eventually(t, "the reflector has the present state", func() bool {
		_, gone, _ := store.GetByKey("default/r-000")
		_, there, _ := store.GetByKey("default/s-000")
		return !gone && there && len(store.List()) == 3
	})
}

func listWatch(cs *kubernetes.Clientset, r *requests, change func(*metav1.ListOptions)) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			r.count(func(r *requests) { r.lists++ })
			return cs.CoreV1().ConfigMaps("default").List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			change(&o)
			r.count(func(r *requests) {
				if o.SendInitialEvents != nil && *o.SendInitialEvents {
					r.streams++
				} else {
					r.watches++
				}
			})
			return cs.CoreV1().ConfigMaps("default").Watch(ctx, o)
		},
	}
}

func reflect(t *testing.T, cs *kubernetes.Clientset, r *requests) (cache.Store, func()) {
	return reflectWith(t, listWatch(cs, r, func(*metav1.ListOptions) {}))
}

// reflectWith runs a reflector of client-go.
func reflectWith(t *testing.T, lw *cache.ListWatch) (cache.Store, func()) {
	t.Helper()
	store := cache.NewStore(cache.MetaNamespaceKeyFunc)
	reflector := cache.NewReflectorWithOptions(lw, &corev1.ConfigMap{}, store, cache.ReflectorOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		reflector.RunWithContext(ctx)
	}()
	return store, func() { cancel(); <-done }
}

// TestLeaderElection runs candidates of client-go on our Lease: there is one leader
// at a time; when it dies without a word another takes over after the lease, when
// it leaves it gives the lease back.
func TestLeaderElection(t *testing.T) {
	cs := shared.clientset(t, "")
	// Long compared with a request on a busy machine: a leader that cannot renew in
	// time steps down.
	const lease, renew, retry = 9 * time.Second, 6 * time.Second, 500 * time.Millisecond
	type term struct {
		who  string
		lead bool
	}
	terms := make(chan term, 16)
	candidate := func(name string, polite bool) (stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock: &resourcelock.LeaseLock{
				LeaseMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "election"}, Client: cs.CoordinationV1(),
				LockConfig: resourcelock.ResourceLockConfig{Identity: name},
			},
			LeaseDuration: lease, RenewDeadline: renew, RetryPeriod: retry, ReleaseOnCancel: polite, Name: "test",
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(context.Context) { terms <- term{name, true} },
				OnStoppedLeading: func() {},
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			elector.Run(ctx)
		}()
		return func() { cancel(); <-done }
	}
	next := func() string {
		t.Helper()
		select {
		case got := <-terms:
			return got.who
		case <-time.After(2 * time.Minute):
			t.Fatal("there is no leader")
			return ""
		}
	}
	stopA := candidate("a", false)
	if who := next(); who != "a" {
		t.Fatalf("%s leads", who)
	}
	stopB := candidate("b", true)
	holder := func() string {
		l, err := cs.CoordinationV1().Leases("kube-system").Get(t.Context(), "election", metav1.GetOptions{})
		if err != nil || l.Spec.HolderIdentity == nil {
			t.Fatalf("lease: %v", err)
		}
		return *l.Spec.HolderIdentity
	}
	if who := holder(); who != "a" {
		t.Errorf("%s holds the lease", who)
	}
	died := time.Now()
	stopA()
	if who := next(); who != "b" || holder() != "b" {
		t.Errorf("%s leads after a died", who)
	}
	// It renewed its lease at most so long before it died.
	if took := time.Since(died); took < lease-renew {
		t.Errorf("taken over after %s, before the lease had run out", took)
	}
	stopB() // releases the lease
	if who := holder(); who != "" {
		t.Errorf("%s holds the lease after b left", who)
	}
	stopC := candidate("c", true)
	if who := next(); who != "c" {
		t.Errorf("%s leads after b left", who)
	}
	stopC()
	l, err := cs.CoordinationV1().Leases("kube-system").Get(t.Context(), "election", metav1.GetOptions{})
	if err != nil || l.Spec.LeaseTransitions == nil || *l.Spec.LeaseTransitions < 2 {
		t.Errorf("lease: %v %+v", err, l.Spec)
	}
}
