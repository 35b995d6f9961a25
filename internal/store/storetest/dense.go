package storetest

import (
	"context"
	"fmt"
	"sort"
	"sync"

	"github.com/proxima-mesh/proxima/internal/store"
)

// dense presents a Sparse store as one without gaps, so that one set of checks
// is the contract of both. It watches all changes and counts them: the n-th is
// revision n. On the way it checks what a sparse store promises instead:
// revisions rise strictly, all answers use the same ones, and what is promised
// for a batch or page lies before the next change.
type dense struct {
	store.Store
	numbers *numbers
	done    chan struct{} // closed when the watch has ended
	stop    context.CancelFunc
}

// numbers are the changes of a store, over all of its restarts.
type numbers struct {
	mu      sync.Mutex
	changed chan struct{} // closed and replaced when anything changes
	ask     chan struct{} // requests a progress marker
	start   store.Revision
	changes []store.Revision // the first is number 1
	ends    []store.Revision // what the batch of each change promised
	seen    store.Revision   // all changes up to here are known
	err     error            // of the watch, or a promise that was not kept
	open    bool
}

// Dense presents a Sparse store as one without gaps, for other suites that count
// on those. It must be opened before the first change, and closing it closes the
// store. Any other store is returned as it is.
func Dense(ctx context.Context, s store.Store) (store.Store, error) {
	if !s.Properties().Sparse {
		return s, nil
	}
	return newDense(ctx, s, nil)
}

// newDense opens the view. numbers is nil for a new store.
func newDense(ctx context.Context, inner store.Store, n *numbers) (*dense, error) {
	now, err := inner.Revision(ctx)
	if err != nil {
		return nil, err
	}
	if n == nil {
		n = &numbers{start: now, seen: now, changed: make(chan struct{}), ask: make(chan struct{}, 1)}
	}
	running, stop := context.WithCancel(context.Background())
	w, err := inner.Watch(running, "", n.seen)
	if err != nil {
		stop()
		return nil, fmt.Errorf("watch all changes after %d: %w", n.seen, err)
	}
	n.mu.Lock()
	n.open, n.err = true, nil
	n.mu.Unlock()
	d := &dense{Store: inner, numbers: n, done: make(chan struct{}), stop: stop}
	go func() {
		defer close(d.done)
		defer stop()
		n.follow(w)
	}()
	return d, n.wait(ctx, now)
}

func (n *numbers) follow(w store.Watcher) {
	for more := true; more; {
		select {
		case b, ok := <-w.Batches():
			if more = ok; ok {
				n.take(b)
			}
		case <-n.ask:
			w.Progress()
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.open = false
	if n.err == nil {
		n.err = fmt.Errorf("the watch of all changes ended: %w", w.Err())
	}
	n.wake()
}

func (n *numbers) take(b store.Batch) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, e := range b.Events {
		if r := e.Record.Modified; r <= n.seen || r > b.Revision || (len(n.changes) > 0 && r <= n.changes[len(n.changes)-1]) {
			n.err = fmt.Errorf("revision %d comes in a batch of (%d, %d], after %v", r, n.seen, b.Revision, n.changes[max(0, len(n.changes)-1):])
		}
		n.changes = append(n.changes, e.Record.Modified)
		n.ends = append(n.ends, b.Revision)
	}
	if b.Revision < n.seen {
		n.err = fmt.Errorf("a batch promises %d after one that promised %d", b.Revision, n.seen)
	}
	n.seen = b.Revision
	n.wake()
}

func (n *numbers) wake() {
	close(n.changed)
	n.changed = make(chan struct{})
}

// wait until all changes up to a revision are known.
func (n *numbers) wait(ctx context.Context, revision store.Revision) error {
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	for {
		n.mu.Lock()
		known, changed, err, open := n.seen >= revision, n.changed, n.err, n.open
		n.mu.Unlock()
		switch {
		case err != nil && open:
			return err
		case known:
			return nil
		case !open:
			return fmt.Errorf("revision %d is not known: %w", revision, err)
		}
		// There may be no more changes before the revision.
		select {
		case n.ask <- struct{}{}:
		default:
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("revision %d is not known: %w", revision, ctx.Err())
		}
	}
}

// number is that of the last change up to a revision of the store.
func (n *numbers) number(r store.Revision) store.Revision {
	n.mu.Lock()
	defer n.mu.Unlock()
	return store.Revision(sort.Search(len(n.changes), func(i int) bool { return n.changes[i] > r }))
}

// exact is the number of a change.
func (n *numbers) exact(r store.Revision) (store.Revision, error) {
	if r == 0 {
		return 0, nil
	}
	number := n.number(r)
	if number == 0 || n.of(number) != r {
		return 0, fmt.Errorf("revision %d is of no change that was watched", r)
	}
	return number, nil
}

// of is the store's revision of a number; the beginning for 0.
func (n *numbers) of(number store.Revision) store.Revision {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch count := store.Revision(len(n.changes)); {
	case number == 0:
		return n.start
	case number <= count:
		return n.changes[number-1]
	default:
		return n.seen + number - count // in the future
	}
}

// end is of for the last change of a batch: what that promised.
func (n *numbers) end(number store.Revision) store.Revision {
	of := n.of(number)
	n.mu.Lock()
	defer n.mu.Unlock()
	if i := int(number); i > 0 && i <= len(n.changes) && (i == len(n.changes) || n.ends[i] != n.ends[i-1]) {
		return n.ends[i-1]
	}
	return of
}
