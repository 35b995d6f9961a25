package cluster

import (
	"context"
	"errors"
	"fmt"

	"github.com/proxima-mesh/proxima/internal/store"
)

// fence is what makes the writes of a term fail once the term has ended. The context of the
// term carries it.
type fence struct {
	term      uint64
	condition store.Condition
	// refused is called when the store has refused a write by the condition.
	refused func()
}

type fenceKey struct{}

// withFence returns the context of a term.
func withFence(ctx context.Context, f *fence) context.Context {
	return context.WithValue(ctx, fenceKey{}, f)
}

func fenceOf(ctx context.Context) *fence {
	f, _ := ctx.Value(fenceKey{}).(*fence)
	return f
}

// InTerm returns the number of the term whose context ctx is, or is derived from. ok: there
// is one; it may have ended.
func InTerm(ctx context.Context) (number uint64, ok bool) {
	f := fenceOf(ctx)
	if f == nil {
		return 0, false
	}
	return f.term, true
}

// FencedError: a write of a leader was refused by the store, as its term has ended. Nothing
// was changed.
type FencedError struct{ Term uint64 }

func (e *FencedError) Error() string {
	return fmt.Sprintf("the term %d of this leader has ended: another instance leads", e.Term)
}

// fenced is a store that puts the condition of the term into transactions.
type fenced struct{ store.Store }

// Fenced wraps a store: a Commit with the context of a term, or one derived from it, is
// refused with *FencedError if the term has ended, in the same transaction that checks the
// other conditions. A Compact is refused if the term has ended before it begins. Commits with
// other contexts pass as they are. Closing the wrapper closes the store.
func Fenced(inner store.Store) store.Store { return &fenced{Store: inner} }

// Unwrap returns the store without fences.
func (s *fenced) Unwrap() store.Store { return s.Store }

// Commit implements store.Store.
func (s *fenced) Commit(ctx context.Context, txn store.Txn) (store.Revision, error) {
	f := fenceOf(ctx)
	if f == nil {
		return s.Store.Commit(ctx, txn)
	}
	// First, as stores report the first condition that does not hold: a caller that is told
	// of a conflict reads again and tries again.
	conditions := make([]store.Condition, 0, len(txn.Conditions)+1)
	txn.Conditions = append(append(conditions, f.condition), txn.Conditions...)
	rev, err := s.Store.Commit(ctx, txn)
	var conflict *store.ConflictError
	if errors.As(err, &conflict) && conflict.Condition.Key == f.condition.Key {
		return 0, f.refuse()
	}
	return rev, err
}

// Compact implements store.Store. A compaction that comes late does no harm: it forgets what
// was superseded.
func (s *fenced) Compact(ctx context.Context, upTo store.Revision) error {
	if f := fenceOf(ctx); f != nil {
		rec, _, _, err := s.Get(ctx, f.condition.Key, 0)
		if err != nil {
			return err
		}
		if rec.Modified != f.condition.Modified {
			return f.refuse()
		}
	}
	return s.Store.Compact(ctx, upTo)
}

func (f *fence) refuse() error {
	f.refused()
	return &FencedError{Term: f.term}
}
