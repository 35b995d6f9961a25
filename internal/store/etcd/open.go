package etcd

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/proxima-mesh/proxima/internal/store"
)

// prepare reads meta/, which it makes if the state is new. at is etcd's revision.
func (s *Store) prepare(ctx context.Context) (m meta, at int64, err error) {
	epoch := make([]byte, 16)
	_, _ = rand.Read(epoch)
	prefix := s.target.prefix
	for try := 0; ; try++ {
		m, at, err = s.makeMeta(ctx, prefix, hex.EncodeToString(epoch))
		if err == nil || !unavailable(err) || ctx.Err() != nil || !s.reads.Again(ctx, try) {
			break
		}
	}
	s.reads.Over()
	return m, at, err
}

func (s *Store) makeMeta(ctx context.Context, prefix, epoch string) (m meta, at int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	// A comparison of a range holds if it holds for each key in it, so this one
	// means that there is none.
	unused := clientv3.Compare(clientv3.CreateRevision(prefix), "=", 0).WithPrefix()
	read := clientv3.OpGet(prefix+metaFolder, clientv3.WithPrefix())
	resp, err := s.client.Txn(ctx).If(unused).Then(
		clientv3.OpPut(prefix+epochKey, epoch),
		clientv3.OpPut(prefix+stateKey, state{Format: layoutFormat}.encode()),
		read,
	).Else(read).Commit()
	if err != nil {
		return m, 0, err
	}
	answer := resp.Responses[len(resp.Responses)-1].GetResponseRange()
	m, err = decodeMeta(prefix, answer.GetKvs())
	if err == nil && m.epochMod == 0 {
		err = &DamagedError{Key: prefix + epochKey, Detail: "it is missing, but there are other keys below the prefix"}
	}
	return m, resp.Header.GetRevision(), err
}

// load reads everything that the store keeps in memory: the revisions, sizes and
// deadlines of all records as they are at etcd's revision at. It replaces what
// was there.
func (s *Store) load(ctx context.Context) (at int64, err error) {
	for try := 0; ; try++ {
		at, err = s.loadOnce(ctx)
		switch {
		case err == nil:
			s.reads.Over()
			return at, nil
		case errors.Is(err, store.ErrCompacted) && try < 10: // while it was read
		case ctx.Err() != nil || !unavailable(err) || !s.reads.Again(ctx, try):
			return 0, err
		}
	}
}

func (s *Store) loadOnce(ctx context.Context) (at int64, err error) {
	m, at, err := s.readMeta(ctx)
	if err != nil {
		return 0, err
	}
	if err := s.acceptMeta(m); err != nil {
		return 0, err
	}
	v := &view{layout: newLayout(s.target.prefix, m.state.Generation), numbering: numbering{m.state.Base}}
	s.view.Store(v)
	if m.state.Base > 0 {
		s.raiseCompacted(v.end(m.stateMod)) // the restore
	}
	s.raiseCompacted(m.compacted)
	if err := s.findCompacted(ctx); err != nil {
		return 0, err
	}
	loaded, deadlines, err := s.scan(ctx, v, at)
	if err != nil {
		return 0, err
	}
	s.index.replace(loaded)
	s.expiry.Observe(deadlines)
	return at, nil
}

// scanPage is the number of records read at once.
const scanPage = 1000

// scan reads all records.
func (s *Store) scan(ctx context.Context, v *view, at int64) (loaded *index, deadlines []store.Event, err error) {
	loaded = newIndex()
	first, end := v.span("", "")
	for {
		resp, err := s.get(ctx, first, clientv3.WithRange(end), clientv3.WithLimit(scanPage), clientv3.WithRev(at))
		if err != nil {
			return nil, nil, contract(err)
		}
		for _, kv := range resp.Kvs {
			name, _ := v.name(kv.Key)
			record, _, err := v.record(name, kv)
			if err != nil {
				// Reads of this key fail; the others are served.
				s.logger.Error("a record cannot be read", "store", s.target.label, "error", err)
				continue
			}
			loaded.put(name, entry{mod: kv.ModRevision, created: record.Created, modified: record.Modified, known: at}, len(record.Value))
			if !record.Expires.IsZero() {
				record.Value = nil
				deadlines = append(deadlines, store.Event{Kind: store.Put, Record: record})
			}
		}
		if !resp.More {
			return loaded, deadlines, nil
		}
		first = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
	}
}
