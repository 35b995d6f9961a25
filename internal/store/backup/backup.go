// Package backup turns the state of a store into a file and back.
//
// It owns the file's format and the rules of a restore. Enter at Write, Open and
// Restore. It never interprets values, never decrypts anything and never writes
// into a store that has a history.
//
// # Format, version 1
//
//	"proxima backup 1\n"
//	gzip of frames: one header, files, records in order of keys, one end
//	SHA-256 of everything before it (32 bytes)
//
// A frame is a byte for its type, the length of its payload as uvarint,
// and the payload. Header and end are JSON. The hash comes last, as a backup is
// written while it is read; a file that was cut off does not have it. It guards
// against accidents: an attacker who can write the file can also make a hash that fits.
//
// # Revisions after a restore
//
// A client must never meet a revision twice with different meanings, but what
// happened after the backup is not in it. So a restored store goes on at a
// revision that lies beyond any that was issued, see Base, has a new epoch, and
// has nothing before that revision in its history: a watch that goes on
// where it was gets store.ErrCompacted (410 Expired in the API) and lists again.
// Objects keep the revisions of their own that they had in the backup.
package backup

import (
	"context"
	"fmt"
	"time"

	"github.com/proxima-mesh/proxima/internal/store"
)

// Header describes the state in a backup.
type Header struct {
	// Epoch and Revision of the store that was backed up, at one moment.
	Epoch    string         `json:"epoch"`
	Revision store.Revision `json:"revision"`
	Created  time.Time      `json:"created"`
	// Program that made it, for people.
	Program string `json:"program,omitempty"`
}

// File is something that is kept next to the store and goes into a backup too,
// such as keys. Who restores one makes it private.
type File struct {
	// Name is a relative path with slashes.
	Name string
	Data []byte
}

// Summary counts what a backup holds.
type Summary struct {
	Header
	Records int64
	Files   int
}

const (
	magic    = "proxima backup 1\n"
	magicAny = "proxima backup "

	frameHeader = 'h'
	frameFile   = 'f'
	frameRecord = 'r'
	frameEnd    = 'e'

	// maxFrame bounds what a reader allocates. The largest object of the API has
	// 3 MiB (the limit of a request body).
	maxFrame = 64 << 20
	maxFiles = 256
	// maxRevision is far beyond any Base, and leaves space above it.
	maxRevision = 1 << 60
)

// end is the last frame; it repeats what a reader has counted.
type end struct {
	Records int64 `json:"records"`
	Files   int   `json:"files"`
}

// FormatError reports a file that is no backup, or not a whole one. Nothing of it
// was used.
type FormatError struct{ Reason string }

func (e *FormatError) Error() string { return "the backup cannot be used: " + e.Reason }

func damagedf(format string, args ...any) error {
	return &FormatError{Reason: fmt.Sprintf(format, args...)}
}

// Restore fills a store from a backup, all or nothing. known is the newest
// revision of the store that it replaces, 0 if none is known. It returns the
// revision at which the store is now; the next write is above it. Errors:
// store.ErrNotEmpty, *FormatError, those of the store.
func Restore(ctx context.Context, into store.Restorer, from *Backup, known store.Revision, now time.Time) (store.Revision, error) {
	if from.Epoch == into.Epoch() {
		return 0, fmt.Errorf("restore: the store has the epoch of the backup (%s); make a new store", into.Epoch())
	}
	at := store.AfterLoss(max(from.Revision, known), now)
	if err := into.Restore(ctx, at, from.Records()); err != nil {
		return 0, fmt.Errorf("restore: %w", err)
	}
	return at, nil
}
