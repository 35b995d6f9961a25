package loop

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var key = resource.Key{Namespace: "ns", Name: "web"}

func service(name string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
}

// run has a loop sync the Services of a client, and returns when each sync was.
func run(t *testing.T, client *resourcetest.Client, sync func(*Loop, resource.Key) error, gaveUp func(), running ...func(*Loop)) (at func() []time.Duration) {
	started := time.Now()
	var syncs []time.Duration
	var loop *Loop
	loop = New(Config{
		What: "service",
		Sync: func(_ context.Context, k resource.Key) error {
			if k == key {
				syncs = append(syncs, time.Since(started))
			}
			return sync(loop, k)
		},
		OnExhausted: func(context.Context, resource.Key, error) { gaveUp() },
	})
	world := catalog.New(catalog.Config{Client: client, Descriptors: resourcetest.Descriptors()})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{}, 2)
	go func() { _ = world.Run(ctx); done <- struct{}{} }()
	go func() {
		_ = loop.Run(ctx, world, func(d catalog.Delta) {
			for _, c := range d.Services {
				loop.Add(c.Key)
			}
		}, catalog.Services)
		done <- struct{}{}
	}()
	t.Cleanup(func() { cancel(); <-done; <-done })
	synctest.Wait()
	for _, f := range running {
		f(loop)
	}
	return func() []time.Duration { synctest.Wait(); return syncs }
}

func TestWindowHoldsBackAfterAWriteOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := resourcetest.New()
		var quiet atomic.Bool
		at := run(t, client, func(l *Loop, _ resource.Key) error {
			if !quiet.Load() {
				l.Writes(key)
			}
			return nil
		}, nil)
		for range 10 {
			client.Seed(service("web"))
			time.Sleep(20 * time.Millisecond)
		}
		if diff := cmp.Diff([]time.Duration{0, 100 * time.Millisecond, 200 * time.Millisecond}, at()); diff != "" {
			t.Error(diff)
		}
		time.Sleep(time.Second)
		quiet.Store(true)
		before := len(at())
		for range 10 {
			client.Seed(service("web"))
			time.Sleep(20 * time.Millisecond)
		}
		if n := len(at()) - before; n != 10 {
			t.Errorf("%d syncs of 10 changes that wrote nothing", n)
		}
	})
}

func TestStaleKeysComeWithTheNextDelta(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := resourcetest.New()
		var fresh atomic.Bool
		at := run(t, client, func(_ *Loop, k resource.Key) error {
			if k == key && !fresh.Load() {
				return ErrStale
			}
			return nil
		}, nil)
		client.Seed(service("web"))
		time.Sleep(300 * time.Millisecond)
		fresh.Store(true)
		client.Seed(service("other")) // any delta will do
		if diff := cmp.Diff([]time.Duration{0, 300 * time.Millisecond}, at()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestRetriesThenGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := resourcetest.New()
		gaveUp := 0
		at := run(t, client, func(*Loop, resource.Key) error { return errors.New("no") }, func() { gaveUp++ })
		client.Seed(service("web"))
		time.Sleep(24 * time.Hour)
		got := at()
		want := []time.Duration{0}
		for wait := time.Second; len(want) < 16; wait *= 2 {
			want = append(want, want[len(want)-1]+min(wait, 1000*time.Second))
		}
		if diff := cmp.Diff(want, got); diff != "" || gaveUp != 1 {
			t.Errorf("gave up %d times, %s", gaveUp, diff)
		}
	})
}

func TestExpectations(t *testing.T) {
	object := func(version string) *corev1.Service {
		s := service("web")
		s.UID, s.ResourceVersion = "u", version
		return s
	}
	var g Expectations
	if !Observed(&g, 0, object("1")) {
		t.Error("nothing was written, and it is not shown")
	}
	g.Wrote(object("7"))
	if Observed[*corev1.Service](&g, 6) || !Observed[*corev1.Service](&g, 7) {
		t.Error("a write is shown from its revision on")
	}
	g.Deleted(object("7"))
	if Observed(&g, 9, object("7")) || !Observed[*corev1.Service](&g, 9) {
		t.Error("a deletion is shown when the object is gone")
	}
	l := New(Config{})
	change := catalog.Change[*corev1.Service]{Key: key, Old: object("7"), New: object("8")}
	if Echo(l, key, change) {
		t.Error("an echo of nothing")
	}
	l.Expectations(key).Wrote(object("8"))
	if !Echo(l, key, change) {
		t.Error("an own write is not recognised")
	}
	l.Expectations(key).Deleted(object("8"))
	gone := catalog.Change[*corev1.Service]{Key: key, Old: object("8")}
	if !Echo(l, key, gone) || Echo(l, key, gone) {
		t.Error("an own deletion is recognised once")
	}
}

// TestNoSyncBeforeTheTables: a key that another controller queues is not synced while the tables
// lack a kind that cannot be listed, as its objects would look as if they were gone.
func TestNoSyncBeforeTheTables(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := resourcetest.New()
		client.Seed(service(key.Name))
		var down atomic.Bool
		down.Store(true)
		client.Intercept(func(call resourcetest.Call) error {
			if down.Load() && call.Kind.Kind == "Service" {
				return errors.New("an object cannot be read")
			}
			return nil
		})
		var of *Loop
		at := run(t, client, func(l *Loop, _ resource.Key) error { of = l; return nil }, nil, func(l *Loop) { l.Add(key) })
		if syncs := at(); len(syncs) > 0 {
			t.Fatalf("synced at %v, before there were Services", syncs)
		}
		down.Store(false)
		time.Sleep(time.Minute)
		if syncs := at(); len(syncs) != 1 || of == nil {
			t.Errorf("synced at %v, want once", syncs)
		}
	})
}
