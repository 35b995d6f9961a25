package cached

import (
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/proxima-mesh/proxima/internal/resource"
)

// index is one kind in memory.
//
// Two sources fill it: the feed, whose events come in order, and what this
// client's callers have been told, which may be ahead of the feed or behind it.
// So each change counts only if it is newer than what is known: an object has a
// version; the feed has one, up to which it has told everything; and an object
// that is known to be gone leaves a tombstone until the feed has got there.
type index struct {
	kind   *resource.Descriptor
	doubts chan struct{} // holds one wish to begin anew

	hits, misses atomic.Uint64

	mu sync.RWMutex
	// following: the feed is up to date, so reads may be answered.
	following bool
	version   uint64        // of the feed; 0: it has not begun
	advanced  chan struct{} // closed and replaced when version changes
	objects   map[resource.Key]entry
	graves    map[types.UID]uint64 // → the last version that was seen alive
	// initial collects what a feed begins with; nil once it is complete.
	initial map[resource.Key]entry
}

// entry is an object with its version as a number. The object is never changed.
type entry struct {
	obj     resource.Object
	version uint64
}

func newIndex(d *resource.Descriptor) *index {
	return &index{kind: d, doubts: make(chan struct{}, 1),
		advanced: make(chan struct{}), objects: map[resource.Key]entry{}, graves: map[types.UID]uint64{}}
}

// errVersion ends a feed whose versions can't be compared: the index is of no
// use then, and reads go to the server for good.
var errVersion = errors.New("its resource versions are no numbers")

func versionOf(obj resource.Object) (uint64, error) {
	v, err := strconv.ParseUint(obj.GetResourceVersion(), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%w: %q", errVersion, obj.GetResourceVersion())
	}
	return v, nil
}

// collect makes the index ready for a feed that begins with what exists.
//
// A feed never goes on where the one before it ended: until it had caught up, reads
// would show less than reads of the server did in between.
func (ix *index) collect() {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	ix.initial = map[resource.Key]entry{}
}

// lost: the feed has ended, reads go to the server.
func (ix *index) lost() {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	ix.following, ix.initial, ix.version = false, nil, 0
}

// doubt makes reads go to the server until the feed has begun anew. Does not block.
func (ix *index) doubt() {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	ix.following = false
	select {
	case ix.doubts <- struct{}{}:
	default: // one is pending
	}
}

// fed takes the next event of the feed.
func (ix *index) fed(event watch.EventType, obj resource.Object) error {
	version, err := versionOf(obj)
	if err != nil {
		return err
	}
	ix.mu.Lock()
	defer ix.mu.Unlock()
	switch {
	case ix.initial == nil:
		ix.change(event, obj, version)
		ix.advance(max(ix.version, version))
	case event == watch.Bookmark:
		if obj.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true" {
			ix.begin(version)
		}
	case event == watch.Deleted:
		delete(ix.initial, resource.KeyOf(obj))
	default:
		ix.initial[resource.KeyOf(obj)] = entry{obj, version}
	}
	return nil
}

// begin replaces the content by what existed at a version. What is known to be
// newer stays.
func (ix *index) begin(version uint64) {
	present := map[types.UID]bool{}
	for key, e := range ix.initial {
		present[e.obj.GetUID()] = true
		if _, dead := ix.graves[e.obj.GetUID()]; dead {
			delete(ix.initial, key)
		}
	}
	for uid, seen := range ix.graves {
		if version >= seen && !present[uid] {
			delete(ix.graves, uid) // it will not be heard of again
		}
	}
	for key, e := range ix.objects {
		if e.version > version && e.version > ix.initial[key].version {
			ix.initial[key] = e
		}
	}
	ix.objects, ix.initial, ix.following = ix.initial, nil, true
	ix.advance(version)
}

func (ix *index) advance(version uint64) {
	ix.version = version
	close(ix.advanced)
	ix.advanced = make(chan struct{})
}

// await waits until the feed has told everything up to the version of an event
// of this kind. It gives up after a while; then reads go to the server until the
// feed has begun anew.
func (ix *index) await(obj resource.Object, done <-chan struct{}) {
	version, err := versionOf(obj)
	if err != nil {
		return
	}
	timer := time.NewTimer(awaitPatience)
	defer timer.Stop()
	for {
		ix.mu.RLock()
		reached, advanced := ix.version >= version || !ix.following, ix.advanced
		ix.mu.RUnlock()
		if reached {
			return
		}
		select {
		case <-advanced:
		case <-done:
			return
		case <-timer.C:
			ix.doubt()
			return
		}
	}
}

// awaitPatience is much longer than two watches of one kind are ever apart while
// all is well.
const awaitPatience = time.Second

// told takes what a caller is about to be told.
func (ix *index) told(event watch.EventType, obj resource.Object) {
	version, err := versionOf(obj)
	if err != nil {
		return // the feed has found out too
	}
	ix.mu.Lock()
	defer ix.mu.Unlock()
	switch {
	case version <= ix.version:
		// The feed has told it, and perhaps what came after.
	case event == watch.Deleted:
		ix.bury(obj)
	default:
		ix.change(event, clone(obj), version)
	}
}

// gone notes that an object which was there is deleted.
func (ix *index) gone(last resource.Object) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	ix.bury(last)
}

// bury removes an object. If the feed has not told of its end yet, what it tells
// of it until then does not count.
func (ix *index) bury(last resource.Object) {
	key := resource.KeyOf(last)
	known, there := ix.objects[key]
	there = there && known.obj.GetUID() == last.GetUID()
	version, err := versionOf(last)
	if err != nil {
		return
	}
	if there {
		delete(ix.objects, key)
		version = max(version, known.version)
	} else if ix.initial == nil && version <= ix.version {
		return // the feed had it, and has it no more
	}
	ix.graves[last.GetUID()] = version
}

// change applies one event if it is news.
func (ix *index) change(event watch.EventType, obj resource.Object, version uint64) {
	key := resource.KeyOf(obj)
	known, there := ix.objects[key]
	switch {
	case event == watch.Bookmark:
	case event == watch.Deleted:
		delete(ix.graves, obj.GetUID())
		if there && (known.version < version || known.obj.GetUID() == obj.GetUID()) {
			delete(ix.objects, key)
		}
	case there && known.version >= version:
	default:
		if _, dead := ix.graves[obj.GetUID()]; !dead {
			ix.objects[key] = entry{obj, version}
		}
	}
}

// get reads one object; nil: absent. ok=false: ask the server.
func (ix *index) get(key resource.Key) (obj resource.Object, ok bool) {
	ix.mu.RLock()
	defer ix.mu.RUnlock()
	if !ix.following {
		return nil, false
	}
	return ix.objects[key].obj, true
}

// list reads what is selected, in any order. The objects are the index's own.
func (ix *index) list(selected func(resource.Object) bool) (objects []resource.Object, version string, ok bool) {
	ix.mu.RLock()
	defer ix.mu.RUnlock()
	if !ix.following {
		return nil, "", false
	}
	for _, e := range ix.objects {
		if selected(e.obj) {
			objects = append(objects, e.obj)
		}
	}
	return objects, strconv.FormatUint(ix.version, 10), true
}
