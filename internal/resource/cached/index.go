package cached

import (
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/reflector"
)

// index is one kind in memory.
//
// Two sources fill it: the reflector, whose events come in order, and what this client's
// callers were shown, which may be ahead of the reflector or behind it. So each change counts
// only if it is newer than what the index has: an object has a version; the reflector has
// one, up to which it delivered everything; and an object that is known to be gone leaves a
// tombstone until the reflector has come that far.
type index struct {
	kind *resource.Descriptor
	// relist makes the reflector list again.
	relist func()

	hits, misses atomic.Uint64

	mu sync.RWMutex
	// synced: the reflector is up to date, so reads may be answered.
	synced     bool
	version    uint64        // of the reflector; 0: it is not connected
	advanced   chan struct{} // closed and replaced when version changes
	objects    map[resource.Key]entry
	tombstones map[types.UID]uint64 // → the last version that was seen alive
	// listed is the newest version of a list that the server answered a caller with, and
	// absent are the keys that it reported as not found. A new list must not
	// show less.
	listed uint64
	absent map[resource.Key]struct{}
}

// entry is an object with its version as a number. The object is never changed, so those of the reflector
// share memory with the client underneath.
type entry struct {
	obj     resource.Object
	version uint64
}

func newIndex(d *resource.Descriptor) *index {
	return &index{
		kind:       d,
		relist:     func() {},
		advanced:   make(chan struct{}),
		objects:    map[resource.Key]entry{},
		tombstones: map[types.UID]uint64{},
		absent:     map[resource.Key]struct{}{},
	}
}

// errVersion refuses versions that can't be compared: the index is of no use then, and reads
// go to the server for good.
var errVersion = errors.New("its resource versions are no numbers")

// errBehind refuses a list that is older than what the server has shown a caller since.
var errBehind = errors.New("the list is older than what the server has shown meanwhile")

func versionOf(obj resource.Object) (uint64, error) { return parseVersion(obj.GetResourceVersion()) }

func parseVersion(text string) (uint64, error) {
	v, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%w: %q", errVersion, text)
	}
	return v, nil
}

// disconnected: reads go to the server.
//
// The reflector never resumes, it lists again: until a resumed watch had caught up, reads
// would show less than reads of the server did in between.
func (ix *index) disconnected() {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	ix.synced, ix.version = false, 0
	clear(ix.absent)
}

// needsResync makes reads go to the server until the kind was listed again. It does not block.
func (ix *index) needsResync() {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	ix.synced = false
	ix.relist()
}

// replace exchanges the content for what existed at a version. What is known to be newer
// stays. errBehind: the index stays as it is.
func (ix *index) replace(objects []resource.Object, resourceVersion string) error {
	version, err := parseVersion(resourceVersion)
	if err != nil {
		return err
	}
	next := make(map[resource.Key]entry, len(objects))
	present := make(map[types.UID]bool, len(objects))
	for _, obj := range objects {
		v, err := versionOf(obj)
		if err != nil {
			return err
		}
		next[resource.KeyOf(obj)] = entry{obj, v}
		present[obj.GetUID()] = true
	}
	ix.mu.Lock()
	defer ix.mu.Unlock()
	if version < ix.listed {
		return errBehind
	}
	for key, e := range next {
		if _, absent := ix.absent[key]; absent {
			return errBehind
		}
		if _, dead := ix.tombstones[e.obj.GetUID()]; dead {
			delete(next, key)
		}
	}
	for uid, seen := range ix.tombstones {
		if version >= seen && !present[uid] {
			delete(ix.tombstones, uid) // the reflector will not deliver it again
		}
	}
	for key, e := range ix.objects {
		if e.version > version && e.version > next[key].version {
			next[key] = e
		}
	}
	ix.objects, ix.synced = next, true
	clear(ix.absent)
	ix.advance(version)
	return nil
}

// apply takes the next event of the watch, of type Set, Delete or Bookmark.
func (ix *index) apply(e reflector.Event) error {
	version, err := parseVersion(e.Version)
	if err != nil {
		return err
	}
	ix.mu.Lock()
	defer ix.mu.Unlock()
	switch e.Type {
	case reflector.Set:
		ix.deliver(e.Object(), version)
	case reflector.Delete:
		ix.remove(e.Object(), version)
	}
	ix.advance(max(ix.version, version))
	return nil
}

func (ix *index) advance(version uint64) {
	ix.version = version
	close(ix.advanced)
	ix.advanced = make(chan struct{})
}

// await waits until the reflector has delivered everything up to the version of an event of
// this kind. It gives up after awaitTimeout; then reads go to the server until the kind was
// listed again.
func (ix *index) await(obj resource.Object, done <-chan struct{}) {
	version, err := versionOf(obj)
	if err != nil {
		return
	}
	timer := time.NewTimer(awaitTimeout)
	defer timer.Stop()
	for {
		ix.mu.RLock()
		reached, advanced := ix.version >= version || !ix.synced, ix.advanced
		ix.mu.RUnlock()
		if reached {
			return
		}
		select {
		case <-advanced:
		case <-done:
			return
		case <-timer.C:
			ix.needsResync()
			return
		}
	}
}

// awaitTimeout is much longer than two watches of one kind are ever apart while
// all is well.
const awaitTimeout = time.Second

// observe takes what a caller is about to be shown.
func (ix *index) observe(event watch.EventType, obj resource.Object) {
	version, err := versionOf(obj)
	if err != nil {
		return // the reflector's events are refused too
	}
	ix.mu.Lock()
	defer ix.mu.Unlock()
	switch {
	case version <= ix.version:
		// The reflector has delivered it, and perhaps what came after.
	case event == watch.Deleted:
		ix.bury(obj)
	default:
		ix.set(clone(obj), version)
	}
}

// observeList takes the version of a list that a caller is about to be shown.
func (ix *index) observeList(resourceVersion string) {
	version, err := parseVersion(resourceVersion)
	if err != nil {
		return
	}
	ix.mu.Lock()
	ix.listed = max(ix.listed, version)
	behind := ix.synced && ix.version < version
	ix.mu.Unlock()
	if behind { // it was requested before the index was synced
		ix.needsResync()
	}
}

// observeAbsent records that a caller is about to get NotFound for an object.
func (ix *index) observeAbsent(key resource.Key) {
	ix.mu.Lock()
	_, has := ix.objects[key]
	behind := ix.synced && has
	if !ix.synced {
		ix.absent[key] = struct{}{}
	}
	ix.mu.Unlock()
	if behind { // it was requested before the index was synced
		ix.needsResync()
	}
}

// gone notes that an object which existed is deleted.
func (ix *index) gone(last resource.Object) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	ix.bury(last)
}

// bury removes an object. If the reflector has not delivered its deletion yet, what it
// delivers of it until then does not count.
func (ix *index) bury(last resource.Object) {
	key := resource.KeyOf(last)
	known, exists := ix.objects[key]
	exists = exists && known.obj.GetUID() == last.GetUID()
	version, err := versionOf(last)
	if err != nil {
		return
	}
	if exists {
		delete(ix.objects, key)
		version = max(version, known.version)
	} else if version <= ix.version {
		return // the reflector delivered its deletion
	}
	ix.tombstones[last.GetUID()] = version
}

// deliver stores an object of the reflector if it is not older than what the index has: it takes the place
// of the copy that a caller's write has left.
func (ix *index) deliver(obj resource.Object, version uint64) {
	key := resource.KeyOf(obj)
	if known, exists := ix.objects[key]; exists && known.version == version && known.obj.GetUID() == obj.GetUID() {
		ix.objects[key] = entry{obj, version}
		return
	}
	ix.set(obj, version)
}

// set stores an object if it is newer than what the index has.
func (ix *index) set(obj resource.Object, version uint64) {
	key := resource.KeyOf(obj)
	if known, exists := ix.objects[key]; exists && known.version >= version {
		return
	}
	if _, dead := ix.tombstones[obj.GetUID()]; !dead {
		ix.objects[key] = entry{obj, version}
	}
}

// remove applies a deletion at a version.
func (ix *index) remove(obj resource.Object, version uint64) {
	key := resource.KeyOf(obj)
	delete(ix.tombstones, obj.GetUID())
	if known, exists := ix.objects[key]; exists && (known.version < version || known.obj.GetUID() == obj.GetUID()) {
		delete(ix.objects, key)
	}
}

// get reads one object; nil: absent. ok=false: read from the server.
func (ix *index) get(key resource.Key) (obj resource.Object, ok bool) {
	ix.mu.RLock()
	defer ix.mu.RUnlock()
	if !ix.synced {
		return nil, false
	}
	return ix.objects[key].obj, true
}

// list reads what is selected, in any order. The objects are the index's own.
func (ix *index) list(selected func(resource.Object) bool) (objects []resource.Object, version string, ok bool) {
	ix.mu.RLock()
	defer ix.mu.RUnlock()
	if !ix.synced {
		return nil, "", false
	}
	for _, e := range ix.objects {
		if selected(e.obj) {
			objects = append(objects, e.obj)
		}
	}
	return objects, strconv.FormatUint(ix.version, 10), true
}
