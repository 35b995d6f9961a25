// Package expiry deletes keys whose time to live has passed, for stores that
// have no such thing of their own.
//
// It owns a queue of keys by time and the goroutine that works it off. Enter at
// Queue: the store shows it every batch and lets it commit. It never keeps
// values and never deletes a key that was written again in the meantime: each
// deletion is conditional on the revision that was to expire.
package expiry

import (
	"cmp"
	"container/heap"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/proxima-mesh/proxima/internal/store"
)

// Deadline is when a key with this time to live expires: whole seconds, rounded
// up; the zero time for 0. It is free of a monotonic reading, so that it is the
// same after a restart.
func Deadline(now time.Time, ttl time.Duration) time.Time {
	if ttl <= 0 {
		return time.Time{}
	}
	if rest := ttl % time.Second; rest != 0 {
		ttl += time.Second - rest
	}
	return now.Add(ttl).Round(0).UTC()
}

// Commit is the store's own.
type Commit func(context.Context, store.Txn) (store.Revision, error)

// Queue of keys that expire. Safe for concurrent use.
type Queue struct {
	clock  clock.Clock
	logger *slog.Logger

	mu    sync.Mutex
	items items
	byKey map[string]*item
	wake  chan struct{}
}

// New makes an empty queue.
func New(c clock.Clock, logger *slog.Logger) *Queue {
	return &Queue{clock: c, logger: logger, byKey: make(map[string]*item), wake: make(chan struct{}, 1)}
}

// Observe takes note of committed events, in order. Does not block.
func (q *Queue) Observe(events []store.Event) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, e := range events {
		if e.Kind == store.Put && !e.Record.Expires.IsZero() {
			q.set(e.Record)
		} else if it, ok := q.byKey[e.Record.Key]; ok {
			heap.Remove(&q.items, it.index)
			delete(q.byKey, it.key)
		}
	}
}

func (q *Queue) set(r store.Record) {
	it, ok := q.byKey[r.Key]
	if ok {
		it.at, it.modified = r.Expires, r.Modified
		heap.Fix(&q.items, it.index)
	} else {
		it = &item{key: r.Key, at: r.Expires, modified: r.Modified}
		q.byKey[r.Key] = it
		heap.Push(&q.items, it)
	}
	if it.index == 0 {
		select {
		case q.wake <- struct{}{}:
		default: // a wake-up is pending
		}
	}
}

// retry is the pause after a commit that the medium refused.
const retry = time.Second

// Run deletes what is due until ctx ends or the store is closed.
func (q *Queue) Run(ctx context.Context, commit Commit) {
	for {
		due, next, some := q.due(q.clock.Now())
		wait := time.Duration(0)
		if len(due) > 0 {
			err := q.delete(ctx, commit, due)
			switch {
			case err == nil:
				continue
			case ctx.Err() != nil || errors.Is(err, store.ErrClosed):
				return
			}
			q.logger.Warn("expired keys could not be deleted, trying again", "keys", len(due), "error", err)
			next, some, wait = q.clock.Now().Add(retry), true, retry
		} else if some {
			wait = next.Sub(q.clock.Now())
		}
		if !q.sleep(ctx, some, next, wait) {
			return
		}
	}
}

// slack is how late a deletion may be because of time that passes while its timer
// is started.
const slack = time.Millisecond

// sleep waits for the next deadline, an earlier one, or the end.
func (q *Queue) sleep(ctx context.Context, timed bool, next time.Time, wait time.Duration) bool {
	var fire <-chan time.Time
	if timed {
		timer := q.clock.NewTimer(wait)
		defer func() { timer.Stop() }()
		// The clock may have moved between reading it and starting the timer.
		for {
			left := next.Sub(q.clock.Now())
			if left <= 0 {
				return ctx.Err() == nil
			}
			if left >= wait-slack {
				break
			}
			timer.Stop()
			wait = left
			timer = q.clock.NewTimer(wait)
		}
		fire = timer.C()
	}
	select {
	case <-fire:
	case <-q.wake:
	case <-ctx.Done():
		return false
	}
	return true
}

// most bounds the keys deleted in one transaction.
const most = 256

// due returns keys that are to be deleted now or, if there is none, the time of
// the next. They stay queued until their deletion is observed.
func (q *Queue) due(now time.Time) (due []item, next time.Time, some bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.items) == 0 {
		return nil, time.Time{}, false
	}
	if q.items[0].at.After(now) {
		return nil, q.items[0].at, true
	}
	// The heap's head is due; find more without disturbing it: a child is never
	// earlier than its parent.
	open := []int{0}
	for len(open) > 0 && len(due) < most {
		i := open[0]
		open = open[1:]
		if i >= len(q.items) || q.items[i].at.After(now) {
			continue
		}
		due = append(due, *q.items[i])
		open = append(open, 2*i+1, 2*i+2)
	}
	slices.SortFunc(due, func(a, b item) int {
		return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.modified, b.modified))
	})
	return due, time.Time{}, true
}

// delete removes the keys at once or, where one was written in the meantime,
// one by one.
func (q *Queue) delete(ctx context.Context, commit Commit, due []item) error {
	var conflict *store.ConflictError
	_, err := commit(ctx, deletion(due))
	if !errors.As(err, &conflict) {
		return err
	}
	for i := range due {
		_, err := commit(ctx, deletion(due[i:i+1]))
		switch {
		case errors.As(err, &conflict):
			q.drop(due[i])
		case err != nil:
			return err
		}
	}
	return nil
}

// drop forgets a deadline that a later write made void. If the write has one of
// its own, observing it puts the key back, before or after this.
func (q *Queue) drop(void item) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if it, ok := q.byKey[void.key]; ok && it.modified == void.modified {
		heap.Remove(&q.items, it.index)
		delete(q.byKey, it.key)
	}
}

func deletion(due []item) store.Txn {
	var txn store.Txn
	for _, it := range due {
		txn.Conditions = append(txn.Conditions, store.Condition{Key: it.key, Modified: it.modified})
		txn.Ops = append(txn.Ops, store.Op{Kind: store.Delete, Key: it.key})
	}
	return txn
}

type item struct {
	key      string
	modified store.Revision
	at       time.Time
	index    int
}

// items is a heap by time.
type items []*item

func (s items) Len() int           { return len(s) }
func (s items) Less(i, j int) bool { return s[i].at.Before(s[j].at) }
func (s items) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].index, s[j].index = i, j
}

func (s *items) Push(x any) {
	it := x.(*item)
	it.index = len(*s)
	*s = append(*s, it)
}

func (s *items) Pop() any {
	old := *s
	it := old[len(old)-1]
	old[len(old)-1] = nil
	*s = old[:len(old)-1]
	return it
}
