package store

import (
	"errors"
	"fmt"
)

var (
	// ErrCompacted: the requested revision is older than what is kept. List again.
	ErrCompacted = errors.New("revision is compacted")
	// ErrFuture: the requested revision has not been reached.
	ErrFuture = errors.New("revision is in the future")
	// ErrClosed: the store was closed.
	ErrClosed = errors.New("store is closed")
	// ErrDamaged: the medium no longer has what was written. The text of errors that match it
	// names what is lost.
	ErrDamaged = errors.New("stored data is damaged")
)

// MediumError is an error of the medium. Its text is for operators: it says where the state
// is. Clients get that of Err at most.
type MediumError struct {
	// Op is what was done.
	Op string
	// At is where: a file, or the address of a database without its password.
	At  string
	Err error
	// Private: the text of Err may name hosts, which are not for clients.
	Private bool
}

func (e *MediumError) Error() string { return fmt.Sprintf("%s in state %s: %v", e.Op, e.At, e.Err) }

func (e *MediumError) Unwrap() error { return e.Err }

// ConflictError reports the first condition of a transaction that did not hold.
// Nothing was changed.
type ConflictError struct {
	// Condition that failed.
	Condition Condition
	// Current state of the key; nil if it is absent.
	Current *Record
}

func (e *ConflictError) Error() string {
	have := "absent"
	if e.Current != nil {
		have = fmt.Sprintf("at revision %d", e.Current.Modified)
	}
	want := "absent"
	if e.Condition.Modified != 0 {
		want = fmt.Sprintf("at revision %d", e.Condition.Modified)
	}
	return fmt.Sprintf("conflict on key %q: expected it %s, it is %s", e.Condition.Key, want, have)
}

// InvalidError reports a transaction that no store accepts, whatever its state:
// an empty key, a key twice, a negative TTL. Nothing was changed.
type InvalidError struct {
	Key    string
	Reason string
}

func (e *InvalidError) Error() string {
	return fmt.Sprintf("invalid transaction: key %q: %s", e.Key, e.Reason)
}

// Validate checks what every store must refuse. Implementations call it first
// in Commit.
func (t Txn) Validate() error {
	seen := make(map[string]struct{}, len(t.Ops))
	for _, op := range t.Ops {
		switch {
		case op.Key == "":
			return &InvalidError{Key: op.Key, Reason: "empty key"}
		case op.Kind != Put && op.Kind != Delete:
			return &InvalidError{Key: op.Key, Reason: fmt.Sprintf("unknown operation %d", op.Kind)}
		case op.TTL < 0:
			return &InvalidError{Key: op.Key, Reason: "negative time to live"}
		}
		if _, twice := seen[op.Key]; twice {
			return &InvalidError{Key: op.Key, Reason: "written twice"}
		}
		seen[op.Key] = struct{}{}
	}
	for _, c := range t.Conditions {
		if c.Key == "" {
			return &InvalidError{Key: c.Key, Reason: "condition on an empty key"}
		}
	}
	return nil
}
