package endpointslice

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
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

// rig is a controller at work on a client, inside a bubble of fake time.
type rig struct {
	t       *testing.T
	client  *resourcetest.Client
	writes  atomic.Int32 // of slices that were attempted
	failure atomic.Pointer[func(resourcetest.Call) error]
}

// fail makes calls fail as f says; nil: no more.
func (r *rig) fail(f func(resourcetest.Call) error) { r.failure.Store(&f) }

func kindOf(name string) *resource.Descriptor {
	for _, d := range resourcetest.Descriptors() {
		if d.GVK.Kind == name {
			return d
		}
	}
	panic(name)
}

// newRig starts catalog and controller. wrap may put something between them and
// the client.
func newRig(t *testing.T, wrap func(resource.Client) resource.Client, objects ...resource.Object) *rig {
	r := &rig{t: t, client: resourcetest.New()}
	r.client.Seed(node("n1", "z1"), node("n2", "z2"))
	r.client.Seed(objects...)
	r.client.Intercept(func(call resourcetest.Call) error {
		if call.Kind.Kind == "EndpointSlice" && call.Verb != resourcetest.List && call.Verb != resourcetest.Watch {
			r.writes.Add(1)
		}
		if f := r.failure.Load(); f != nil && *f != nil {
			return (*f)(call)
		}
		return nil
	})
	var client resource.Client = r.client
	if wrap != nil {
		client = wrap(client)
	}
	cat := catalog.New(catalog.Config{Client: client, Descriptors: resourcetest.Descriptors()})
	controller := New(Config{Client: client, Catalog: cat, Slices: kindOf("EndpointSlice")})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{}, 2)
	go func() { _ = cat.Run(ctx); done <- struct{}{} }()
	go func() { _ = controller.Run(ctx); done <- struct{}{} }()
	t.Cleanup(func() { cancel(); <-done; <-done })
	synctest.Wait()
	return r
}

func (r *rig) slices() []*discoveryv1.EndpointSlice {
	r.t.Helper()
	objects, _, err := r.client.List(r.t.Context(), kindOf("EndpointSlice"), resource.ListOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	var out []*discoveryv1.EndpointSlice
	for _, o := range objects {
		out = append(out, o.(*discoveryv1.EndpointSlice))
	}
	return byName(out)
}

func (r *rig) want(lines ...string) {
	r.t.Helper()
	synctest.Wait()
	if diff := cmp.Diff(lines, show(r.slices())); diff != "" {
		r.t.Error(diff)
	}
}

func (r *rig) delete(kind, namespace, name string) {
	r.t.Helper()
	if err := r.client.Delete(r.t.Context(), kindOf(kind), resource.Key{Namespace: namespace, Name: name}, resource.Preconditions{}); err != nil {
		r.t.Fatal(err)
	}
}

// settle lets the window of earlier writes pass.
func settle() { time.Sleep(time.Second); synctest.Wait() }

func TestControllerFollowsEveryKindAtOnce(t *testing.T) {
	const a = "IPv4 http:8080/TCP 10.0.0.1 Pod/a [rs] node=n1 zone=z1"
	steps := []struct {
		name   string
		change func(r *rig)
		want   []string
	}{
		{"pod", func(r *rig) { r.client.Seed(webPod("a", "10.0.0.1")) }, []string{a}},
		{"Dataplane", func(r *rig) { r.client.Seed(vm("v", "10.0.0.2")) }, []string{a, "IPv4 http:8080/TCP 10.0.0.2 Dataplane/v [rs]"}},
		{"Dataplane no more selected", func(r *rig) {
			v := vm("v", "10.0.0.2")
			v.Labels = nil
			r.client.Seed(v)
		}, []string{a}},
		{
			"pod not ready",
			func(r *rig) { r.client.Seed(webPod("a", "10.0.0.1", unready)) },
			[]string{"IPv4 http:8080/TCP 10.0.0.1 Pod/a [] node=n1 zone=z1"},
		},
		{"pod ready again", func(r *rig) { r.client.Seed(webPod("a", "10.0.0.1")) }, []string{a}},
		{"node's zone", func(r *rig) { r.client.Seed(node("n1", "z9")) }, []string{"IPv4 http:8080/TCP 10.0.0.1 Pod/a [rs] node=n1 zone=z9"}},
		{"node gone", func(r *rig) { r.delete("Node", "", "n1") }, []string{"IPv4 empty"}},
		{"node back", func(r *rig) { r.client.Seed(node("n1", "z1")) }, []string{a}},
		{"node drained", func(r *rig) {
			n := node("n1", "z1")
			kind.StartDrain(n, "admin", false, time.Now())
			r.client.Seed(n)
		}, []string{"IPv4 http:8080/TCP 10.0.0.1 Pod/a [st] node=n1 zone=z1"}},
		{"node undrained", func(r *rig) { r.client.Seed(node("n1", "z1")) }, []string{a}},
		{"slice deleted", func(r *rig) { r.delete("EndpointSlice", "ns", r.slices()[0].Name) }, []string{a}},
		{"slice edited", func(r *rig) {
			s := r.slices()[0]
			s.Endpoints = nil
			r.client.Seed(s)
		}, []string{a}},
		{"slice taken away by its label", func(r *rig) {
			s := r.slices()[0]
			s.Labels[discoveryv1.LabelManagedBy] = "me"
			s.Endpoints = nil
			r.client.Seed(s)
		}, []string{a, "IPv4 http:8080/TCP empty"}},
		{"another Service takes all", func(r *rig) {
			r.client.Seed(webService(func(s *corev1.Service) { s.Spec.Selector = map[string]string{"app": "other"} }))
		}, []string{"IPv4 empty", "IPv4 http:8080/TCP empty"}},
		{"Service gone", func(r *rig) { r.delete("Service", "ns", "web") }, []string{"IPv4 http:8080/TCP empty"}},
	}
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil, webService())
		r.want("IPv4 empty")
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
		time.Sleep(time.Hour)
		before := r.writes.Load()
		settle()
		if n := r.writes.Load() - before; n != 0 {
			t.Errorf("%d writes although nothing changed", n)
		}
	})
}

func TestControllerCoalescesBursts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil, webService())
		for i := range 60 {
			r.client.Seed(webPod(fmt.Sprintf("p%02d", i), fmt.Sprintf("10.0.0.%d", i+1), unready))
		}
		settle()
		before := r.writes.Load()
		for i := range 60 {
			r.client.Seed(webPod(fmt.Sprintf("p%02d", i), fmt.Sprintf("10.0.0.%d", i+1)))
			if i == 0 {
				synctest.Wait()
				if n := r.writes.Load() - before; n != 1 {
					t.Errorf("%d writes for the first change, want 1 at once", n)
				}
			}
			time.Sleep(10 * time.Millisecond)
		}
		settle()
		if n := r.writes.Load() - before; n > 9 {
			t.Errorf("%d writes for 60 changes in 600 ms, want at most 9", n)
		}
		for _, e := range r.slices()[0].Endpoints {
			if !*e.Conditions.Ready {
				t.Errorf("%s was forgotten", e.TargetRef.Name)
			}
		}
	})
}

func TestControllerPacksAGrowingService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil, webService())
		sizes := func() []int {
			w := world{slices: map[string]*discoveryv1.EndpointSlice{}}
			for _, s := range r.slices() {
				w.slices[s.Name] = s
			}
			return w.sizes()
		}
		for _, p := range pods(0, 250) {
			r.client.Seed(p)
		}
		settle()
		if diff := cmp.Diff([]int{100, 100, 50}, sizes()); diff != "" {
			t.Error(diff)
		}
		// Workloads that start appear first and get ready a moment later.
		for _, p := range pods(250, 60, unready) {
			r.client.Seed(p)
			time.Sleep(20 * time.Millisecond)
			ready := p.DeepCopy()
			ready.Status.Conditions[0].Status = corev1.ConditionTrue
			r.client.Seed(ready)
		}
		settle()
		if diff := cmp.Diff([]int{100, 100, 100, 10}, sizes()); diff != "" {
			t.Error(diff)
		}
	})
}

// gated holds back the events of slices while closed.
type gated struct {
	resource.Client
	open chan struct{}
}

func (g *gated) Watch(ctx context.Context, d *resource.Descriptor, opts resource.WatchOptions) (watch.Interface, error) {
	w, err := g.Client.Watch(ctx, d, opts)
	if err != nil || d.GVK.Kind != "EndpointSlice" {
		return w, err
	}
	return watch.Filter(w, func(e watch.Event) (watch.Event, bool) {
		select {
		case <-g.open:
		case <-ctx.Done():
		}
		return e, true
	}), nil
}

func TestControllerWaitsForItsOwnWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := &gated{open: make(chan struct{})}
		r := newRig(t, func(c resource.Client) resource.Client { gate.Client = c; return gate }, webService())
		for i := range 5 {
			r.client.Seed(webPod(fmt.Sprintf("p%d", i), fmt.Sprintf("10.0.0.%d", i+1)))
			time.Sleep(time.Minute)
		}
		if n := r.writes.Load(); n != 1 {
			t.Errorf("%d writes from a catalog that does not show the first", n)
		}
		before := time.Now()
		close(gate.open)
		synctest.Wait()
		if all := r.slices(); len(all) != 1 || len(all[0].Endpoints) != 5 {
			t.Errorf("got %v", show(all))
		}
		if waited := time.Since(before); waited != 0 {
			t.Errorf("went on after %v, want at once", waited)
		}
	})
}

func TestControllerRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		var attempts []time.Duration
		start := time.Now()
		r.fail(func(call resourcetest.Call) error {
			if call.Kind.Kind == "EndpointSlice" && call.Verb == resourcetest.Create {
				attempts = append(attempts, time.Since(start))
				return errors.New("no space")
			}
			return nil
		})
		r.client.Seed(webService())
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		want := []time.Duration{0}
		for wait := time.Second; len(want) < 16; wait *= 2 {
			want = append(want, want[len(want)-1]+min(wait, 1000*time.Second))
		}
		if diff := cmp.Diff(want, attempts); diff != "" {
			t.Errorf("attempts %s", diff)
		}
		events, _, err := r.client.List(t.Context(), kindOf("Event"), resource.ListOptions{})
		if err != nil || len(events) != 1 {
			t.Fatalf("%d events, %v; want one", len(events), err)
		}
		if e := events[0].(*corev1.Event); e.Reason != "FailedToUpdateEndpointSlices" || e.InvolvedObject.Name != "web" {
			t.Errorf("event %s on %s", e.Reason, e.InvolvedObject.Name)
		}

		r.fail(nil)
		r.client.Seed(webPod("a", "10.0.0.1"))
		r.want("IPv4 http:8080/TCP 10.0.0.1 Pod/a [rs] node=n1 zone=z1")
	})
}

func TestControllerInTerminatingNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.fail(func(call resourcetest.Call) error {
			if call.Kind.Kind != "EndpointSlice" || call.Verb != resourcetest.Create {
				return nil
			}
			err := apierrors.NewForbidden(kindOf("EndpointSlice").GroupResource(), "", errors.New("namespace is being terminated"))
			err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
			return err
		})
		r.client.Seed(webService())
		time.Sleep(time.Hour)
		if n := r.writes.Load(); n != 1 {
			t.Errorf("%d attempts to create in a namespace that goes away, want 1", n)
		}
	})
}

func TestControllerNotesTheTriggerTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		note := func(r *rig) string {
			synctest.Wait()
			return r.slices()[0].Annotations[corev1.EndpointsLastChangeTriggerTime]
		}
		at := func(sec int) metav1.Time { return metav1.NewTime(time.Date(2026, 1, 1, 0, 0, sec, 0, time.UTC)) }
		readyAt := func(sec int) func(*corev1.Pod) {
			return func(p *corev1.Pod) { p.Status.Conditions[0].LastTransitionTime = at(sec) }
		}
		r := newRig(t, nil, webPod("a", "10.0.0.1", readyAt(3)), webService(func(s *corev1.Service) { s.CreationTimestamp = at(1) }))
		if got := note(r); got != "2026-01-01T00:00:01Z" {
			t.Errorf("new Service: %q, want its creation", got)
		}
		settle()
		r.fail(func(call resourcetest.Call) error {
			if call.Verb == resourcetest.Update {
				return errors.New("no")
			}
			return nil
		})
		r.client.Seed(webPod("a", "10.0.0.1", unready, readyAt(7)), webPod("b", "10.0.0.2", readyAt(6)))
		synctest.Wait()
		r.fail(nil)
		time.Sleep(time.Minute)
		if got := note(r); got != "2026-01-01T00:00:06Z" {
			t.Errorf("two transitions and a failure: %q, want the earlier", got)
		}
		r.delete("Pod", "ns", "b")
		if got := note(r); got != "" {
			t.Errorf("pod deleted: %q, want none", got)
		}
	})
}

func TestControllerReplacesSlicesOfAnEarlierService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil, webService(), webPod("a", "10.0.0.1"))
		settle()
		old := r.slices()[0].Name
		r.client.Seed(webService(func(s *corev1.Service) { s.UID = "svc-2" }))
		r.want("IPv4 http:8080/TCP 10.0.0.1 Pod/a [rs] node=n1 zone=z1")
		if s := r.slices()[0]; s.Name == old || s.OwnerReferences[0].UID != "svc-2" {
			t.Errorf("slice %s is owned by %s", s.Name, s.OwnerReferences[0].UID)
		}
	})
}
