// Package mirrortest is the contract suite of mirrors: it runs one between two control planes that serve a protocol, one of
// which is the old registry.
package mirrortest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/registry/mirror"
	"github.com/proxima-mesh/proxima/internal/registry/registrytest"
)

// Town is a registry of a protocol, whose sessions end within about a second.
type Town struct {
	*registrytest.Plane
	Protocol registry.Protocol
	// Client makes a client of it, as that of an old registry, or of a control plane's port.
	Client func(here bool) mirror.Client
	// Provide registers ports of a service at 10.1.0.7, as an application does, until stop is called, which
	// deregisters them.
	Provide func(t *testing.T, service string, ports ...int) (stop func())
	// Entries makes a client of its configuration; nil: it has none.
	Entries func(here bool) mirror.EntryClient
	// SharedLeases: sessions are of instances, and not of who registers them.
	SharedLeases bool
	// Apart is that of mirror.Config.
	Apart func(*registry.Instance) bool
}

// Run the suite on towns.
func Run(t *testing.T, newTown func(*testing.T) *Town) {
	t.Run("BothWays", func(t *testing.T) { testMirror(t, newTown) })
	t.Run("NoLoop", func(t *testing.T) { testNoLoop(t, newTown) })
	t.Run("MoveAndBack", func(t *testing.T) { testMoveAndBack(t, newTown) })
	t.Run("Restart", func(t *testing.T) { testRestart(t, newTown) })
	t.Run("OldRegistryForgets", func(t *testing.T) { testForgets(t, newTown) })
	t.Run("Plan", func(t *testing.T) { testPlan(t, newTown) })
}

// RunEntries runs the suite of the configuration on towns.
func RunEntries(t *testing.T, newTown func(*testing.T) *Town) {
	t.Run("BothWays", func(t *testing.T) { testEntries(t, newTown) })
	t.Run("NoLoop", func(t *testing.T) { testEntriesNoLoop(t, newTown) })
	t.Run("Lost", func(t *testing.T) { testEntriesLost(t, newTown) })
	t.Run("Restart", func(t *testing.T) { testEntriesRestart(t, newTown) })
	t.Run("OneWay", func(t *testing.T) { testEntriesOneWay(t, newTown) })
	t.Run("Plan", func(t *testing.T) { testEntriesPlan(t, newTown) })
}

// origins of the instances of a service, in order: PORT, and the registry that it is a copy from.
func (w *Town) origins(service string) string {
	var out []string
	for _, in := range w.Index.Registered(registry.Service{Namespace: "default", Name: service}) {
		text := fmt.Sprint(in.Port)
		if from := in.MirroredFrom(); from != "" {
			text += " of " + from
		}
		out = append(out, text)
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

func (w *Town) await(service, want string) {
	w.Eventually(fmt.Sprintf("%s of %s", want, service), func() bool { return w.origins(service) == want })
}

// startMirror between two registries, until stop is called.
func startMirror(t *testing.T, old, here *Town, hold time.Duration) (m *mirror.Mirror, stop func()) {
	m = mirror.New(mirror.Config{
		Old: old.Client(false), Catalogue: &mirror.Catalogue{Client: here.Plane.Client, Namespaces: []string{"default"}}, Here: here.Client(true),
		OldName: "old", HereName: "here", Follow: true, Hold: hold, Apart: here.Apart,
	})
	return m, runMirror(t, m)
}

func runMirror(t *testing.T, m *mirror.Mirror) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := m.Run(ctx); err != nil {
			t.Errorf("mirror: %v", err)
		}
	}()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

func testMirror(t *testing.T, newTown func(*testing.T) *Town) {
	old, here := newTown(t), newTown(t)
	old.Provide(t, "orders", 1, 2)
	here.Provide(t, "stock", 3)
	m, stop := startMirror(t, old, here, time.Millisecond)
	here.await("orders", "1 of old, 2 of old")
	old.await("stock", "3 of here")
	old.await("orders", "1, 2")
	here.await("stock", "3")

	// What is new, and what goes, on both sides.
	gone := old.Provide(t, "orders", 5)
	here.await("orders", "1 of old, 2 of old, 5 of old")
	gone()
	here.await("orders", "1 of old, 2 of old")
	gone = here.Provide(t, "orders", 6)
	old.await("orders", "1, 2, 6 of here")
	gone()
	old.await("orders", "1, 2")

	here.Eventually("all is published", func() bool { s := m.Status(); return s.Waiting == 0 && s.Imported == 2 && s.Exported == 1 })
	if s := m.Status(); s.Old != 2 || s.Here != 1 || s.Skipped != 0 || s.LastLag <= 0 {
		t.Errorf("status %+v", s)
	}
	// The end removes the copies there at once, and those here with the grace of a connection.
	stop()
	old.await("stock", "")
	if got := here.origins("orders"); got != "1 of old, 2 of old" {
		t.Errorf("at once after the mirror has stopped there is %s", got)
	}
	here.Eventually("the copies are gone", func() bool { return here.origins("orders") == "" })
}

// Nothing is copied that is a copy, however many mirrors there are, and whatever between.
func testNoLoop(t *testing.T, newTown func(*testing.T) *Town) {
	old, here := newTown(t), newTown(t)
	old.Provide(t, "orders", 1)
	here.Provide(t, "orders", 2)
	for _, pair := range [][2]*Town{{old, here}, {old, here}, {here, old}, {here, here}, {old, old}} {
		startMirror(t, pair[0], pair[1], time.Millisecond)
	}
	settled := func() bool {
		for _, w := range []*Town{old, here} {
			if n := len(w.Index.Registered(registry.Service{Namespace: "default", Name: "orders"})); n != 2 {
				return false
			}
		}
		return true
	}
	here.Eventually("each has two instances", settled)
	// The positions stand still: nothing is written any more.
	writes := func() [2]registry.Position { return [2]registry.Position{old.Index.Position(), here.Index.Position()} }
	still := 0
	last := writes()
	here.Eventually("nothing is written any more", func() bool {
		if now := writes(); now != last {
			last, still = now, 0
		} else {
			still++
		}
		return still > 100 // half a second
	})
	for name, w := range map[string]*Town{"old": old, "here": here} {
		own := 0
		for _, in := range w.Index.Registered(registry.Service{Namespace: "default", Name: "orders"}) {
			if in.MirroredFrom() == "" {
				own++
			}
		}
		if !settled() || own != 1 {
			t.Errorf("%s has %s", name, w.origins("orders"))
		}
	}
}

// observer counts how often a consumer sees a service without an instance after it has seen one.
type observer struct {
	empty atomic.Int32
	seen  atomic.Int32
}

func (w *Town) observe(t *testing.T, service string) *observer {
	o := &observer{}
	f := w.Index.FollowAll()
	s := registry.Service{Namespace: "default", Name: service}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		for {
			select {
			case <-f.Ready():
			case <-ctx.Done():
				return
			}
			f.Take()
			if n := len(w.Index.Listing(s, "").Instances); n > 0 {
				o.seen.Store(int32(n))
			} else if o.seen.Load() > 0 {
				o.empty.Add(1)
			}
		}
	})
	t.Cleanup(func() { cancel(); running.Wait(); f.Close() })
	return o
}

// A shop moves: half of it on each side, all here, and back. No consumer on either side is ever without instances.
func testMoveAndBack(t *testing.T, newTown func(*testing.T) *Town) {
	old, here := newTown(t), newTown(t)
	apps := []string{"orders", "stock"}
	var observers []*observer
	stops := map[string]func(){}
	move := func(to *Town, app string, port int) {
		key := fmt.Sprint(app, port)
		stop := to.Provide(t, app, port) // as a rolling restart does: the next one is there before the last one goes
		if before := stops[key]; before != nil {
			before()
		}
		stops[key] = stop
	}
	for _, app := range apps {
		move(old, app, 1)
		move(old, app, 2)
	}
	startMirror(t, old, here, time.Millisecond)
	for _, app := range apps {
		here.await(app, "1 of old, 2 of old")
		observers = append(observers, old.observe(t, app), here.observe(t, app))
	}
	// What both sides have after each step. The next one begins when consumers see it: a step is that of a
	// provider which waits until others serve.
	for _, step := range []struct {
		to        *Town
		port      int
		here, old string
	}{
		{here, 1, "1, 2 of old", "1 of here, 2"},
		{here, 2, "1, 2", "1 of here, 2 of here"},
		{old, 1, "1 of old, 2", "1, 2 of here"},
		{old, 2, "1 of old, 2 of old", "1, 2"},
	} {
		for _, app := range apps {
			move(step.to, app, step.port)
			here.await(app, step.here)
			old.await(app, step.old)
		}
	}
	for i, o := range observers {
		here.Eventually(fmt.Sprintf("observer %d sees both", i), func() bool { return o.seen.Load() == 2 })
		if n := o.empty.Load(); n != 0 {
			t.Errorf("observer %d: %d times without an instance", i, n)
		}
	}
}

// A mirror that was killed is started again: its copies here are taken over within the grace.
func testRestart(t *testing.T, newTown func(*testing.T) *Town) {
	old, here := newTown(t), newTown(t)
	old.Provide(t, "orders", 1)
	_, stop := startMirror(t, old, here, time.Millisecond)
	here.await("orders", "1 of old")
	o := here.observe(t, "orders")
	stop()
	startMirror(t, old, here, time.Millisecond)
	here.Eventually("both have a session", func() bool { return here.SharedLeases || here.Registrar.Sessions(here.Protocol) == 2 })
	here.Eventually("the session of the first one ends, and that of the second one stays", func() bool { return here.Registrar.Sessions(here.Protocol) == 1 })
	if n := o.empty.Load(); n != 0 || here.origins("orders") != "1 of old" {
		t.Errorf("%d times empty, at last %s", n, here.origins("orders"))
	}
}

// An old registry that comes back without its instances, as one in memory does, takes nothing away here until its clients
// have had the time to register again.
func testForgets(t *testing.T, newTown func(*testing.T) *Town) {
	old, here := newTown(t), newTown(t)
	gone := old.Provide(t, "orders", 1, 2)
	m := mirror.New(mirror.Config{
		Old: &forgetful{Client: old.Client(false)}, Catalogue: &mirror.Catalogue{Client: here.Plane.Client, Namespaces: []string{"default"}}, Here: here.Client(true),
		OldName: "old", HereName: "here", Hold: 2 * time.Second, Apart: here.Apart,
	})
	runMirror(t, m)
	here.await("orders", "1 of old, 2 of old")
	o := here.observe(t, "orders")
	gone()
	old.await("orders", "")
	old.Provide(t, "orders", 1, 2)
	here.await("orders", "1 of old, 2 of old")
	if n := o.empty.Load(); n != 0 {
		t.Errorf("%d times without an instance", n)
	}
}

// forgetful says that it was disturbed whenever it has less.
type forgetful struct{ mirror.Client }

func (f *forgetful) Run(ctx context.Context, to mirror.Sink) error {
	return f.Client.Run(ctx, &wary{Sink: to})
}

type wary struct {
	mirror.Sink
	known int
}

func (w *wary) Set(s registry.Service, list []*registry.Instance) {
	if len(list) < w.known {
		w.Disturbed()
	}
	w.known = len(list)
	w.Sink.Set(s, list)
}

func testPlan(t *testing.T, newTown func(*testing.T) *Town) {
	old, here := newTown(t), newTown(t)
	old.Provide(t, "orders", 1)
	here.Provide(t, "stock", 3)
	m := mirror.New(mirror.Config{
		Old: old.Client(false), Catalogue: &mirror.Catalogue{Client: here.Plane.Client, Namespaces: []string{"default"}}, Here: here.Client(true),
		OldName: "old", HereName: "here", Follow: true, Apart: here.Apart,
	})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	steps, _, err := m.Plan(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range steps {
		got = append(got, fmt.Sprint(s.Service, " ", s.Export, " ", s.Instances, s.Skipped))
	}
	if want := "default/orders false [10.1.0.7:1] [], default/stock true [10.1.0.7:3] []"; strings.Join(got, ", ") != want {
		t.Errorf("got %v, want %s", got, want)
	}
	if old.origins("stock") != "" || here.origins("orders") != "" {
		t.Error("a plan writes")
	}
}
