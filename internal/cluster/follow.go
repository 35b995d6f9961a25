package cluster

import (
	"context"
	"errors"
	"time"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/store"
)

// readTimeout bounds one read of the records.
const readTimeout = 5 * time.Second

// follow keeps the candidate up to date until ctx ends.
func (e *Election) follow(ctx context.Context) {
	backoff.Retry(ctx, retryPolicy, e.watch, func(err error, delay time.Duration) {
		e.cfg.Logger.Warn("the leadership is not followed", "error", err, "retry_in", delay)
	})
}

// watch follows the records until the watch ends.
func (e *Election) watch(ctx context.Context) error {
	at, err := e.readAll(ctx)
	if err != nil {
		return err
	}
	w, err := e.cfg.Store.Watch(ctx, leaderPrefix, at)
	if err != nil {
		return err
	}
	defer w.Close()
	for batch := range w.Batches() {
		// A batch may have both records, or one.
		if len(batch.Events) == 0 {
			continue
		}
		if err := e.apply(batch.Events); err != nil {
			return err
		}
	}
	return errors.Join(errors.New("the watch ended"), w.Err())
}

// read reads the records once.
func (e *Election) read(ctx context.Context) error {
	_, err := e.readAll(ctx)
	return err
}

func (e *Election) readAll(ctx context.Context) (store.Revision, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	page, err := e.cfg.Store.List(ctx, store.ListOptions{Prefix: leaderPrefix})
	if err != nil {
		return 0, err
	}
	var (
		t    Term
		l    lease
		revs [2]store.Revision
	)
	for _, rec := range page.Records {
		var err error
		switch rec.Key {
		case termKey:
			revs[0], err = rec.Modified, decode(rec, &t)
		case leaseKey:
			revs[1], err = rec.Modified, decode(rec, &l)
		}
		if err != nil {
			return 0, err
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.candidate.observe(t, revs[0], l, revs[1], time.Now())
	e.signal()
	return page.Revision, nil
}

// apply changes the records as a batch of events says.
func (e *Election) apply(events []store.Event) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := &e.candidate
	t, termRev, l, leaseRev := c.term, c.termRev, c.lease, c.leaseRev
	for _, event := range events {
		rec := event.Record
		var err error
		switch {
		case event.Kind == store.Delete:
			// Nobody deletes records. If somebody does, all is read again.
			return errors.New("the record " + rec.Key + " was deleted")
		case rec.Key == termKey:
			t = Term{}
			termRev, err = rec.Modified, decode(rec, &t)
		case rec.Key == leaseKey:
			l = lease{}
			leaseRev, err = rec.Modified, decode(rec, &l)
		}
		if err != nil {
			return err
		}
	}
	c.observe(t, termRev, l, leaseRev, time.Now())
	e.signal()
	return nil
}
