// Package cursor keeps how far each subscriber of the change feed has come, as rows of the store.
//
// It owns the rows and their bounds, merges what two instances write of one cursor, and has the feed keep what
// subscribers still need. Enter at New and Cursors.Open. It never reads changes.
package cursor

import (
	"errors"
	"fmt"
	"time"

	"github.com/proxima-mesh/proxima/internal/feed/seglog"
)

// Prefix of the keys of cursors. What follows is the name, escaped as a segment of a path (RFC 3986).
const Prefix = "/proxima/feed/cursors/"

// Bounds.
const (
	// DefaultMaxCursors is how many a store has at most.
	DefaultMaxCursors = 10_000
	// MaxName and MaxProperties in bytes; the latter are all keys and values of a cursor together.
	MaxName       = 512
	MaxProperties = 4 << 10
	// MaxRanges bounds what is acknowledged apart from the mark. Of those the first maxStored are in the store; what the
	// others acknowledge is delivered again after a restart.
	MaxRanges = 10_000
	maxStored = 1_000
	// writeEvery is the interval of writes of a cursor.
	writeEvery = time.Second
)

// Type is how the consumers of a subscription share its changes.
type Type string

// The types, which are those of Apache Pulsar.
const (
	Exclusive Type = "exclusive"
	Failover  Type = "failover"
	Shared    Type = "shared"
	KeyShared Type = "key_shared"
)

func (t Type) valid() bool {
	return t == Exclusive || t == Failover || t == Shared || t == KeyShared
}

// Range of positions: those above After, up to To.
type Range struct {
	After seglog.Position `json:"after"`
	To    seglog.Position `json:"to"`
}

// State of a cursor.
type State struct {
	Name string `json:"name"`
	Type Type   `json:"type"`
	// Mark is the position up to which all is acknowledged.
	Mark seglog.Position `json:"mark"`
	// Acked is what is acknowledged above the mark: ascending, apart from each other.
	Acked []Range `json:"acked,omitempty"`
	// Epoch of the store that positions are revisions of.
	Epoch string `json:"epoch"`
	// Through is a time up to which all changes are acknowledged, whatever the history; zero: it is not known.
	Through time.Time `json:"through,omitzero"`
	// Moves counts the seeks: acknowledgements from before one do not count after it.
	Moves int64 `json:"moves,omitempty"`
	// Created is when it was made, Active when it was opened, sought or acknowledged something last.
	Created    time.Time         `json:"created"`
	Active     time.Time         `json:"active"`
	Properties map[string]string `json:"properties,omitempty"`
}

// Errors of cursors.
var (
	ErrNotFound = errors.New("there is no such cursor")
	ErrExists   = errors.New("there is a cursor of that name")
	// ErrInUse: the cursor is open in this process.
	ErrInUse = errors.New("the cursor is in use")
	// ErrDeleted, ErrMoved and ErrFenced are why an open cursor was lost.
	ErrDeleted = errors.New("the cursor was deleted")
	ErrMoved   = errors.New("the cursor was set to another position")
	// ErrFenced: a condition of its writes does not hold any more.
	ErrFenced = errors.New("the cursor is another instance's now")
	ErrClosed = errors.New("the cursor is closed")
	// ErrFull: too much is acknowledged apart from the mark. What is not is to be acknowledged first.
	ErrFull = fmt.Errorf("more than %d ranges are acknowledged above a change that is not", MaxRanges)
)
