package group_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/group"
)

func txn(key string, size int) store.Txn {
	return store.Txn{Ops: []store.Op{{Kind: store.Put, Key: key, Value: make([]byte, size)}}}
}

// writer counts groups, and holds each until it is let go.
type writer struct {
	hold   chan struct{}
	groups [][]*group.Request
	idle   int
}

func (w *writer) run(q *group.Queue) {
	revision := store.Revision(0)
	q.Run(group.Writer{
		Settle: func(requests []*group.Request) {
			<-w.hold
			w.groups = append(w.groups, requests)
			for _, r := range requests {
				revision++
				r.Revision = revision
			}
			group.Answer(requests)
		},
		Idle: func() { w.idle++ }, Every: time.Second,
	})
}

// TestShare: what waits while a group is written is the next group, and no group
// is larger than it may be.
func TestShare(t *testing.T) {
	for name, c := range map[string]struct {
		commits, size int
		want          string
	}{
		"few":        {10, 1, "[1 9]"},
		"many":       {601, 1, "[1 512 88]"},
		"many bytes": {5, 5 << 20, "[1 2 2]"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q, w := group.New(), &writer{hold: make(chan struct{})}
				go w.run(q)
				var committing sync.WaitGroup
				for i := range c.commits {
					committing.Go(func() {
						if _, err := q.Commit(t.Context(), txn(fmt.Sprint(i), c.size)); err != nil {
							t.Error(err)
						}
					})
					synctest.Wait()
				}
				close(w.hold)
				committing.Wait()
				var sizes []int
				for _, g := range w.groups {
					sizes = append(sizes, len(g))
				}
				if fmt.Sprint(sizes) != c.want {
					t.Errorf("groups of %v, want %s", sizes, c.want)
				}
				q.Close()
				<-q.Finished()
			})
		})
	}
}

// TestGivingUp: a waiting request can be canceled; one being written gets the outcome.
func TestGivingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, w := group.New(), &writer{hold: make(chan struct{})}
		go w.run(q)
		type answer struct {
			rev store.Revision
			err error
		}
		commit := func(ctx context.Context) <-chan answer {
			done := make(chan answer, 1)
			go func() {
				rev, err := q.Commit(ctx, txn("k", 1))
				done <- answer{rev, err}
			}()
			synctest.Wait()
			return done
		}
		ctx, cancel := context.WithCancel(t.Context())
		underWay, waiting, stays := commit(ctx), commit(ctx), commit(t.Context())
		if q.Waiting() != 2 {
			t.Errorf("%d wait", q.Waiting())
		}
		cancel()
		if a := <-waiting; !errors.Is(a.err, context.Canceled) {
			t.Errorf("waiting: %+v", a)
		}
		q.Close()
		if _, err := q.Commit(t.Context(), txn("late", 1)); !errors.Is(err, store.ErrClosed) {
			t.Errorf("late: %v", err)
		}
		close(w.hold)
		if a := <-underWay; a.rev != 1 || a.err != nil {
			t.Errorf("under way: %+v", a)
		}
		if a := <-stays; !errors.Is(a.err, store.ErrClosed) {
			t.Errorf("closed while it waited: %+v", a)
		}
		if err := q.Task(t.Context(), func() {}); !errors.Is(err, store.ErrClosed) {
			t.Errorf("task: %v", err)
		}
		q.Close() // again
	})
}

// TestBetween: tasks run alone, and idling is noticed.
func TestBetween(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, w := group.New(), &writer{hold: make(chan struct{})}
		close(w.hold)
		go w.run(q)
		ran := false
		if err := q.Task(t.Context(), func() { ran = true }); err != nil || !ran {
			t.Errorf("task: %v, %v", ran, err)
		}
		time.Sleep(3500 * time.Millisecond) // of the bubble's clock
		q.Close()
		<-q.Finished()
		if w.idle != 3 {
			t.Errorf("idle %d times, want 3", w.idle)
		}
	})
}

func TestWithdraw(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	gone, here := group.NewRequest(ctx, txn("a", 1)), group.NewRequest(t.Context(), txn("b", 1))
	cancel()
	left := group.Withdraw([]*group.Request{gone, here})
	<-gone.Done()
	if len(left) != 1 || left[0] != here || !errors.Is(gone.Err, context.Canceled) {
		t.Errorf("left %v, %v", left, gone.Err)
	}
}
