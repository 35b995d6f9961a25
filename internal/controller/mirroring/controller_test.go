package mirroring

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

var db = resource.Key{Namespace: "ns", Name: "db"}

// rig is a controller at work on a client that has the rules of EndpointSlices,
// inside a bubble of fake time.
type rig struct {
	t      *testing.T
	client *resourcetest.Client
	writes atomic.Int32 // of slices that were attempted
}

func newRig(t *testing.T, objects ...resource.Object) *rig {
	r := &rig{t: t, client: resourcetest.New(append(resourcetest.Descriptors(), kind.EndpointSlice, kind.Event)...)}
	r.client.Seed(objects...)
	r.client.Intercept(func(call resourcetest.Call) error {
		if call.Kind.Kind == "EndpointSlice" && call.Verb != resourcetest.List && call.Verb != resourcetest.Watch {
			r.writes.Add(1)
		}
		return nil
	})
	cat := catalog.New(catalog.Config{Client: r.client, Descriptors: resourcetest.Descriptors()})
	controller := New(Config{Client: r.client, Catalog: cat, Slices: kind.EndpointSlice, MaxAddresses: 100})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{}, 2)
	go func() { _ = cat.Run(ctx); done <- struct{}{} }()
	go func() { _ = controller.Run(ctx); done <- struct{}{} }()
	t.Cleanup(func() { cancel(); <-done; <-done })
	synctest.Wait()
	return r
}

func list[T resource.Object](r *rig, d *resource.Descriptor) []T {
	r.t.Helper()
	synctest.Wait()
	objects, _, err := r.client.List(r.t.Context(), d, resource.ListOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	var out []T
	for _, o := range objects {
		out = append(out, o.(T))
	}
	return out
}

func (r *rig) slices() []*discoveryv1.EndpointSlice {
	return byName(list[*discoveryv1.EndpointSlice](r, kind.EndpointSlice))
}

func (r *rig) delete(d *resource.Descriptor, key resource.Key) {
	r.t.Helper()
	if err := r.client.Delete(r.t.Context(), d, key, resource.Preconditions{}); err != nil {
		r.t.Fatal(err)
	}
}

func settle() { time.Sleep(time.Second); synctest.Wait() }

func TestControllerFollowsEveryChangeAtOnce(t *testing.T) {
	one := []string{"IPv4 sql:5432/TCP 10.0.0.1"}
	steps := []struct {
		name   string
		change func(r *rig)
		want   []string
	}{
		{"Endpoints without a Service", func(r *rig) { r.client.Seed(dbEndpoints()) }, nil},
		{"a Service with a selector", func(r *rig) { r.client.Seed(dbService(selects)) }, nil},
		{"the selector goes", func(r *rig) { r.client.Seed(dbService()) }, one},
		{"an address comes", func(r *rig) {
			r.client.Seed(dbEndpoints(func(e *corev1.Endpoints) { e.Subsets[0].Addresses = ips("10.0.0.1", "10.0.0.2") }))
		}, []string{"IPv4 sql:5432/TCP 10.0.0.1 10.0.0.2"}},
		{"and goes", func(r *rig) { r.client.Seed(dbEndpoints()) }, one},
		{"a user opts out", func(r *rig) { r.client.Seed(dbEndpoints(label(discoveryv1.LabelSkipMirror, "true"))) }, nil},
		{"and in", func(r *rig) { r.client.Seed(dbEndpoints()) }, one},
		{"a leader is elected", func(r *rig) { r.client.Seed(dbEndpoints(annotate("control-plane.alpha.kubernetes.io/leader", "x"))) }, nil},
		{"and no more", func(r *rig) { r.client.Seed(dbEndpoints()) }, one},
		{"a selector comes", func(r *rig) { r.client.Seed(dbService(selects)) }, nil},
		{"and goes", func(r *rig) { r.client.Seed(dbService()) }, one},
		{"a slice is deleted", func(r *rig) { r.delete(kind.EndpointSlice, resource.KeyOf(r.slices()[0])) }, one},
		{"a slice is edited", func(r *rig) {
			s := r.slices()[0]
			s.Endpoints = nil
			r.client.Seed(s)
		}, one},
		{"the Service goes", func(r *rig) { r.delete(kind.Service, db) }, nil},
		{"and comes", func(r *rig) { r.client.Seed(dbService()) }, one},
		{"the Endpoints go", func(r *rig) { r.delete(kind.Endpoints, db) }, nil},
		{"and come as others", func(r *rig) { r.client.Seed(dbEndpoints(func(e *corev1.Endpoints) { e.UID = "ep-2" })) }, one},
	}
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		for _, s := range steps {
			settle()
			s.change(r)
			before := time.Now()
			if diff := cmp.Diff(s.want, show(r.slices())); diff != "" {
				t.Fatalf("after %q: %s", s.name, diff)
			}
			if waited := time.Since(before); waited != 0 {
				t.Errorf("%s: written after %v, want at once", s.name, waited)
			}
		}
		settle()
		before := r.writes.Load()
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := r.writes.Load() - before; n != 0 {
			t.Errorf("%d writes although nothing changed", n)
		}
	})
}

func TestControllerLeavesOthersAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		other := Reconcile(Input{Endpoints: dbEndpoints(), Service: dbService()}).Create[0]
		other.Name, other.Labels[discoveryv1.LabelManagedBy] = "db-other", "me"
		r := newRig(t, other, dbService(), dbEndpoints())
		if n := len(r.slices()); n != 2 {
			t.Errorf("%d slices, want theirs and ours", n)
		}
		settle()
		r.delete(kind.Endpoints, db)
		if all := r.slices(); len(all) != 1 || all[0].Name != "db-other" {
			t.Errorf("left: %v", show(all))
		}
	})
}

func TestControllerDoesNotFollowLeaderElections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lock := func(i int) *corev1.Endpoints {
			return dbEndpoints(annotate("control-plane.alpha.kubernetes.io/leader", fmt.Sprint(i)))
		}
		r := newRig(t, lock(0), dbService())
		for i := range 20 {
			r.client.Seed(lock(i))
			settle()
		}
		if n := r.writes.Load(); n != 0 {
			t.Errorf("%d writes", n)
		}
	})
}

func TestControllerCoalescesBursts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, dbService(), dbEndpoints())
		settle()
		before := r.writes.Load()
		for i := range 60 {
			r.client.Seed(dbEndpoints(func(e *corev1.Endpoints) { e.Subsets[0].Addresses = many(i + 1) }))
			time.Sleep(10 * time.Millisecond)
		}
		settle()
		if n := r.writes.Load() - before; n > 9 {
			t.Errorf("%d writes for 60 changes in 600 ms, want at most 9", n)
		}
		if n := len(r.slices()[0].Endpoints); n != 60 {
			t.Errorf("%d endpoints", n)
		}
	})
}

func TestControllerWarnsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tooMany := func(n int) *corev1.Endpoints {
			return dbEndpoints(func(e *corev1.Endpoints) { e.Subsets[0].Addresses = many(n) })
		}
		r := newRig(t, dbService(), tooMany(101))
		messages := func() []string {
			var out []string
			for _, e := range list[*corev1.Event](r, kind.Event) {
				out = append(out, e.Type+" "+e.Reason+" "+e.InvolvedObject.Kind+"/"+e.InvolvedObject.Name+" "+e.Message)
			}
			return out
		}
		want := []string{
			"Warning TooManyAddressesToMirror Endpoints/db A max of 100 addresses can be mirrored to EndpointSlices per Endpoints subset. 1 addresses were skipped",
		}
		for i := range 3 { // syncs without news
			if diff := cmp.Diff(want, messages()); diff != "" {
				t.Fatal(diff)
			}
			settle()
			again := tooMany(101)
			again.Labels = map[string]string{"round": fmt.Sprint(i)}
			r.client.Seed(again)
		}
		settle()
		r.client.Seed(tooMany(103))
		if n := len(messages()); n != 2 {
			t.Errorf("%d events after it got worse, want 2", n)
		}
	})
}
