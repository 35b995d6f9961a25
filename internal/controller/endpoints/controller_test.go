package endpoints

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/loop"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

var web = resource.Key{Namespace: "ns", Name: "web"}

// rig is a controller at work on a client, inside a bubble of fake time.
type rig struct {
	t       *testing.T
	client  *resourcetest.Client
	writes  atomic.Int32 // of Endpoints that were attempted
	failure atomic.Pointer[func(resourcetest.Call) error]
}

func newRig(t *testing.T, objects ...resource.Object) *rig {
	descriptors := append(resourcetest.Descriptors(), kind.Endpoints)
	r := &rig{t: t, client: resourcetest.New(descriptors...)}
	r.client.Seed(objects...)
	r.client.Intercept(func(call resourcetest.Call) error {
		if call.Kind.Kind == "Endpoints" && call.Verb != resourcetest.List && call.Verb != resourcetest.Watch && call.Verb != resourcetest.Get {
			r.writes.Add(1)
		}
		if f := r.failure.Load(); f != nil {
			return (*f)(call)
		}
		return nil
	})
	cat := catalog.New(catalog.Config{Client: r.client, Descriptors: resourcetest.Descriptors()})
	controller := New(Config{Client: r.client, Catalog: cat, Endpoints: kind.Endpoints})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{}, 2)
	go func() { _ = cat.Run(ctx); done <- struct{}{} }()
	go func() { _ = controller.Run(ctx); done <- struct{}{} }()
	t.Cleanup(func() { cancel(); <-done; <-done })
	synctest.Wait()
	return r
}

func (r *rig) fail(f func(resourcetest.Call) error) { r.failure.Store(&f) }

func (r *rig) get() *corev1.Endpoints {
	r.t.Helper()
	synctest.Wait()
	object, err := r.client.Get(r.t.Context(), kind.Endpoints, web)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return object.(*corev1.Endpoints)
}

func (r *rig) want(lines ...string) {
	r.t.Helper()
	e := r.get()
	if e == nil {
		r.t.Fatal("there are no Endpoints")
	}
	if diff := cmp.Diff(lines, show(e.Subsets)); diff != "" {
		r.t.Error(diff)
	}
}

func (r *rig) delete(kindName string, key resource.Key) {
	r.t.Helper()
	for _, d := range resourcetest.Descriptors() {
		if d.GVK.Kind == kindName {
			if err := r.client.Delete(r.t.Context(), d, key, resource.Preconditions{}); err != nil {
				r.t.Fatal(err)
			}
		}
	}
}

func settle() { time.Sleep(time.Second); synctest.Wait() }

func TestControllerFollowsEveryKindAtOnce(t *testing.T) {
	const one = "[10.0.0.1=1] [] [http:8080/TCP]"
	steps := []struct {
		name   string
		change func(r *rig)
		want   []string
	}{
		{"pod", func(r *rig) { r.client.Seed(webPod("1")) }, []string{one}},
		{"Dataplane", func(r *rig) { r.client.Seed(vm("7")) }, []string{"[10.0.0.1=1 10.0.1.7=7] [] [http:8080/TCP]"}},
		{"Dataplane gone", func(r *rig) { r.delete("Dataplane", resource.Key{Namespace: "ns", Name: "7"}) }, []string{one}},
		{"pod not ready", func(r *rig) { r.client.Seed(webPod("1", unready)) }, []string{"[] [10.0.0.1=1] [http:8080/TCP]"}},
		{"pod ready", func(r *rig) { r.client.Seed(webPod("1")) }, []string{one}},
		{"node drained", func(r *rig) {
			n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
			kind.StartDrain(n, "admin", false, time.Now())
			r.client.Seed(n)
		}, nil},
		{"node undrained", func(r *rig) {
			r.client.Seed(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
		}, []string{one}},
		{"Endpoints deleted", func(r *rig) { r.delete("Endpoints", web) }, []string{one}},
		{"Endpoints edited", func(r *rig) {
			e := r.get()
			e.Subsets = nil
			r.client.Seed(e)
		}, []string{one}},
		{"another port", func(r *rig) {
			r.client.Seed(webService(func(s *corev1.Service) { s.Spec.Ports[0].TargetPort.IntVal = 9 }))
		}, []string{"[10.0.0.1=1] [] [http:9/TCP]"}},
		{"selects none", func(r *rig) {
			r.client.Seed(webService(func(s *corev1.Service) { s.Spec.Selector = map[string]string{"app": "x"} }))
		}, nil},
	}
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, webService())
		r.want()
		for _, s := range steps {
			settle()
			s.change(r)
			before := time.Now()
			r.want(s.want...)
			if waited := time.Since(before); waited != 0 {
				t.Errorf("%s: written after %v, want at once", s.name, waited)
			}
			if t.Failed() {
				t.Fatalf("after %q", s.name)
			}
		}
		settle()
		r.delete("Service", web)
		if r.get() != nil {
			t.Error("the Endpoints outlive the Service")
		}
		before := r.writes.Load()
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := r.writes.Load() - before; n != 0 {
			t.Errorf("%d writes although nothing changed", n)
		}
	})
}

func TestDeletionWithTheService(t *testing.T) {
	endpoints := func(edits ...func(*corev1.Endpoints)) *corev1.Endpoints {
		e := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"}}
		for _, edit := range edits {
			edit(e)
		}
		return e
	}
	ours := func(e *corev1.Endpoints) { e.Labels = map[string]string{LabelManagedBy: ManagedBy} }
	lock := annotate(LeaderAnnotation, "{}")
	manual := func(s *corev1.Service) { s.Spec.Selector = nil }
	tests := map[string]struct {
		service   *corev1.Service // that goes; nil: there was none when we started
		endpoints *corev1.Endpoints
		stays     bool
	}{
		"left over, ours":                    {endpoints: endpoints(ours)},
		"made ahead of the Service":          {endpoints: endpoints(), stays: true},
		"a lock":                             {endpoints: endpoints(lock), stays: true},
		"a lock, labelled":                   {endpoints: endpoints(ours, lock), stays: true},
		"a user's, the Service goes":         {service: webService(manual), endpoints: endpoints()},
		"a lock, a Service of its name goes": {service: webService(manual), endpoints: endpoints(lock), stays: true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				objects := []resource.Object{test.endpoints}
				if test.service != nil {
					objects = append(objects, test.service)
				}
				r := newRig(t, objects...)
				if test.service != nil {
					if r.get() == nil {
						t.Fatal("deleted although the Service is there")
					}
					r.delete("Service", web)
				}
				if stays := r.get() != nil; stays != test.stays {
					t.Errorf("stays: %v", stays)
				}
			})
		})
	}
}

func TestControllerDoesNotFightALeaderElection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, webService(), webPod("1"))
		settle()
		before := r.writes.Load()
		for i := range 20 {
			e := r.get()
			e.Annotations = map[string]string{LeaderAnnotation: fmt.Sprint(i)}
			r.client.Seed(e)
			settle()
		}
		if n := r.writes.Load() - before; n != 0 {
			t.Errorf("%d writes", n)
		}
		r.client.Seed(webPod("2"))
		if got := r.get().Annotations[LeaderAnnotation]; got != "19" {
			t.Errorf("the annotation became %q", got)
		}
	})
}

func TestControllerCoalescesBursts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, webService())
		settle()
		before := r.writes.Load()
		for i := range 60 {
			r.client.Seed(webPod(fmt.Sprint(i + 1)))
			time.Sleep(10 * time.Millisecond)
		}
		settle()
		if n := r.writes.Load() - before; n > 9 {
			t.Errorf("%d writes for 60 changes in 600 ms, want at most 9", n)
		}
		if n := len(r.get().Subsets[0].Addresses); n != 60 {
			t.Errorf("%d addresses", n)
		}
	})
}

func TestConflictIsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, webService())
		settle()
		first := true
		r.fail(func(call resourcetest.Call) error {
			if call.Verb == resourcetest.Update && first {
				first = false
				e := call.Object.DeepCopyObject().(*corev1.Endpoints)
				e.Subsets, e.Annotations = nil, map[string]string{"their": "note"}
				r.client.Seed(e)
			}
			return nil
		})
		r.client.Seed(webPod("1"))
		time.Sleep(2 * loop.DefaultWindow) // and not the second of a failure
		r.want("[10.0.0.1=1] [] [http:8080/TCP]")
		if r.get().Annotations["their"] != "note" {
			t.Error("a foreign write was overwritten unseen")
		}
	})
}

func TestFailureIsRetriedAndReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.fail(func(call resourcetest.Call) error {
			if call.Kind.Kind == "Endpoints" && call.Verb == resourcetest.Create {
				return errors.New("no space")
			}
			return nil
		})
		r.client.Seed(webService())
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		if n := r.writes.Load(); n != 16 {
			t.Errorf("%d attempts, want 16", n)
		}
		events, _, err := r.client.List(t.Context(), kind.Event, resource.ListOptions{})
		if err != nil || len(events) != 1 || events[0].(*corev1.Event).Reason != "FailedToUpdateEndpoint" {
			t.Errorf("events %v, %v", events, err)
		}
	})
}

func TestTriggerTimeIsNoted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		created := metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 1, 0, time.UTC))
		r := newRig(t, webService(func(s *corev1.Service) { s.CreationTimestamp = created }))
		note := func() string { return r.get().Annotations[corev1.EndpointsLastChangeTriggerTime] }
		if got := note(); got != "2026-01-01T00:00:01Z" {
			t.Errorf("new Service: %q", got)
		}
		settle()
		r.client.Seed(webPod("1", func(p *corev1.Pod) {
			p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(created.Add(time.Minute))
		}))
		if got := note(); got != "2026-01-01T00:01:01Z" {
			t.Errorf("ready pod: %q", got)
		}
		settle()
		r.delete("Pod", resource.Key{Namespace: "ns", Name: "1"})
		if got := note(); got != "" {
			t.Errorf("pod gone: %q", got)
		}
	})
}
