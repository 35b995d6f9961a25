package kvstorage

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/proxima-mesh/proxima/internal/store"
)

// WriteKind names the three writes of storage.Interface. It is the method that
// counts, not the intent of the user: a graceful deletion with finalizers is an
// update that sets deletionTimestamp, and a deletion later.
type WriteKind uint8

// The kinds of write.
const (
	OnCreate WriteKind = iota + 1
	OnUpdate
	OnDelete
)

// Condition guards one companion. The zero value always holds.
type Condition struct {
	guarded  bool
	modified store.Revision
}

// Always is the condition that holds whatever the key's state.
func Always() Condition { return Condition{} }

// IfAbsent holds while the key does not exist.
func IfAbsent() Condition { return Condition{guarded: true} }

// IfAt holds while the key was modified last at rev; rev 0 is IfAbsent.
func IfAt(rev store.Revision) Condition { return Condition{guarded: true, modified: rev} }

type companion struct {
	op        store.Op
	condition Condition
	// guard: the condition alone counts, op names its key.
	guard bool
}

// Companions are writes that ride in the transaction of an object: an allocated
// address, a claimed port, an owner's record. They are collected in a context
// (see [WithCompanions]) before or during the write:
//
//   - The next Create, GuaranteedUpdate or Delete with that context, of a kind
//     that the set is meant for, commits them with the object: both or neither,
//     and no reader sees one without the other. Watchers see the companions just
//     before the object, each at a revision of its own.
//   - A commit empties the set. Any failure leaves it unchanged, so a caller that
//     retries calls Reset first and fills the set again. A GuaranteedUpdate whose
//     object does not change still commits the companions, guarded by the state
//     of the object that tryUpdate saw.
//   - The object's own condition is checked first. If another writer was faster,
//     GuaranteedUpdate and Delete go on as ever: they read again and call
//     tryUpdate or validateDeletion again, which must call Reset before they set
//     up companions. Nothing that an earlier attempt collected is committed
//     unless the function leaves it in.
//   - If a companion's condition fails, the write returns
//     *[CompanionConflictError], nothing changed, and nothing is tried again:
//     what to do (another address, or give up) is the caller's to know.
//   - A dry run never reaches the storage; the set stays full.
//
// Companions are written as they are: no defaulting, validation or admission.
// Safe for concurrent use, though a set belongs to one request.
type Companions struct {
	mu    sync.Mutex
	kinds []WriteKind
	items []companion
}

type companionsKey struct{}

// WithCompanions returns a context that carries a new, empty set. With kinds,
// only those kinds of write commit it and the others pass it by; without, all do.
// A set hides one that ctx carries already.
func WithCompanions(ctx context.Context, kinds ...WriteKind) (context.Context, *Companions) {
	c := &Companions{kinds: kinds}
	return context.WithValue(ctx, companionsKey{}, c), c
}

// CompanionsFrom returns the innermost set that ctx carries, or nil.
func CompanionsFrom(ctx context.Context) *Companions {
	c, _ := ctx.Value(companionsKey{}).(*Companions)
	return c
}

// Put adds a write of a value. The key is the full key in the store, as
// [Resource.KeyFor] makes it; value is handed over. A second companion with the
// same key replaces the first. The object's own key is refused at commit.
func (c *Companions) Put(key string, value []byte, condition Condition) {
	c.add(companion{op: store.Op{Kind: store.Put, Key: key, Value: value}, condition: condition})
}

// PutFor adds a write of a value, as Put does, that expires after ttl.
func (c *Companions) PutFor(key string, value []byte, ttl time.Duration, condition Condition) {
	c.add(companion{op: store.Op{Kind: store.Put, Key: key, Value: value, TTL: ttl}, condition: condition})
}

// PutObject adds a write of an object of another resource; see [Resource.Encode]
// for what it must hold.
func (c *Companions) PutObject(ctx context.Context, r *Resource, obj runtime.Object, condition Condition) error {
	key, value, err := r.Encode(ctx, obj)
	if err != nil {
		return fmt.Errorf("companion: %w", err)
	}
	c.Put(key, value, condition)
	return nil
}

// Guard adds a condition without a write: the record that the object depends on must
// be unchanged since it was read.
func (c *Companions) Guard(key string, condition Condition) {
	c.add(companion{op: store.Op{Key: key}, condition: condition, guard: true})
}

// Delete adds a deletion. Deleting an absent key is no error, so
// Delete(key, IfAbsent()) is a guard too.
func (c *Companions) Delete(key string, condition Condition) {
	c.add(companion{op: store.Op{Kind: store.Delete, Key: key}, condition: condition})
}

// Reset empties the set.
func (c *Companions) Reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.items = nil
}

// Len is the number of companions that wait for a commit. After a dry run, or an
// update that may be a no-op, it shows whether they were committed.
func (c *Companions) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.items)
}

func (c *Companions) add(item companion) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.items {
		if c.items[i].op.Key == item.op.Key {
			c.items[i] = item
			return
		}
	}
	c.items = append(c.items, item)
}

// snapshot returns what a write of this kind has to commit. A nil set is empty.
func (c *Companions) snapshot(kind WriteKind) []companion {
	if c == nil || len(c.kinds) > 0 && !slices.Contains(c.kinds, kind) {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.items)
}

// CompanionConflictError reports that a companion's condition did not hold.
// Nothing was changed. If it is not handled, API clients get a 409 Conflict.
type CompanionConflictError struct {
	// Key of the companion.
	Key string
	// Current state of the key; nil if it is absent.
	Current *store.Record
}

func (e *CompanionConflictError) Error() string {
	if e.Current == nil {
		return fmt.Sprintf("companion write of key %q: the key is absent", e.Key)
	}
	return fmt.Sprintf("companion write of key %q: the key was changed at revision %d", e.Key, e.Current.Modified)
}

// Status implements errors.APIStatus of k8s.io/apimachinery.
func (e *CompanionConflictError) Status() metav1.Status {
	return metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusConflict,
		Reason:  metav1.StatusReasonConflict,
		Message: e.Error(),
	}
}
