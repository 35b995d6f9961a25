// Package group makes commits share what a commit costs: a sync of the disk, a
// round trip to a database. Stores with one writer build on it.
//
// It owns the queue before the writer, and who may still give up. Enter at New.
// It never decides what a group does: the store's settle does, and answers.
//
// One goroutine writes. It takes the requests that wait and never waits for
// more: while one group is written the next one assembles itself.
package group

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/proxima-mesh/proxima/internal/store"
)

const (
	// mostRequests and mostBytes bound what shares one commit.
	mostRequests = 512
	mostBytes    = 8 << 20
)

// Request is a transaction on its way. The writer has it alone from the moment
// settle gets it until Answer.
type Request struct {
	Txn store.Txn

	// What settle leaves: the answer, and the events that go with it.
	Revision store.Revision
	Err      error
	Events   []store.Event

	ctx   context.Context
	taken atomic.Bool // by the writer, or by its owner who gave up
	done  chan struct{}
}

// NewRequest makes a request whose answer Done receives. Queue.Commit makes
// its own.
func NewRequest(ctx context.Context, txn store.Txn) *Request {
	return &Request{Txn: txn, ctx: ctx, done: make(chan struct{})}
}

// Done is closed when the request is answered.
func (r *Request) Done() <-chan struct{} { return r.done }

// Reset forgets the outcome of a try.
func (r *Request) Reset() { r.Revision, r.Err, r.Events = 0, nil, nil }

func (r *Request) take() bool { return r.taken.CompareAndSwap(false, true) }

func (r *Request) bytes() int {
	n := 0
	for _, op := range r.Txn.Ops {
		n += len(op.Key) + len(op.Value)
	}
	return n
}

// Answer completes the requests of a group.
func Answer(group []*Request) {
	for _, r := range group {
		close(r.done)
	}
}

// Fail answers a group with one error. Nothing of it happened.
func Fail(group []*Request, err error) {
	for _, r := range group {
		r.Reset()
		r.Err = err
	}
	Answer(group)
}

// Withdraw answers those whose context has ended and returns the others.
func Withdraw(group []*Request) (left []*Request) {
	for _, r := range group {
		if err := r.ctx.Err(); err != nil {
			Fail([]*Request{r}, err)
			continue
		}
		left = append(left, r)
	}
	return left
}

// Queue is what waits for the writer. Its methods are safe for concurrent use.
type Queue struct {
	commits  chan *Request
	tasks    chan func()
	closing  chan struct{}
	finished chan struct{} // Run has returned
	close    sync.Once
}

// New makes a queue, which needs Run.
func New() *Queue {
	return &Queue{
		commits: make(chan *Request, mostRequests), tasks: make(chan func()),
		closing: make(chan struct{}), finished: make(chan struct{}),
	}
}

// Commit waits until the transaction is answered. A context that ends while it
// waits for its turn withdraws it; once the writer has it, the outcome is what
// counts. Errors: those of settle, the context's, store.ErrClosed.
func (q *Queue) Commit(ctx context.Context, txn store.Txn) (store.Revision, error) {
	if q.Closing() {
		return 0, store.ErrClosed
	}
	r := NewRequest(ctx, txn)
	select {
	case q.commits <- r:
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-q.closing:
		return 0, store.ErrClosed
	}
	select {
	case <-r.done:
	case <-ctx.Done():
		if r.take() {
			return 0, ctx.Err()
		}
		<-r.done // too late to give up
	case <-q.finished:
		if r.take() {
			return 0, store.ErrClosed
		}
		<-r.done
	}
	return r.Revision, r.Err
}

// Task runs f between commits, on the writer's goroutine, and waits for it.
func (q *Queue) Task(ctx context.Context, f func()) error {
	ran := make(chan struct{})
	select {
	case q.tasks <- func() { defer close(ran); f() }:
		<-ran
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-q.closing:
		return store.ErrClosed
	}
}

// Waiting counts the commits that wait for their turn.
func (q *Queue) Waiting() int { return len(q.commits) }

// Writer is what Run calls, from its one goroutine.
type Writer struct {
	// Settle commits a group, which is never empty, and answers each of it.
	Settle func([]*Request)
	// Idle, if not nil, is called every Every while nothing is to do.
	Idle  func()
	Every time.Duration
}

// Run is the writer. It returns when Close was called and the commit that is
// under way is through.
func (q *Queue) Run(w Writer) {
	defer close(q.finished)
	var tick <-chan time.Time
	if w.Idle != nil {
		ticker := time.NewTicker(w.Every)
		defer ticker.Stop()
		tick = ticker.C
	}
	for !q.Closing() {
		select {
		case r := <-q.commits:
			if group := q.gather(r); len(group) > 0 {
				w.Settle(group)
			}
		case f := <-q.tasks:
			f()
		case <-tick:
			w.Idle()
		case <-q.closing:
		}
	}
}

// gather takes what waits already.
func (q *Queue) gather(first *Request) []*Request {
	var group []*Request
	bytes := 0
	for r := first; r != nil; {
		if r.take() {
			group = append(group, r)
			bytes += r.bytes()
		}
		if len(group) == mostRequests || bytes >= mostBytes {
			break
		}
		select {
		case r = <-q.commits:
		default:
			r = nil
		}
	}
	return group
}

// Closing reports whether Close was called.
func (q *Queue) Closing() bool {
	select {
	case <-q.closing:
		return true
	default:
		return false
	}
}

// Close admits no more requests: those that wait get store.ErrClosed. Idempotent;
// it does not wait.
func (q *Queue) Close() { q.close.Do(func() { close(q.closing) }) }

// Finished is closed when Run has returned.
func (q *Queue) Finished() <-chan struct{} { return q.finished }
