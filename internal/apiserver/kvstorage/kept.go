package kvstorage

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/storage"
)

// kept are the objects of one resource that the watch cache has, as it hands out copies alone: who never changes an
// object can have the cache's own. Safe for concurrent use.
type kept struct {
	mu      sync.RWMutex
	objects map[types.UID]runtime.Object
}

// reset forgets all, as the cache begins anew.
func (k *kept) reset() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.objects = map[types.UID]runtime.Object{}
}

// set what the cache is about to have.
func (k *kept) set(obj runtime.Object) {
	if m, err := meta.Accessor(obj); err == nil && m.GetUID() != "" {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.objects[m.GetUID()] = obj
	}
}

// remove an object that is gone.
func (k *kept) remove(obj runtime.Object) {
	if m, err := meta.Accessor(obj); err == nil {
		k.mu.Lock()
		defer k.mu.Unlock()
		delete(k.objects, m.GetUID())
	}
}

// Kept returns the object that the watch cache has of an object's version, which nobody may change; nil: it
// has none, or another version.
func (s *Storage) Kept(obj metav1.Object) runtime.Object {
	s.kept.mu.RLock()
	found := s.kept.objects[obj.GetUID()]
	s.kept.mu.RUnlock()
	if found == nil {
		return nil
	}
	if m, err := meta.Accessor(found); err != nil || m.GetResourceVersion() != obj.GetResourceVersion() {
		return nil
	}
	return found
}

// cacheWindow is about how long the watch cache keeps events: the store has a history, too, which a watch that begins
// before reads (withHistory). Upstream takes 75 seconds at least, and none of them are forgotten before others come:
// the versions of slices and Endpoints that a burst has made are most of what there is of them after it.
const cacheWindow = 10 * time.Second

// aged makes an event look to the watch cache as if it forgot sooner: its clock goes so much faster.
type aged struct {
	runtime.Object
	at time.Time
}

var _ storage.WatchEventWithRecordTime = (*aged)(nil)

// age an object that the watch cache gets now.
func (s *Storage) age(obj runtime.Object) runtime.Object {
	const factor = upstreamWindow / cacheWindow
	return &aged{Object: obj, at: s.began.Add(factor * time.Since(s.began))}
}

// upstreamWindow is storagebackend.DefaultEventsHistoryWindow, rounded.
const upstreamWindow = 70 * time.Second

// GetObjectMeta implements metav1.ObjectMetaAccessor.
func (a *aged) GetObjectMeta() metav1.Object {
	m, _ := meta.Accessor(a.Object)
	return m
}

// RecordTime implements storage.WatchEventWithRecordTime. The cache uses it to forget, and for metrics that are not served.
func (a *aged) RecordTime() time.Time { return a.at }

// Unwrap implements storage.WatchEventWithRecordTime.
func (a *aged) Unwrap() runtime.Object { return a.Object }
