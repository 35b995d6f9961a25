package cached

import (
	"sync"

	"k8s.io/apimachinery/pkg/watch"
)

// tap passes the events of a watch on after it has seen them. Unlike upstream's
// filter it ends when it is stopped, also without a reader.
type tap struct {
	inner watch.Interface
	see   func(event watch.Event, stopped <-chan struct{})
	out   chan watch.Event
	stop  chan struct{}
	once  sync.Once
}

func newTap(inner watch.Interface, see func(watch.Event, <-chan struct{})) *tap {
	t := &tap{inner: inner, see: see, out: make(chan watch.Event), stop: make(chan struct{})}
	go t.run()
	return t
}

// ResultChan implements watch.Interface.
func (t *tap) ResultChan() <-chan watch.Event { return t.out }

// Stop implements watch.Interface.
func (t *tap) Stop() {
	t.once.Do(func() { close(t.stop) })
	t.inner.Stop()
}

func (t *tap) run() {
	defer close(t.out)
	defer t.inner.Stop()
	for event := range t.inner.ResultChan() {
		t.see(event, t.stop)
		select {
		case t.out <- event:
		case <-t.stop:
			return
		}
	}
}
