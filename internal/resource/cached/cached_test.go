package cached_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/cached"
	"github.com/proxima-mesh/proxima/internal/resource/faulty"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// run makes a client over another, which runs until the test ends.
func run(t *testing.T, inner resource.Client) *cached.Client {
	c := cached.New(cached.Config{Client: inner, Kinds: []*resource.Descriptor{kind.ConfigMap, kind.Node}})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := c.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); running.Wait() })
	return c
}

func fake() *resourcetest.Client { return resourcetest.New(kind.ConfigMap, kind.Node) }

func options() resourcetest.ContractOptions {
	return resourcetest.ContractOptions{Plain: kind.ConfigMap, WithStatus: kind.Node, Namespace: "default"}
}

func TestContract(t *testing.T) {
	t.Run("not running", func(t *testing.T) {
		resourcetest.Contract(t, func(*testing.T) resource.Client {
			return cached.New(cached.Config{Client: fake(), Kinds: []*resource.Descriptor{kind.ConfigMap, kind.Node}})
		}, options())
	})
	t.Run("running", func(t *testing.T) {
		resourcetest.Contract(t, func(t *testing.T) resource.Client { return followed(t, run(t, fake())) }, options())
	})
	t.Run("watches that end", func(t *testing.T) {
		// Only those of the index: a caller's watch that ends is the caller's matter.
		resourcetest.Contract(t, func(t *testing.T) resource.Client {
			inner := fake()
			faults := faulty.New(1, faulty.Probabilities{Events: 0.3})
			return &split{Client: run(t, faults.Wrap(inner)), watches: inner}
		}, options())
	})
	t.Run("a watch that lags", func(t *testing.T) {
		resourcetest.Contract(t, func(t *testing.T) resource.Client { return followed(t, run(t, &lagging{Client: fake()})) }, options())
	})
}

func hits(c *cached.Client) uint64 {
	hits, _ := c.Reads(kind.ConfigMap)
	return hits
}

// lagging delivers the events of watches late.
type lagging struct{ resource.Client }

func (l *lagging) Watch(ctx context.Context, d *resource.Descriptor, opts resource.WatchOptions) (watch.Interface, error) {
	inner, err := l.Client.Watch(ctx, d, opts)
	if err != nil {
		return nil, err
	}
	late := watch.NewProxyWatcher(make(chan watch.Event))
	out := make(chan watch.Event)
	go func() {
		defer close(out)
		defer inner.Stop()
		for e := range inner.ResultChan() {
			select {
			case <-time.After(2 * time.Millisecond): // this is the lag, nothing waits for it
			case <-late.StopChan():
				return
			}
			select {
			case out <- e:
			case <-late.StopChan():
				return
			}
		}
	}()
	return &lateWatch{late, out}, nil
}

type lateWatch struct {
	*watch.ProxyWatcher
	out chan watch.Event
}

func (w *lateWatch) ResultChan() <-chan watch.Event { return w.out }

// split takes watches from elsewhere.
type split struct {
	resource.Client
	watches resource.Client
}

func (s *split) Watch(ctx context.Context, d *resource.Descriptor, opts resource.WatchOptions) (watch.Interface, error) {
	return s.watches.Watch(ctx, d, opts)
}

// followed waits until the index answers.
func followed(t *testing.T, c *cached.Client) *cached.Client {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for hits(c) == 0 {
		if time.Now().After(deadline) {
			t.Fatal("the index never answered")
		}
		if _, _, err := c.List(t.Context(), kind.ConfigMap, resource.ListOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func configMap(name string, n int) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Data: map[string]string{"n": strconv.Itoa(n)}}
}

// TestReadsFromMemory: while the index is synced the server gets no requests, and the
// metrics show it.
func TestReadsFromMemory(t *testing.T) {
	inner := fake()
	c := followed(t, run(t, inner))
	if _, err := c.Create(t.Context(), kind.ConfigMap, configMap("a", 1)); err != nil {
		t.Fatal(err)
	}
	inner.Intercept(func(call resourcetest.Call) error {
		if call.Verb == resourcetest.Get || call.Verb == resourcetest.List {
			return errors.New("the server got a request")
		}
		return nil
	})
	for range 100 {
		if _, err := c.Get(t.Context(), kind.ConfigMap, resource.Key{Namespace: "default", Name: "a"}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Get(t.Context(), kind.ConfigMap, resource.Key{Namespace: "default", Name: "none"}); !apierrors.IsNotFound(err) {
		t.Errorf("absent: %v", err)
	}
	if got := hits(c); got < 101 {
		t.Errorf("%v hits", got)
	}
	// A change of another client arrives with the watch.
	inner.Intercept(nil)
	if _, err := inner.Update(t.Context(), kind.ConfigMap, configMap("a", 2)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "another's change", func() bool {
		got, err := c.Get(t.Context(), kind.ConfigMap, resource.Key{Namespace: "default", Name: "a"})
		return err == nil && got.(*corev1.ConfigMap).Data["n"] == "2"
	})
}

// TestAway: without a watch reads go to the server, and the index finds its way
// back, also after history is gone. Then it never shows less than the server did.
func TestAway(t *testing.T) {
	t.Run("prompt events", func(t *testing.T) { inner := fake(); away(t, inner, followed(t, run(t, inner))) })
	t.Run("late events", func(t *testing.T) {
		inner := fake()
		away(t, inner, followed(t, run(t, &lagging{Client: inner})))
	})
}

func away(t *testing.T, inner *resourcetest.Client, c *cached.Client) {
	key := resource.Key{Namespace: "default", Name: "a"}
	if _, err := c.Create(t.Context(), kind.ConfigMap, configMap("a", 0)); err != nil {
		t.Fatal(err)
	}
	for n := 1; n <= 5; n++ {
		inner.Intercept(func(call resourcetest.Call) error {
			if call.Verb == resourcetest.Watch {
				return apierrors.NewServiceUnavailable("away")
			}
			return nil
		})
		if n%2 == 0 {
			inner.Expire()
		} else {
			inner.Disconnect()
		}
		if err := inner.Delete(t.Context(), kind.ConfigMap, key, resource.Preconditions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := inner.Create(t.Context(), kind.ConfigMap, configMap("a", n)); err != nil {
			t.Fatal(err)
		}
		eventually(t, "reads of the server", func() bool {
			got, err := c.Get(t.Context(), kind.ConfigMap, key)
			return err == nil && got.(*corev1.ConfigMap).Data["n"] == strconv.Itoa(n)
		})
		inner.Intercept(nil)
		before := hits(c)
		eventually(t, "the index is back", func() bool {
			got, err := c.Get(t.Context(), kind.ConfigMap, key)
			if err != nil || got.(*corev1.ConfigMap).Data["n"] != strconv.Itoa(n) {
				t.Fatalf("%v, %v", got, err)
			}
			return hits(c) > before
		})
	}
}

// late is a client whose first list takes long: between the moment that it shows and its
// return something happens.
type late struct {
	resource.Client
	listed    atomic.Bool
	meanwhile func()
}

func (l *late) List(ctx context.Context, d *resource.Descriptor, opts resource.ListOptions) ([]resource.Object, string, error) {
	objects, version, err := l.Client.List(ctx, d, opts)
	if d.Resource == kind.ConfigMap.Resource && !l.listed.Swap(true) {
		l.meanwhile()
	}
	return objects, version, err
}

// TestDelayedList: what the server showed a caller while the index was listing is not taken
// back when the list is there.
func TestDelayedList(t *testing.T) {
	key := resource.Key{Namespace: "default", Name: "a"}
	for name, tc := range map[string]struct {
		change func(*resourcetest.Client) error
		read   func(*cached.Client) string
		want   string
	}{
		"a change that was read": {
			change: func(inner *resourcetest.Client) error {
				_, err := inner.Update(context.Background(), kind.ConfigMap, configMap("a", 2))
				return err
			},
			read: get(key), want: "2",
		},
		"a change that was listed": {
			change: func(inner *resourcetest.Client) error {
				_, err := inner.Update(context.Background(), kind.ConfigMap, configMap("a", 2))
				return err
			},
			read: list, want: "2",
		},
		"a deletion that was read": {
			change: func(inner *resourcetest.Client) error {
				return inner.Delete(context.Background(), kind.ConfigMap, key, resource.Preconditions{})
			},
			read: get(key), want: "absent",
		},
		"a deletion that was listed": {
			change: func(inner *resourcetest.Client) error {
				return inner.Delete(context.Background(), kind.ConfigMap, key, resource.Preconditions{})
			},
			read: list, want: "absent",
		},
	} {
		t.Run(name, func(t *testing.T) {
			inner := fake()
			if _, err := inner.Create(t.Context(), kind.ConfigMap, configMap("a", 1)); err != nil {
				t.Fatal(err)
			}
			// Events are held back, so that nothing but what was shown can be known.
			slow := &late{Client: &silent{inner}}
			var c *cached.Client
			started, done := make(chan struct{}), make(chan struct{})
			slow.meanwhile = func() {
				defer close(done)
				<-started
				if err := tc.change(inner); err != nil {
					t.Error(err)
				}
				if got := tc.read(c); got != tc.want {
					t.Errorf("the server shows %s, want %s", got, tc.want)
				}
			}
			c = run(t, slow)
			close(started)
			<-done
			eventually(t, "the index answers", func() bool {
				before := hits(c)
				if got := tc.read(c); hits(c) > before {
					if got != tc.want {
						t.Fatalf("memory shows %s after the server showed %s", got, tc.want)
					}
					return true
				}
				return false
			})
		})
	}
}

// silent is a client whose watches deliver nothing.
type silent struct{ resource.Client }

func (s *silent) Watch(context.Context, *resource.Descriptor, resource.WatchOptions) (watch.Interface, error) {
	return watch.NewFake(), nil
}

func get(key resource.Key) func(*cached.Client) string {
	return func(c *cached.Client) string {
		obj, err := c.Get(context.Background(), kind.ConfigMap, key)
		if apierrors.IsNotFound(err) {
			return "absent"
		}
		if err != nil {
			return err.Error()
		}
		return obj.(*corev1.ConfigMap).Data["n"]
	}
}

func list(c *cached.Client) string {
	objects, _, err := c.List(context.Background(), kind.ConfigMap, resource.ListOptions{})
	if err != nil {
		return err.Error()
	}
	for _, obj := range objects {
		return obj.(*corev1.ConfigMap).Data["n"]
	}
	return "absent"
}

// TestEndsEqual: after any mixture of writers, faults and lost history memory and
// server agree.
func TestEndsEqual(t *testing.T) {
	inner := fake()
	faults := faulty.New(7, faulty.Probabilities{Calls: 0.1, Events: 0.1})
	c := run(t, faults.Wrap(inner))
	var writing sync.WaitGroup
	for w := range 4 {
		via := resource.Client(c)
		if w%2 == 1 {
			via = inner // another client
		}
		writing.Go(func() {
			for i := range 150 {
				name := fmt.Sprint("o", (i*7+w)%9)
				switch i % 3 {
				case 0:
					_, _ = via.Create(context.Background(), kind.ConfigMap, configMap(name, i))
				case 1:
					_, _ = via.Update(context.Background(), kind.ConfigMap, configMap(name, i))
				case 2:
					_ = via.Delete(context.Background(), kind.ConfigMap, resource.Key{Namespace: "default", Name: name}, resource.Preconditions{})
				}
				if i%50 == 49 {
					inner.Expire()
				}
			}
		})
	}
	writing.Wait()
	if faults.Injected() == 0 {
		t.Error("there were no faults")
	}
	faults.Set(faulty.Probabilities{})
	before := hits(c)
	eventually(t, "memory and server agree", func() bool {
		mine, _, err := c.List(t.Context(), kind.ConfigMap, resource.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		theirs, _, err := inner.List(t.Context(), kind.ConfigMap, resource.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return hits(c) > before && fmt.Sprint(versions(mine)) == fmt.Sprint(versions(theirs))
	})
}

func versions(objects []resource.Object) map[string]string {
	out := map[string]string{}
	for _, o := range objects {
		out[o.GetName()] = o.GetResourceVersion()
	}
	return out
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.After(2 * time.Minute)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%s: not within 2 min", what)
		}
	}
}
