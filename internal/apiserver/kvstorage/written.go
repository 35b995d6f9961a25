package kvstorage

import (
	"bytes"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
)

// written are objects that writers have decoded from the values that they store, so that the watch cache, which gets
// the same values a moment later, need not decode them again. Safe for concurrent use.
type written struct {
	mu sync.Mutex
	// takers are the watches of watch caches, two for a moment where one follows another.
	takers  int
	objects map[string]writtenValue // by key
}

// writtenValue and the object that it is, without a revision.
type writtenValue struct {
	value []byte
	obj   runtime.Object
}

// maxWritten bounds what the watch cache has not taken, as of writes that failed. Writers that wait for one commit are
// seldom more; what is forgotten is decoded twice.
const maxWritten = 256

// follow notes that a watch cache begins to take, or (-1) takes no more.
func (w *written) follow(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.takers += n
	w.objects = map[string]writtenValue{}
}

// wanted reports whether there is a watch cache.
func (w *written) wanted() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.takers > 0
}

// put what is about to be stored under a key. The object becomes the watch cache's.
func (w *written) put(key string, value []byte, obj runtime.Object) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.takers == 0 {
		return
	}
	if len(w.objects) >= maxWritten {
		clear(w.objects)
	}
	w.objects[key] = writtenValue{value, obj}
}

// take the object of a value, once; nil: it has to be decoded. Objects of equal values are equal, whichever write they are from.
func (w *written) take(key string, value []byte) runtime.Object {
	w.mu.Lock()
	defer w.mu.Unlock()
	found, ok := w.objects[key]
	if !ok || !bytes.Equal(found.value, value) {
		return nil
	}
	delete(w.objects, key)
	return found.obj
}
