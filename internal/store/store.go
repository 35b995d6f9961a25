// Package store is the contract between Proxima and the storage of its state:
// a flat map of keys to opaque values with one strictly ordered history.
//
// It owns the interface, its errors and its option types. Enter at Store. It
// never interprets values, never depends on Kubernetes types and never imports an
// implementation; those live in the sub-packages memory, sqlite, … and all pass
// the contract suite in storetest.
package store

import (
	"context"
	"time"
)

// Revision numbers one change of one key. Revisions of a store are global and
// rise strictly with every change, without repetition, over restarts too. They
// start at 1 and rise by exactly one, without gaps, unless the store says that
// it is Sparse. Zero means "none" or, for an absent key, "does not exist".
type Revision int64

// Properties are the points in which stores differ within the contract. The zero
// value is the strictest store.
type Properties struct {
	// Sparse: revisions rise strictly, but numbers are left out. A new store may
	// be at a revision above 0, and Revision, Page.Revision and Batch.Revision may
	// lie above the last change, but below any later one.
	Sparse bool
	// Merges: a Batch may hold several transactions, which were committed at once.
	// None is split.
	Merges bool
	// MaxKeys bounds the different keys in the conditions and ops of one
	// transaction; more of them are an error. 0: no bound.
	MaxKeys int
}

// Record is the state of one key. Records handed out are shared: the caller
// must not change Value.
type Record struct {
	Key   string
	Value []byte
	// Created is the revision that made the key, since it was last absent.
	Created Revision
	// Modified is the revision of the last change of the key.
	Modified Revision
	// Expires is when the store deletes the key by itself; zero: never.
	Expires time.Time
}

// EventKind is the type of a change of a key.
type EventKind uint8

// The kinds of event. Expiry is a Delete.
const (
	Put EventKind = iota + 1
	Delete
)

// Event is one change of one key.
type Event struct {
	Kind EventKind
	// Record is the new state. For a Delete its Value is nil and Modified is the
	// revision of the deletion.
	Record Record
	// Prev is the state before, nil if the key did not exist.
	Prev *Record
}

// Batch is what a Watcher delivers: all events in order, none split from its
// transaction. A batch without events is a progress marker.
type Batch struct {
	Events []Event
	// Revision is a promise: every event up to it that matches the watch has
	// been delivered, in this batch or before.
	Revision Revision
}

// Condition is a compare-and-swap guard: Key must have been modified last at
// Modified, or be absent where Modified is 0.
type Condition struct {
	Key      string
	Modified Revision
}

// Op is one write of a transaction. Deleting an absent key is no error and
// makes no event.
type Op struct {
	Kind  EventKind
	Key   string
	Value []byte
	// TTL makes the store delete the key after this time; 0: never. A Put
	// without TTL clears an earlier one. Rounded up to whole seconds.
	TTL time.Duration
}

// Txn is applied whole or not at all. The conditions are checked first. Each op
// that changes something takes a revision of its own, in the order of Ops, so
// that a watcher that stopped in between can resume without loss; no reader
// sees a state in between. A key may appear in Ops once.
type Txn struct {
	Conditions []Condition
	Ops        []Op
}

// ListOptions select a page of keys, in ascending byte order.
type ListOptions struct {
	// Prefix that keys must have.
	Prefix string
	// From is the first key to return (inclusive); empty: the first with Prefix.
	From string
	// Limit on records; 0: all.
	Limit int
	// At is the revision to list at; 0: the newest.
	At Revision
	// KeysOnly leaves values out.
	KeysOnly bool
}

// Page is the answer to List.
type Page struct {
	Records []Record
	// Revision the page was read at.
	Revision Revision
	// More is true if keys follow the last one.
	More bool
	// Remaining counts the keys that follow (exact); 0 unless More.
	Remaining int64
}

// Watcher delivers changes. Not safe for concurrent use, except Close.
type Watcher interface {
	// Batches is closed when the watcher ends; Err then returns the reason. A slow
	// reader never slows down writers: its watcher falls back to reading
	// history, and ends with ErrCompacted if that is gone.
	Batches() <-chan Batch
	// Progress requests a progress marker as soon as everything committed before
	// the call is delivered. Does not block.
	Progress()
	// Err is nil until Batches is closed, and nil if Close ended the watcher.
	Err() error
	// Close ends the watcher and frees it. Idempotent.
	Close()
}

// Store keeps keys and their history. All methods are safe for concurrent use.
// Any method may return a context error, ErrClosed, or an error of the medium;
// those leave the state as it was.
type Store interface {
	// Properties do not change while the store is open.
	Properties() Properties
	// Epoch identifies this history. It is random, made with the data, kept over
	// restarts, and different after a restore from a backup: revisions of
	// different epochs must never be compared.
	Epoch() string
	// Get reads one key at a revision (0: the newest). An absent key is
	// ok=false, not an error. The revision returned is the one that was read at,
	// not the record's.
	Get(ctx context.Context, key string, at Revision) (rec Record, ok bool, read Revision, err error)
	// List reads a page. Errors: ErrCompacted, ErrFuture for At out of bounds.
	List(ctx context.Context, opts ListOptions) (Page, error)
	// Count counts the keys with a prefix at the newest revision.
	Count(ctx context.Context, prefix string) (int64, error)
	// Commit applies a transaction and returns the revision of its last change
	// (the current one if nothing changed). It returns after the change is as
	// durable as the store promises; watchers never see a change that is not.
	// Errors: *ConflictError if a condition does not hold, *InvalidError.
	Commit(ctx context.Context, txn Txn) (Revision, error)
	// Watch follows keys with a prefix from the first revision after `after`;
	// after = current revision means "from now". Errors: ErrCompacted if history
	// is gone, ErrFuture if after is beyond the current revision. The watcher
	// ends with ctx.
	Watch(ctx context.Context, prefix string, after Revision) (Watcher, error)
	// Revision is the newest committed revision.
	Revision(ctx context.Context) (Revision, error)
	// Compact forgets superseded records up to and including a revision: reads
	// and watches before it fail with ErrCompacted from then on. Idempotent;
	// never goes back. Errors: ErrFuture.
	Compact(ctx context.Context, upTo Revision) error
	// Compacted is the newest compacted revision; 0 if there was none.
	Compacted() Revision
	// Size is the approximate number of bytes of live values.
	Size(ctx context.Context) (int64, error)
	// Ready reports whether the store can serve and write now, and why not.
	Ready(ctx context.Context) error
	// Close ends all watchers and releases the medium. Idempotent. What was
	// committed stays.
	Close() error
}
