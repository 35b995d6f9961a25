package etcd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/group"
	"github.com/proxima-mesh/proxima/internal/store/outage"
)

// resolve finds out whether an attempt was applied whose answer was lost. since
// is etcd's revision before it was sent. It returns nil if it was, the requests
// whose outcome has to be found by another try, the cause if it was not, and an
// *UnknownError if etcd gives no answer.
//
// The attempt may still be on its way to etcd. So meta/epoch is written first,
// which every attempt compares: the lost one was applied before, or never will
// be.
func (s *Store) resolve(ctx context.Context, a *attempt, since int64, cause error) (again []*group.Request, err error) {
	begin := time.Now()
	for try := 0; ; try++ {
		fenced, err := s.fence(ctx)
		var at int64
		var applied bool
		if err == nil {
			at, applied, err = s.lookUp(ctx, a, since, fenced)
		}
		var unknown *UnknownError
		switch {
		case err == nil && applied:
			return a.recovered(s, at), nil
		case err == nil:
			return nil, cause
		case errors.As(err, &unknown):
			return nil, &UnknownError{Err: fmt.Errorf("%w; %w", cause, unknown.Err)}
		case ctx.Err() != nil || !unavailable(err) || time.Since(begin) > s.opts.Timeout || !backoff.Sleep(ctx, outage.Retry.After(try+1)):
			return nil, &UnknownError{Err: fmt.Errorf("%w; looking it up: %w", cause, err)}
		}
	}
}

// fence writes meta/epoch as it is. It returns etcd's revision of that.
func (s *Store) fence(ctx context.Context) (at int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	key := s.target.prefix + epochKey
	resp, err := s.client.Txn(ctx).
		If(clientv3.Compare(clientv3.Value(key), "=", s.epoch)).
		Then(clientv3.OpPut(key, s.epoch)).
		Else(clientv3.OpGet(s.target.prefix+metaFolder, clientv3.WithPrefix())).Commit()
	if err != nil {
		return 0, err
	}
	at = resp.Header.GetRevision()
	if resp.Succeeded {
		s.raiseEpochMod(at)
		return at, nil
	}
	m, err := decodeMeta(s.target.prefix, resp.Responses[0].GetResponseRange().GetKvs())
	if err == nil {
		err = s.acceptMeta(m)
	}
	if err == nil { // an epoch with spaces around it, which were put there by hand
		err = &DamagedError{Key: key, Detail: "it has white space"}
	}
	return 0, err
}

// lookUp reads whether an attempt was applied before etcd's revision fenced.
func (s *Store) lookUp(ctx context.Context, a *attempt, since, fenced int64) (at int64, applied bool, err error) {
	unchanged, at, err := s.inspect(ctx, a, fenced)
	if err != nil || at != 0 {
		return at, at != 0, err
	}
	if unchanged {
		return 0, false, nil
	}
	// Others have changed the keys since; the history has what was before that.
	return s.searchHistory(ctx, a, since, fenced)
}

// inspect reads the keys of an attempt. at is where it was applied, if that is
// seen; unchanged: it was not applied for sure.
func (s *Store) inspect(ctx context.Context, a *attempt, fenced int64) (unchanged bool, at int64, err error) {
	for _, c := range a.changes {
		resp, err := s.get(ctx, a.view.key(c.op.Key), clientv3.WithRev(fenced))
		if err != nil {
			return false, 0, contract(err)
		}
		before := a.keys[c.op.Key].mod
		if len(resp.Kvs) == 0 {
			// An absent key may have been made and deleted again; it decides nothing.
			continue
		}
		kv := resp.Kvs[0]
		if kv.ModRevision == before {
			return true, 0, nil
		}
		if e, _, err := decodeEnvelope(kv.Value); err == nil && e.commit == a.id {
			return false, kv.ModRevision, nil
		}
	}
	return false, 0, nil
}

// searchHistory searches for an attempt among the changes after etcd's revision
// since, up to fenced.
func (s *Store) searchHistory(ctx context.Context, a *attempt, since, fenced int64) (at int64, applied bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	w, err := s.watchKeys(ctx, s.target.prefix, clientv3.GetPrefixRangeEnd(s.target.prefix), max(1, since))
	if err != nil {
		return 0, false, err
	}
	defer w.close()
	defer w.askAgain()()
	for {
		events, progress, err := w.receive()
		if errors.Is(err, store.ErrCompacted) {
			return 0, false, &UnknownError{Err: errors.New("others went on and compacted it since")}
		}
		if err != nil {
			return 0, false, err
		}
		for _, t := range transactions(events) {
			if t.mod <= since || t.mod > fenced {
				continue
			}
			ours, certain := a.matches(t)
			if ours && !certain {
				return 0, false, &UnknownError{Err: errors.New("the deletions were made, by this commit or by an equal one")}
			}
			if ours {
				return t.mod, true, nil
			}
		}
		if n := len(events); progress >= fenced || (n > 0 && events[n-1].Kv.ModRevision >= fenced) {
			return 0, false, nil
		}
	}
}

// matches compares a transaction of the history with an attempt. Without a put
// there is no commit ID, so an equal transaction of another instance cannot be
// distinguished.
func (a *attempt) matches(t transaction) (ours, certain bool) {
	if len(t.events) != len(a.changes) {
		return false, true
	}
	certain = false
	for i, e := range t.events {
		c := a.changes[i]
		isDelete := e.Type == mvccpb.Event_DELETE
		if string(e.Kv.Key) != a.view.key(c.op.Key) || isDelete != (c.op.Kind == store.Delete) {
			return false, true
		}
		if isDelete {
			continue
		}
		envelope, _, err := decodeEnvelope(e.Kv.Value)
		if err != nil || envelope.commit != a.id {
			return false, true
		}
		certain = true
	}
	return true, certain
}

// recovered leaves the outcomes of an attempt that was applied at etcd's revision
// at. Requests that change nothing lack what the lost answer had; they are
// returned for another try.
func (a *attempt) recovered(s *Store, at int64) (again []*group.Request) {
	var done []*group.Request
	for i, r := range a.requests {
		if v := a.verdict[i]; v.last >= 0 {
			r.Revision = a.view.revision(at, v.last)
			done = append(done, r)
		} else {
			again = append(again, r)
		}
	}
	a.learn(s, at)
	if len(again) > 0 {
		group.Answer(done)
	}
	return again
}
