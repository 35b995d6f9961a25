package etcd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/group"
	"github.com/proxima-mesh/proxima/internal/store/outage"
)

const (
	// maxKeys is etcd's bound on comparisons, operations and answers to a failed
	// comparison (--max-txn-ops, 128), without those of meta/epoch and meta/owner.
	maxKeys = 126
	// maxOps bounds operations: a read for a conflict and a write may be of one key.
	maxOps = 128
	// maxGroupBytes cuts groups well below etcd's bound on a request, 1.5 MiB. A
	// larger transaction goes alone, and etcd decides.
	maxGroupBytes = 1 << 20
	// publishTimeout bounds how long an answer waits for the root watch, should
	// that be broken.
	publishTimeout = 5 * time.Second
)

// Commit implements store.Store. What waits in this process shares one
// transaction of etcd. While etcd is out of reach it waits for a while. If the
// answer of etcd is lost it finds out the outcome; where it cannot, the error is
// an *UnknownError, the only one after which the transaction may have been
// applied. A transaction that etcd does not accept for its size is a *LimitError.
func (s *Store) Commit(ctx context.Context, txn store.Txn) (store.Revision, error) {
	if err := s.usable(ctx); err != nil {
		return 0, err
	}
	if err := txn.Validate(); err != nil {
		return 0, err
	}
	if n := countKeys(txn); n > maxKeys {
		return 0, &LimitError{Limit: fmt.Sprintf("it names %d keys, at most %d are possible", n, maxKeys)}
	}
	revision, err := s.queue.Commit(ctx, txn)
	if err != nil {
		return 0, err
	}
	// Watchers are served first, so that the caller can watch from here.
	waiting, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	at, _ := s.view.Load().split(revision)
	_ = s.await(waiting, at) // it is committed, whatever happens to the watch
	return revision, nil
}

// countKeys counts the different keys of a transaction.
func countKeys(txn store.Txn) int {
	keys := make(map[string]struct{}, len(txn.Ops)+len(txn.Conditions))
	for _, c := range txn.Conditions {
		keys[c.Key] = struct{}{}
	}
	for _, op := range txn.Ops {
		keys[op.Key] = struct{}{}
	}
	return len(keys)
}

// settle commits a group in as many transactions of etcd as it takes, and answers
// each request. It runs on the store's context alone: to cancel a request for
// one caller would fail the others in it.
func (s *Store) settle(ctx context.Context, requests []*group.Request) {
	for failures := (failures{}); len(requests) > 0; {
		a, rest := s.plan(requests)
		left := s.settleOne(ctx, a, &failures)
		if len(left) == 0 {
			failures.comparisons = 0
		}
		requests = append(left, rest...)
	}
}

// failures in a row of a group.
type failures struct {
	comparisons int // that failed
	outages     int
}

// groupTries is how often a group is tried whose comparison fails. Then each of
// its requests gets a transaction of its own, as more keys meet more writers.
const groupTries = 2

// settleOne commits one attempt and answers its requests, but those that it
// returns: they are to be planned again.
func (s *Store) settleOne(ctx context.Context, a *attempt, f *failures) (left []*group.Request) {
	left, err := s.try(ctx, a)
	var limit *LimitError
	switch {
	case err == nil && len(left) == 0:
		s.writes.Over()
		_ = s.noted(nil)
		group.Answer(a.requests)
		return nil
	case err == nil: // the comparison failed; the index has what is true now
		if f.comparisons++; f.comparisons >= groupTries && len(left) > 1 {
			s.settleEach(ctx, left)
			return nil
		}
		return left
	case unavailable(err):
		_ = s.noted(err)
		f.outages++
		if !s.queue.Closing() && s.writes.Again(ctx, f.outages) {
			// It did not happen, so requests without a caller may leave.
			return group.Withdraw(a.requests)
		}
	case len(a.requests) > 1 && refused(err):
		// One of them may be the reason: too large, or a put while the database is
		// full, where deletes are still possible.
		s.settleEach(ctx, a.requests)
		return nil
	case errors.As(err, &limit):
	default:
		_ = s.noted(err)
	}
	group.Fail(a.requests, s.failed(context.Background(), "commit", err))
	return nil
}

func (s *Store) settleEach(ctx context.Context, requests []*group.Request) {
	for _, r := range requests {
		s.settle(ctx, []*group.Request{r})
	}
}

// try sends an attempt once. It returns requests to try again if what the index
// assumed of their keys was outdated; nothing has happened then. Without those
// and without an error all requests have their outcome.
func (s *Store) try(ctx context.Context, a *attempt) (again []*group.Request, err error) {
	for _, r := range a.requests {
		r.Reset()
	}
	bound, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	bound, sent := withSent(bound)
	known := s.seen.Load()
	resp, err := s.client.Txn(bound).If(a.compares()...).Then(a.operations()...).Else(a.reads()...).Commit()
	switch {
	case err != nil && refused(err):
		if limit := tooLarge(err); limit != nil {
			err = limitOf(a, limit)
		}
		return nil, err
	case err != nil && (len(a.changes) == 0 || !sent.Load()):
		return nil, err // nothing can have happened
	case err != nil:
		return s.resolve(ctx, a, known, err)
	}
	at := resp.Header.GetRevision()
	if err := s.accept(at, known); err != nil {
		if resp.Succeeded && len(a.changes) > 0 {
			err = &UnknownError{Err: err}
		}
		return nil, err
	}
	if resp.Succeeded {
		return nil, a.succeeded(s, at, resp.Responses)
	}
	if err := a.outdated(s, at, resp.Responses); err != nil {
		return nil, err
	}
	return a.requests, nil
}

// limitOf keeps an error that is the fault of one request in a group in a form
// that refused recognises, so that each gets a try of its own.
func limitOf(a *attempt, limit *LimitError) error {
	if len(a.requests) > 1 {
		return limit.Err
	}
	return limit
}

// expire is the commit of the expiry queue. Each instance has the queue, so that
// any of them can go on with it, but only the one with the lease commits: the
// others would merely cause conflicts.
func (s *Store) expire(ctx context.Context, txn store.Txn) (store.Revision, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	mine, err := s.claim.expires(ctx)
	pause := expiryPause
	if mine && err == nil {
		var revision store.Revision
		if revision, err = s.commitParts(ctx, txn); err == nil || !unavailable(err) {
			return revision, err
		}
	}
	if err != nil {
		pause = outage.Retry.Last // the outage itself is in the log
	}
	backoff.Sleep(ctx, pause)
	return 0, nil // the queue checks again what is due
}

// expiryPause is how long an instance without the lease waits before it checks
// again.
const expiryPause = 250 * time.Millisecond

// commitParts commits what the expiry queue deletes at once: each key has an
// operation and its condition, and none depends on another.
func (s *Store) commitParts(ctx context.Context, txn store.Txn) (revision store.Revision, err error) {
	for len(txn.Ops) > 0 && err == nil {
		n := min(maxKeys, len(txn.Ops))
		revision, err = s.Commit(ctx, store.Txn{Conditions: txn.Conditions[:n], Ops: txn.Ops[:n]})
		txn.Conditions, txn.Ops = txn.Conditions[n:], txn.Ops[n:]
	}
	return revision, err
}
