package etcd

import (
	"context"
	"errors"
	"fmt"
	"iter"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/proxima-mesh/proxima/internal/store"
)

// Restore implements store.Restorer. It writes the records into the next
// generation, in as many transactions as it takes, and then switches to that in
// one. Whatever ends it before leaves the state as it was; the next Restore
// removes what is left over. The store is then at a revision above at, as etcd's
// own revision goes on.
func (s *Store) Restore(ctx context.Context, at store.Revision, records iter.Seq2[store.Record, error]) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	ctx, cancel := s.bound(ctx)
	defer cancel()
	m, _, err := s.readMeta(ctx)
	if err == nil {
		err = s.acceptMeta(m)
	}
	if err != nil {
		return s.failed(ctx, "restore", err)
	}
	if err := s.neverWritten(ctx, m); err != nil {
		return err
	}
	next := m.state
	next.Generation++
	next.Base = (at | lastIndex) + 1
	r := &restoration{store: s, layout: newLayout(s.target.prefix, next.Generation), id: s.writer}
	if err := r.clear(ctx); err != nil {
		return s.failed(ctx, "restore", err)
	}
	for record, err := range store.CheckRestored(at, records) {
		if err != nil {
			return err // of the records
		}
		if err := r.add(ctx, record); err != nil {
			return s.failed(ctx, "restore", err)
		}
	}
	if err := r.flush(ctx); err != nil {
		return s.failed(ctx, "restore", err)
	}
	return s.switchTo(ctx, m, next)
}

// neverWritten checks that the state has no history of its own.
func (s *Store) neverWritten(ctx context.Context, m meta) error {
	v := s.view.Load()
	first, end := v.span("", "")
	resp, err := s.get(ctx, first, clientv3.WithRange(end), clientv3.WithCountOnly())
	if err != nil {
		return s.failed(ctx, "restore", err)
	}
	if resp.Count > 0 || m.state.Base > 0 {
		return store.ErrNotEmpty
	}
	// Records that were deleted are in the history, or that is compacted.
	since := v.end(m.stateMod)
	if s.Compacted() > since {
		return store.ErrNotEmpty
	}
	batches, _, err := s.history(ctx, since, v.end(resp.Header.GetRevision()))
	switch {
	case errors.Is(err, store.ErrCompacted):
		return store.ErrNotEmpty
	case err != nil:
		return s.failed(ctx, "restore", err)
	case len(batches) > 0:
		return store.ErrNotEmpty
	}
	return nil
}

// switchTo makes a generation the current one. Commits that are under way on the
// old one fail their comparison of meta/epoch.
func (s *Store) switchTo(ctx context.Context, m meta, next state) error {
	prefix := s.target.prefix
	old := newLayout(prefix, m.state.Generation)
	bound, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := s.client.Txn(bound).If(
		clientv3.Compare(clientv3.ModRevision(prefix+stateKey), "=", m.stateMod),
		clientv3.Compare(clientv3.CreateRevision(old.data), "=", 0).WithPrefix(),
	).Then(
		clientv3.OpPut(prefix+stateKey, next.encode()),
		clientv3.OpPut(prefix+epochKey, m.epoch),
		clientv3.OpDelete(prefix+compactKey),
	).Commit()
	switch {
	case err != nil && refused(err):
		return s.failed(ctx, "restore", err)
	case err != nil:
		return s.failed(ctx, "restore", &UnknownError{Err: err})
	case !resp.Succeeded:
		return store.ErrNotEmpty
	}
	// The root watch reads everything again when it gets there.
	wake(s.root.wish)
	return s.hub.Await(ctx, numbering{next.Base}.end(resp.Header.GetRevision()))
}

// restoration writes records in transactions that etcd accepts.
type restoration struct {
	store  *Store
	layout layout
	id     uint64
	ops    []clientv3.Op
	bytes  int
}

// clear removes what a restore left that was cut off.
func (r *restoration) clear(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := r.store.client.Delete(ctx, r.layout.data, clientv3.WithPrefix())
	return err
}

func (r *restoration) add(ctx context.Context, record store.Record) error {
	value := envelope{
		created: record.Created, modified: record.Modified, expires: record.Expires, commit: commitID{writer: r.id},
	}.encode(record.Value)
	size := len(record.Key) + len(value) + perKeyBytes
	if len(r.ops) == maxOps || (len(r.ops) > 0 && r.bytes+size > maxGroupBytes) {
		if err := r.flush(ctx); err != nil {
			return err
		}
	}
	r.ops = append(r.ops, clientv3.OpPut(r.layout.key(record.Key), value))
	r.bytes += size
	return nil
}

// flush tries again after errors: the same puts twice do no harm.
func (r *restoration) flush(ctx context.Context) error {
	if len(r.ops) == 0 {
		return nil
	}
	for try := 0; ; try++ {
		bound, cancel := context.WithTimeout(ctx, callTimeout)
		_, err := r.store.client.Txn(bound).Then(r.ops...).Commit()
		cancel()
		switch {
		case err == nil:
			r.store.writes.Over()
			r.ops, r.bytes = r.ops[:0], 0
			return nil
		case ctx.Err() != nil || !unavailable(err) || !r.store.writes.Again(ctx, try):
			if limit := tooLarge(err); limit != nil {
				err = limit
			}
			return fmt.Errorf("write %d records: %w", len(r.ops), err)
		}
	}
}
