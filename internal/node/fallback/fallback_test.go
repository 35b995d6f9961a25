package fallback

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/proxima-mesh/proxima/internal/node"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// world is a control plane, a cluster's API, and what the agent applies.
type world struct {
	t       *testing.T
	s       *Switch
	mu      sync.Mutex
	current bool
	state   []string // names of the services of the view; nil: it holds none
	api     []string // of the API
	changed chan struct{}
	refuses error // of the API
	asked   int   // watches for changes
	running int   // feeds of the API
	applied []string
	update  func(node.Update)
}

func services(names ...string) node.Update {
	u := node.Update{}
	u.Services = map[proxy.ServiceName]*proxy.Service{}
	for _, n := range names {
		u.Services[proxy.ServiceName{Name: n}] = &proxy.Service{}
	}
	return u
}

func (w *world) Current() bool { w.mu.Lock(); defer w.mu.Unlock(); return w.current }
func (w *world) Held() bool    { w.mu.Lock(); defer w.mu.Unlock(); return w.state != nil }
func (w *world) State() node.Update {
	w.mu.Lock()
	defer w.mu.Unlock()
	return services(w.state...)
}

func (w *world) apply(u node.Update) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if u.Reset {
		w.applied = nil
	}
	for name, s := range u.Services {
		w.applied = slices.DeleteFunc(w.applied, func(n string) bool { return n == name.Name })
		if s != nil {
			w.applied = append(w.applied, name.Name)
		}
	}
	slices.Sort(w.applied)
}

// view is a change that the control plane sends.
func (w *world) view(reset bool, names ...string) {
	w.mu.Lock()
	w.current = true
	if reset {
		w.state = nil
	}
	w.state = append(w.state, names...)
	w.mu.Unlock()
	u := services(names...)
	u.Reset = reset
	w.s.FromView(u)
}

func (w *world) lose() { w.mu.Lock(); defer w.mu.Unlock(); w.current = false }

// change something in the cluster.
func (w *world) change(names ...string) {
	w.mu.Lock()
	w.api = names
	update := w.update
	select {
	case w.changed <- struct{}{}:
	default:
	}
	w.mu.Unlock()
	if update != nil {
		u := services(names...)
		u.Reset = true
		update(u)
	}
}

func (w *world) want(direct bool, names ...string) {
	w.t.Helper()
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.Equal(w.applied, names) || w.s.Status().Direct != direct {
		w.t.Fatalf("the agent has %v, direct %v; want %v, %v", w.applied, w.s.Status().Direct, names, direct)
	}
}

const after = time.Minute

func run(t *testing.T, test func(*world)) {
	synctest.Test(t, func(t *testing.T) {
		var late sync.WaitGroup
		w := &world{t: t, changed: make(chan struct{}, 1), api: []string{"api"}}
		w.s = New(Config{
			View: w, After: after, Apply: w.apply,
			Direct: func(ctx context.Context, update func(node.Update)) error {
				w.mu.Lock()
				w.running++
				w.update = update
				u := services(w.api...)
				w.mu.Unlock()
				u.Reset = true
				update(u)
				<-ctx.Done()
				w.mu.Lock()
				w.running--
				w.update = nil
				w.mu.Unlock()
				late.Go(func() {
					time.Sleep(look / 2)
					u := services("too late")
					u.Reset = true
					update(u)
				})
				return nil
			},
			Changed: func(ctx context.Context, since time.Time, _ node.Update) error {
				w.mu.Lock()
				w.asked++
				refuses := w.refuses
				w.mu.Unlock()
				if refuses != nil {
					return refuses
				}
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-w.changed:
					return nil
				}
			},
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- w.s.Run(ctx) }()
		test(w)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		late.Wait()
		if w.running > 0 {
			t.Error("the API is followed still")
		}
	})
}

// TestView: with a control plane nothing is asked of the API.
func TestView(t *testing.T) {
	run(t, func(w *world) {
		time.Sleep(time.Second)
		w.view(true, "a")
		w.want(false, "a")
		time.Sleep(time.Hour)
		w.view(false, "b")
		w.want(false, "a", "b")
		if w.asked+int(w.s.Status().Switches) > 0 {
			t.Errorf("the API was asked %d times", w.asked)
		}
	})
}

// TestFirst: without any state the API is followed, until there is a view.
func TestFirst(t *testing.T) {
	run(t, func(w *world) {
		time.Sleep(FirstView + 2*spread)
		w.want(true, "api")
		w.change("api", "more")
		w.want(true, "api", "more")
		w.view(true, "view")
		w.want(true, "api", "more")
		time.Sleep(2 * look)
		w.want(false, "view")
		w.view(false, "next")
		w.want(false, "next", "view")
	})
}

// TestAlone: the last view serves as long as nothing changes, and for After in any case.
func TestAlone(t *testing.T) {
	run(t, func(w *world) {
		w.view(true, "a")
		w.lose()
		time.Sleep(24 * time.Hour)
		w.want(false, "a")
		w.change("changed")
		w.want(true, "changed")

		w.view(true, "b")
		time.Sleep(2 * look)
		w.want(false, "b")
		w.lose()
		time.Sleep(after / 2)
		w.change("soon")
		time.Sleep(after/2 - 2*look)
		w.want(false, "b")
		time.Sleep(3 * look)
		w.want(true, "soon")
		if n := w.s.Status().Switches; n != 2 {
			t.Errorf("%d switches", n)
		}
	})
}

// TestBackSoon: a control plane that is back before After has passed changes nothing.
func TestBackSoon(t *testing.T) {
	run(t, func(w *world) {
		w.view(true, "a")
		w.lose()
		time.Sleep(2 * spread)
		w.change("changed")
		time.Sleep(after / 2)
		w.view(false, "b")
		time.Sleep(24 * time.Hour)
		w.want(false, "a", "b")
		if !w.s.Status().Alone.IsZero() {
			t.Error("it takes itself for alone")
		}
	})
}

// TestRefused: while the API cannot be asked, the last view serves; it is asked again.
func TestRefused(t *testing.T) {
	run(t, func(w *world) {
		w.view(true, "a")
		w.mu.Lock()
		w.refuses = errors.New("connection refused")
		w.mu.Unlock()
		w.lose()
		time.Sleep(10 * after)
		w.want(false, "a")
		if w.s.Status().LastError != "connection refused" || w.asked < 100 {
			t.Errorf("%d times, %+v", w.asked, w.s.Status())
		}
		w.mu.Lock()
		w.refuses = nil
		w.mu.Unlock()
		time.Sleep(2 * retry)
		w.change("changed")
		w.want(true, "changed")
	})
}
