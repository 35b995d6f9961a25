// Package faulty makes calls of a resource.Client fail and its watches end, for
// tests of what is built on clients.
//
// It owns the generator of faults. Enter at New. A call that fails with an injected error did
// nothing; a watch that ends early delivered everything before.
package faulty

import (
	"context"
	"math/rand/v2"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/proxima-mesh/proxima/internal/resource"
)

// Probabilities of faults, from 0 (never) to 1 (always).
type Probabilities struct {
	// Calls that fail, as they do while a server restarts.
	Calls float64
	// Events at which a watch ends instead of delivering them.
	Events float64
}

// Faults are injected into the clients that it wraps.
type Faults struct {
	mu            sync.Mutex
	rng           *rand.Rand
	probabilities Probabilities
	failed        int
}

// New makes faults. The seed fixes the sequence of outcomes.
func New(seed uint64, probabilities Probabilities) *Faults {
	return &Faults{rng: rand.New(rand.NewPCG(seed, seed)), probabilities: probabilities}
}

// Set changes the probabilities from now on; the zero value heals.
func (f *Faults) Set(probabilities Probabilities) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.probabilities = probabilities
}

// Injected counts the faults so far.
func (f *Faults) Injected() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failed
}

func (f *Faults) roll(of func(Probabilities) float64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	fails := f.rng.Float64() < of(f.probabilities)
	if fails {
		f.failed++
	}
	return fails
}

// Wrap is a resource.Wrapper.
func (f *Faults) Wrap(c resource.Client) resource.Client {
	return resource.Intercept(func(ctx context.Context, call resource.Call, next func(context.Context) error) error {
		if f.roll(func(p Probabilities) float64 { return p.Calls }) {
			return apierrors.NewServiceUnavailable(string(call.Verb) + ": injected fault")
		}
		return next(ctx)
	})(&ending{Client: c, faults: f})
}

// ending is a client whose watches end.
type ending struct {
	resource.Client
	faults *Faults
}

// Watch implements resource.Client.
func (e *ending) Watch(ctx context.Context, kind *resource.Descriptor, opts resource.WatchOptions) (watch.Interface, error) {
	inner, err := e.Client.Watch(ctx, kind, opts)
	if err != nil {
		return nil, err
	}
	w := &watcher{inner: inner, out: make(chan watch.Event), stop: make(chan struct{})}
	go w.run(e.faults)
	return w, nil
}

type watcher struct {
	inner watch.Interface
	out   chan watch.Event
	stop  chan struct{}
	once  sync.Once
}

func (w *watcher) ResultChan() <-chan watch.Event { return w.out }

func (w *watcher) Stop() {
	w.once.Do(func() { close(w.stop) })
	w.inner.Stop()
}

func (w *watcher) run(f *Faults) {
	defer close(w.out)
	defer w.inner.Stop()
	for event := range w.inner.ResultChan() {
		if f.roll(func(p Probabilities) float64 { return p.Events }) {
			return
		}
		select {
		case w.out <- event:
		case <-w.stop:
			return
		}
	}
}
