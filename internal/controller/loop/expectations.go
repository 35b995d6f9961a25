package loop

import (
	"strconv"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// Expectations remembers the writes of one kind for one key, so that no key is synced from
// a catalog that does not show them yet. Safe for concurrent use; the zero value is
// empty.
type Expectations struct {
	mu sync.Mutex
	// revision is the highest resource version that a write got.
	revision uint64
	// written is the resource version of the last write of each object, by name.
	written map[string]string
	// deleted are the objects that were deleted and may still be in sight.
	deleted map[types.UID]struct{}
}

// Await notes the revision of a create or an update. That is enough for Observed, and takes no
// memory; who asks Echo notes writes by Wrote.
func (e *Expectations) Await(made resource.Object) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.await(made)
}

func (e *Expectations) await(made resource.Object) {
	if n, err := strconv.ParseUint(made.GetResourceVersion(), 10, 64); err == nil {
		e.revision = max(e.revision, n)
	}
}

// Wrote notes the outcome of a create or an update, for Observed and Echo.
func (e *Expectations) Wrote(made resource.Object) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.await(made)
	if e.written == nil {
		e.written = make(map[string]string)
	}
	e.written[made.GetName()] = made.GetResourceVersion()
}

// Deleted notes a deletion.
func (e *Expectations) Deleted(obj resource.Object) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.deleted == nil {
		e.deleted = make(map[types.UID]struct{})
	}
	e.deleted[obj.GetUID()] = struct{}{}
}

// Observed reports whether a table that is known up to a revision, and in which
// these objects of the key are seen, shows all writes.
//
// Revisions of one kind are ordered, so this holds also if another client changed
// or deleted an object right after us; waiting for our own version to appear
// would then never end.
func Observed[T resource.Object](e *Expectations, revision uint64, seen ...T) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if revision < e.revision {
		return false
	}
	for _, obj := range seen {
		if _, gone := e.deleted[obj.GetUID()]; gone {
			return false
		}
	}
	return true
}

// Echo reports whether a change is just an own write for the key coming back.
func Echo[T catalog.Row](l *Loop, key resource.Key, change catalog.Change[T]) bool {
	e := l.known(key)
	if e == nil {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	var absent T
	if change.New != absent {
		name := change.New.GetName()
		if e.written[name] != change.New.GetResourceVersion() {
			return false
		}
		e.seen(name) // a version comes once
		return true
	}
	// It left the catalog and cannot come back: a UID is never used again.
	_, ours := e.deleted[change.Old.GetUID()]
	delete(e.deleted, change.Old.GetUID())
	e.seen(change.Old.GetName())
	return ours
}

// seen forgets a write: its echo has come, or cannot come any more. A key that waits for
// nothing keeps no map.
func (e *Expectations) seen(name string) {
	if delete(e.written, name); len(e.written) == 0 {
		e.written = nil
	}
}
