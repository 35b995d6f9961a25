package registry

import (
	"errors"
	"maps"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func copied(in *Instance, from string) *Instance {
	out := *in
	out.Metadata = maps.Clone(in.Metadata)
	out.Metadata[KeyMirroredFrom] = from
	return &out
}

// origin of the one instance that there is: "-" for the instance itself, empty for none.
func (r *rig) origin() string {
	r.t.Helper()
	list := r.index.Registered(Service{Namespace: "shop", Name: "orders"})
	switch len(list) {
	case 0:
		return ""
	case 1:
		if from := list[0].MirroredFrom(); from != "" {
			return from
		}
		return "-"
	}
	r.t.Fatalf("%d instances", len(list))
	return ""
}

// watchEmpty counts how often the service has no instance.
func (r *rig) watchEmpty() (empty func() int) {
	var n atomic.Int32
	f := r.index.Follow(Service{Namespace: "shop", Name: "orders"}, "", func() {
		// The index calls with its lock held, so what changed is read later.
		go func() {
			if len(r.index.Listing(Service{Namespace: "shop", Name: "orders"}, "").Instances) == 0 {
				n.Add(1)
			}
		}()
	})
	r.t.Cleanup(f.Close)
	return func() int { synctest.Wait(); return int(n.Load()) }
}

func TestCopyGivesWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer func() { r.stop() }()
		mirror, client := r.open(Nacos, User{Name: "mirror"}, 0), r.open(Nacos, User{Name: "orders"}, 0)
		r.register(mirror, copied(orders(80), "nacos://old"))
		if got := r.origin(); got != "nacos://old" {
			t.Fatalf("origin %q", got)
		}
		if c := r.dataplanes()[0].Status.Conditions[0]; c.Message != "imported from nacos://old" {
			t.Errorf("condition %q", c.Message)
		}
		if l := r.dataplanes()[0].Labels[LabelMirrored]; l != "true" || r.index.Imported(Nacos)["nacos://old"] != 1 {
			t.Errorf("label %q, imported %v", l, r.index.Imported(Nacos))
		}
		empty := r.watchEmpty()

		// The instance itself comes, as another user, and takes the place of the copy.
		r.register(client, orders(80))
		if got := r.origin(); got != "-" {
			t.Fatalf("the instance itself is %q", got)
		}
		if l, ok := r.dataplanes()[0].Labels[LabelMirrored]; ok || len(r.index.Imported(Nacos)) != 0 {
			t.Errorf("label %q, imported %v", l, r.index.Imported(Nacos))
		}
		// The mirror says again what it has said.
		if err := mirror.Register(t.Context(), copied(orders(80), "nacos://old")); !errors.Is(err, ErrOriginal) {
			t.Errorf("a copy over the instance itself: %v", err)
		}
		synctest.Wait()
		if got := r.origin(); got != "-" {
			t.Fatalf("after the copy was offered it is %q", got)
		}
		// It goes back: the copy takes its place without a moment in which there is none.
		client.Close(6 * time.Second)
		r.wait(10 * time.Second)
		if got := r.origin(); got != "nacos://old" {
			t.Fatalf("after the client has gone it is %q", got)
		}
		client = r.open(Nacos, User{Name: "orders"}, 0)
		r.register(client, orders(80))
		if err := client.Deregister(t.Context(), orders(80).Key()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := r.origin(); got != "nacos://old" {
			t.Fatalf("after the client has deregistered it is %q", got)
		}
		r.register(client, orders(80))
		if n := empty(); n != 0 {
			t.Errorf("%d times there was no instance", n)
		}

		// The mirror takes its copy back: the instance itself stays.
		if err := mirror.Deregister(t.Context(), orders(80).Key()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := r.origin(); got != "-" {
			t.Errorf("after the copy was withdrawn it is %q", got)
		}
		mirror.Close(0)
		client.Close(0)
		r.wait(time.Second)
		if got := r.origin(); got != "" {
			t.Errorf("after all have gone it is %q", got)
		}
	})
}

func TestCopyOfTwoMirrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer func() { r.stop() }()
		a, b := r.open(Nacos, User{Name: "a"}, 0), r.open(Nacos, User{Name: "b"}, 0)
		r.register(a, copied(orders(80), "nacos://old"))
		r.register(b, copied(orders(80), "nacos://old"))
		empty := r.watchEmpty()
		b.Close(0)
		r.wait(time.Second)
		if got := r.origin(); got != "nacos://old" {
			t.Fatalf("after one of two has gone it is %q", got)
		}
		b = r.open(Nacos, User{Name: "b"}, 0)
		r.register(b, copied(orders(80), "nacos://old"))
		if err := b.Deregister(t.Context(), orders(80).Key()); err != nil {
			t.Fatal(err)
		}
		r.wait(time.Second)
		if got, n := r.origin(), empty(); got != "nacos://old" || n != 0 {
			t.Fatalf("after one of two has withdrawn it is %q, %d times nothing", got, n)
		}
		a.Close(0)
		r.wait(time.Second)
		if got := r.origin(); got != "" {
			t.Errorf("after both have gone it is %q", got)
		}
		b.Close(0)
		if len(r.registrar.offers) != 0 {
			t.Errorf("offers are left: %v", r.registrar.offers)
		}
	})
}

// A client that lost its session, and a copy that is offered meanwhile, after a restart.
func TestCopyAfterRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer func() { r.stop() }()
		r.register(r.open(Nacos, User{Name: "orders"}, 0), orders(80))
		r.stop()
		r.start("cp-1")
		empty := r.watchEmpty()
		mirror := r.open(Nacos, User{Name: "mirror"}, 0)
		if err := mirror.Register(t.Context(), copied(orders(80), "nacos://old")); !errors.Is(err, ErrOriginal) {
			t.Fatalf("a copy over what is left of the instance itself: %v", err)
		}
		r.wait(2 * time.Minute)
		if got, n := r.origin(), empty(); got != "nacos://old" || n != 0 {
			t.Errorf("after the grace it is %q, %d times nothing", got, n)
		}
		mirror.Close(0)
		r.wait(time.Second)
		if got := r.origin(); got != "" {
			t.Errorf("after the mirror has gone it is %q", got)
		}
	})
}
