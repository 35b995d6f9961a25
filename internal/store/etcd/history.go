package etcd

import (
	"context"
	"errors"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/proxima-mesh/proxima/internal/store"
)

const (
	// historyEvents and historyBytes bound what a watcher reads at once, apart from
	// what etcd's last response has beyond that. A stream from the past costs etcd
	// a read of everything since, so pages are large.
	historyEvents = 8192
	historyBytes  = 16 << 20
	// concurrentHistories bounds the streams from the past.
	concurrentHistories = 4
)

// History implements watch.Source. It returns the changes of all keys, as a
// watch on some would number them differently; the hub drops the others.
func (s *Store) History(
	ctx context.Context, _ string, after, until store.Revision,
) (batches []store.Batch, done store.Revision, err error) {
	select {
	case s.histories <- struct{}{}:
	case <-ctx.Done():
		return nil, 0, ctx.Err()
	}
	defer func() { <-s.histories }()
	for try := 0; ; try++ {
		batches, done, err = s.history(ctx, after, until)
		if err == nil || ctx.Err() != nil || !unavailable(err) || !s.reads.Again(ctx, try) {
			break
		}
	}
	if err != nil && !errors.Is(err, store.ErrCompacted) {
		err = s.failed(ctx, "read history", err)
	}
	return batches, done, err
}

func (s *Store) history(ctx context.Context, after, until store.Revision) (batches []store.Batch, done store.Revision, err error) {
	v := s.view.Load()
	if after < s.Compacted() {
		return nil, 0, store.ErrCompacted
	}
	first, index := v.split(after)
	if index == lastIndex {
		first++
	}
	last, _ := v.split(until)
	// One revision earlier than needed, see root.follow.
	w, err := s.watchKeys(ctx, s.target.prefix, clientv3.GetPrefixRangeEnd(s.target.prefix), max(1, first-1))
	if err != nil {
		return nil, 0, err
	}
	defer w.close()
	defer w.askAgain()()
	events, bytes := 0, 0
	for {
		received, progress, err := w.receive()
		var compacted *compactedError
		if errors.As(err, &compacted) {
			s.raiseCompacted(v.end(compacted.revision))
		}
		if err != nil {
			return nil, 0, err
		}
		for _, t := range transactions(received) {
			if t.mod < first || t.mod > last {
				continue
			}
			decoded, err := v.decode(t, func(error) {}) // the root watch has reported it
			if err != nil {
				return nil, 0, err
			}
			done = v.end(t.mod)
			if len(decoded) > 0 {
				batches = append(batches, store.Batch{Events: decoded, Revision: done})
			}
			for _, e := range decoded {
				events++
				bytes += len(e.Record.Value)
			}
		}
		if n := len(received); progress >= last || (n > 0 && received[n-1].Kv.ModRevision >= last) {
			return batches, until, nil
		}
		if events >= historyEvents || bytes >= historyBytes {
			return batches, done, nil
		}
	}
}
