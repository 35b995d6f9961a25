package etcd

import (
	"context"
	"errors"
	"strconv"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/proxima-mesh/proxima/internal/store"
)

// Compact implements store.Store. It compacts etcd as a whole, thus the history
// of other programs in the same cluster too. A compaction to the end of a
// transaction compacts etcd to it; one to a revision inside a transaction leaves
// that transaction in etcd, as a watch after the revision must stay possible.
func (s *Store) Compact(ctx context.Context, upTo store.Revision) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	if upTo <= s.Compacted() {
		return nil
	}
	now, err := s.Revision(ctx)
	switch {
	case err != nil:
		return err
	case upTo > now:
		return store.ErrFuture
	}
	// Other instances, and this one after a restart, have it from here. In a full
	// database that is not possible, and compaction is the way out of that.
	if err := s.declareCompacted(ctx, upTo); err != nil && !errors.Is(err, rpctypes.ErrNoSpace) {
		return s.failed(ctx, "compact", err)
	}
	s.raiseCompacted(upTo)
	at, index := s.view.Load().split(upTo)
	if index < lastIndex {
		at--
	}
	if at < 1 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	// ErrCompacted is etcd's answer to a compaction that was done before.
	if _, err := s.client.Compact(ctx, at); err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
		return s.failed(ctx, "compact", err)
	}
	return nil
}

// declareCompacted raises meta/compacted.
func (s *Store) declareCompacted(ctx context.Context, upTo store.Revision) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	for {
		m, _, err := s.readMeta(ctx)
		if err == nil {
			err = s.acceptMeta(m)
		}
		if err != nil {
			return err
		}
		s.raiseCompacted(m.compacted)
		if m.compacted >= upTo {
			return nil
		}
		key := s.target.prefix + compactKey
		resp, err := s.client.Txn(ctx).If(
			clientv3.Compare(clientv3.ModRevision(key), "=", m.compactedMod),
			clientv3.Compare(clientv3.ModRevision(s.target.prefix+epochKey), "=", m.epochMod),
		).Then(clientv3.OpPut(key, strconv.FormatInt(int64(upTo), 10))).Commit()
		if err != nil || resp.Succeeded {
			return err
		}
	}
}
