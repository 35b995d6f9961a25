package catalog

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start runs a catalog on a client until the test's bubble ends.
func start(t *testing.T, client *resourcetest.Client) *Catalog {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	c := New(Config{Client: client, Descriptors: resourcetest.Descriptors(), Epoch: "e1"})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = c.Run(ctx)
	}()
	t.Cleanup(func() { cancel(); <-done })
	return c
}

func next(t *testing.T, s *Subscription) Delta {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour) // of the bubble's time
	defer cancel()
	d, err := s.Next(ctx)
	if err != nil {
		t.Fatalf("Next: %v", err)
	}
	return d
}

func service(name string, selector map[string]string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec:       corev1.ServiceSpec{Selector: selector},
	}
}

func pod(name, node string, labels map[string]string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: labels},
		Spec:       corev1.PodSpec{NodeName: node},
	}
}

// names shows changes as +new, ~different and -gone.
func names[T Row](changes []Change[T]) []string {
	var zero T
	var out []string
	for _, c := range changes {
		sign := "~"
		switch {
		case c.Old == zero:
			sign = "+"
		case c.New == zero:
			sign = "-"
		}
		out = append(out, sign+c.Key.Name)
	}
	return out
}

func TestFirstDeltaIsEverythingAndWaitsForAllLists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := resourcetest.New()
		client.Seed(service("a", nil), service("b", nil), pod("p", "", nil))
		var down atomic.Bool
		down.Store(true)
		client.Intercept(func(call resourcetest.Call) error {
			if down.Load() && call.Kind.Kind == "Pod" {
				return errors.New("no answer")
			}
			return nil
		})
		c := start(t, client)
		sub := c.Subscribe(Services)
		defer sub.Close()

		time.Sleep(time.Minute)
		if c.Synced() {
			t.Fatal("synced without a list of pods")
		}
		down.Store(false)
		d := next(t, sub)
		if diff := cmp.Diff([]string{"+a", "+b"}, names(d.Services)); diff != "" {
			t.Error(diff)
		}
		if len(d.Pods) != 0 {
			t.Error("a delta of a kind that was not subscribed to")
		}
		if err := c.WaitSynced(t.Context()); err != nil {
			t.Error(err)
		}
		late := c.Subscribe()
		defer late.Close()
		d = next(t, late)
		if len(d.Services) != 2 || len(d.Pods) != 1 {
			t.Errorf("late subscriber got %d services and %d pods", len(d.Services), len(d.Pods))
		}
	})
}

// TestLater: a kind that is not needed at first is not asked for, and nobody waits for it.
func TestLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := resourcetest.New()
		client.Seed(service("a", nil), pod("p", "n", nil))
		var asked atomic.Int64
		client.Intercept(func(call resourcetest.Call) error {
			if call.Kind.Kind == "Pod" {
				asked.Add(1)
			}
			return nil
		})
		wanted := make(chan struct{})
		c := New(Config{
			Client: client, Descriptors: resourcetest.Descriptors(), Epoch: "e1",
			Later: map[schema.GroupKind]<-chan struct{}{{Kind: "Pod"}: wanted},
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = c.Run(ctx)
		}()
		t.Cleanup(func() { cancel(); <-done })
		sub := c.Subscribe(Services, Pods)
		defer sub.Close()
		if err := c.WaitSynced(t.Context()); err != nil {
			t.Fatal(err)
		}
		if d := next(t, sub); len(d.Services) != 1 || len(d.Pods) != 0 || !c.Synced() || asked.Load() != 0 {
			t.Fatalf("before they are wanted: %d services, %d pods, %d requests", len(d.Services), len(d.Pods), asked.Load())
		}
		close(wanted)
		if diff := cmp.Diff([]string{"+p"}, names(next(t, sub).Pods)); diff != "" {
			t.Error(diff)
		}
	})
}

func TestDeltaIsTheNetChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := resourcetest.New()
		client.Seed(service("changed", nil), service("gone", nil), service("same", nil))
		c := start(t, client)
		sub := c.Subscribe(Services)
		defer sub.Close()
		before := next(t, sub).After

		for range 50 {
			s := service("changed", map[string]string{"a": time.Now().String()})
			client.Seed(s)
			time.Sleep(time.Millisecond)
		}
		descriptor := resourcetest.Descriptors()[1]
		for _, name := range []string{"gone", "brief"} {
			client.Seed(service(name, nil))
			synctest.Wait()
			if err := client.Delete(t.Context(), descriptor, Key{Namespace: "ns", Name: name}, noPreconditions); err != nil {
				t.Fatal(err)
			}
		}
		client.Seed(service("new", nil))
		synctest.Wait()

		d := next(t, sub)
		if diff := cmp.Diff([]string{"~changed", "-gone", "+new"}, names(d.Services)); diff != "" {
			t.Error(diff)
		}
		if d.Before != before {
			t.Error("the delta does not start where the last one ended")
		}
		if d.After != c.Snapshot() {
			t.Error("the delta does not end at the newest snapshot")
		}
	})
}

func TestRelistShowsOnlyTrueDifferences(t *testing.T) {
	tests := map[string]func(*resourcetest.Client){
		"history is gone":      (*resourcetest.Client).Expire,
		"connection is lost":   (*resourcetest.Client).Disconnect,
		"both":                 func(c *resourcetest.Client) { c.Disconnect(); c.Expire() },
		"nothing, as a sample": func(*resourcetest.Client) {},
	}
	for name, interrupt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := resourcetest.New()
				client.Seed(service("a", nil), service("b", nil), service("c", nil))
				c := start(t, client)
				sub := c.Subscribe()
				defer sub.Close()
				b, _ := next(t, sub).After.Services.Get(Key{Namespace: "ns", Name: "b"})

				client.Seed(service("a", map[string]string{"k": "v"}), service("d", nil))
				if err := client.Delete(t.Context(), resourcetest.Descriptors()[1], Key{Namespace: "ns", Name: "c"}, noPreconditions); err != nil {
					t.Fatal(err)
				}
				interrupt(client)
				seen := map[string]int{}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				for {
					d, err := sub.Next(ctx)
					if err != nil {
						break
					}
					for _, n := range names(d.Services) {
						seen[n]++
					}
				}
				if diff := cmp.Diff(map[string]int{"~a": 1, "-c": 1, "+d": 1}, seen); diff != "" {
					t.Error(diff)
				}
				if now, _ := c.Snapshot().Services.Get(Key{Namespace: "ns", Name: "b"}); now != b {
					t.Error("an unchanged object was replaced")
				}
			})
		})
	}
}

func TestPosition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := resourcetest.New()
		client.Seed(service("a", nil), pod("p", "", nil))
		c := start(t, client)
		sub := c.Subscribe()
		defer sub.Close()
		last := next(t, sub).After.Position
		if want := (Position{Epoch: "e1", Sequence: 2}); last.Epoch != want.Epoch || last.Sequence < want.Sequence {
			t.Errorf("first position %v, want at least %v", last, want)
		}
		for range 5 {
			client.Seed(pod("p", "n", map[string]string{"at": time.Now().String()}))
			time.Sleep(time.Second)
			at := next(t, sub).After.Position
			if at.Sequence <= last.Sequence {
				t.Errorf("sequence went from %d to %d", last.Sequence, at.Sequence)
			}
			last = at
		}
		client.Expire()
		time.Sleep(time.Minute)
		if at := c.Snapshot().Position; at != last {
			t.Errorf("a relist without a difference moved the position from %v to %v", last, at)
		}
		if got := c.Snapshot().Pods.Revision(); got != 7 {
			t.Errorf("pods are known up to %d, want 7", got)
		}

		restarted := start(t, client)
		if err := restarted.WaitSynced(t.Context()); err != nil {
			t.Fatal(err)
		}
		if at := restarted.Snapshot().Position; at.Sequence < 7 {
			t.Errorf("a restarted catalog is at %d, the store at 7", at.Sequence)
		}
	})
}

func TestSequenceRisesWhenKindsArriveOutOfOrder(t *testing.T) {
	at := func(base *Snapshot, kind Kind, obj resource.Object, version string) *Snapshot {
		obj.SetResourceVersion(version)
		b := newBatch(base)
		b.add(input{kind: kind, objects: []resource.Object{obj}, revision: parseRevision(version)})
		next, _ := b.commit()
		return next
	}
	first := at(newSnapshot(Position{}), Services, service("a", nil), "10")
	second := at(first, Pods, pod("p", "", nil), "9")
	third := at(second, Pods, pod("p", "", nil), "not a number")
	fourth := at(third, Pods, pod("p", "", nil), "20")
	got := []uint64{first.Position.Sequence, second.Position.Sequence, third.Position.Sequence, fourth.Position.Sequence}
	if diff := cmp.Diff([]uint64{10, 11, 12, 20}, got); diff != "" {
		t.Error(diff)
	}
	if r := second.Pods.Revision(); r != 9 {
		t.Errorf("pods are known up to %d, want 9", r)
	}
}

func TestSlowSubscriberIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := resourcetest.New()
		client.Seed(service("stays", nil))
		c := start(t, client)
		sub := c.Subscribe(Services)
		defer sub.Close()
		next(t, sub)

		descriptor := resourcetest.Descriptors()[1]
		for range 3 * compareAfter {
			s := service("", nil)
			s.GenerateName = "brief-"
			made, err := client.Create(t.Context(), kind.Service, s)
			if err != nil {
				t.Fatal(err)
			}
			if err := client.Delete(t.Context(), descriptor, Key{Namespace: "ns", Name: made.GetName()}, noPreconditions); err != nil {
				t.Fatal(err)
			}
		}
		client.Seed(service("stays", map[string]string{"a": "b"}))
		synctest.Wait()
		if kept := len(sub.changed[Services]); kept > compareAfter {
			t.Errorf("%d keys are kept for one object", kept)
		}
		if diff := cmp.Diff([]string{"~stays"}, names(next(t, sub).Services)); diff != "" {
			t.Error(diff)
		}
	})
}

func TestNextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, resourcetest.New())
		sub := c.Subscribe()
		next(t, sub)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := sub.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want the context's error", err)
		}
		go sub.Close()
		if _, err := sub.Next(t.Context()); !errors.Is(err, ErrClosed) {
			t.Errorf("got %v, want ErrClosed", err)
		}
		sub.Close()
	})
}

func TestWatchIsRetriedWithoutAListWhileTheServerIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := resourcetest.New()
		client.Seed(service("a", nil))
		c := start(t, client)
		sub := c.Subscribe(Services)
		defer sub.Close()
		next(t, sub)

		var lists, watches atomic.Int32
		client.Intercept(func(call resourcetest.Call) error {
			if call.Kind.Kind != "Service" {
				return nil
			}
			switch call.Verb {
			case resourcetest.List:
				lists.Add(1)
			case resourcetest.Watch:
				if watches.Add(1) <= 3 {
					return apierrors.NewServiceUnavailable("starting")
				}
			}
			return nil
		})
		client.Disconnect()
		client.Seed(service("b", nil))
		if diff := cmp.Diff([]string{"+b"}, names(next(t, sub).Services)); diff != "" {
			t.Error(diff)
		}
		if lists, watches := lists.Load(), watches.Load(); lists != 0 || watches != 4 {
			t.Errorf("%d lists and %d watches, want 0 and 4", lists, watches)
		}
	})
}

func TestZeroSnapshotIsEmpty(t *testing.T) {
	var s Snapshot
	if _, ok := s.Services.Get(Key{Name: "a"}); ok || s.Services.Len() != 0 {
		t.Error("a zero table holds something")
	}
	for range s.Services.All() {
		t.Error("a zero table iterates over something")
	}
	for range s.PodsMatching("ns", map[string]string{"a": "b"}) {
		t.Error("a zero index finds something")
	}
}

func TestManagedFieldsAreStripped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := resourcetest.New()
		managed := func(name string) *corev1.Service {
			s := service(name, nil)
			s.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}
			return s
		}
		client.Seed(managed("listed"))
		c := start(t, client)
		if err := c.WaitSynced(t.Context()); err != nil {
			t.Fatal(err)
		}
		client.Seed(managed("watched"))
		synctest.Wait()
		if n := c.Snapshot().Services.Len(); n != 2 {
			t.Fatalf("%d services, want 2", n)
		}
		for key, s := range c.Snapshot().Services.All() {
			if s.ManagedFields != nil {
				t.Errorf("%s has managed fields", key)
			}
		}
	})
}

func TestIndexesOfSnapshot(t *testing.T) {
	client := resourcetest.New()
	other := pod("web-1", "n1", map[string]string{"app": "web"})
	other.Namespace = "other"
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web-x", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
	}
	client.Seed(
		pod("web-1", "n1", map[string]string{"app": "web", "tier": "front"}),
		pod("web-2", "n2", map[string]string{"app": "web"}),
		pod("db-1", "n1", map[string]string{"app": "db"}),
		other,
		slice,
		&meshv1alpha1.Dataplane{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "vm", Labels: map[string]string{"app": "web"}},
			Spec:       meshv1alpha1.DataplaneSpec{NodeName: "n1"},
		},
		service("web", map[string]string{"app": "web"}),
		service("front", map[string]string{"app": "web", "tier": "front"}),
		service("manual", nil),
		&corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"}},
	)
	synctest.Test(t, func(t *testing.T) {
		c := start(t, client)
		if err := c.WaitSynced(t.Context()); err != nil {
			t.Fatal(err)
		}
		s := c.Snapshot()
		web := map[string]string{"app": "web"}
		got := map[string][]string{
			"pods app=web":            keys(s.PodsMatching("ns", web)),
			"pods app=web,tier=front": keys(s.PodsMatching("ns", map[string]string{"app": "web", "tier": "front"})),
			"pods no match":           keys(s.PodsMatching("ns", map[string]string{"app": "web", "tier": "back"})),
			"pods empty selector":     keys(s.PodsMatching("ns", nil)),
			"dataplanes app=web":      keys(s.DataplanesMatching("ns", web)),
			"pods on n1":              keys(s.PodsOn("n1")),
			"dataplanes on n1":        keys(s.DataplanesOn("n1")),
			"slices of web":           keys(s.SlicesOf(Key{Namespace: "ns", Name: "web"})),
			"slices of we":            keys(s.SlicesOf(Key{Namespace: "ns", Name: "we"})),
			"services for web-1":      keys(s.ServicesSelecting("ns", map[string]string{"app": "web", "tier": "front"})),
			"services for web-2":      keys(s.ServicesSelecting("ns", web)),
			"namespace n":             keys(s.Pods.Namespace("n")),
			"namespace other":         keys(s.Pods.Namespace("other")),
			"endpoints of web":        keys(s.Endpoints.Namespace("ns")),
		}
		want := map[string][]string{
			"pods app=web":            {"ns/web-1", "ns/web-2"},
			"pods app=web,tier=front": {"ns/web-1"},
			"pods no match":           nil,
			"pods empty selector":     nil,
			"dataplanes app=web":      {"ns/vm"},
			"pods on n1":              {"ns/db-1", "ns/web-1", "other/web-1"},
			"dataplanes on n1":        {"ns/vm"},
			"slices of web":           {"ns/web-x"},
			"slices of we":            nil,
			"services for web-1":      {"ns/front", "ns/web"},
			"services for web-2":      {"ns/web"},
			"namespace n":             nil,
			"namespace other":         {"other/web-1"},
			"endpoints of web":        {"ns/web"},
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	})
}

// TestUnreadableKind: who does not use a kind that cannot be listed does not wait for it, and who
// does is told nothing until it is listed: an object that is missing there is not gone.
func TestUnreadableKind(t *testing.T) {
	for bad, ops := range tables {
		t.Run(ops.groupKind().Kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := resourcetest.New(kind.All()...)
				client.Seed(service("a", nil))
				var down atomic.Bool
				down.Store(true)
				client.Intercept(func(call resourcetest.Call) error {
					if down.Load() && call.Kind.GroupKind() == ops.groupKind() {
						return errors.New("an object cannot be read")
					}
					return nil
				})
				ctx, cancel := context.WithCancel(t.Context())
				c := New(Config{Client: client, Descriptors: kind.All(), Epoch: "e1"})
				done := make(chan struct{})
				go func() {
					defer close(done)
					_ = c.Run(ctx)
				}()
				t.Cleanup(func() { cancel(); <-done })
				without, with := c.Subscribe(Services), c.Subscribe(Services, Kind(bad))
				defer without.Close()
				defer with.Close()
				synctest.Wait()
				needed := slices.Contains(common[:], Kind(bad))
				if c.Synced() || c.Listed(Kind(bad)) || c.Listed() == needed || with.began || without.began == needed {
					t.Fatalf("synced %v, listed %v, others %v; subscriptions: %v with it, %v without", c.Synced(), c.Listed(Kind(bad)), c.Listed(),
						with.began, without.began)
				}
				if !needed {
					if diff := cmp.Diff([]string{"+a"}, names(next(t, without).Services)); diff != "" {
						t.Error(diff)
					}
					if err := c.WaitListed(t.Context(), Services); err != nil {
						t.Error(err)
					}
				}
				down.Store(false)
				if diff := cmp.Diff([]string{"+a"}, names(next(t, with).Services)); diff != "" {
					t.Error(diff)
				}
				synctest.Wait()
				if late := c.Subscribe(Kind(bad)); !late.began || !c.Synced() {
					t.Error("not all is listed")
				} else {
					late.Close()
				}
			})
		})
	}
}
