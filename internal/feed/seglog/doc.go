// Package seglog is a segmented log: changes of keys in one order, in files that are closed one after the other.
//
// It owns the format of the files, where they are placed, their copies, and what is found again after a crash. Enter at
// Open; a Log has one writer (Append, Sync) and any number of Readers. It never interprets keys or values, and knows
// nothing of stores. DESIGN.md has the format and the reasons.
package seglog

import (
	"errors"
	"fmt"
	"time"
)

// Position of a change: the revision of the store that the log is of. Positions of a log rise strictly, with gaps where
// changes were left out.
type Position int64

// Kind is the type of an entry.
type Kind uint8

// The kinds of entry.
const (
	Put Kind = iota + 1
	Delete
)

// Entry is one change of one key. Entries that were read are shared: the caller must not change them.
type Entry struct {
	Position Position
	// Time at which the change was seen, in milliseconds; it does not go back within a log.
	Time time.Time
	Kind Kind
	// Last: no further change of its transaction follows.
	Last bool
	Key  string
	// Created is the position of the change that made the key, since it was last absent.
	Created Position
	// Value of a Put.
	Value []byte
	// Actor is who changed it, in a form of the caller's; empty: it is not known.
	Actor string
	// Prev is the position of the change that this one replaced; 0: the key was absent. PrevCreated is its Created.
	Prev        Position
	PrevCreated Position
	// PrevValue is the value before. When it is read it is there for a Delete, and for the first change of a key in a
	// segment; else it is the value of the entry at Prev in the same segment (Log.Previous).
	PrevValue []byte
}

// Bounds of an entry.
const (
	// MaxKey, MaxValue and MaxActor in bytes.
	MaxKey   = 8 << 10
	MaxValue = 16 << 20
	MaxActor = 4 << 10
)

// ErrClosed is returned by a log that was closed.
var ErrClosed = errors.New("the log is closed")

// ExpiredError is returned to a reader that asks for what the log has no more, or never had.
type ExpiredError struct {
	// First is the position after which the log is complete.
	First Position
}

func (e *ExpiredError) Error() string {
	return fmt.Sprintf("the log begins after position %d", e.First)
}

// DamagedError reports that entries cannot be read, in any copy.
type DamagedError struct {
	// After and To bound what is lost: entries at positions above After, up to To.
	After, To Position
	File      string
	Err       error
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("%s: the entries after position %d, up to %d, cannot be read: %v", e.File, e.After, e.To, e.Err)
}

func (e *DamagedError) Unwrap() error { return e.Err }

// RewindError reports that what was appended after To is not in the log, as it could not be written. The writer appends
// it again.
type RewindError struct {
	To  Position
	Err error
}

func (e *RewindError) Error() string {
	return fmt.Sprintf("changes after position %d are not written: %v", e.To, e.Err)
}

func (e *RewindError) Unwrap() error { return e.Err }
