package kvstorage_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"

	"github.com/proxima-mesh/proxima/internal/apiserver/kvstorage"
	"github.com/proxima-mesh/proxima/internal/store"
)

// strategy lets every pod pass.
type strategy struct {
	runtime.ObjectTyper
	names.NameGenerator
}

func (strategy) NamespaceScoped() bool                                                 { return true }
func (strategy) AllowCreateOnUpdate(context.Context) bool                              { return false }
func (strategy) AllowUnconditionalUpdate(context.Context) bool                         { return true }
func (strategy) Canonicalize(runtime.Object)                                           {}
func (strategy) PrepareForCreate(context.Context, runtime.Object)                      {}
func (strategy) PrepareForUpdate(_ context.Context, _, _ runtime.Object)               {}
func (strategy) Validate(context.Context, runtime.Object) field.ErrorList              { return nil }
func (strategy) ValidateUpdate(_ context.Context, _, _ runtime.Object) field.ErrorList { return nil }
func (strategy) WarningsOnCreate(context.Context, runtime.Object) []string             { return nil }
func (strategy) WarningsOnUpdate(_ context.Context, _, _ runtime.Object) []string      { return nil }

// newRegistry is a registry as internal/apiserver builds them.
func newRegistry(t testing.TB, s store.Store, uncached bool) (context.Context, *genericregistry.Store) {
	t.Helper()
	opts, err := kvstorage.NewRESTOptions(context.Background(), kvstorage.RESTConfig{
		Store:    s,
		Codec:    func(schema.GroupResource) (runtime.Codec, error) { return protoCodec(), nil },
		Uncached: func(schema.GroupResource) bool { return uncached },
	})
	if err != nil {
		t.Fatal(err)
	}
	pass := strategy{newScheme(), names.SimpleNameGenerator}
	registry := &genericregistry.Store{
		NewFunc: newPod, NewListFunc: newPodList,
		DefaultQualifiedResource: pods, SingularQualifiedResource: schema.GroupResource{Resource: "pod"},
		CreateStrategy: pass, UpdateStrategy: pass, DeleteStrategy: pass,
		TableConvertor: rest.NewDefaultTableConvertor(pods),
	}
	if err := registry.CompleteWithOptions(&generic.StoreOptions{RESTOptions: opts, AttrFunc: podAttrs}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(registry.Destroy)
	if !uncached {
		deadline, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for registry.ReadinessCheckFunc() != nil && deadline.Err() == nil {
			time.Sleep(time.Millisecond) // upstream's cache has no other signal
		}
	}
	return genericapirequest.WithNamespace(t.Context(), "ns"), registry
}

func TestRegistry(t *testing.T) {
	for backend, open := range backends {
		for _, uncached := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/uncached=%v", backend, uncached), func(t *testing.T) {
				t.Parallel()
				s := open(t)
				ctx, registry := newRegistry(t, s, uncached)
				ctx, stop := context.WithCancel(ctx)
				defer stop()
				_, start := keys(t, s, "/")
				w, err := registry.Watch(ctx, &metainternalversion.ListOptions{ResourceVersion: fmt.Sprint(start)})
				if err != nil {
					t.Fatal(err)
				}
				defer w.Stop()

				companioned, set := kvstorage.WithCompanions(ctx)
				set.Put(addressKey, []byte("a"), kvstorage.IfAbsent())
				if _, err := registry.Create(companioned, pod("a"), rest.ValidateAllObjectFunc, &metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
				set.Put(addressKey, []byte("b"), kvstorage.IfAbsent())
				_, err = registry.Create(companioned, pod("b"), rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
				if !apierrors.IsConflict(err) {
					t.Fatalf("a taken address: error %v, want a conflict", err)
				}
				// Another resource changes; the list must be consistent all the same.
				if _, err := s.Commit(ctx, store.Txn{Ops: []store.Op{{Kind: store.Put, Key: "/elsewhere"}}}); err != nil {
					t.Fatal(err)
				}
				list, err := registry.List(ctx, &metainternalversion.ListOptions{})
				if err != nil {
					t.Fatal(err)
				}
				rev, err := s.Revision(ctx)
				if err != nil {
					t.Fatal(err)
				}
				if got := list.(*example.PodList); len(got.Items) != 1 || got.ResourceVersion != fmt.Sprint(rev) {
					t.Errorf("%d pods at %s, want 1 at %d", len(got.Items), got.ResourceVersion, rev)
				}
				if _, _, err := registry.Delete(ctx, "a", rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}); err != nil {
					t.Fatal(err)
				}
				got := []watch.EventType{next(t, w).Type, next(t, w).Type}
				if diff := cmp.Diff([]watch.EventType{watch.Added, watch.Deleted}, got); diff != "" {
					t.Errorf("events (-want +got):\n%s", diff)
				}
				if ok, _ := keys(t, s, "/registry/pods/"); len(ok) != 0 {
					t.Errorf("left in the store: %q", ok)
				}
			})
		}
	}
}

func keys(t *testing.T, s store.Store, prefix string) ([]string, store.Revision) {
	t.Helper()
	page, err := s.List(context.Background(), store.ListOptions{Prefix: prefix, KeysOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, rec := range page.Records {
		names = append(names, rec.Key)
	}
	return names, page.Revision
}

func TestPrime(t *testing.T) {
	s := backends["memory"](t)
	for range 2 {
		if err := kvstorage.Prime(context.Background(), s); err != nil {
			t.Fatal(err)
		}
		if _, at := keys(t, s, "/"); at != 1 {
			t.Errorf("primed store is at %d, want 1", at)
		}
	}
}

func TestConfigIsChecked(t *testing.T) {
	good := kvstorage.Config{Store: backends["memory"](t), Codec: jsonCodec(), NewFunc: newPod, ResourcePrefix: "/pods", GroupResource: pods}
	if _, err := kvstorage.New(good); err != nil {
		t.Fatal(err)
	}
	for name, tamper := range map[string]func(*kvstorage.Config){
		"no store":        func(c *kvstorage.Config) { c.Store = nil },
		"no codec":        func(c *kvstorage.Config) { c.Codec = nil },
		"no new function": func(c *kvstorage.Config) { c.NewFunc = nil },
		"no prefix":       func(c *kvstorage.Config) { c.ResourcePrefix = "" },
		"root prefix":     func(c *kvstorage.Config) { c.ResourcePrefix = "//" },
		"relative prefix": func(c *kvstorage.Config) { c.ResourcePrefix = "pods" },
	} {
		bad := good
		tamper(&bad)
		if _, err := kvstorage.New(bad); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// BenchmarkConsistentList is a list from the watch cache just after a change of
// another resource, for which the cache must first wait.
func BenchmarkConsistentList(b *testing.B) {
	s := backends["memory"](b)
	ctx, registry := newRegistry(b, s, false)
	for range 100 {
		p := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", GenerateName: "p-"}}
		if _, err := registry.Create(ctx, p, rest.ValidateAllObjectFunc, &metav1.CreateOptions{}); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		if _, err := s.Commit(ctx, store.Txn{Ops: []store.Op{{Kind: store.Put, Key: "/elsewhere"}}}); err != nil {
			b.Fatal(err)
		}
		if _, err := registry.List(ctx, &metainternalversion.ListOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkUpdate is one GuaranteedUpdate of the bare storage on memory.
func BenchmarkUpdate(b *testing.B) {
	s := backends["memory"](b)
	bare, err := kvstorage.New(kvstorage.Config{Store: s, Codec: protoCodec(), NewFunc: newPod, ResourcePrefix: "/pods", GroupResource: pods})
	if err != nil {
		b.Fatal(err)
	}
	ctx := context.Background()
	if err := bare.Create(ctx, podKey("a"), pod("a"), nil, 0); err != nil {
		b.Fatal(err)
	}
	n := 0
	for b.Loop() {
		n++
		if err := bare.GuaranteedUpdate(ctx, podKey("a"), &example.Pod{}, false, nil, label(func() {}, fmt.Sprint(n)), nil); err != nil {
			b.Fatal(err)
		}
	}
}
