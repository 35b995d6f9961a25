package faulty

import (
	"context"
	"errors"
	"sync"

	"github.com/proxima-mesh/proxima/internal/store"
)

// Retrying is a faulty store as a correct caller uses it: it tries again after an
// injected fault, and resumes a watch that a fault ended. It keeps the whole
// contract, so the contract's suite can be run on it.
type Retrying struct{ *Store }

var _ store.Store = Retrying{}

// again calls until the outcome is no injected fault.
func again(call func() error) error {
	for {
		if err := call(); !errors.Is(err, ErrInjected) {
			return err
		}
	}
}

// Get implements store.Store.
func (p Retrying) Get(ctx context.Context, key string, at store.Revision) (rec store.Record, ok bool, read store.Revision, err error) {
	err = again(func() (err error) { rec, ok, read, err = p.Store.Get(ctx, key, at); return err })
	return rec, ok, read, err
}

// List implements store.Store.
func (p Retrying) List(ctx context.Context, opts store.ListOptions) (page store.Page, err error) {
	err = again(func() (err error) { page, err = p.Store.List(ctx, opts); return err })
	return page, err
}

// Count implements store.Store.
func (p Retrying) Count(ctx context.Context, prefix string) (n int64, err error) {
	err = again(func() (err error) { n, err = p.Store.Count(ctx, prefix); return err })
	return n, err
}

// Commit implements store.Store. An injected fault did nothing, so trying again
// applies the transaction once.
func (p Retrying) Commit(ctx context.Context, txn store.Txn) (rev store.Revision, err error) {
	err = again(func() (err error) { rev, err = p.Store.Commit(ctx, txn); return err })
	return rev, err
}

// Revision implements store.Store.
func (p Retrying) Revision(ctx context.Context) (rev store.Revision, err error) {
	err = again(func() (err error) { rev, err = p.Store.Revision(ctx); return err })
	return rev, err
}

// Compact implements store.Store.
func (p Retrying) Compact(ctx context.Context, upTo store.Revision) error {
	return again(func() error { return p.Store.Compact(ctx, upTo) })
}

// Size implements store.Store.
func (p Retrying) Size(ctx context.Context) (size int64, err error) {
	err = again(func() (err error) { size, err = p.Store.Size(ctx); return err })
	return size, err
}

// Ready implements store.Store.
func (p Retrying) Ready(ctx context.Context) error {
	return again(func() error { return p.Store.Ready(ctx) })
}

// Watch implements store.Store.
func (p Retrying) Watch(ctx context.Context, prefix string, after store.Revision) (store.Watcher, error) {
	inner, err := p.begin(ctx, prefix, after)
	if err != nil {
		return nil, err
	}
	w := &resumed{inner: inner, out: make(chan store.Batch), gone: make(chan struct{})}
	go w.run(ctx, p, prefix, after)
	return w, nil
}

func (p Retrying) begin(ctx context.Context, prefix string, after store.Revision) (w store.Watcher, err error) {
	err = again(func() (err error) { w, err = p.Store.Watch(ctx, prefix, after); return err })
	return w, err
}

// resumed is a watch that resumes after faults.
type resumed struct {
	out   chan store.Batch
	gone  chan struct{} // Close was called
	close sync.Once

	mu                sync.Mutex
	inner             store.Watcher
	progressRequested bool // a progress marker
	err               error
}

func (w *resumed) run(ctx context.Context, p Retrying, prefix string, after store.Revision) {
	defer close(w.out)
	for {
		w.mu.Lock()
		inner := w.inner
		w.mu.Unlock()
		for b := range inner.Batches() {
			select {
			case w.out <- b:
				after = max(after, b.Revision)
				w.delivered(b)
			case <-w.gone:
				return
			}
		}
		err := inner.Err()
		if errors.Is(err, ErrInjected) {
			if inner, err = p.begin(ctx, prefix, after); err == nil && w.goOn(inner) {
				continue
			}
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		select {
		case <-w.gone: // Err stays nil
		default:
			w.err = err
		}
		return
	}
}

// goOn with another watcher, unless Close was called.
func (w *resumed) goOn(inner store.Watcher) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-w.gone:
		inner.Close()
		return false
	default:
	}
	w.inner = inner
	if w.progressRequested {
		inner.Progress()
	}
	return true
}

func (w *resumed) delivered(b store.Batch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.progressRequested = w.progressRequested && len(b.Events) > 0
}

// Batches implements store.Watcher.
func (w *resumed) Batches() <-chan store.Batch { return w.out }

// Progress implements store.Watcher.
func (w *resumed) Progress() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.progressRequested = true
	w.inner.Progress()
}

// Err implements store.Watcher.
func (w *resumed) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// Close implements store.Watcher.
func (w *resumed) Close() {
	w.close.Do(func() {
		w.mu.Lock()
		close(w.gone)
		inner := w.inner
		w.mu.Unlock()
		inner.Close()
	})
	for range w.out { //nolint:revive // drains until run has ended
	}
}
