package store

import (
	"context"
	"errors"
	"iter"
)

// ErrNotEmpty: the target of a restore already has a history.
var ErrNotEmpty = errors.New("store is not empty")

// Restorer is a store that can take over the state of another one. Stores that
// keep the state of a control plane implement it.
type Restorer interface {
	Store
	// Restore fills a store that was never written (else ErrNotEmpty), all or
	// nothing. Records keep Created, Modified and Expires; they come in ascending
	// order of keys, none modified after at (else *InvalidError). An error that
	// records yields ends the restore and is returned. Afterwards the store is at
	// revision at (a Sparse one: at or above) and everything up to it is compacted,
	// so that a reader of the old history gets ErrCompacted and not silence.
	//
	// The epoch stays the one that was made with this store, so it differs from
	// that of the store that the records come from.
	Restore(ctx context.Context, at Revision, records iter.Seq2[Record, error]) error
}

// CheckRestored passes records on, and an *InvalidError in place of the first one
// that no Restorer accepts.
func CheckRestored(at Revision, records iter.Seq2[Record, error]) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		last := ""
		for r, err := range records {
			reason := ""
			switch {
			case err != nil:
				yield(Record{}, err)
				return
			case r.Key == "":
				reason = "empty key"
			case r.Key <= last:
				reason = "twice, or out of order"
			case r.Created < 1 || r.Created > r.Modified:
				reason = "created after it was modified, or never"
			case r.Modified > at:
				reason = "modified after the revision that is restored"
			}
			if reason != "" {
				yield(Record{}, &InvalidError{Key: r.Key, Reason: reason})
				return
			}
			if !yield(r, nil) {
				return
			}
			last = r.Key
		}
	}
}
