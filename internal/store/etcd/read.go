package etcd

import (
	"context"
	"errors"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/proxima-mesh/proxima/internal/store"
)

// get is one linearizable read.
func (s *Store) get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	known := s.seen.Load()
	resp, err := s.client.Get(ctx, key, opts...)
	if err != nil {
		return nil, err
	}
	return resp, s.accept(resp.Header.GetRevision(), known)
}

// saw notes the newest revision.
func (s *Store) saw(revision int64) {
	for {
		old := s.seen.Load()
		if revision <= old || s.seen.CompareAndSwap(old, revision) {
			return
		}
	}
}

// accept takes note of etcd's revision in an answer to a linearizable request.
// known was seen before the request was made: an answer behind it is of another
// history, and ends the store.
func (s *Store) accept(revision, known int64) error {
	if revision < known {
		err := wentBack(s.target.prefix, revision, known)
		s.end(err)
		return err
	}
	s.saw(revision)
	return nil
}

// readMeta reads meta/ at etcd's revision at.
func (s *Store) readMeta(ctx context.Context) (m meta, at int64, err error) {
	resp, err := s.get(ctx, s.target.prefix+metaFolder, clientv3.WithPrefix())
	if err != nil {
		return m, 0, err
	}
	m, err = decodeMeta(s.target.prefix, resp.Kvs)
	return m, resp.Header.GetRevision(), err
}

// acceptMeta ends the store if meta/ is that of another history.
func (s *Store) acceptMeta(m meta) error {
	if m.epochMod == 0 {
		err := &ReplacedError{
			Detail: "there is no key " + s.target.prefix + epochKey + " any more",
			Hint:   hintGone,
		}
		s.end(err)
		return err
	}
	if m.epoch != s.epoch {
		err := s.otherEpoch(m.epoch)
		s.end(err)
		return err
	}
	s.raiseEpochMod(m.epochMod)
	return nil
}

// hintGone is for a state whose keys were deleted.
const hintGone = "restore a backup, or delete the rest of the prefix and start again to begin with an empty state"

func (s *Store) otherEpoch(now string) *ReplacedError {
	return &ReplacedError{
		Detail: fmt.Sprintf("its epoch is %.40q, it was %s", now, s.epoch),
		Hint:   "start again to go on with the new history",
	}
}

func (s *Store) raiseEpochMod(mod int64) {
	for {
		old := s.epochMod.Load()
		if mod <= old || s.epochMod.CompareAndSwap(old, mod) {
			return
		}
	}
}

// await blocks until the hub has published etcd's revision, so that what was read
// can be watched from.
func (s *Store) await(ctx context.Context, revision int64) error {
	end := s.view.Load().end(revision)
	if s.hub.Revision() >= end {
		return nil
	}
	wake(s.root.wish)
	return s.hub.Await(ctx, end)
}

// read calls f, which makes one request, until it has an answer or another try is
// of no use. Errors of the contract pass unchanged.
func (s *Store) read(ctx context.Context, op string, f func(context.Context, *view) (at int64, err error)) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	ctx, cancel := s.bound(ctx)
	defer cancel()
	for try := 0; ; try++ {
		at, err := f(ctx, s.view.Load())
		err = contract(err)
		switch {
		case err == nil:
			s.reads.Over()
			if err := s.await(ctx, at); err != nil {
				return s.failed(ctx, op, err)
			}
			return nil
		case errors.Is(err, store.ErrCompacted) || errors.Is(err, store.ErrFuture):
			return err
		case ctx.Err() != nil || !unavailable(err) || !s.reads.Again(ctx, try):
			return s.failed(ctx, op, err)
		}
	}
}

// bound ends a caller's context with the store.
func (s *Store) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.running, cancel)
	return ctx, func() { stop(); cancel() }
}

// at maps a requested revision to etcd's, and to the one that the answer is
// of: a read inside of a transaction answers at its end.
func (s *Store) at(v *view, revision store.Revision) (etcd int64, read store.Revision, err error) {
	if revision == 0 {
		return 0, 0, nil
	}
	if revision < s.Compacted() {
		return 0, 0, store.ErrCompacted
	}
	etcd, _ = v.split(revision)
	etcd = max(1, etcd) // 0 would be the newest; etcd begins at 1
	return etcd, v.end(etcd), nil
}

// Get implements store.Store.
func (s *Store) Get(ctx context.Context, key string, at store.Revision) (rec store.Record, ok bool, read store.Revision, err error) {
	err = s.read(ctx, "get", func(ctx context.Context, v *view) (int64, error) {
		rev, end, err := s.at(v, at)
		if err != nil {
			return 0, err
		}
		resp, err := s.get(ctx, v.key(key), clientv3.WithRev(rev))
		if err != nil {
			return 0, err
		}
		now := resp.Header.GetRevision()
		if read = end; at == 0 {
			read = v.end(now)
		}
		if ok = len(resp.Kvs) == 1; ok {
			rec, _, err = v.record(key, resp.Kvs[0])
		}
		return now, err
	})
	if err != nil {
		return store.Record{}, false, 0, err
	}
	return rec, ok, read, nil
}

// List implements store.Store.
func (s *Store) List(ctx context.Context, opts store.ListOptions) (page store.Page, err error) {
	err = s.read(ctx, "list", func(ctx context.Context, v *view) (int64, error) {
		rev, end, err := s.at(v, opts.At)
		if err != nil {
			return 0, err
		}
		first, last := v.span(opts.Prefix, opts.From)
		resp, err := s.get(ctx, first, clientv3.WithRange(last), clientv3.WithRev(rev), clientv3.WithLimit(int64(opts.Limit)))
		if err != nil {
			return 0, err
		}
		now := resp.Header.GetRevision()
		page = store.Page{Revision: end, More: resp.More}
		if opts.At == 0 {
			page.Revision = v.end(now)
		}
		if resp.More {
			page.Remaining = resp.Count - int64(len(resp.Kvs))
		}
		page.Records = make([]store.Record, 0, len(resp.Kvs))
		for _, kv := range resp.Kvs {
			name, _ := v.name(kv.Key)
			record, _, err := v.record(name, kv)
			if err != nil {
				return 0, err
			}
			if opts.KeysOnly {
				record.Value = nil
			}
			page.Records = append(page.Records, record)
		}
		return now, nil
	})
	if err != nil {
		return store.Page{}, err
	}
	return page, nil
}

// Count implements store.Store.
func (s *Store) Count(ctx context.Context, prefix string) (n int64, err error) {
	err = s.read(ctx, "count", func(ctx context.Context, v *view) (int64, error) {
		first, end := v.span(prefix, "")
		resp, err := s.get(ctx, first, clientv3.WithRange(end), clientv3.WithCountOnly())
		if err != nil {
			return 0, err
		}
		n = resp.Count
		return resp.Header.GetRevision(), nil
	})
	return n, err
}

// Revision implements store.Store. It reads etcd, as another instance may have
// committed. Writes to keys of others raise it, too.
func (s *Store) Revision(ctx context.Context) (revision store.Revision, err error) {
	err = s.read(ctx, "read the revision", func(ctx context.Context, v *view) (int64, error) {
		resp, err := s.get(ctx, v.prefix+epochKey, clientv3.WithCountOnly())
		if err != nil {
			return 0, err
		}
		now := resp.Header.GetRevision()
		revision = v.end(now)
		if resp.Count == 0 {
			return 0, s.acceptMeta(meta{})
		}
		return now, nil
	})
	return revision, err
}

// Size implements store.Store: the bytes of live values. etcd's database is
// larger, by history and envelopes.
func (s *Store) Size(ctx context.Context) (int64, error) {
	if _, err := s.Revision(ctx); err != nil { // what was committed before is in the index then
		return 0, err
	}
	return s.index.size(), nil
}
