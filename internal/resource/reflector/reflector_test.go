package reflector_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/faulty"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/reflector"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Labels: map[string]string{"name": name}}}
}

func remove(t *testing.T, client resource.Client, name string) {
	t.Helper()
	err := client.Delete(t.Context(), kind.ConfigMap, resource.Key{Namespace: "default", Name: name}, resource.Preconditions{})
	if err != nil {
		t.Fatal(err)
	}
}

// recorder is a handler that writes events down as text.
type recorder struct {
	mu     sync.Mutex
	events []string
	// fail is the answer to the next event that is not Disconnected.
	fail error
}

func (r *recorder) handle(e reflector.Event) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.Type == reflector.Disconnected {
		r.events = append(r.events, "disconnected: "+e.Err.Error())
		return nil
	}
	names := []string{}
	for key := range e.Keys() {
		names = append(names, key.Name)
	}
	slices.Sort(names)
	r.events = append(r.events, strings.TrimSpace(strings.ToLower(string(e.Type))+" "+strings.Join(names, " ")))
	err := r.fail
	r.fail = nil
	return err
}

// expect waits until nothing moves any more, and compares the events since the last call.
func (r *recorder) expect(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Equal(r.events, want) {
		t.Errorf("events\n%s\nwant\n%s", strings.Join(r.events, "\n"), strings.Join(want, "\n"))
	}
	r.events = nil
}

// rig is a reflector that runs, on a client whose calls are written down.
type rig struct {
	*resourcetest.Client
	*recorder
	reflector *reflector.Reflector

	mu    sync.Mutex
	calls []string
	at    []time.Duration
	began time.Time
}

// expectCalls compares the calls since the last time.
func (r *rig) expectCalls(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Equal(r.calls, want) {
		t.Errorf("calls %q, want %q", r.calls, want)
	}
	r.calls = nil
}

func (r *rig) note(call resourcetest.Call) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if call.Verb == resourcetest.List || call.Verb == resourcetest.Watch {
		r.calls = append(r.calls, string(call.Verb))
		r.at = append(r.at, time.Since(r.began))
	}
	return nil
}

func run(t *testing.T, change func(*reflector.Config), test func(*testing.T, *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{Client: resourcetest.New(kind.ConfigMap), recorder: &recorder{}, began: time.Now()}
		r.Intercept(r.note)
		cfg := reflector.Config{
			Client:  r.Client,
			Kind:    kind.ConfigMap,
			Logger:  slog.New(slog.DiscardHandler),
			Backoff: backoff.Policy{First: time.Second, Last: 4 * time.Second},
		}
		if change != nil {
			change(&cfg)
		}
		r.reflector = reflector.New(cfg, r.handle)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			if err := r.reflector.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		test(t, r)
		cancel()
		running.Wait()
	})
}

// All objects first, then each change; a cut loses nothing and costs no list.
func TestResume(t *testing.T) {
	run(t, nil, func(t *testing.T, r *rig) {
		r.expect(t, "replace")
		r.Seed(configMap("a"))
		r.Seed(configMap("b"))
		r.Seed(configMap("a"))
		r.expect(t, "set a", "set b", "set a")
		remove(t, r.Client, "a")
		r.expect(t, "delete a")
		r.expectCalls(t, "list", "watch")

		// The watch delivered something: it is resumed at once.
		r.Disconnect()
		r.expect(t, "disconnected: watch ended: configmaps", "resumed")
		// This one did not: there is a delay, so that a server that closes at once is not
		// called in a loop.
		r.Disconnect()
		r.expect(t, "disconnected: watch ended: configmaps")
		r.Seed(configMap("c"))
		remove(t, r.Client, "b")
		time.Sleep(time.Second)
		r.expect(t, "resumed", "set c", "delete b")
		r.expectCalls(t, "watch", "watch")
	})
}

func TestAlwaysRelist(t *testing.T) {
	run(t, func(c *reflector.Config) { c.AlwaysRelist = true }, func(t *testing.T, r *rig) {
		r.expect(t, "replace")
		r.Seed(configMap("a"), configMap("b"))
		r.expect(t, "set a", "set b")
		r.Disconnect()
		r.expect(t, "disconnected: watch ended: configmaps")
		r.Seed(configMap("c"))
		remove(t, r.Client, "b")
		r.expect(t)
		time.Sleep(time.Second)
		r.expect(t, "replace a c")
		r.expectCalls(t, "list", "watch", "list", "watch")
	})
}

// A server that compacted its history answers 410; then all objects are read again.
func TestCompaction(t *testing.T) {
	t.Run("during the watch", func(t *testing.T) {
		run(t, nil, func(t *testing.T, r *rig) {
			r.expect(t, "replace")
			r.Seed(configMap("a"))
			r.expect(t, "set a")
			r.Expire()
			r.expect(t, "disconnected: watch cannot be resumed: the watch is too far behind")
			remove(t, r.Client, "a")
			r.Seed(configMap("b"))
			time.Sleep(time.Second)
			r.expect(t, "replace b")
		})
	})
	t.Run("while it was cut", func(t *testing.T) {
		run(t, nil, func(t *testing.T, r *rig) {
			r.expect(t, "replace")
			r.Disconnect()
			r.expect(t, "disconnected: watch ended: configmaps")
			r.Seed(configMap("a"))
			r.Expire()
			time.Sleep(time.Second)
			r.expect(t, "disconnected: watch cannot be resumed: watch configmaps: resource version 0 is too old")
			time.Sleep(2 * time.Second)
			r.expect(t, "replace a")
		})
	})
}

// An event that the handler refuses is not lost: the kind is listed again.
func TestHandlerFails(t *testing.T) {
	run(t, nil, func(t *testing.T, r *rig) {
		r.expect(t, "replace")
		r.mu.Lock()
		r.fail = errors.New("too much")
		r.mu.Unlock()
		r.Seed(configMap("a"))
		r.expect(t, "set a", "disconnected: watch cannot be resumed: handle Set of configmaps: too much")
		time.Sleep(time.Second)
		r.expect(t, "replace a")
	})
}

func TestRelist(t *testing.T) {
	run(t, nil, func(t *testing.T, r *rig) {
		r.expect(t, "replace")
		r.Seed(configMap("a"))
		r.expect(t, "set a")
		r.reflector.Relist()
		r.reflector.Relist()
		time.Sleep(time.Second)
		r.expect(t, "disconnected: watch cannot be resumed: a new list was requested", "replace a")
	})
}

func TestSelection(t *testing.T) {
	only := resource.ListOptions{Labels: labels.SelectorFromSet(labels.Set{"name": "a"})}
	run(t, func(c *reflector.Config) { c.Select = only }, func(t *testing.T, r *rig) {
		r.expect(t, "replace")
		r.Seed(configMap("a"), configMap("b"))
		r.expect(t, "set a")
		r.Expire()
		time.Sleep(time.Second)
		r.expect(t, "disconnected: watch cannot be resumed: the watch is too far behind", "replace a")
	})
}

// A server that refuses is called less and less often, for the same version.
func TestServerAway(t *testing.T) {
	run(t, nil, func(t *testing.T, r *rig) {
		r.expect(t, "replace")
		r.Intercept(func(call resourcetest.Call) error {
			_ = r.note(call)
			return apierrors.NewServiceUnavailable("away")
		})
		time.Sleep(10 * time.Second)
		r.calls, r.at, r.began = nil, nil, time.Now()
		r.Disconnect()
		time.Sleep(16 * time.Second)
		synctest.Wait()
		want := []time.Duration{1, 3, 7, 11, 15}
		for i := range want {
			want[i] *= time.Second
		}
		if !slices.Equal(r.at, want) {
			t.Errorf("calls at %v, want %v", r.at, want)
		}
		r.expectCalls(t, "watch", "watch", "watch", "watch", "watch")
		r.Intercept(r.note)
		r.Seed(configMap("a"))
		time.Sleep(4 * time.Second)
		synctest.Wait()
		if last := r.events[len(r.events)-2:]; !slices.Equal(last, []string{"resumed", "set a"}) {
			t.Errorf("when the server is back: %q", last)
		}
		r.expectCalls(t, "watch")
	})
}

// A list counts only if a watch follows it.
func TestListWithoutWatch(t *testing.T) {
	run(t, func(c *reflector.Config) { c.AlwaysRelist = true }, func(t *testing.T, r *rig) {
		r.expect(t, "replace")
		r.Intercept(func(call resourcetest.Call) error {
			if call.Verb == resourcetest.Watch {
				return apierrors.NewServiceUnavailable("away")
			}
			return nil
		})
		r.Disconnect()
		r.Seed(configMap("a"))
		time.Sleep(time.Second)
		r.expect(t, "disconnected: watch ended: configmaps", "disconnected: watch configmaps: away")
		r.Intercept(nil)
		time.Sleep(2 * time.Second)
		r.expect(t, "replace a")
	})
}

// A failed check of the history, before a watch is resumed, leads to a list.
func TestEpochChangeByCheck(t *testing.T) {
	var replaced error
	run(t, func(c *reflector.Config) { c.Check = func(context.Context) error { return replaced } }, func(t *testing.T, r *rig) {
		r.expect(t, "replace")
		r.Disconnect()
		time.Sleep(time.Second)
		r.expect(t, "disconnected: watch ended: configmaps", "resumed")
		replaced = errors.New("the epoch is b, it was a")
		r.Seed(configMap("a"))
		r.expect(t, "set a")
		r.Disconnect()
		r.expect(t, "disconnected: watch ended: configmaps", "disconnected: watch cannot be resumed: the epoch is b, it was a")
		time.Sleep(time.Second)
		r.expect(t, "replace a")
	})
}

// scripted is a client whose lists and watches the test gives.
type scripted struct {
	resource.Client
	lists    chan string // the version of each list, with one object of that name
	watches  chan *watch.FakeWatcher
	versions chan string // the versions from which it was watched
}

func (s *scripted) List(ctx context.Context, _ *resource.Descriptor, _ resource.ListOptions) ([]resource.Object, string, error) {
	select {
	case version := <-s.lists:
		return []resource.Object{at(configMap("v"+version), version)}, version, nil
	case <-ctx.Done():
		return nil, "", ctx.Err()
	}
}

func (s *scripted) Watch(_ context.Context, _ *resource.Descriptor, opts resource.WatchOptions) (watch.Interface, error) {
	s.versions <- opts.ResourceVersion
	return <-s.watches, nil
}

func at(obj *corev1.ConfigMap, version string) *corev1.ConfigMap {
	obj.ResourceVersion = version
	return obj
}

func runScripted(t *testing.T, test func(*testing.T, *scripted, *rig)) {
	s := &scripted{lists: make(chan string, 2), watches: make(chan *watch.FakeWatcher, 2), versions: make(chan string, 8)}
	run(t, func(c *reflector.Config) {
		s.lists, s.watches, s.versions = make(chan string, 2), make(chan *watch.FakeWatcher, 2), make(chan string, 8)
		c.Client = s
	}, func(t *testing.T, r *rig) { test(t, s, r) })
}

// Versions that go backwards belong to another history, for example of a restored
// server: the known objects are replaced.
func TestEpochChangeByVersion(t *testing.T) {
	runScripted(t, func(t *testing.T, s *scripted, r *rig) {
		first, second, third := watch.NewFake(), watch.NewFake(), watch.NewFake()
		s.lists <- "100"
		s.watches <- first
		r.expect(t, "replace v100")
		first.Modify(at(configMap("a"), "105"))
		first.Stop()
		s.watches <- second
		r.expect(t, "set a", "disconnected: watch ended: configmaps", "resumed")
		second.Modify(at(configMap("b"), "7"))
		r.expect(t, "disconnected: watch cannot be resumed: watch configmaps went from version 105 to 7: the server has another history now")
		s.lists <- "9"
		s.watches <- third
		time.Sleep(time.Second)
		r.expect(t, "replace v9")
		close(s.versions)
		var versions []string
		for version := range s.versions {
			versions = append(versions, version)
		}
		if want := []string{"100", "105", "9"}; !slices.Equal(versions, want) {
			t.Errorf("watched from %q, want %q", versions, want)
		}
	})
}

// A bookmark moves the version from which a watch is resumed.
func TestBookmark(t *testing.T) {
	runScripted(t, func(t *testing.T, s *scripted, r *rig) {
		first := watch.NewFake()
		s.lists <- "100"
		s.watches <- first
		r.expect(t, "replace v100")
		first.Action(watch.Bookmark, at(configMap(""), "140"))
		r.expect(t, "bookmark")
		s.watches <- watch.NewFake()
		first.Stop()
		r.expect(t, "disconnected: watch ended: configmaps", "resumed")
		<-s.versions
		if version := <-s.versions; version != "140" {
			t.Errorf("resumed from %q, want 140", version)
		}
	})
}

// A watch that begins or delivers late loses nothing of what happened meanwhile.
func TestLateWatch(t *testing.T) {
	late := &lateClient{}
	run(t, func(c *reflector.Config) { late.Client, c.Client = c.Client, late }, func(t *testing.T, r *rig) {
		time.Sleep(10 * time.Second) // the list was read, the watch does not begin yet
		r.Seed(configMap("a"))
		r.Seed(configMap("b"))
		remove(t, r.Client, "a")
		r.expect(t)
		time.Sleep(time.Minute)
		r.expect(t, "replace", "set a", "set b", "delete a")
		r.Disconnect()
		r.Seed(configMap("c"))
		time.Sleep(time.Hour)
		r.expect(t, "disconnected: watch ended: configmaps", "resumed", "set c")
	})
}

// lateClient begins a watch a minute after it was requested.
type lateClient struct{ resource.Client }

func (l *lateClient) Watch(ctx context.Context, d *resource.Descriptor, opts resource.WatchOptions) (watch.Interface, error) {
	if !backoff.Sleep(ctx, time.Minute) {
		return nil, ctx.Err()
	}
	return l.Client.Watch(ctx, d, opts)
}

// Whatever fails in whatever order, a handler that applies events has what the server has.
func TestEndsEqual(t *testing.T) {
	for _, relist := range []bool{false, true} {
		t.Run(fmt.Sprint("always relist ", relist), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testEndsEqual(t, relist) })
		})
	}
}

func testEndsEqual(t *testing.T, relist bool) {
	server := resourcetest.New(kind.ConfigMap)
	faults := faulty.New(3, faulty.Probabilities{Calls: 0.2, Events: 0.2})
	have := map[string]string{} // versions by name
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		_ = reflector.Run(ctx, reflector.Config{
			Client:       faults.Wrap(server),
			Kind:         kind.ConfigMap,
			AlwaysRelist: relist,
			Backoff:      backoff.Policy{First: time.Millisecond, Last: 20 * time.Millisecond},
		}, func(e reflector.Event) error {
			switch e.Type {
			case reflector.Replace:
				clear(have)
			case reflector.Delete:
				delete(have, e.Object().GetName())
				return nil
			}
			for _, obj := range e.Objects {
				have[obj.GetName()] = obj.GetResourceVersion()
			}
			return nil
		})
	})
	for i := range 2000 {
		name := "o" + strconv.Itoa(i*7%11)
		switch i % 3 {
		case 0, 1:
			server.Seed(configMap(name))
		case 2:
			_ = server.Delete(ctx, kind.ConfigMap, resource.Key{Namespace: "default", Name: name}, resource.Preconditions{})
		}
		switch {
		case i%500 == 499:
			server.Expire()
		case i%10 == 9:
			time.Sleep(time.Millisecond)
		}
	}
	if faults.Injected() == 0 {
		t.Error("there were no faults")
	}
	faults.Set(faulty.Probabilities{})
	time.Sleep(time.Minute)
	cancel()
	running.Wait()
	objects, _, err := server.List(t.Context(), kind.ConfigMap, resource.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for _, obj := range objects {
		want[obj.GetName()] = obj.GetResourceVersion()
	}
	if fmt.Sprint(have) != fmt.Sprint(want) {
		t.Errorf("the handler has %v, the server %v", have, want)
	}
}

// Each kind has a watch of its own, and the events of all arrive on one channel.
func TestRunAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := resourcetest.New(kind.ConfigMap, kind.Node)
		client.Seed(configMap("a"), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
		kinds := []*resource.Descriptor{kind.ConfigMap, kind.Node}
		events := make(chan reflector.Event)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			reflector.RunAll(ctx, reflector.Config{
				Client: client, AlwaysRelist: true, Backoff: backoff.Policy{First: time.Second, Last: time.Second},
			}, kinds, events)
		})
		for _, want := range []reflector.EventType{reflector.Replace, reflector.Disconnected, reflector.Replace} {
			got := map[*resource.Descriptor]reflector.EventType{}
			for range kinds {
				e := <-events
				got[e.Kind] = e.Type
				if e.Type == reflector.Replace && len(e.Objects) != 1 {
					t.Errorf("%d objects of %s", len(e.Objects), e.Kind.Resource)
				}
			}
			if got[kinds[0]] != want || got[kinds[1]] != want {
				t.Errorf("events %v, want %s of both kinds", got, want)
			}
			if want == reflector.Replace {
				synctest.Wait()
				client.Disconnect()
			}
		}
		cancel()
		running.Wait()
	})
}

// Neither a delay nor a silent watch nor a late one keeps Run from ending with its context.
func TestEndsWithContext(t *testing.T) {
	for name, client := range map[string]func(resource.Client) resource.Client{
		"silent watch": func(c resource.Client) resource.Client { return c },
		"late watch":   func(c resource.Client) resource.Client { return &lateClient{c} },
		"delay":        faulty.New(1, faulty.Probabilities{Calls: 1}).Wrap,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				began := time.Now()
				_ = reflector.Run(ctx, reflector.Config{
					Client:  client(resourcetest.New(kind.ConfigMap)),
					Kind:    kind.ConfigMap,
					Backoff: backoff.Policy{First: time.Hour, Last: time.Hour},
				}, func(reflector.Event) error { return nil })
				if took := time.Since(began); took != time.Second {
					t.Errorf("it ended after %s, want 1s", took)
				}
			})
		})
	}
}
