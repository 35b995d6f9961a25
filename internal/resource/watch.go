package resource

import (
	"sync"

	"k8s.io/apimachinery/pkg/watch"
)

// MapWatch returns a watch of the events of inner, each as f returns it; keep=false leaves
// one out. It owns inner. Unlike watch.Filter it ends when it is stopped, also while an
// event waits that is never read. f is called in one goroutine; a stop takes effect when it
// has returned.
func MapWatch(inner watch.Interface, f func(watch.Event) (out watch.Event, keep bool)) watch.Interface {
	m := &mapped{inner: inner, f: f, out: make(chan watch.Event), stop: make(chan struct{})}
	go m.run()
	return m
}

type mapped struct {
	inner watch.Interface
	f     func(watch.Event) (watch.Event, bool)
	out   chan watch.Event
	stop  chan struct{}
	once  sync.Once
}

// ResultChan implements watch.Interface.
func (m *mapped) ResultChan() <-chan watch.Event { return m.out }

// Stop implements watch.Interface. It is idempotent.
func (m *mapped) Stop() {
	m.once.Do(func() { close(m.stop) })
	m.inner.Stop()
}

func (m *mapped) run() {
	defer close(m.out)
	defer m.inner.Stop()
	for event := range m.inner.ResultChan() {
		event, keep := m.f(event)
		if !keep {
			continue
		}
		select {
		case m.out <- event:
		case <-m.stop:
			return
		}
	}
}
