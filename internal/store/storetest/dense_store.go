package storetest

import (
	"context"
	"errors"
	"sync"

	"github.com/proxima-mesh/proxima/internal/store"
)

// close ends the watch; the store stays open.
func (d *dense) close() {
	d.stop()
	<-d.done
}

// Close implements store.Store.
func (d *dense) Close() error {
	err := d.Store.Close()
	<-d.done
	return err
}

// known waits for a revision of the store and returns its number.
func (d *dense) known(ctx context.Context, r store.Revision) (store.Revision, error) {
	if err := d.numbers.wait(context.WithoutCancel(ctx), r); err != nil {
		return 0, err
	}
	return d.numbers.number(r), nil
}

// current makes all changes known that happened so far, so that a number that
// is not is in the future.
func (d *dense) current(ctx context.Context) error {
	_, err := d.Revision(ctx)
	return err
}

func (d *dense) record(r store.Record) (_ store.Record, err error) {
	if r.Created, err = d.numbers.exact(r.Created); err == nil {
		r.Modified, err = d.numbers.exact(r.Modified)
	}
	return r, err
}

func (d *dense) at(ctx context.Context, number store.Revision) (store.Revision, error) {
	if number == 0 {
		return 0, nil
	}
	return d.numbers.end(number), d.current(ctx)
}

// Revision implements store.Store.
func (d *dense) Revision(ctx context.Context) (store.Revision, error) {
	r, err := d.Store.Revision(ctx)
	if err != nil {
		return 0, err
	}
	w, err := d.Store.Watch(ctx, "", r) // what was read can be watched from
	if err != nil {
		return 0, err
	}
	w.Close()
	return d.known(ctx, r)
}

// Get implements store.Store.
func (d *dense) Get(ctx context.Context, key string, number store.Revision) (rec store.Record, ok bool, read store.Revision, err error) {
	at, err := d.at(ctx, number)
	if err != nil {
		return rec, false, 0, err
	}
	if rec, ok, read, err = d.Store.Get(ctx, key, at); err != nil {
		return rec, ok, read, err
	}
	if read, err = d.known(ctx, read); err == nil {
		rec, err = d.record(rec)
	}
	return rec, ok, read, err
}

// List implements store.Store.
func (d *dense) List(ctx context.Context, opts store.ListOptions) (page store.Page, err error) {
	if opts.At, err = d.at(ctx, opts.At); err != nil {
		return page, err
	}
	if page, err = d.Store.List(ctx, opts); err != nil {
		return page, err
	}
	if page.Revision, err = d.known(ctx, page.Revision); err != nil {
		return page, err
	}
	for i, r := range page.Records {
		if page.Records[i], err = d.record(r); err != nil {
			return page, err
		}
	}
	return page, nil
}

// Commit implements store.Store.
func (d *dense) Commit(ctx context.Context, txn store.Txn) (store.Revision, error) {
	given := txn.Conditions
	txn.Conditions = nil
	for _, c := range given {
		if c.Modified != 0 {
			c.Modified = d.numbers.of(c.Modified)
		}
		txn.Conditions = append(txn.Conditions, c)
	}
	r, err := d.Store.Commit(ctx, txn)
	var conflict *store.ConflictError
	if errors.As(err, &conflict) {
		return 0, d.conflict(ctx, conflict, given)
	}
	if err != nil {
		return 0, err
	}
	return d.known(ctx, r)
}

func (d *dense) conflict(ctx context.Context, err *store.ConflictError, given []store.Condition) error {
	dense := &store.ConflictError{Condition: err.Condition}
	for _, c := range given {
		inner := c
		if c.Modified != 0 {
			inner.Modified = d.numbers.of(c.Modified)
		}
		if inner == err.Condition { // there may be others on the same key
			dense.Condition = c
			break
		}
	}
	if err.Current != nil {
		if _, err := d.known(ctx, err.Current.Modified); err != nil {
			return err
		}
		current, err := d.record(*err.Current)
		if err != nil {
			return err
		}
		dense.Current = &current
	}
	return dense
}

// Compact implements store.Store.
func (d *dense) Compact(ctx context.Context, number store.Revision) error {
	if err := d.current(ctx); err != nil {
		return err
	}
	return d.Store.Compact(ctx, d.numbers.end(number))
}

// Compacted implements store.Store.
func (d *dense) Compacted() store.Revision { return d.numbers.number(d.Store.Compacted()) }

// Watch implements store.Store.
func (d *dense) Watch(ctx context.Context, prefix string, number store.Revision) (store.Watcher, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := d.current(ctx); err != nil {
		return nil, err
	}
	inner, err := d.Store.Watch(ctx, prefix, d.numbers.end(number))
	if err != nil {
		return nil, err
	}
	w := &denseWatcher{Watcher: inner, store: d, out: make(chan store.Batch), closed: make(chan struct{})}
	go w.run()
	return w, nil
}

// denseWatcher passes on batches with numbers.
type denseWatcher struct {
	store.Watcher
	store  *dense
	out    chan store.Batch
	closed chan struct{}
	once   sync.Once
	mu     sync.Mutex
	err    error
}

func (w *denseWatcher) Batches() <-chan store.Batch { return w.out }

func (w *denseWatcher) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return w.err
	}
	return w.Watcher.Err()
}

func (w *denseWatcher) Close() {
	w.once.Do(func() { close(w.closed) })
	w.Watcher.Close()
	for range w.out { //nolint:revive // until the goroutine has ended
	}
}

func (w *denseWatcher) run() {
	defer close(w.out)
	for b := range w.Watcher.Batches() {
		b, err := w.batch(b)
		if err != nil {
			w.mu.Lock()
			w.err = err
			w.mu.Unlock()
			return
		}
		select {
		case w.out <- b:
		case <-w.closed:
			return
		}
	}
}

func (w *denseWatcher) batch(b store.Batch) (store.Batch, error) {
	number, err := w.store.known(context.Background(), b.Revision)
	if err != nil {
		return b, err
	}
	events := b.Events
	b = store.Batch{Revision: number}
	for _, e := range events {
		if e.Record, err = w.store.record(e.Record); err != nil {
			return b, err
		}
		if e.Prev != nil {
			prev, err := w.store.record(*e.Prev)
			if err != nil {
				return b, err
			}
			e.Prev = &prev
		}
		b.Events = append(b.Events, e)
	}
	return b, nil
}
