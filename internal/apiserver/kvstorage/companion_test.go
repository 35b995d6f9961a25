package kvstorage_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/proxima-mesh/proxima/internal/apiserver/kvstorage"
	"github.com/proxima-mesh/proxima/internal/store"
)

const addressKey = "/addresses/10.0.0.1"

func pod(name string) *example.Pod {
	return &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
}

func podKey(name string) string { return "/pods/ns/" + name }

// mustCreate makes a pod and returns it as stored.
func mustCreate(t *testing.T, b *bed, name string) *example.Pod {
	t.Helper()
	out := &example.Pod{}
	if err := b.Create(b.ctx, podKey(name), pod(name), out, 0); err != nil {
		t.Fatal(err)
	}
	return out
}

// label is an update that changes the object.
func label(before func(), value string) storage.UpdateFunc {
	return func(in runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) {
		before()
		p := in.(*example.Pod).DeepCopy()
		p.Labels = map[string]string{"l": value}
		return p, nil, nil
	}
}

func (b *bed) value(t *testing.T, key string) string {
	t.Helper()
	rec, ok, _, err := b.store.Get(b.ctx, key, 0)
	if err != nil {
		t.Fatal(err)
	}
	if !ok {
		return ""
	}
	return string(rec.Value)
}

func (b *bed) revision(t *testing.T) store.Revision {
	t.Helper()
	rev, err := b.store.Revision(b.ctx)
	if err != nil {
		t.Fatal(err)
	}
	return rev
}

// bothWays runs a test on the bare storage and through the watch cache, on every
// store.
func bothWays(t *testing.T, run func(*testing.T, *bed)) {
	for backend, open := range backends {
		for _, cached := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/cached=%v", backend, cached), func(t *testing.T) {
				t.Parallel()
				run(t, newBed(t, open, bedOptions{cached: cached}))
			})
		}
	}
}

func TestCompanionsRideWithEveryWrite(t *testing.T) {
	bothWays(t, func(t *testing.T, b *bed) {
		start := b.revision(t)
		watcher, err := b.store.Watch(b.ctx, "/", start)
		if err != nil {
			t.Fatal(err)
		}
		defer watcher.Close()
		// one checks that one transaction with two changes happened, and returns
		// the object's resource version as it must be.
		one := func(object string, set *kvstorage.Companions) string {
			t.Helper()
			select {
			case batch := <-watcher.Batches():
				if len(batch.Events) != 2 || batch.Events[0].Record.Key != addressKey || !strings.HasSuffix(batch.Events[1].Record.Key, object) {
					t.Fatalf("%s: batch %+v, want the companion and then the object", object, batch)
				}
				if set.Len() != 0 {
					t.Errorf("%s: %d companions left after the commit", object, set.Len())
				}
				return fmt.Sprint(batch.Events[1].Record.Modified)
			case <-time.After(time.Minute):
				t.Fatalf("%s: no batch", object)
				return ""
			}
		}

		ctx, set := kvstorage.WithCompanions(b.ctx)
		set.Put(addressKey, []byte("a"), kvstorage.IfAbsent())
		created := &example.Pod{}
		if err := b.Create(ctx, podKey("a"), pod("a"), created, 0); err != nil {
			t.Fatal(err)
		}
		if want := one(podKey("a"), set); created.ResourceVersion != want {
			t.Errorf("created at %s, want %s", created.ResourceVersion, want)
		}

		updated := &example.Pod{}
		err = b.GuaranteedUpdate(ctx, podKey("a"), updated, false, nil, label(func() {
			set.Reset()
			set.Put(addressKey, []byte("b"), kvstorage.IfAt(start+1))
		}, "x"), nil)
		if err != nil {
			t.Fatal(err)
		}
		if want := one(podKey("a"), set); updated.ResourceVersion != want || b.value(t, addressKey) != "b" {
			t.Errorf("updated at %s with address %q, want %s and b", updated.ResourceVersion, b.value(t, addressKey), want)
		}

		deleted := &example.Pod{}
		err = b.Delete(ctx, podKey("a"), deleted, nil, func(context.Context, runtime.Object) error {
			set.Reset()
			set.Delete(addressKey, kvstorage.Always())
			return nil
		}, nil, storage.DeleteOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if want := one(podKey("a"), set); deleted.ResourceVersion != want || b.value(t, addressKey) != "" {
			t.Errorf("deleted at %s with address %q, want %s and none", deleted.ResourceVersion, b.value(t, addressKey), want)
		}
	})
}

func TestCompanionConflictChangesNothing(t *testing.T) {
	bothWays(t, func(t *testing.T, b *bed) {
		mustCreate(t, b, "old")
		ctx, set := kvstorage.WithCompanions(b.ctx)
		set.Put(addressKey, []byte("first"), kvstorage.IfAbsent())
		if err := b.Create(ctx, podKey("first"), pod("first"), nil, 0); err != nil {
			t.Fatal(err)
		}
		before := b.revision(t)
		claim := func() {
			set.Reset()
			set.Put("/addresses/10.0.0.2", []byte("x"), kvstorage.IfAbsent())
			set.Put(addressKey, []byte("x"), kvstorage.IfAbsent())
		}
		writes := map[string]func() error{
			"create": func() error { claim(); return b.Create(ctx, podKey("second"), pod("second"), nil, 0) },
			"update": func() error {
				return b.GuaranteedUpdate(ctx, podKey("old"), &example.Pod{}, false, nil, label(claim, "x"), nil)
			},
			"delete": func() error {
				claim()
				return b.Delete(ctx, podKey("old"), &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{})
			},
		}
		for name, write := range writes {
			err := write()
			var conflict *kvstorage.CompanionConflictError
			if !errors.As(err, &conflict) || conflict.Key != addressKey || conflict.Current == nil {
				t.Fatalf("%s: error %v, want a conflict on %s with its state", name, err, addressKey)
			}
			var status apierrors.APIStatus
			if !errors.As(err, &status) || status.Status().Code != http.StatusConflict {
				t.Errorf("%s: error %v, want it to show as 409", name, err)
			}
			if now := b.revision(t); now != before {
				t.Errorf("%s: the store went from %d to %d", name, before, now)
			}
			if set.Len() != 2 {
				t.Errorf("%s: %d companions kept, want 2", name, set.Len())
			}
		}
		// The caller picks another address.
		set.Reset()
		set.Put("/addresses/10.0.0.3", []byte("second"), kvstorage.IfAbsent())
		if err := b.Create(ctx, podKey("second"), pod("second"), nil, 0); err != nil {
			t.Fatal(err)
		}
	})
}

// TestOwnConflictComesFirst: a companion that was set up on outdated grounds must
// lead to a retry, not to a companion conflict.
func TestOwnConflictComesFirst(t *testing.T) {
	bothWays(t, func(t *testing.T, b *bed) {
		old := mustCreate(t, b, "a")
		ctx, set := kvstorage.WithCompanions(b.ctx)
		attempts := 0
		err := b.GuaranteedUpdate(ctx, podKey("a"), &example.Pod{}, false, nil, label(func() {
			attempts++
			set.Reset()
			if attempts > 1 {
				set.Put(addressKey, []byte("second try"), kvstorage.IfAbsent())
				return
			}
			set.Put("/addresses/first-try", []byte("x"), kvstorage.IfAbsent())
			set.Put("/addresses/doomed", []byte("x"), kvstorage.IfAt(1<<40))
			if err := b.GuaranteedUpdate(b.ctx, podKey("a"), &example.Pod{}, false, nil, label(func() {}, "faster"), nil); err != nil {
				t.Fatal(err)
			}
		}, "slower"), old)
		if err != nil {
			t.Fatal(err)
		}
		if got := []string{b.value(t, addressKey), b.value(t, "/addresses/first-try")}; attempts != 2 ||
			!cmp.Equal(got, []string{"second try", ""}) {
			t.Errorf("%d attempts left %q, want 2 and the companions of the second only", attempts, got)
		}
	})
}

func TestCompanionsOfAnUnchangedObject(t *testing.T) {
	bothWays(t, func(t *testing.T, b *bed) {
		old := mustCreate(t, b, "a")
		ctx, set := kvstorage.WithCompanions(b.ctx)
		same := func(in runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) { return in, nil, nil }

		before := b.revision(t)
		if err := b.GuaranteedUpdate(ctx, podKey("a"), &example.Pod{}, false, nil, same, nil); err != nil {
			t.Fatal(err)
		}
		if now := b.revision(t); now != before {
			t.Errorf("an update without change took the store from %d to %d", before, now)
		}
		set.Put(addressKey, []byte("x"), kvstorage.IfAbsent())
		out := &example.Pod{}
		if err := b.GuaranteedUpdate(ctx, podKey("a"), out, false, nil, same, nil); err != nil {
			t.Fatal(err)
		}
		if b.value(t, addressKey) != "x" || out.ResourceVersion != old.ResourceVersion || set.Len() != 0 {
			t.Errorf("address %q, object at %s, %d left; want x, %s, 0", b.value(t, addressKey), out.ResourceVersion, set.Len(), old.ResourceVersion)
		}
	})
}

func TestCompanionsOfOtherKindsWait(t *testing.T) {
	b := newBed(t, backends["memory"], bedOptions{})
	ctx, set := kvstorage.WithCompanions(b.ctx, kvstorage.OnDelete)
	set.Delete(addressKey, kvstorage.IfAbsent())
	set.Put("/released", []byte("x"), kvstorage.Always())
	if err := b.Create(ctx, podKey("a"), pod("a"), nil, 0); err != nil {
		t.Fatal(err)
	}
	if err := b.GuaranteedUpdate(ctx, podKey("a"), &example.Pod{}, false, nil, label(func() {}, "x"), nil); err != nil {
		t.Fatal(err)
	}
	if set.Len() != 2 || b.value(t, "/released") != "" {
		t.Fatalf("%d companions left and %q written before the deletion", set.Len(), b.value(t, "/released"))
	}
	if err := b.Delete(ctx, podKey("a"), &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if set.Len() != 0 || b.value(t, "/released") != "x" {
		t.Errorf("%d companions left and %q written by the deletion", set.Len(), b.value(t, "/released"))
	}
}

func TestObjectIsNotItsOwnCompanion(t *testing.T) {
	b := newBed(t, backends["memory"], bedOptions{})
	ctx, set := kvstorage.WithCompanions(b.ctx)
	set.Put(podKey("a"), []byte("x"), kvstorage.Always())
	if err := b.Create(ctx, podKey("a"), pod("a"), nil, 0); !storage.IsInternalError(err) {
		t.Errorf("error %v, want an internal one", err)
	}
}

// TestRaceForAddresses: many creators, few addresses, no duplicates.
func TestRaceForAddresses(t *testing.T) {
	bothWays(t, func(t *testing.T, b *bed) {
		const creators, addresses = 12, 7
		var wg sync.WaitGroup
		for i := range creators {
			wg.Go(func() {
				name := fmt.Sprintf("pod-%d", i)
				ctx, set := kvstorage.WithCompanions(b.ctx)
				for a := range addresses {
					set.Reset()
					set.Put(fmt.Sprintf("/addresses/%d", a), []byte(name), kvstorage.IfAbsent())
					p := pod(name)
					p.Spec.Hostname = fmt.Sprint(a)
					err := b.Create(ctx, podKey(name), p, nil, 0)
					var taken *kvstorage.CompanionConflictError
					if err == nil {
						return
					}
					if !errors.As(err, &taken) {
						t.Errorf("%s: %v", name, err)
						return
					}
				}
			})
		}
		wg.Wait()
		list := &example.PodList{}
		if err := b.GetList(b.ctx, "/pods", storage.ListOptions{Recursive: true, Predicate: storage.Everything}, list); err != nil {
			t.Fatal(err)
		}
		for _, p := range list.Items {
			if owner := b.value(t, "/addresses/"+p.Spec.Hostname); owner != p.Name {
				t.Errorf("%s has address %s, which belongs to %q", p.Name, p.Spec.Hostname, owner)
			}
		}
		if len(list.Items) != addresses {
			t.Errorf("%d pods have an address, want %d", len(list.Items), addresses)
		}
	})
}

func TestResourceAsCompanion(t *testing.T) {
	b := newBed(t, backends["memory"], bedOptions{})
	opts, err := kvstorage.NewRESTOptions(b.ctx, kvstorage.RESTConfig{
		Store: b.store,
		Codec: func(schema.GroupResource) (runtime.Codec, error) { return jsonCodec(), nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	addresses, err := opts.Resource(schema.GroupResource{Group: "net", Resource: "addresses"})
	if err != nil {
		t.Fatal(err)
	}
	owner := &example.Pod{ObjectMeta: metav1.ObjectMeta{Name: "10.0.0.1", ResourceVersion: "7"}}
	ctx, set := kvstorage.WithCompanions(b.ctx)
	if err := set.PutObject(ctx, addresses, owner, kvstorage.IfAbsent()); err == nil || !strings.Contains(err.Error(), "no uid") {
		t.Errorf("an object without uid: error %v", err)
	}
	owner.UID = "u"
	if err := set.PutObject(ctx, addresses, owner, kvstorage.IfAbsent()); err == nil ||
		!strings.Contains(err.Error(), "no creationTimestamp") {
		t.Errorf("an object without creationTimestamp: error %v", err)
	}
	owner.CreationTimestamp = metav1.Unix(1, 0)
	if err := set.PutObject(ctx, addresses, owner, kvstorage.IfAbsent()); err != nil {
		t.Fatal(err)
	}
	if owner.ResourceVersion != "7" {
		t.Error("encoding changed the object")
	}
	if err := b.Create(ctx, podKey("a"), pod("a"), nil, 0); err != nil {
		t.Fatal(err)
	}
	key, err := addresses.KeyFor("", "10.0.0.1")
	if err != nil || key != "/registry/net/addresses/10.0.0.1" {
		t.Fatalf("key %q, error %v", key, err)
	}
	rec, ok, _, err := b.store.Get(b.ctx, key, 0)
	if err != nil || !ok {
		t.Fatalf("companion: found %v, error %v", ok, err)
	}
	got := &example.Pod{}
	if err := addresses.Decode(b.ctx, rec, got); err != nil {
		t.Fatal(err)
	}
	if got.Name != "10.0.0.1" || got.UID != "u" || got.ResourceVersion != fmt.Sprint(rec.Modified) {
		t.Errorf("read back %s, uid %s, at %s", got.Name, got.UID, got.ResourceVersion)
	}
	for _, bad := range []string{"", ".", "..", "a/b", "a%b"} {
		if key, err := addresses.KeyFor("ns", bad); err == nil {
			t.Errorf("name %q makes key %q, want an error", bad, key)
		}
	}
}
